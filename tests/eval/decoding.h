// Compares decoding step by step with the pass over the whole text, and with the scalar reference.
//
// Texts continue alternately with the most likely token and with a random one, so that they neither end in a
// loop nor avoid the tokens that the model predicts.
//
// The bound of a logit is that of a loss in gradient_check.h: epsilon (1 + Y), where Y is the largest logit.
// The pass over the whole text and the steps may each differ from the reference by this bound.
//
// With bf16 products epsilon is the larger 4 sqrt(2 D) 2^-9 (gradient_test.cpp), times the size of scores as that of f32:
// D counts the products on the way forward, the steps of gradient_check.h that are products among them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "eval/decoder.h"
#include "mixers/latent.h"
#include "model/held_weights.h"
#include "model/fixture.h"
#include "model/gradient_check.h"

namespace longreach::test {

struct Text {
    int64_t sequences = 2, prompt = 5, room = 16;
    model::PostHocConfig post_hoc{};
    bool hold = true;  // the weights a second time, as generation does
};

// Everything that decoding needs, with the weights of a fixture.
class DecoderBench {
  public:
    DecoderBench(const model::ModelConfig& config, const Text& text, const CpuOptions& cpu,
                 const std::vector<float>& host_weights)
        : ops_(make_cpu_ops(cpu)),
          arena_(*ops_),
          model_(config, text.room, text.post_hoc),
          decoder_(model_, {text.sequences, text.prompt, text.room}) {
        weights_ = model::plan_weights(arena_, model_.params());
        model_.plan_tables(arena_);
        decoder_.plan(arena_, *ops_);
        if (text.hold) held_.plan(arena_, *ops_, weights_, model_.products());
        arena_.commit();
        model_.fill_tables(*ops_);
        ops_->upload(weights_.flat, host_weights.data());
        weights_.round(*ops_);
        held_.fill(*ops_);
    }
    const std::vector<int32_t>& prefill(const std::vector<int32_t>& tokens, int64_t prompts,
                                        std::vector<int64_t> prompt_of = {}) {
        return decoder_.prefill(*ops_, weights_, tokens, prompts, std::move(prompt_of));
    }
    const std::vector<int32_t>& step(const std::vector<int32_t>& tokens) {
        return decoder_.step(*ops_, weights_, tokens);
    }
    std::vector<float> logits() { return decoder_.logits(*ops_); }

