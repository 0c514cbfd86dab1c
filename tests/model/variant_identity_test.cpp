// Variants that must be equal: at their first values, at their limits, packed and apart, in training and
// evaluation, on any number of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "model/gradient_check.h"
#include "model/small_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Change = std::function<void(model::ModelConfig&)>;
using Values = std::vector<std::pair<std::string, float>>;

constexpr int64_t length = 20;

model::ModelConfig base_model() {
    model::ModelConfig m = tiny_model(3);
    m.train_context = 16;
    m.attention.heads = 4;
    m.attention.kv_heads = 2;
    return m;
}

// Losses of the base model after a change of its config, with all parameters whose names end in one of
// `values` set. Tensors of the same name start with the same numbers in every model.
std::vector<float> losses_with(const Change& change, const Values& values = {}, bool documents = false,
                               const Values& factors = {}) {
    model::ModelConfig m = base_model();
    change(m);
    ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = documents});
    for (const model::Param& p : fixture.params().params()) {
        for (const auto& [name, value] : values)
            if (p.name.ends_with(name)) fixture.set(p.name, value);
        for (const auto& [name, factor] : factors)
            if (p.name.ends_with(name))
                for (float& w : fixture.values(fixture.host_weights, p.name)) w *= factor;
    }
    return fixture.train(random_example(m.vocab_size, 2, length, documents)).losses;
}

// Equal networks computed in different ways: each within the bound of gradient_check.h of the true losses.
// Scores of these models are at most Z = sqrt(d) in size, and head_dim is 8.
bool close(const std::vector<float>& a, const std::vector<float>& b, const Change& change) {
    model::ModelConfig m = base_model();
    change(m);
    const double epsilon = gradient_epsilon(m, 2 * length) * std::sqrt(8.0);
    REQUIRE(a.size() == b.size());
    bool held = true;
    for (size_t n = 0; n < a.size(); ++n) {
        const double difference = std::abs(static_cast<double>(a[n]) - static_cast<double>(b[n]));
        held = held && difference <= 2 * epsilon * (1 + std::abs(static_cast<double>(a[n])));
    }
    return held;
}

const Change plain = [](model::ModelConfig&) {};

}  // namespace

TEST_CASE("variants at their first values: the network is the plain one, bit for bit") {
    for (bool documents : {false, true}) {
        const auto with = [&](const Change& change, const Values& values = {}) {
            return losses_with(change, values, documents);
        };
        const std::vector<float> expected = with(plain);
        // 2 sigmoid(0) = 1, without rounding.
        for (const model::GateKind kind :
             {model::GateKind::headwise, model::GateKind::elementwise, model::GateKind::sparse}) {
            const Change gate = [&](model::ModelConfig& m) { m.attention.gate.kind = kind; };
            CHECK(with(gate) == expected);
            CHECK(with(gate, {{"gate.weight", 0.1f}}) != expected);
            CHECK(with([&](model::ModelConfig& m) { m.attention.gate = {kind, false, true}; }) != expected);
            CHECK(with([&](model::ModelConfig& m) { m.attention.gate = {kind, true, false}; }) != expected);
        }
        // 1 x_p + 0 x_(p-1) + ...
        for (int64_t size : {1, 2, 4}) {
            const Change convolution = [&](model::ModelConfig& m) { m.attention.conv.size = size; };
            CHECK(with(convolution) == expected);
            CHECK(with(convolution, {{"k_conv.weight", 0.5f}}) != expected);
        }
        const Change smear = [](model::ModelConfig& m) { m.residual.smear = true; };
        CHECK(with(smear) == expected);
        CHECK(with(smear, {{"smear_mix", 0.5f}}) != expected);
        const Change gains = [](model::ModelConfig& m) { m.attention.qk.kind = model::QkKind::qk_rms_w; };
        CHECK(with(gains) == expected);
        CHECK(with(gains, {{"q_norm.gain", 2}}) != expected);
    }
}

