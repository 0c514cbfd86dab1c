#include "mixers/channel_fading.h"

#include <algorithm>

#include "model/attention_score.h"

namespace longreach::model {

namespace {
constexpr ScoreRows sum_rows{.sums = true};
}  // namespace

ChannelFading::ChannelFading(ParamTable& table, const ModelConfig& model, int64_t layer)
    : sums_(std::make_shared<const ScoreLaw>(table, model, layer, layer_fading(model, layer))) {}

ChannelFading::Saved ChannelFading::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    return *this ? sums_->plan(arena, name + "fading.", tokens, sum_rows) : Saved();
}

ChannelFading::Buffers ChannelFading::plan_buffers(Arena& arena, const PassPlan& size,
                                                   const AttentionSpec& shape) const {
    Buffers b;
    if (!*this) return b;
    const int64_t longest = *std::max_element(size.lengths.begin(), size.lengths.end());
    b.sums = sums_->plan_buffers(arena, size.tokens, longest, sum_rows, size.training);
    int64_t floats = 0;
    for (const int64_t length : size.lengths) {
        const int64_t whole =
            std::max<int64_t>(1, size.tokens / length);  // less than one: a sequence in pieces
        floats = std::max(floats,
                          channel_floats(shape, std::max(whole, size.texts), std::max(size.tokens, length)));
    }
    b.keys = arena.reserve("faded_keys", DType::f32, {floats});
    return b;
}

ScoreLaw::Cache ChannelFading::plan_kept(KeptTexts& kept, const std::string& name) const {
    return *this ? sums_->plan_kept(kept, name + "fading.", sum_rows) : ScoreLaw::Cache();
}

void ChannelFading::apply(AttentionSpec& spec, StepContext& run, const Memory& memory, const Tensor& xn,
                          const LayerTables& tables, bool fill) const {
    if (fill) sums_->read(run, memory.saved, xn);
    AttentionSpec sums;
    sums_->apply(sums, run, tables.fading, {memory.saved, memory.buffers.sums, memory.cache}, run.position(),
                 fill);
    spec.channel_sums = sums.forget;
    spec.channel_memory = memory.buffers.keys;
}

Tensor ChannelFading::gradient(const Buffers& buffers, int64_t tokens) const {
    return *this ? sums_->gradients(buffers.sums, tokens).forget : Tensor();
}

void ChannelFading::backward(StepContext& run, const Memory& memory, const LayerTables& tables) const {
    const ScoreLaw::Buffers& buffers = memory.buffers.sums;
    sums_->backward(run, tables.fading, memory.saved, buffers, sums_->gradients(buffers, run.batch.count()),
                    Tensor());
}

void ChannelFading::backward_input(StepContext& run, Tensor dxn, const Buffers& buffers,
                                   const Tensor& xn) const {
    sums_->backward_input(run, dxn, buffers.sums, xn);
}

}  // namespace longreach::model
