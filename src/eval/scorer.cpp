#include "eval/scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace longreach::eval {

namespace {

constexpr int64_t chunk_rows = 64;  // of logits on the host: 13 MB of a vocabulary of 50,000

}  // namespace

double log_sum_exp(const float* logits, int64_t vocabulary) {
    const double top = *std::max_element(logits, logits + vocabulary);
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(double{logits[v]} - top);
    return top + std::log(sum);
}

std::vector<int32_t> most_likely(const float* logits, int64_t vocabulary, int64_t count) {
    std::vector<int32_t> best;
    const auto before = [&](int32_t a, int32_t b) { return logits[a] > logits[b]; };
    const size_t most = static_cast<size_t>(std::min(count, vocabulary));
    for (int32_t v = 0; v < vocabulary && most > 0; ++v) {
        if (best.size() == most) {
            if (!before(v, best.back())) continue;
            best.pop_back();
        }
        best.insert(std::upper_bound(best.begin(), best.end(), v, before), v);
    }
    return best;
}

void Scorer::plan(model::Arena& arena, Ops& ops, int64_t tokens, bool documents) {
    arena.group("batch, scoring");
    batch_.plan(arena, tokens, {.documents = documents});
    model_.plan_evaluation(arena, ops, {tokens, {tokens}}, documents);
    const int64_t rows = std::min(tokens, chunk_rows);
    logits_of_.plan_logits(arena, rows);
    logits_ = arena.reserve("scored_logits", DType::f32, {rows, model_.config().vocab_size});
}

void Scorer::download_logits(Ops& ops, const model::FlatParams& weights, int64_t begin, int64_t rows) {
    const Tensor logits = logits_.first_rows(rows);
    ops.copy(logits, logits_of_.evaluation_logits(ops, weights, begin, rows));
    host_.resize(static_cast<size_t>(logits.count()));
    ops.download(host_.data(), logits);
    for (float& x : host_) x = static_cast<float>(model_.capped_logit(double{x}));
}

TextScores Scorer::run(Ops& ops, const model::FlatParams& weights, const std::vector<int32_t>& text,
                       const std::vector<int32_t>& starts, int64_t top, bool next) {
    // Without `next` the last token is a target only, as in LengthEvaluator.
    const int64_t all = static_cast<int64_t>(text.size()), rows = next ? all : all - 1;
    const int64_t vocabulary = model_.config().vocab_size, scored = all - 1;
    TextScores out;
    if (rows <= 0) return out;
    std::vector<int32_t> targets(text.begin() + 1, text.end());
    if (next) targets.push_back(-1);
    model_.use_length(ops, rows);
    const auto first_rows = [&](const std::vector<int32_t>& of) {
        return std::span(of).first(of.empty() ? 0 : static_cast<size_t>(rows));
    };
    model_.forward(ops, weights, batch_.upload(ops, rows, first_rows(text), targets, first_rows(starts)));
    std::vector<float> losses(static_cast<size_t>(rows));
    ops.download(losses.data(), model_.evaluation_losses(rows));
    for (int64_t i = 0; i < scored; ++i)
        out.tokens.push_back({targets[static_cast<size_t>(i)], -double{losses[static_cast<size_t>(i)]}});
    // A loss with z-loss is not a log-probability alone; its logits tell the rest.
    const bool exact = model_.config().head.z_loss == 0;
    const int64_t chunk = logits_.rows(), from = top > 0 || !exact ? 0 : next ? rows - 1 : rows;
    for (int64_t begin = from; begin < rows; begin += chunk) {
        const int64_t count = std::min(chunk, rows - begin);
        download_logits(ops, weights, begin, count);
        for (int64_t i = begin; i < std::min(begin + count, scored); ++i) {
            const float* row = host_.data() + (i - begin) * vocabulary;
            Candidate& token = out.tokens[static_cast<size_t>(i)];
            const double own = row[token.token];
            if (!exact) token.log_probability = own - log_sum_exp(row, vocabulary);
            if (top == 0) continue;
            // Added to the token's own, so that it is the same number where it is the most likely one.
            out.top.emplace_back();
            for (const int32_t c : most_likely(row, vocabulary, top))
                out.top.back().push_back({c, token.log_probability + (double{row[c]} - own)});
        }
        if (next && begin + count == rows) out.next.assign(host_.end() - vocabulary, host_.end());
    }
    model_.use_length(ops, 0);
    for (const Candidate& c : out.tokens)
        require(std::isfinite(c.log_probability), ExitCode::numerics, "the model's losses are not numbers");
    return out;
}

}  // namespace longreach::eval