TEST_CASE("variants at their limits are the plain network, bit for bit") {
    for (bool documents : {false, true}) {
        const auto with = [&](const Change& change, const Values& values = {}) {
            return losses_with(change, values, documents);
        };
        const std::vector<float> expected = with(plain);
        // exp(-1e30 - maximum) is zero.
        const Change sink = [](model::ModelConfig& m) { m.attention.sink = model::SinkKind::learned; };
        CHECK(with(sink, {{".sink", -1e30f}}) == expected);
        CHECK(with(sink) != expected);
        CHECK(with(sink) == with([](model::ModelConfig& m) { m.attention.sink = model::SinkKind::zero; }));
        const Change backout = [](model::ModelConfig& m) { m.residual.backout = 1; };
        CHECK(with(backout, {{"backout_mix", 0}}) == expected);
        CHECK(with(backout) != expected);
        const Change tables = [](model::ModelConfig& m) { m.residual.value_embeddings = 1; };
        CHECK(with(tables, {{"own_value_mix", 1}, {"value_embedding_mix", 0}}) == expected);
        CHECK(with(tables) != expected);
        for (int64_t chunk : {length, length + 1, int64_t{1} << 40})
            CHECK(with([&](model::ModelConfig& m) { m.attention.chunk = chunk; }) == expected);
        CHECK(with([&](model::ModelConfig& m) { m.attention.chunk = length - 1; }) != expected);
    }
}

TEST_CASE("chunks are documents that start at their multiples, bit for bit") {
    model::ModelConfig whole = base_model(), chunked = base_model();
    for (int64_t chunk : {1, 3, 7}) {
        chunked.attention.chunk = chunk;
        Example example = random_example(whole.vocab_size, 2, length, false);
        ModelFixture a(chunked, {.sequences = 2, .length = length});
        const ModelFixture::Step expected = a.train(example);
        for (size_t n = 0; n < example.tokens.size(); ++n)
            example.doc_start.push_back(
                static_cast<int32_t>(static_cast<int64_t>(n) % length / chunk * chunk));
        ModelFixture b(whole, {.sequences = 2, .length = length, .document_mask = true});
        const ModelFixture::Step step = b.train(example);
        CHECK(step.losses == expected.losses);
        CHECK(step.gradients == expected.gradients);
    }
}

TEST_CASE("equal formulas, computed in different ways, agree within rounding") {
    const auto attention = [](auto change) { return [=](model::ModelConfig& m) { change(m.attention); }; };
    const auto law = [&](const std::string& name, const ScoreParameters& params = {}) -> Change {
        return attention([=](model::AttentionConfig& a) { add_law(a, name, params); });
    };
    using enum model::Learning;
    const auto agree = [](const Change& a, const Values& values_a, const Change& b,
                          const Values& values_b = {}) {
        CHECK(close(losses_with(a, values_a), losses_with(b, values_b), a));
        CHECK(close(losses_with(a, values_a, true), losses_with(b, values_b, true), a));
    };
    for (const std::string kind : {"scale_invariant", "log_bias"}) {
        const auto with = [&](const ScoreParameters& params) { return law(kind, params); };
        const Change fixed = with({{"tau", starts(3)}});
        const Change decay = with({{"tau", starts(3)}, {"c", starts(1, layer)}});
        const Change both = with({{"tau", starts(3, layer, true)}, {"c", starts(1, layer)}});
        agree(decay, {}, fixed);
        agree(both, {}, fixed);
        CHECK_FALSE(close(losses_with(decay, {{"score.c", 1.5f}}), losses_with(fixed), fixed));
        CHECK_FALSE(close(losses_with(both, {{".log_tau", 0}}), losses_with(fixed), fixed));
    }
    agree(law("kerple_log"), {{"score.p", 1}, {"score.a", 0.25f}}, law("log_bias", {{"tau", starts(4)}}));
    agree(law("si_interp", {{"tau", starts(4)}, {"kappa", starts(0)}, {"p", starts(1)}}), {},
          law("scale_invariant", {{"tau", starts(4)}}));
    // A learned factor at 1 is none; what is learned starts where what is not stays.
    agree(law("z * r", {{"r", starts(1, head)}}), {}, plain);
    for (const std::string kind : {"logn", "logn_bias", "sqrt2lognp1", "maxterm2"}) {
        const auto learned = [&](model::Learning learn) {
            ScoreParameters params;
            params[factor_parameter(kind)].learn = learn;
            if (kind == "logn_bias") params["b"].learn = learn;
            return law(kind, params);
        };
        for (const model::Learning learn : {model::Learning::model, layout, layer, head})
            agree(learned(learn), {}, learned(no));
    }
    agree(attention([](model::AttentionConfig& a) {
              a.qk = {model::QkKind::qk_rms_eps, 0.25};
          }),
          {}, attention([](model::AttentionConfig& a) {
              a.qk = {model::QkKind::qk_rms, 0.25};
          }));
}

