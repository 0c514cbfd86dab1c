// Loss by context length: the same tokens scored at every length.
//
//   chunk   the first E positions of the stream (E a multiple of the largest length) are cut into sequences
//   of length L;
//           every position is scored once at every L.
//   suffix  the last S tokens of chosen documents are scored behind prefixes that make the sequence L tokens
//   long: the
//           scored tokens and their targets are the same, only the context grows.
//
// Several ranks: batch i of a length is run by rank i modulo the number of ranks. Rank 0 adds what all of
// them found, batch by batch in their order, so that no bit of a result depends on how many ranks there are.
//
// Every mean is a (sum, count) pair until the last division. The standard error comes from resampling
// documents.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "data/token_stream.h"
#include "eval/collector.h"
#include "eval/eval_config.h"
#include "eval/loss_sum.h"
#include "eval/pause.h"
#include "model/transformer.h"

namespace longreach {

struct LengthResult {
    int64_t length = 0;
    LossSum loss;
    LossSum hits;  // 1 for a scored token that is the model's most likely one, else 0
    double top1() const { return hits.mean(); }
    double standard_error = 0;  // of the mean, by document bootstrap
    int64_t documents = 0;
    // Bucket k holds the tokens with 2^k <= c < 2^(k+1), c the number of tokens the prediction can see:
    // counted from the start of the sequence, or from the start of the document if that is later.
    std::vector<LossSum> by_sequence, by_document;
    std::vector<float> token_losses;  // only if asked for; chunk order, NaN where not scored
};

// Somebody who looks at evaluations. What a rank saw of a batch goes to rank 0 as a list of numbers.
class BatchObserver : public ForwardObserver {
  public:
    // The batch that comes next begins with this one of the sequences of its length.
    virtual void begin(int64_t first_sequence) = 0;
    virtual std::vector<double> take() = 0;  // what was seen since begin()
    // On rank 0: what was taken of each batch, in the order of the batches.
    virtual void add(int64_t length, std::span<const double> seen) = 0;
};

struct EvalRequest {
    std::vector<int64_t> lengths;
    int64_t tokens = 0;  // scored per length at most; rounded down to what the stream and the lengths allow
    int64_t batch_tokens = 0;
    EvalAlign align = EvalAlign::chunk;
    int64_t suffix_tokens = 0;
    int64_t min_document = 0;
    bool document_mask = true;
    bool keep_token_losses = false;
    uint64_t seed = 0;                                 // of the bootstrap
    BatchObserver* observer = nullptr;                 // of every forward pass
    std::function<void(const std::string&)> progress;  // may be empty
    Pause* pause = nullptr;                            // null: nothing stops it
};
EvalRequest make_request(const EvalConfig& config, int64_t tokens, int64_t batch_tokens, bool document_mask);

class LengthEvaluator {
  public:
    // Throws what run() would throw: too short a stream, no document that qualifies.
    static void check_request(const TokenStream& stream, const EvalRequest& request);
    // Device buffers for the largest batch; plan like the model's.
    void plan(Arena& arena, int64_t batch_tokens, bool document_mask, int rank = 0, int ranks = 1);
    // Called by all ranks with the same arguments; rank 0 gets the results, the others none.
    std::vector<LengthResult> run(Ops& ops, Comm& comm, Transformer& model, const FlatParams& weights,
                                  const TokenStream& stream, const EvalRequest& request) const;

  private:
    Tensor tokens_, targets_, doc_start_;
    Collector collector_;
};

// Standard error of sum/count over documents, by bootstrap.
double bootstrap_error(const std::vector<LossSum>& documents, uint64_t seed);

}  // namespace longreach
