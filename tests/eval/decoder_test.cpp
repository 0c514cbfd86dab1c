// Decoding with kept keys and values: every variant as in a pass over the whole text.
#include <numeric>

#include "eval/decoding.h"
#include "mixers/latent.h"
#include "model/delta_models.h"
#include "model/gau_models.h"
#include "model/term_models.h"
#include "model/random_models.h"
#include "model/key_index_models.h"
#include "model/simplicial_models.h"
#include "model/small_models.h"
#include "model/small_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Sum {
    DecodingOutcome all;
    void add(const DecodingOutcome& one) {
        all.worst = std::max(all.worst, one.worst);
        all.ties += one.ties;
        all.steps += one.steps;
    }
    // A near tie among tens of tokens is rare; most likely tokens that differ otherwise
    // fail where they stand.
    void finish() const {
        MESSAGE("largest error, as a fraction of its bound: ", all.worst, "; near ties: ", all.ties, " of ",
                all.steps);
        CHECK(all.ties * 100 <= all.steps);
    }
};

model::ModelConfig without_documents(model::ModelConfig config) {
    const auto count_all = [](model::AttentionConfig& a) {
        if (a.score_count == model::ScoreCount::document) a.score_count = model::ScoreCount::automatic;
    };
    count_all(config.attention);
    for (auto& [name, layout] : config.layouts) count_all(layout);
    return config;
}

// cpu(i): of model i.
template <class Cpu>
Sum decode_small_models(Cpu cpu) {
    Sum sum;
    uint32_t i = 0;
    for (const auto& models : {small_models(), small_variants(), gau_models(), term_models(),
                               simplicial_models(), key_index_models()})
        for (const SmallModel& small : models) {
            CAPTURE(small.name);
            // Prompts of one token, shorter and longer than convolutions, windows and chunks.
            const int64_t prompts[] = {1, 2, 7};
            sum.add(check_decoding(without_documents(small.config), {.prompt = prompts[i % 3], .room = 14},
                                   cpu(i), i));
            ++i;
        }
    return sum;
}

}  // namespace

TEST_CASE("decoding: every small model and variant is what the whole text gives") {
    const std::vector<std::string> isas = available_isas();
    decode_small_models([&](uint32_t i) {
        return CpuOptions{.threads = 1, .isa = isas[i % isas.size()]};
    }).finish();
}

TEST_CASE("decoding: with bf16 products, and keys and values kept in bf16, as the whole text gives") {
    const CpuOptions half{.threads = 1, .precision = Precision::bf16};
    try {
        const std::unique_ptr<Ops> ops = make_cpu_ops(half);  // CHECK would keep its error
        CHECK(ops->traits().cached == DType::bf16);
    } catch (const Error& error) {
        if (error.code() != ExitCode::device) throw;
        MESSAGE("this CPU has no bf16 products");
        return;
    }
    const DecodingOutcome all = decode_small_models([&](uint32_t) { return half; }).all;
    MESSAGE("largest error, as a fraction of its bound: ", all.worst, "; near ties: ", all.ties, " of ",
            all.steps);
}

TEST_CASE("decoding: models with a state of constant size are what the whole text gives") {
    const std::vector<std::string> isas = available_isas();
    Sum sum;
    uint32_t i = 0;
    for (const SmallModel& small : delta_models())
        for (const int64_t prompt : {1, 3, 70}) {
            CAPTURE(small.name);
            CAPTURE(prompt);
            sum.add(check_decoding(without_documents(small.config), {.prompt = prompt, .room = prompt + 12},
                                   {.threads = 1, .isa = isas[i % isas.size()]}, i));
            ++i;
        }
    sum.finish();
}

TEST_CASE("decoding: random variants are what the whole text gives") {
    Sum sum;
    for (uint32_t i = 0; i < 120; ++i) {
        CAPTURE(i);
        const model::ModelConfig config = without_documents(RandomVariant(i).draw().config);
        sum.add(check_decoding(config, {.sequences = 1 + i % 3, .prompt = 1 + i % 9, .room = 20},
                               {.threads = 1}, i));
    }
    sum.finish();
}

TEST_CASE(
    "decoding: changes of positions beyond the training length use the length of prompt and continuation") {
    Sum sum;
    for (const std::string kind :
         {"pi", "ntk", "ntk_old", "ntk_su", "ntk_mixed", "ntk_dynamic", "yarn", "rerope", "leaky_rerope"})
        for (const std::string scale : {"none", "clip_logn"}) {
            model::ModelConfig m = tiny_model(3);
            m.train_context = 8;
            m.layouts["half"] = m.attention;
            set_angle(m.layouts["half"], {"p_rope_linspace", 20, 0.67});
            m.layouts["none"] = m.attention;
            m.layouts["none"].angle = "nope";
            m.layouts["none"].conv = {3, true, true, true};
            m.layouts["latent"] = m.attention;
            m.layouts["latent"].qk.kind = model::QkKind::none;
            m.layouts["latent"].own<model::LatentConfig>() = {12, 4, 0};
            m.pattern = {"half", "none", "latent"};
            Text text{.sequences = 2, .prompt = 6, .room = 24};
            text.post_hoc.kind = kind;
            text.post_hoc.scale = scale;
            if (kind == "ntk_old") text.post_hoc.factor = 3;
            if (kind == "rerope" || kind == "pi") text.post_hoc.top_k = 6;
            if (kind == "pi") text.post_hoc.top_k_block = 2;
            if (kind == "yarn" || kind == "leaky_rerope") {
                text.post_hoc.top_k = 5;
                text.post_hoc.top_k_by = model::TopBy::index;
                for (const char* layout : {"half", "latent"}) m.layouts[layout].index_heads = 2;
            }
            CAPTURE(kind);
            sum.add(check_decoding(m, text));
        }
    sum.finish();
}