TEST_CASE("norms of queries or keys do not see the size of their matrices") {
    const auto same = [](model::QkKind kind, const char* matrix) {
        const Change change = [=](model::ModelConfig& m) {
            m.attention.qk.kind = kind;
            if (kind == model::QkKind::cosa) add_law(m.attention, "cosa_logn");
        };
        // Not a power of two, so that something rounds.
        return close(losses_with(change), losses_with(change, {}, false, {{matrix, 3.0f}}), change);
    };
    CHECK(same(model::QkKind::kna, "attention.k.weight"));
    CHECK_FALSE(same(model::QkKind::kna, "attention.q.weight"));
    CHECK(same(model::QkKind::qna, "attention.q.weight"));
    CHECK_FALSE(same(model::QkKind::qna, "attention.k.weight"));
    for (const char* matrix : {"attention.q.weight", "attention.k.weight"}) {
        CHECK(same(model::QkKind::qk_l2, matrix));
        CHECK(same(model::QkKind::cosa, matrix));
        CHECK(same(model::QkKind::qk_rms, matrix));  // eps is 1e-7 of a mean square of order one
        CHECK_FALSE(same(model::QkKind::none, matrix));
    }
}

TEST_CASE("variants: evaluation gives the losses of training, threads give the same bits") {
    for (const SmallModel& small : small_variants()) {
        CAPTURE(small.name);
        const Example example =
            random_example(small.config.vocab_size, small.sequences, small.length, small.documents);
        const auto fixture = [&](int threads) {
            auto made = std::make_unique<ModelFixture>(
                small.config,
                FixtureSize{
                    .sequences = small.sequences, .length = small.length, .document_mask = small.documents},
                CpuOptions{.threads = threads});
            made->scatter_constants(0.3);
            return made;
        };
        const auto one = fixture(1);
        const ModelFixture::Step step = one->train(example);
        CHECK(one->evaluate(example) == step.losses);
        const ModelFixture::Step again = one->train(example), three = fixture(3)->train(example);
        CHECK(again.losses == step.losses);
        CHECK(again.gradients == step.gradients);
        CHECK(three.losses == step.losses);
        CHECK(three.gradients == step.gradients);
    }
}

// Positions of a packed document are shifted, which rotary scores do not see but for rounding. Counts of
// keys, convolutions and smearing start with the document.
TEST_CASE("variants: packed documents equal separate documents") {
    const std::vector<int64_t> starts = {0, 7, 8, 19, 24};
    for (const SmallModel& small : small_variants()) {
        const model::AttentionConfig& a = small.config.attention;
        // These count from the start of the sequence.
        if (a.chunk > 0 || a.score_count == model::ScoreCount::sequence ||
            a.output_norm.kind == model::OutputNorm::position || small.config.positions > 0)
            continue;
        CAPTURE(small.name);
        model::ModelConfig m = small.config;
        // The document's count needs a mask, and is that of the sequence where there is one document.
        if (a.score_count == model::ScoreCount::document)
            m.attention.score_count = model::ScoreCount::automatic;
        Example packed = random_example(m.vocab_size, 1, starts.back(), false);
        for (size_t d = 0; d + 1 < starts.size(); ++d)
            packed.doc_start.insert(packed.doc_start.end(), static_cast<size_t>(starts[d + 1] - starts[d]),
                                    static_cast<int32_t>(starts[d]));
        ModelFixture fixture(
            m,
            {.sequences = 1, .length = starts.back(), .document_mask = true, .other_lengths = {1, 5, 7, 11}});
        fixture.scatter_constants(0.3);
        const ModelFixture::Step together = fixture.train(packed);
        const Expected expected(m, fixture.named_weights(), packed, 0);
        for (size_t d = 0; d + 1 < starts.size(); ++d) {
            const auto cut = [&](const std::vector<int32_t>& v) {
                return std::vector<int32_t>(v.begin() + starts[d], v.begin() + starts[d + 1]);
            };
            const Example one{1, starts[d + 1] - starts[d], cut(packed.tokens), cut(packed.targets), {}};
            const std::vector<float> apart = fixture.evaluate(one);
            double error = 0;
            for (size_t n = 0; n < apart.size(); ++n)
                error = std::max(error, std::abs(static_cast<double>(apart[n]) -
                                                 together.losses[n + static_cast<size_t>(starts[d])]));
            CHECK(error <= 2 * expected.loss_bound());
        }
    }
}
