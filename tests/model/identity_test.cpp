// What must be equal: variants at their limits, masks and separate documents, training and evaluation, thread
// counts, ways to cut a batch.
#include <doctest/doctest.h>

#include "model/gradient_check.h"
#include "model/small_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Step = ModelFixture::Step;

Step run(const model::ModelConfig& m, const Example& example, const CpuOptions& cpu = {.threads = 1}) {
    ModelFixture fixture(m,
                         {.sequences = example.sequences,
                          .length = example.length,
                          .document_mask = !example.doc_start.empty()},
                         cpu);
    return fixture.train(example);
}

bool same(const Step& a, const Step& b) {
    return a.losses == b.losses && a.gradients == b.gradients;  // neither holds a NaN if true
}

model::ModelConfig mixed_model() {
    for (const SmallModel& small : small_models())
        if (small.name == "layouts, x0, unet, values, documents") return small.config;
    FAIL("no such model");
    return {};
}

// Large enough that every kernel has work for eight threads and sums are cut into blocks.
model::ModelConfig middle_model() {
    model::ModelConfig m = tiny_model(3);
    m.width = 96;
    m.vocab_size = 300;
    m.mlp = {model::MlpKind::swiglu, 200};
    m.norm = {NormKind::layer, true, 1e-6};
    m.residual = {true, true, model::ValueMix::first};
    m.head.z_loss = 0.001;
    m.attention.heads = 6;
    m.attention.kv_heads = 3;
    m.attention.head_dim = 32;
    m.attention.window = 100;
    add_law(m.attention, "scale_invariant");
    return m;
}

double largest_of(std::span<const float> x) {
    double largest = 0;
    for (float v : x) largest = std::max(largest, std::abs(static_cast<double>(v)));
    return largest;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    return largest;
}

}  // namespace

TEST_CASE("p-rope with p = 1 is rope and with p = 0 nope, bit for bit") {
    model::ModelConfig m = tiny_model();
    const Example example = random_example(m.vocab_size, 2, 40, false);
    const Step rope = run(m, example);
    set_angle(m.attention, {"p_rope", 10000, 1});
    CHECK(same(run(m, example), rope));
    set_angle(m.attention, {"p_rope", 10000, 0});
    const Step none = run(m, example);
    CHECK_FALSE(same(none, rope));
    set_angle(m.attention, {"nope"});
    CHECK(same(run(m, example), none));
}

TEST_CASE("a window as long as the sequence is full attention, bit for bit") {
    model::ModelConfig m = tiny_model();
    for (bool documents : {false, true})
        for (const int64_t length : {5, 40, 130}) {
            const Example example = random_example(m.vocab_size, 2, length, documents);
            m.attention.window = 0;
            const Step full = run(m, example);
            for (int64_t window : {length, length + 1, 10 * length, int64_t{1} << 40}) {
                m.attention.window = window;
                CHECK(same(run(m, example), full));
            }
            m.attention.window = 2;
            CHECK_FALSE(same(run(m, example), full));
        }
}

TEST_CASE("documents that start with their sequence are no mask, bit for bit") {
    const model::ModelConfig m = tiny_model();
    Example example = random_example(m.vocab_size, 3, 33, false);
    const Step plain = run(m, example);
    example.doc_start.assign(example.tokens.size(), 0);
    CHECK(same(run(m, example), plain));
}

TEST_CASE("packed documents equal separate documents") {
    // Positions of a packed document are shifted, which rotary scores do not see but for rounding: the bound
    // of gradient_check.h. Without rotary only the order of sums may change.
    std::vector<model::ModelConfig> models = {tiny_model(), mixed_model(), tiny_model()};
    models[2].attention.angle = "nope";
    add_law(models[2].attention, "scale_invariant", {{"tau", starts(2)}});
    for (const model::ModelConfig& m : models) {
        const int64_t length = 24;
        const std::vector<int64_t> starts = {0, 7, 8, 19, length};
        Example packed = random_example(m.vocab_size, 1, length, false);
        for (size_t d = 0; d + 1 < starts.size(); ++d)
            packed.doc_start.insert(packed.doc_start.end(), static_cast<size_t>(starts[d + 1] - starts[d]),
                                    static_cast<int32_t>(starts[d]));
        ModelFixture fixture(
            m, {.sequences = 1, .length = length, .document_mask = true, .other_lengths = {1, 5, 7, 11}});
        Step together = fixture.train(packed);
        Step apart;
        std::vector<float> losses;
        for (size_t d = 0; d + 1 < starts.size(); ++d) {
            const auto cut = [&](const std::vector<int32_t>& v) {
                return std::vector<int32_t>(v.begin() + starts[d], v.begin() + starts[d + 1]);
            };
            const Example one{1, starts[d + 1] - starts[d], cut(packed.tokens), cut(packed.targets), {}};
            apart = d == 0 ? fixture.train(one) : fixture.accumulate(one);
            losses.insert(losses.end(), apart.losses.begin(), apart.losses.end());
        }
        const double epsilon = gradient_epsilon(m, length);
        CHECK(largest_difference(losses, together.losses) <= epsilon * (1 + largest_of(losses)));
        const Expected expected(m, fixture.named_weights(), packed, 8);
        for (const model::Param& p : fixture.params().params()) {
            CAPTURE(p.name);
            const auto a = fixture.values(apart.gradients, p.name),
                       b = fixture.values(together.gradients, p.name);
            CHECK(largest_difference(a, b) <= epsilon * std::max(expected.size(p.name), largest_of(a)));
        }
    }
}

