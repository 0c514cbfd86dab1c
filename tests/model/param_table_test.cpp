// The list of trainable tensors: layout, names, counts, initial values, FLOPs.
#include <doctest/doctest.h>

#include <set>

#include "base/hash.h"
#include "model/param_name.h"
#include "model/small_models.h"
#include "model/transformer.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

model::ModelConfig published_model(int64_t layers, int64_t width, int64_t heads) {
    model::ModelConfig m;
    m.layers = layers;
    m.width = width;
    m.vocab_size = 50304;
    m.attention.heads = heads;
    m.attention.head_dim = width / heads;
    return m;
}

std::vector<float> initial(const model::ParamTable& table, uint64_t seed = 1) {
    std::vector<float> flat;
    model::initialise(table, seed, flat);
    return flat;
}

std::vector<float> part(const model::ParamTable& table, const std::vector<float>& flat,
                        const std::string& name) {
    const model::Param* p = table.find(name);
    REQUIRE(p != nullptr);
    return {flat.begin() + p->offset, flat.begin() + p->offset + p->count()};
}

}  // namespace

TEST_CASE("the layer in the name of a parameter") {
    const auto layer = [](const char* name) { return model::ParamName(name).layer; };
    const auto rest = [](const char* name) { return std::string(model::ParamName(name).rest); };
    CHECK(layer("layers.0.mlp.up.weight") == 0);
    CHECK(rest("layers.0.mlp.up.weight") == "mlp.up.weight");
    CHECK(layer("layers.123.attention.score.r") == 123);
    CHECK(rest("layers.123.attention.score.r") == "attention.score.r");
    for (const char* whole : {"embedding.weight", "layers", "layers.", "layers.7", "layers.x.r",
                              "layers.3x.r", "my.layers.3.r", ""}) {
        CAPTURE(whole);
        CHECK(layer(whole) == -1);
        CHECK(rest(whole) == whole);
    }
}

TEST_CASE("parameter counts of the published models") {
    const model::Transformer small(published_model(12, 768, 6), 4096);
    CHECK(small.params().count() == 12 * 12 * 768 * 768 + 2 * 50304 * 768);  // 162.2M
    CHECK(static_cast<double>(small.params().count()) == Approx(162.2e6).epsilon(5e-4));
    const model::Transformer large(published_model(16, 1024, 8), 4096);
    CHECK(large.params().count() == 16 * 12 * 1024 * 1024 + 2 * 50304 * 1024);  // 304.3M
    CHECK(static_cast<double>(large.params().count()) == Approx(304.3e6).epsilon(5e-4));

    model::ModelConfig wide = published_model(12, 1024, 4);  // 151M without the two tables of 103M together
    wide.residual = {true, true, model::ValueMix::first};
    const model::Transformer with_mixes(wide, 4096);
    CHECK(with_mixes.params().count() == 12 * 12 * 1024 * 1024 + 2 * 50304 * 1024 + 11 + 24 + 6);
    wide.head.tied = true;
    CHECK(model::Transformer(wide, 4096).params().count() == with_mixes.params().count() - 50304 * 1024);
}

TEST_CASE("layout: every tensor at its own place, q, k and v as one matrix, tables aligned") {
    for (const SmallModel& small : small_models()) {
        CAPTURE(small.name);
        const model::Transformer model(small.config, 16);
        const model::ParamTable& table = model.params();
        int64_t end = 0;
        std::set<std::string> names;
        for (const model::Param& p : table.params()) {
            CAPTURE(p.name);
            CHECK(p.offset >= end);
            CHECK(p.offset - end < 16);
            const bool joined = p.name.ends_with("k.weight") || p.name.ends_with("v.weight") ||
                                (p.name.ends_with("up.weight") && small.config.mlp.gated());
            if (joined)
                CHECK(p.offset == end);
            else
                CHECK(p.offset % 16 == 0);
            end = p.offset + p.count();
            CHECK(names.insert(p.name).second);
            CHECK(table.find(p.name) == &p);
            CHECK(p.shape.size() == (p.group == model::ParamGroup::scalar ? 1 : 2));
            CHECK(p.decay == (p.group == model::ParamGroup::matrix || p.group == model::ParamGroup::head));
        }
        CHECK(table.size() == end);
        CHECK(table.find("layers.0") == nullptr);
    }
}

TEST_CASE("a tensor's name is its own, and joined tensors have one width") {
    model::ParamTable table;
    table.add({"a", {3}, {}, model::ParamGroup::scalar});
    CHECK_THROWS_AS(table.add({"a", {3}, {}, model::ParamGroup::scalar}), Error);
    model::ParamTable other;
    CHECK_THROWS_AS(other.add_joined({{"a", {2, 3}, {}}, {"b", {2, 4}, {}}}), Error);
    model::ParamTable joined;
    const model::ParamRef ref = joined.add_joined({{"a", {2, 3}, {}}, {"b", {5, 3}, {}}});
    CHECK(ref.rows == 7);
    CHECK(ref.cols == 3);
    CHECK(joined.find("b")->offset == ref.offset + 6);
    CHECK(joined.count() == 21);
}

