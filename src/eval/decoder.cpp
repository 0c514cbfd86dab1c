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
                                             const std::vector<int32_t>& tokens, int64_t prompts,
                                             std::vector<int64_t> prompt_of) {
    const int64_t count = static_cast<int64_t>(tokens.size());
    check(prompts >= 1 && prompts <= size_.sequences && count > 0 && count % prompts == 0 &&
              count / prompts <= size_.prompt && count <= size_.pass_tokens(),
          "{} tokens for {} prompts of at most {}, {} together", count, prompts, size_.prompt,
          size_.pass_tokens());
    sequences_ = prompts;
    position_ = 0;
    prompt_of_.clear();
    pass(ops, weights, tokens, count / prompts);
    if (prompt_of.empty()) return best_;
    const int64_t texts = static_cast<int64_t>(prompt_of.size());
    check(texts <= size_.sequences, "{} texts of {}", texts, size_.sequences);
    // From the last on, so that a prompt is read before its place gets another one.
    for (int64_t b = texts - 1; b >= 0; --b) {
        const int64_t from = prompt_of[static_cast<size_t>(b)];
        check(from >= 0 && from <= b && from < prompts, "text {} continues prompt {} of {}", b, from,
              prompts);
        if (from != b) generator_.copy_text(ops, b, from);
    }
    sequences_ = texts;
    prompt_of_ = std::move(prompt_of);
    best_ = of_texts(best_, 1);
    return best_;
}

// Of the rows of a pass, those that the texts continue.
template <class T>
std::vector<T> Decoder::of_texts(std::vector<T> rows, int64_t width) const {
    if (prompt_of_.empty()) return rows;
    std::vector<T> out;
    for (const int64_t p : prompt_of_)
        out.insert(out.end(), rows.begin() + p * width, rows.begin() + (p + 1) * width);
    return out;
}

const std::vector<int32_t>& Decoder::step(Ops& ops, const model::FlatParams& weights,
                                          const std::vector<int32_t>& tokens) {
    check(position_ > 0 && static_cast<int64_t>(tokens.size()) == sequences_, "{} tokens for {} texts",
          tokens.size(), sequences_);
    prompt_of_.clear();
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
    const int64_t rows =
        prompt_of_.empty() ? sequences_ : *std::max_element(prompt_of_.begin(), prompt_of_.end()) + 1;
    const Tensor logits = logits_.first_rows(rows);
    ops.copy(logits, generator_.logits(rows));
    std::vector<float> host(static_cast<size_t>(logits.count()));
    ops.download(host.data(), logits);
    for (float& x : host) x = static_cast<float>(model_.capped_logit(double{x}));
    return of_texts(std::move(host), model_.config().vocab_size);
}

int32_t sample_token(const float* logits, int64_t vocabulary, double temperature, int64_t top, double uniform,
                     double nucleus) {
    // Most draws end among the first tokens: the order is made only as far as it is asked for.
    std::vector<int32_t> order(static_cast<size_t>(vocabulary));
    std::iota(order.begin(), order.end(), 0);
    size_t sorted = 0;
    const auto token = [&](size_t i) {
        while (i >= sorted) {
            const auto begin = order.begin() + static_cast<std::ptrdiff_t>(sorted);
            sorted = std::min(order.size(), std::max<size_t>(64, 4 * sorted));
            std::partial_sort(begin, order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(),
                              [&](int32_t a, int32_t b) {
                                  return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                              });
        }
        return order[i];
    };
    const double largest = double{logits[token(0)]};
    const auto share = [&](int32_t v) { return std::exp((double{logits[v]} - largest) / temperature); };
    const bool all = top <= 0 || top >= vocabulary;
    size_t count = static_cast<size_t>(all ? vocabulary : top);
    double total = 0;
    for (size_t i = 0; i < count; ++i) total += share(all ? static_cast<int32_t>(i) : token(i));
    if (nucleus < 1) {
        double kept = 0;
        size_t first = 0;
        while (first < count && (first == 0 || kept < nucleus * total)) kept += share(token(first++));
        count = first;
        total = kept;
    }
    double left = uniform * total;
    for (size_t i = 0; i + 1 < count; ++i) {
        const double here = share(token(i));
        if (left < here) return token(i);
        left -= here;
    }
    return token(count - 1);
}

}  // namespace longreach::eval