TEST_CASE("mixing weights at their neutral values: the network is the plain one") {
    const model::ModelConfig plain = tiny_model(4);
    const Example example = random_example(plain.vocab_size, 2, 20, false);
    const Step expected = run(plain, example);
    const auto losses_with = [&](auto change, std::vector<std::pair<std::string, float>> values) {
        model::ModelConfig m = plain;
        change(m);
        ModelFixture fixture(m, {.sequences = 2, .length = 20});
        for (const auto& [name, value] : values)
            for (const model::Param& p : fixture.params().params())
                if (p.name.ends_with(name)) fixture.set(p.name, value);
        return fixture.train(example).losses;
    };
    // As initialised: x0 mixing is (1, 0), gains are 1 and biases 0.
    CHECK(losses_with([](model::ModelConfig& m) { m.residual.x0 = true; }, {}) == expected.losses);
    CHECK(losses_with([](model::ModelConfig& m) { m.norm.gain = true; }, {}) == expected.losses);
    // Not neutral as initialised.
    const auto unet = [](model::ModelConfig& m) { m.residual.unet = true; };
    const auto values = [](model::ModelConfig& m) { m.residual.values = model::ValueMix::first; };
    CHECK(losses_with(unet, {{"skip_mix", 0}}) == expected.losses);
    CHECK(losses_with(values, {{"value_mix", 0}}) == expected.losses);
    CHECK(losses_with(unet, {}) != expected.losses);
    CHECK(losses_with(values, {}) != expected.losses);
}

TEST_CASE("zero projections and a zero head: uniform predictions at step 0") {
    model::ModelConfig m = middle_model();
    m.init.zero_projections = m.init.zero_head = true;
    m.head.z_loss = 0;
    const Example example = random_example(m.vocab_size, 1, 30, false);
    const Step step = run(m, example);
    for (size_t n = 0; n < step.losses.size(); ++n)
        CHECK(step.losses[n] == doctest::Approx(example.targets[n] < 0 ? 0 : std::log(300.0)).epsilon(1e-6));
}

TEST_CASE("equal key heads: grouped queries equal full heads with copied weights") {
    model::ModelConfig grouped = tiny_model(), full = tiny_model();
    grouped.attention.heads = full.attention.heads = 4;
    grouped.attention.kv_heads = 2;
    const Example example = random_example(grouped.vocab_size, 2, 20, false);
    ModelFixture a(grouped, {.sequences = 2, .length = 20}), b(full, {.sequences = 2, .length = 20});
    for (const model::Param& p : b.params().params()) {
        const auto to = b.values(b.host_weights, p.name), from = a.values(a.host_weights, p.name);
        const bool copied = p.name.ends_with("k.weight") || p.name.ends_with("v.weight");
        const size_t head = 8 * 16;  // d * C: heads 0, 1 share the first, 2, 3 the second
        for (size_t i = 0; i < to.size(); ++i)
            to[i] = copied ? from[i / head / 2 * head + i % head] : from[i];
    }
    CHECK(a.train(example).losses == b.train(example).losses);
}

TEST_CASE("evaluation gives the losses of training, bit for bit") {
    std::vector<SmallModel> models = small_models();
    models.push_back({"middle", middle_model(), true, 2, 150});
    for (const SmallModel& small : models) {
        CAPTURE(small.name);
        ModelFixture fixture(
            small.config,
            {.sequences = small.sequences, .length = small.length, .document_mask = small.documents});
        fixture.scatter_constants(0.3);
        const Example example =
            random_example(small.config.vocab_size, small.sequences, small.length, small.documents);
        const Step step = fixture.train(example);
        CHECK(fixture.evaluate(example) == step.losses);
        CHECK(same(fixture.train(example), step));  // evaluation leaves nothing behind
    }
}