  private:
    std::unique_ptr<Ops> ops_;
    model::Arena arena_;
    model::Transformer model_;
    eval::Decoder decoder_;
    model::FlatParams weights_;
    model::HeldWeights held_;
};

struct DecodingOutcome {
    double worst = 0;   // error over its bound
    int64_t ties = 0;   // most likely tokens that differ, with logits closer than the bounds
    int64_t steps = 0;  // tokens compared
};

// Changes every weight, also those that start at zero (convolutions, sinks, smear, gates), so that every
// part of a model has an effect.
inline void scatter(ModelFixture& fixture) {
    const Rng rng(31, Purpose::test);
    for (size_t i = 0; i < fixture.host_weights.size(); ++i)
        fixture.host_weights[i] += static_cast<float>(0.2 * rng.normal(i));
}

inline double decoding_epsilon(const model::ModelConfig& m, int64_t tokens, Precision precision) {
    if (precision == Precision::fp32) return gradient_epsilon(m, tokens);
    int64_t products = 1;  // the head
    for (int64_t i = 0; i < m.loops * m.layers; ++i) {
        const model::AttentionConfig& a = m.layer_attention(i % m.layers);
        const model::LatentConfig latent = a.own<model::LatentConfig>();
        products += 6 + (latent ? latent.queries > 0 ? 3 : 2 : 0) + (a.mixer == "gau" ? 1 : 0);
    }
    return 4 * std::sqrt(2.0 * static_cast<double>(products)) * 0x1p-9;
}

// Texts that share a prompt have the bits of the last text, which was continued beside others: its tokens, and its
// logits from the prompt's last position on.
inline void check_shared_prompt(DecoderBench& bench, const std::vector<int32_t>& tokens, const Text& text,
                                const std::vector<std::vector<float>>& logits) {
    const size_t sequences = static_cast<size_t>(text.sequences), prompt = static_cast<size_t>(text.prompt);
    const auto same = [&](const std::vector<float>& shared, const std::vector<float>& expected) {
        const size_t vocab = expected.size() / sequences;
        for (size_t b = 0; b < sequences; ++b)
            if (!std::equal(shared.begin() + static_cast<std::ptrdiff_t>(b * vocab),
                            shared.begin() + static_cast<std::ptrdiff_t>((b + 1) * vocab),
                            expected.end() - static_cast<std::ptrdiff_t>(vocab)))
                return false;
        return true;
    };
    const std::vector<int32_t> best =
        bench.prefill({tokens.begin(), tokens.begin() + text.prompt}, 1, std::vector<int64_t>(sequences, 0));
    CHECK(best == std::vector<int32_t>(sequences, best[0]));
    bool all = same(bench.logits(), logits[0]);
    for (size_t i = prompt; i < tokens.size(); ++i) {
        bench.step(std::vector<int32_t>(sequences, tokens[i]));
        all = all && same(bench.logits(), logits[i - prompt + 1]);
    }
    CHECK(all);
}

inline DecodingOutcome check_decoding(const model::ModelConfig& config, const Text& text,
                                      const CpuOptions& cpu = {.threads = 1}, uint32_t stream = 0) {
    const size_t sequences = static_cast<size_t>(text.sequences), room = static_cast<size_t>(text.room),
                 prompt = static_cast<size_t>(text.prompt), vocab = static_cast<size_t>(config.vocab_size);
    ModelFixture fixture(config,
                         {.sequences = text.sequences, .length = text.room, .post_hoc = text.post_hoc}, cpu);
    scatter(fixture);
    DecoderBench bench(config, text, cpu, fixture.host_weights);

    const Rng rng(29, Purpose::test, stream);
    const auto random = [&](size_t at) { return static_cast<int32_t>(rng.below(at, vocab)); };
    std::vector<std::vector<int32_t>> texts(sequences);
    std::vector<int32_t> prompts;
    for (size_t b = 0; b < sequences; ++b)
        for (size_t i = 0; i < prompt; ++i) {
            texts[b].push_back(random(b * room + i));
            prompts.push_back(texts[b].back());
        }
    std::vector<std::vector<int32_t>> best;  // by step
    std::vector<std::vector<float>> logits;
    best.push_back(bench.prefill(prompts, text.sequences));
    logits.push_back(bench.logits());
    for (size_t i = prompt; i < room; ++i) {
        std::vector<int32_t> next;
        for (size_t b = 0; b < sequences; ++b) {
            texts[b].push_back(i % 2 == 0 ? best.back()[b] : random(b * room + i));
            next.push_back(texts[b].back());
        }
        best.push_back(bench.step(next));
        logits.push_back(bench.logits());
    }

    check_shared_prompt(bench, texts.back(), text, logits);

    // The whole texts in one pass.
    Example whole{text.sequences, text.room, {}, {}, {}};
    for (size_t b = 0; b < sequences; ++b)
        for (size_t i = 0; i < room; ++i) {
            whole.tokens.push_back(texts[b][i]);
            whole.targets.push_back(i + 1 < room ? texts[b][i + 1] : -1);
        }
    fixture.model().use_length(fixture.ops(), text.room);
    const std::vector<float> losses = fixture.evaluate(whole);
    std::vector<int32_t> whole_best(whole.tokens.size());
    fixture.ops().download(whole_best.data(), fixture.model().evaluation_best(text.sequences * text.room));

    const reference::Params<double> named = fixture.named_weights();
    DecodingOutcome outcome;
    for (size_t b = 0; b < sequences; ++b) {
        const auto expected = reference::logits(config, named, texts[b], {});
        double largest = 0;
        for (const auto& row : expected)
            for (const double y : row) largest = std::max(largest, std::abs(y));
        const double bound = decoding_epsilon(config, text.room, cpu.precision) *
                             std::max(1.0, reference::score_size(config, named, texts[b], {})) *
                             (1 + largest);
        for (size_t s = 0; s < best.size(); ++s) {
            const size_t at = prompt - 1 + s;
            const float* row = logits[s].data() + b * vocab;
            ++outcome.steps;
            if (!text.post_hoc.active())
                for (size_t v = 0; v < vocab; ++v) {
                    const double ratio = std::abs(double{row[v]} - expected[at][v]) / bound;
                    if (!(ratio <= outcome.worst)) outcome.worst = std::isnan(ratio) ? 1e30 : ratio;
                }
            const int32_t other = whole_best[b * room + at];
            if (best[s][b] != other) {
                ++outcome.ties;
                CHECK(std::abs(row[best[s][b]] - row[other]) <= 2 * bound);
            }
            if (at + 1 == room) continue;
            double sum = 0;
            for (size_t v = 0; v < vocab; ++v) sum += std::exp(double{row[v]});
            const double lse = std::log(sum), z = config.head.z_loss;
            const double loss = lse - row[texts[b][at + 1]] + z * lse * lse;
            const double ratio =
                std::abs(loss - double{losses[b * room + at]}) / (2 * bound * (1 + 2 * z * std::abs(lse)));
            if (!(ratio <= outcome.worst)) outcome.worst = std::isnan(ratio) ? 1e30 : ratio;
        }
    }
    CHECK(outcome.worst <= 1);
    return outcome;
}

}  // namespace longreach::test
