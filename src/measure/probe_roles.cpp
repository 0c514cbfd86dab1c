#include "measure/probe_roles.h"

#include <algorithm>

#include "base/rng.h"
#include "measure/probe_sums.h"

namespace longreach::measure {

namespace {

constexpr int64_t longest_text = 256, most_sequences = 8;
constexpr uint32_t text_stream = 1000;  // of the permutations; one per sequence follows

// Mean weight of the watched keys by layer and head.
class RoleObserver final : public model::ForwardObserver {
  public:
    RoleObserver(const ProbeBuffers& buffers, int64_t period) : buffers_(buffers), period_(period) {}

    void attention(const model::StepContext& run, const model::AttentionView& view) override {
        const int64_t n = run.batch.count(), length = run.batch.length, heads = view.scores.heads;
        std::vector<int32_t> start(static_cast<size_t>(n)), keys(static_cast<size_t>(watched_keys * n), -1);
        if (view.scores.row_start) run.ops.download(start.data(), view.scores.row_start);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t at = i % length, first = start[static_cast<size_t>(i)];
            const auto watch = [&](int64_t which, int64_t key) {
                if (key >= first) keys[static_cast<size_t>(which * n + i)] = static_cast<int32_t>(key);
            };
            watch(0, at - 1);
            if (at >= period_) watch(1, at - period_ + 1);
        }
        const Tensor watched = buffers_.watched.shaped({watched_keys, n});
        const Tensor statistics = buffers_.statistics.shaped({row_statistics, heads, n});
        run.ops.upload(watched, keys.data());
        run.ops.attention_statistics(statistics, view.lse, view.q, view.k, watched, view.scores);
        std::vector<float> host(static_cast<size_t>(statistics.count()));
        run.ops.download(host.data(), statistics);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t which = 0; which < watched_keys; ++which) {
                const int64_t row = (static_cast<int64_t>(RowStatistic::watched) + which) * heads + h;
                Mean mean;
                for (int64_t i = 0; i < n; ++i)
                    if (keys[static_cast<size_t>(which * n + i)] >= 0)
                        mean.add(double{host[static_cast<size_t>(row * n + i)]});
                if (mean.count > 0)
                    rows.push_back({0, view.layer, h, 0, which == 0 ? "previous_score" : "induction_score",
                                    mean.sum / static_cast<double>(mean.count), mean.count});
            }
    }
    void block(const model::StepContext&, int64_t, const Tensor&) override {}

    std::vector<ProbeRow> rows;

  private:
    const ProbeBuffers& buffers_;
    int64_t period_;
};

}  // namespace

int64_t role_text(int64_t longest, int64_t vocab) {
    return std::min({longest_text, longest / 2, vocab});
}

std::vector<ProbeRow> probe_roles(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                                  const model::DeviceBatch& batch, const ProbeBuffers& buffers,
                                  const RoleRequest& request) {
    const int64_t vocab = model.config().vocab_size, period = role_text(request.longest, vocab);
    if (period < 2) return {};
    const int64_t length = 2 * period, sequences = std::min(most_sequences, request.longest / length);
    std::vector<int32_t> tokens;
    for (int64_t s = 0; s < sequences; ++s) {
        const Permutation shuffled(static_cast<uint64_t>(vocab), request.seed,
                                   text_stream + static_cast<uint32_t>(s));
        for (int64_t i = 0; i < length; ++i)
            tokens.push_back(static_cast<int32_t>(shuffled(static_cast<uint64_t>(i % period))));
    }
    const std::vector<int32_t> starts(request.document_mask ? tokens.size() : 0, 0);  // one document
    RoleObserver observer(buffers, period);
    model.use_length(ops, length);
    model.forward(ops, weights, batch.upload(ops, length, tokens, tokens, starts), &observer);
    model.use_length(ops, 0);
    return std::move(observer.rows);
}

}  // namespace longreach::measure
