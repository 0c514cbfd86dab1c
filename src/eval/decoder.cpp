#include "eval/decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace longreach::eval {

void Decoder::plan(model::Arena& arena, Ops& ops) {
    arena.group("batch, generation");
    batch_.plan(arena, size_.pass_tokens(), {.targets = false});
    logits_ = arena.reserve("logits", DType::f32, {size_.sequences, model_.config().vocab_size});
    generator_.plan(arena, ops, size_.sequences, size_.pass_tokens(), size_.room);
}

const std::vector<int32_t>& Decoder::prefill(Ops& ops, const model::FlatParams& weights,
                                             const std::vector<int32_t>& tokens, int64_t sequences) {
    const int64_t count = static_cast<int64_t>(tokens.size());
    check(sequences >= 1 && sequences <= size_.sequences && count > 0 && count % sequences == 0 &&
              count / sequences <= size_.prompt && count <= size_.pass_tokens(),
          "{} tokens for {} prompts of at most {}, {} together", count, sequences, size_.prompt,
          size_.pass_tokens());
    sequences_ = sequences;
    position_ = 0;
    return pass(ops, weights, tokens, count / sequences);
}

const std::vector<int32_t>& Decoder::step(Ops& ops, const model::FlatParams& weights,
                                          const std::vector<int32_t>& tokens) {
    check(position_ > 0 && static_cast<int64_t>(tokens.size()) == sequences_, "{} tokens for {} texts",
          tokens.size(), sequences_);
    return pass(ops, weights, tokens, 1);
}

void Decoder::rewind(int64_t length) {
    check(can_rewind() && length >= 1 && length <= position_, "back to position {} from {}", length,
          position_);
    position_ = length;
}

const std::vector<int32_t>& Decoder::pass(Ops& ops, const model::FlatParams& weights,
                                          const std::vector<int32_t>& tokens, int64_t length) {
    check(position_ + length <= size_.room, "position {} of {}", position_ + length, size_.room);
    model_.use_length(ops, size_.text_length());
    generator_.run(ops, weights, batch_.upload(ops, length, tokens, {}, {}), {size_.room, position_});
    position_ += length;
    best_.resize(static_cast<size_t>(sequences_));
    ops.download(best_.data(), generator_.best(sequences_));
    require(std::find(best_.begin(), best_.end(), -1) == best_.end(), ExitCode::numerics,
            "after {} tokens the model's logits are not numbers", position_);
    return best_;
}

std::vector<float> Decoder::logits(Ops& ops) const {
    const Tensor logits = logits_.first_rows(sequences_);
    ops.copy(logits, generator_.logits(sequences_));
    std::vector<float> host(static_cast<size_t>(logits.count()));
    ops.download(host.data(), logits);
    for (float& x : host) x = static_cast<float>(model_.capped_logit(double{x}));
    return host;
}

int32_t sample_token(const float* logits, int64_t vocabulary, double temperature, int64_t top, double uniform,
                     double nucleus) {
    std::vector<int32_t> order(static_cast<size_t>(vocabulary));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (top > 0 && top < vocabulary) order.resize(static_cast<size_t>(top));
    std::vector<double> shares;
    double total = 0;
    for (int32_t v : order) {
        shares.push_back(std::exp((double{logits[v]} - double{logits[order[0]]}) / temperature));
        total += shares.back();
    }
    if (nucleus < 1) {
        double kept = 0;
        size_t count = 0;
        while (count < shares.size() && (count == 0 || kept < nucleus * total)) kept += shares[count++];
        order.resize(count);
        total = kept;
    }
    double left = uniform * total;
    for (size_t i = 0; i + 1 < order.size(); ++i) {
        if (left < shares[i]) return order[i];
        left -= shares[i];
    }
    return order.back();
}

}  // namespace longreach::eval
