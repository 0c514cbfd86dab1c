// A model, its weights, and a validation stream whose documents are known to the test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "data/shard_fixtures.h"
#include "eval/lengths.h"
#include "io/temp_dir.h"
#include "model/small_models.h"

namespace longreach::test {

inline constexpr int32_t marker = 18;  // the last token of tiny_model's vocabulary of 19

// A stream of documents of the given lengths, with the marker at one end of each.
struct Corpus {
    TempDir dir;
    Tokens tokens;
    std::vector<int64_t> begins;  // of each document
    data::TokenStream stream;

    explicit Corpus(const std::vector<int64_t>& lengths, data::BoundarySide side = data::BoundarySide::before)
        : stream(make(lengths, side)) {}

    int64_t document_of(int64_t position) const {
        int64_t d = 0;
        while (d + 1 < static_cast<int64_t>(begins.size()) && begins[static_cast<size_t>(d + 1)] <= position)
            ++d;
        return d;
    }
    int64_t begin_of(int64_t position) const { return begins[static_cast<size_t>(document_of(position))]; }
    int64_t end_of(int64_t position) const {
        const size_t next = static_cast<size_t>(document_of(position)) + 1;
        return next < begins.size() ? begins[next] : static_cast<int64_t>(tokens.size());
    }

  private:
    data::TokenStream make(const std::vector<int64_t>& lengths, data::BoundarySide side) {
        const Rng rng(17, Purpose::test);
        for (int64_t length : lengths) {
            begins.push_back(static_cast<int64_t>(tokens.size()));
            for (int64_t i = 0; i < length; ++i) {
                const bool is_marker = i == (side == data::BoundarySide::before ? 0 : length - 1);
                tokens.push_back(is_marker ? marker : static_cast<int32_t>(rng.below(tokens.size(), marker)));
            }
        }
        put(dir / "val.bin", packed<uint16_t>(tokens));
        data::StreamOptions options;
        options.shard = {true, 2};
        options.vocab = marker + 1;
        options.boundary_token = marker;
        options.side = side;
        return data::TokenStream::open({dir / "val.bin"}, options);
    }
};

class Bench {
  public:
    static constexpr uint64_t seed = 3;

    Bench(const model::ModelConfig& config, const eval::EvalRequest& request, int rank = 0, int ranks = 1)
        : ops_(make_cpu_ops({.threads = 1})), arena_(*ops_), model_(config, request.lengths.back()) {
        const int64_t longest = request.lengths.back(), piece = request.piece;
        const int64_t batch = std::max(request.batch_tokens, piece > 0 ? std::min(piece, longest) : longest);
        model::PlanSize size{batch, request.lengths};
        if (piece > 0 && longest > piece) size.piece = piece, size.room = longest;
        weights_ = model::plan_weights(arena_, model_.params());
        model_.plan_tables(arena_);
        evaluator_.plan(arena_, batch, request.document_mask || size.room > 0, rank, ranks);
        model_.plan_evaluation(arena_, *ops_, size, request.document_mask);
        arena_.commit();
        model_.fill_tables(*ops_);
        std::vector<float> host;
        model::initialise(model_.params(), seed, host);
        ops_->upload(weights_.flat, host.data());
        weights_.round(*ops_);
    }
    std::vector<eval::LengthResult> run(ranks::Comm& comm, const data::TokenStream& stream,
                                        const eval::EvalRequest& request) {
        return evaluator_.run(*ops_, comm, model_, weights_, stream, request);
    }

  private:
    std::unique_ptr<Ops> ops_;
    model::Arena arena_;
    model::Transformer model_;
    eval::LengthEvaluator evaluator_;
    model::FlatParams weights_;
};

inline std::vector<eval::LengthResult> evaluate(const model::ModelConfig& config, const Corpus& corpus,
                                                const eval::EvalRequest& request) {
    ranks::SingleComm comm;
    return Bench(config, request).run(comm, corpus.stream, request);
}

// A model whose prediction depends only on the last token: attention and MLP add nothing to the embedding.
inline model::ModelConfig last_token_model() {
    model::ModelConfig m = tiny_model(2);
    m.init.zero_projections = true;
    return m;
}

inline std::vector<int64_t> document_lengths(size_t count, int64_t shortest, int64_t longest,
                                             uint32_t stream = 0) {
    const Rng rng(23, Purpose::test, stream);
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < count; ++i)
        lengths.push_back(shortest +
                          static_cast<int64_t>(rng.below(i, static_cast<uint64_t>(longest - shortest + 1))));
    return lengths;
}

}  // namespace longreach::test