TEST_CASE("any number of threads gives the same bits") {
    const model::ModelConfig m = middle_model();
    const Example example = random_example(m.vocab_size, 3, 170, true);
    for (const std::string& isa : available_isas()) {
        CAPTURE(isa);
        const Step one = run(m, example, {.threads = 1, .isa = isa});
        CHECK(std::isfinite(largest_of(one.gradients)));
        for (int threads : {2, 3, 8}) {
            CAPTURE(threads);
            CHECK(same(run(m, example, {.threads = threads, .isa = isa}), one));
        }
    }
}

TEST_CASE("micro-batches give the losses of the whole batch, bit for bit, and its gradient within rounding") {
    // A vocabulary so large that the head works in chunks of 256 tokens: the whole batch takes two.
    model::ModelConfig many_words = tiny_model(1);
    many_words.vocab_size = 20000;
    for (const model::ModelConfig& m : {middle_model(), many_words}) {
        const int64_t sequences = 6, length = 50;
        const Example example = random_example(m.vocab_size, sequences, length, true);
        for (const std::string& isa : available_isas()) {
            CAPTURE(isa);
            ModelFixture fixture(m, {.sequences = sequences, .length = length, .document_mask = true},
                                 {.threads = 1, .isa = isa});
            Step whole = fixture.train(example);
            CHECK(fixture.evaluate(example) == whole.losses);
            for (int64_t size : {1, 2, 3}) {
                CAPTURE(size);
                Step parts;
                std::vector<float> losses;
                for (int64_t begin = 0; begin < sequences; begin += size) {
                    const Example some = sequences_of(example, begin, size);
                    parts = begin == 0 ? fixture.train(some) : fixture.accumulate(some);
                    losses.insert(losses.end(), parts.losses.begin(), parts.losses.end());
                }
                CHECK(losses == whole.losses);
                const double epsilon = gradient_epsilon(m, sequences * length);
                for (const model::Param& p : fixture.params().params()) {
                    // A single number is a sum that may cancel and has no neighbours to be measured by.
                    if (p.count() == 1) continue;
                    CAPTURE(p.name);
                    const auto a = fixture.values(parts.gradients, p.name);
                    const auto b = fixture.values(whole.gradients, p.name);
                    CHECK(largest_difference(a, b) <= epsilon * largest_of(b));
                }
            }
        }
    }
}

TEST_CASE("longer tables and a larger plan change no bit") {
    const model::ModelConfig m = mixed_model();
    const Example example = random_example(m.vocab_size, 2, 12, true);
    ModelFixture tight(m, {.sequences = 2, .length = 12, .document_mask = true});
    ModelFixture roomy(
        m, {.sequences = 5, .length = 40, .document_mask = true, .table_rows = 1000, .other_lengths = {12}});
    CHECK(same(roomy.train(example), tight.train(example)));
    CHECK(roomy.evaluate(example) == tight.evaluate(example));
}

TEST_CASE("a stage narrows windows and gives them back") {
    model::ModelConfig m = tiny_model(2);
    model::AttentionConfig local = m.attention, wide = m.attention;
    local.window = 4;
    wide.window = 12;
    m.layouts = {{"local", local}, {"wide", wide}};
    m.pattern = {"local", "wide"};
    const Example example = random_example(m.vocab_size, 2, 20, true);
    const FixtureSize size{.sequences = 2, .length = 20, .document_mask = true};
    const auto configured = [&](int64_t local_window, int64_t wide_window) {
        model::ModelConfig other = m;
        other.layouts.at("local").window = local_window;
        other.layouts.at("wide").window = wide_window;
        ModelFixture fixture(other, size);
        return fixture.train(example);
    };
    ModelFixture fixture(m, size);
    fixture.model().set_stage_window(6);
    CHECK(same(fixture.train(example), configured(4, 6)));
    fixture.model().set_stage_window(2);
    CHECK(same(fixture.train(example), configured(2, 2)));
    CHECK(fixture.evaluate(example) == configured(2, 2).losses);
    fixture.model().set_stage_window(100);
    CHECK(same(fixture.train(example), configured(4, 12)));
    fixture.model().set_stage_window(0);
    CHECK(same(fixture.train(example), configured(4, 12)));
}