TEST_CASE("initial values: bounds, spread, zeros and constants as configured") {
    model::ModelConfig m = published_model(2, 128, 2);
    m.vocab_size = 1000;
    m.norm = {NormKind::layer, true, 1e-6};
    m.residual = {true, true, model::ValueMix::first};
    m.init.matrix_bound = 0.8;
    const auto moments = [](const std::vector<float>& x) {
        double sum = 0, squares = 0, largest = 0;
        for (float v : x) {
            sum += v;
            squares += static_cast<double>(v) * v;
            largest = std::max(largest, std::abs(static_cast<double>(v)));
        }
        const double n = static_cast<double>(x.size());
        return std::array{sum / n, std::sqrt(squares / n), largest};
    };
    const auto constant = [](const std::vector<float>& x, float value) {
        return std::all_of(x.begin(), x.end(), [&](float v) { return v == value; });
    };
    {
        const model::Transformer model(m, 16);
        const model::ParamTable& table = model.params();
        const auto flat = initial(table);
        // U(+-b): deviation b / sqrt(3). Sampling moves the mean by deviation / sqrt(n),
        // the deviation by less.
        const double bound = 0.8 / std::sqrt(128.0);
        for (const char* name : {"layers.0.attention.q.weight", "layers.1.attention.k.weight",
                                 "layers.0.attention.v.weight", "layers.1.mlp.up.weight"}) {
            CAPTURE(name);
            const auto [mean, deviation, largest] = moments(part(table, flat, name));
            CHECK(largest <= bound);
            CHECK(largest > 0.99 * bound);
            CHECK(std::abs(mean) < 5 * bound / std::sqrt(3.0 * 128 * 128));
            CHECK(deviation == Approx(bound / std::sqrt(3.0)).epsilon(0.02));
        }
        const auto [mean, deviation, largest] = moments(part(table, flat, "embedding.weight"));
        CHECK(std::abs(mean) < 5 / std::sqrt(128000.0));
        CHECK(deviation == Approx(1).epsilon(0.01));
        CHECK(largest > 4);
        CHECK(largest < 6);
        for (const char* name : {"layers.0.attention.o.weight", "layers.1.mlp.down.weight", "head.weight",
                                 "final_norm.bias", "layers.1.x0_mix"})
            CHECK(constant(part(table, flat, name), 0));
        for (const char* name :
             {"final_norm.gain", "layers.0.mlp_norm.gain", "layers.0.x_mix", "layers.1.skip_mix"})
            CHECK(constant(part(table, flat, name), 1));
        CHECK(constant(part(table, flat, "layers.1.attention.value_mix"), 0.5));
    }
    m.init.zero_projections = m.init.zero_head = false;
    m.attention.heads = 4;
    m.attention.head_dim = 16;  // 64 channels into the output projection
    {
        const model::Transformer model(m, 16);
        const auto flat = initial(model.params());
        const auto largest = [&](const char* name) { return moments(part(model.params(), flat, name))[2]; };
        CHECK(largest("layers.0.attention.o.weight") == Approx(0.8 / 8).epsilon(0.01));
        CHECK(largest("layers.0.mlp.down.weight") == Approx(0.8 / std::sqrt(512.0)).epsilon(0.01));
        CHECK(largest("head.weight") == Approx(0.8 / std::sqrt(128.0)).epsilon(0.01));
    }
    m.head.tied = true;
    {
        const model::Transformer model(m, 16);
        const auto flat = initial(model.params());
        CHECK(model.params().find("head.weight") == nullptr);
        const double deviation = moments(part(model.params(), flat, "embedding.weight"))[1];
        CHECK(deviation == Approx(1 / std::sqrt(128.0)).epsilon(0.01));
    }
}

TEST_CASE("initial values are keyed by seed and name: other tensors leave them alone") {
    model::ModelConfig m = tiny_model(2), more = tiny_model(5);
    more.norm = {NormKind::layer, true, 1e-6};
    more.residual = {true, true, model::ValueMix::first};
    const model::Transformer a(m, 16), b(more, 16);
    const auto first = initial(a.params()), second = initial(b.params()), reseeded = initial(a.params(), 2);
    for (const model::Param& p : a.params().params()) {
        CAPTURE(p.name);
        CHECK(part(a.params(), first, p.name) == part(b.params(), second, p.name));
        CHECK(part(a.params(), first, p.name) != part(a.params(), reseeded, p.name));
    }
    CHECK(part(b.params(), second, "layers.0.mlp.up.weight") !=
          part(b.params(), second, "layers.1.mlp.up.weight"));
}

TEST_CASE("no two tensors of a deep model draw the same numbers") {
    // Streams are 32 bits of the name's hash.
    model::ModelConfig m = tiny_model(128);
    m.mlp.kind = model::MlpKind::swiglu;
    const model::Transformer model(m, 16);
    std::set<uint32_t> streams;
    for (const model::Param& p : model.params().params())
        CHECK(streams.insert(static_cast<uint32_t>(xxh64(p.name))).second);
}

TEST_CASE("FLOPs per token: six per weight of a product, and the visible scores") {
    model::ModelConfig m = published_model(12, 768, 6);
    const auto visible = [](int64_t length, int64_t window) {
        int64_t keys = 0;
        for (int64_t i = 0; i < length; ++i) keys += window > 0 ? std::min(i + 1, window) : i + 1;
        return static_cast<double>(keys) / static_cast<double>(length);
    };
    const double weights = 12.0 * 12 * 768 * 768 + 50304.0 * 768;
    for (int64_t length : {1, 16, 1000, 4096}) {
        const double expected = 6 * weights + 3 * 12 * 4 * 768 * visible(length, 0);
        CHECK(model::Transformer(m, 4096).training_flops_per_token(length) ==
              Approx(expected).epsilon(1e-12));
        CHECK(model::Transformer(m, 4096).evaluation_flops_per_token(length) ==
              Approx(expected / 3).epsilon(1e-12));
    }
    m.attention.window = 100;
    m.head.tied = true;
    for (int64_t length : {1, 16, 99, 100, 101, 4096}) {
        const double expected = 6 * weights + 3 * 12 * 4 * 768 * visible(length, 100);
        CHECK(model::Transformer(m, 4096).training_flops_per_token(length) ==
              Approx(expected).epsilon(1e-12));
    }
}