TEST_CASE("decoding: a batch is its texts one by one, and a text does not know of earlier ones") {
    model::ModelConfig m = tiny_model(2);
    m.head.tied = true;
    m.residual.smear = true;
    m.attention.conv = {4, true, true, true};
    const Text text{.sequences = 3, .prompt = 4, .room = 8};
    ModelFixture fixture(m, {.sequences = 3, .length = 8});
    scatter(fixture);
    DecoderBench together(m, text, {.threads = 1}, fixture.host_weights);
    Text as_they_lie = text;
    as_they_lie.hold = false;
    DecoderBench alone(m, as_they_lie, {.threads = 1}, fixture.host_weights);
    // Prompts shorter than the convolutions: what is before them is zero, whatever was there.
    const std::vector<int32_t> prompts{1, 2, 5, 6, 9, 10}, next{3, 5, 7};
    together.prefill({9, 9, 9, 9, 8, 8, 8, 8}, 2);
    together.step({1, 2});
    together.prefill(prompts, 3);
    together.step(next);
    const std::vector<float> all = together.logits();
    for (size_t b = 0; b < 3; ++b) {
        alone.prefill({prompts.begin() + static_cast<std::ptrdiff_t>(2 * b),
                       prompts.begin() + static_cast<std::ptrdiff_t>(2 * b + 2)},
                      1);
        alone.step({next[b]});
        const std::vector<float> own = alone.logits();
        for (size_t v = 0; v < 19; ++v) CHECK(own[v] == all[b * 19 + v]);
    }
}

namespace {

// sample_token as its header says it: all tokens in order, their shares, the one at `uniform`.
int32_t drawn_from_all(const std::vector<float>& logits, double temperature, int64_t top, double uniform,
                       double nucleus) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](int32_t v) { return logits[static_cast<size_t>(v)]; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    if (top > 0) order.resize(std::min(order.size(), static_cast<size_t>(top)));
    const auto sum = [&] {
        double total = 0;
        for (const int32_t v : order) total += std::exp(double{logit(v)} / temperature);
        return total;
    };
    const double all = sum();
    while (order.size() > 1) {
        const int32_t last = order.back();
        order.pop_back();
        if (sum() >= nucleus * all) continue;
        order.push_back(last);
        break;
    }
    double left = uniform * sum();
    for (const int32_t v : order)
        if ((left -= std::exp(double{logit(v)} / temperature)) < 0) return v;
    return order.back();
}

}  // namespace

TEST_CASE("a draw does not depend on how much of the order of tokens is made") {
    std::vector<float> logits(300);
    const Rng rng(3, Purpose::test);
    for (size_t v = 0; v < logits.size(); ++v)  // quarters, so that many are equal
        logits[v] = static_cast<float>(std::round(rng.normal(v) * 8)) / 4;
    for (const double temperature : {0.3, 1.7, 40.0})
        for (const int64_t top : {0, 1, 63, 65, 200, 300, 400})
            for (const double nucleus : {1.0, 0.93, 0.21})
                for (const double uniform : {0.0, 0.013, 0.34, 0.77, 0.9991}) {
                    CAPTURE(temperature);
                    CAPTURE(top);
                    CAPTURE(nucleus);
                    CAPTURE(uniform);
                    CHECK(eval::sample_token(logits.data(), 300, temperature, top, uniform, nucleus) ==
                          drawn_from_all(logits, temperature, top, uniform, nucleus));
                }
}

TEST_CASE("sampling draws tokens as often as their probabilities say") {
    const std::vector<float> logits{0, 2, 1, 2, -50};
    CHECK(eval::sample_token(logits.data(), 5, 1, 1, 0.99) == 1);
    CHECK(eval::sample_token(logits.data(), 5, 1, 2, 0.49) == 1);
    CHECK(eval::sample_token(logits.data(), 5, 1, 2, 0.51) == 3);
    CHECK(eval::sample_token(logits.data(), 5, 1e-3, 0, 0.51) == 3);
    std::vector<double> count(5);
    const int draws = 1000;
    for (int i = 0; i < draws; ++i)
        ++count[static_cast<size_t>(eval::sample_token(logits.data(), 5, 2, 0, (i + 0.5) / draws))];
    double total = 0;
    for (const float x : logits) total += std::exp(double{x} / 2);
    // Equally spaced draws: an interval holds its share of them within one at either end.
    for (size_t v = 0; v < 5; ++v)
        CHECK(std::abs(count[v] - draws * std::exp(double{logits[v]} / 2) / total) <= 2);
}
