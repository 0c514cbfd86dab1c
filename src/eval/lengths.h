// Loss by context length: the same tokens scored at every length.
//
//   chunk   windows of the largest length are cut into sequences of length L; every position of a window is
//           scored once at every L.
//   suffix  the last S tokens of chosen documents are scored after prefixes that make the sequence L tokens
//           long: the scored tokens and their targets stay the same, only the context grows.
//
// Windows and documents are spread evenly over the stream or taken from its head (EvalPick). A fingerprint
// identifies the scored tokens: two losses are comparable if theirs are equal.
//
// With several ranks, batch i of a length runs on rank i modulo the number of ranks. Rank 0 adds the
// findings of all batches in their order, so that no bit of a result depends on the number of ranks.
//
// Every mean is a (sum, count) pair until the last division.
// The standard error comes from resampling documents.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "data/token_stream.h"
#include "eval/collector.h"
#include "eval/eval_config.h"
#include "eval/loss_sum.h"
#include "eval/pause.h"
#include "model/device_batch.h"
#include "model/transformer.h"

namespace longreach::eval {

struct LengthResult {
    int64_t length = 0;
    LossSum loss;
    LossSum hits;  // 1 for a scored token that is the model's most likely one, else 0
    double top1() const { return hits.mean(); }
    // Of the mean, by document bootstrap; NaN with fewer than two documents or if they are unknown.
    double standard_error = std::numeric_limits<double>::quiet_NaN();
    double top1_error = std::numeric_limits<double>::quiet_NaN();  // of top1(), likewise

    int64_t documents = 0;     // 0: unknown
    uint64_t fingerprint = 0;  // of the scored tokens
    // Bucket k holds the tokens with 2^k <= c < 2^(k+1), c the number of tokens the prediction can see:
    // counted from the start of the sequence, or from the start of the document if that is later.
    std::vector<LossSum> by_sequence, by_document;
    std::vector<float> token_losses;  // only if asked for; chunk order, NaN where not scored
};

// Observes evaluation batches. The observations of a rank travel to rank 0 as a list of numbers.
class BatchObserver : public model::ForwardObserver {
  public:
    // Announces a batch by the index of its first sequence among those of its length.
    virtual void begin(int64_t first_sequence) = 0;
    virtual std::vector<double> take() = 0;  // the observations since begin()
    // On rank 0: the observations of each batch, in the order of the batches.
    virtual void add(int64_t length, std::span<const double> seen) = 0;
};

// Which tokens an evaluation scores, at every length.
struct ScoredTokens {
    EvalPick pick = EvalPick::spread;
    EvalAlign align = EvalAlign::chunk;
    int64_t windows = 0;        // suffix: documents whose end is scored
    int64_t window_tokens = 0;  // read in each; without min_document all of them are scored
    uint64_t choices = 0;       // windows in the stream, or documents that qualify
    int64_t min_document = 0;
    int64_t tokens = 0;     // scored
    int64_t documents = 0;  // the scored tokens come from; 0: unknown
    // XXH64 of the stream's fingerprint, the alignment and the scored positions: equal for the same tokens.
    uint64_t fingerprint = 0;
};

// The `count` of `cells` to evaluate, in rising order. spread: the middles of `count` equal parts,
// floor((2 i + 1) cells / (2 count)); head: the first ones.
std::vector<uint64_t> pick_cells(EvalPick pick, uint64_t count, uint64_t cells);

struct EvalRequest {
    std::vector<int64_t> lengths;
    int64_t tokens = 0;  // scored per length at most; rounded down to whole windows of the stream
    int64_t batch_tokens = 0;
    // Longer sequences are read one by one in pieces of this length; 0: as a whole.
    int64_t piece = 0;
    EvalPick pick = EvalPick::spread;
    EvalAlign align = EvalAlign::chunk;
    int64_t suffix_tokens = 0;
    int64_t min_document = 0;
    bool document_mask = true;
    bool keep_token_losses = false;
    uint64_t seed = 0;                                 // of the bootstrap
    BatchObserver* observer = nullptr;                 // of every forward pass
    std::function<void(const std::string&)> progress;  // may be empty
    Pause* pause = nullptr;                            // null: cannot be stopped
};
// Tokens of the pieces in which longer sequences are read; 0: all are read as a whole. Error(ExitCode::usage) if the
// config asks a GPU for pieces.
int64_t piece_of(const EvalConfig& config, const Ops& ops);
EvalRequest make_request(const EvalConfig& config, int64_t tokens, int64_t batch_tokens, bool document_mask);

class LengthEvaluator {
  public:
    // Throws what run() would throw: the stream is too short, no document qualifies.
    static ScoredTokens check_request(const data::TokenStream& stream, const EvalRequest& request);
    // Device buffers for the largest batch; call where the model is planned. documents: with a document mask, or in pieces.
    void plan(model::Arena& arena, int64_t batch_tokens, bool documents, int rank = 0, int ranks = 1);
    // Called by all ranks with the same arguments; rank 0 gets the results, the others none.
    std::vector<LengthResult> run(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                                  const model::FlatParams& weights, const data::TokenStream& stream,
                                  const EvalRequest& request) const;

  private:
    model::DeviceBatch batch_;
    Collector collector_;
};

// Standard errors over documents, by bootstrap, of the mean loss and of the share of hits; NaN for fewer than two
// documents. Both means are of the same resampled documents.
struct MeanErrors {
    double loss = std::numeric_limits<double>::quiet_NaN();
    double top1 = std::numeric_limits<double>::quiet_NaN();
};
MeanErrors bootstrap_errors(const std::vector<DocumentSums>& documents, uint64_t seed);

}  // namespace longreach::eval
