// eval.rope.layers: which layers an evaluation beyond the training length changes.
#include <doctest/doctest.h>

#include "model/changed_layers.h"
#include "model/gradient_check.h"
#include "model/small_models.h"
#include "model/tables.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t trained = 8, length = 24;

// Windowed, chunked, full and unrotated layers with equal frequencies, in this order, twice.
model::ModelConfig mixed_reach() {
    model::ModelConfig m = tiny_model(8);
    m.train_context = trained;
    set_angle(m.attention, {"rope", 50});
    for (const char* name : {"window", "chunk", "full", "none"}) m.layouts[name] = m.attention;
    m.layouts["window"].window = 6;
    m.layouts["chunk"].chunk = 12;
    m.layouts["none"].angle = "nope";
    m.pattern = {"window", "chunk", "full", "none"};
    return m;
}

model::PostHocConfig change_of(const std::string& kind, json::Value layers) {
    model::PostHocConfig change;
    change.kind = kind;
    change.window = kind == "rerope" || kind == "leaky_rerope" ? 3 : 0;
    change.layers = std::move(layers);
    return change;
}

using Layers = std::vector<int64_t>;

struct PlannedTables {
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena{*ops};
    model::Tables tables;
    PlannedTables(const model::ModelConfig& config, const model::PostHocConfig& change)
        : tables(config, length, change) {
        tables.plan(arena);
        arena.commit();
        tables.fill(*ops);
    }
    // Whatever tables a layer reads at this length.
    std::vector<float> read(int64_t layer, int64_t at) {
        tables.use_length(*ops, at);
        const model::LayerTables t = tables.layer(layer);
        std::vector<float> all{static_cast<float>(t.far_from), static_cast<float>(t.score.factor)};
        for (const Tensor& table : {t.queries.cosine, t.queries.sine, t.far_queries.cosine, t.far_keys.sine,
                                    t.score.row.value.filled}) {
            if (!table) continue;
            std::vector<float> host(static_cast<size_t>(table.count()));
            ops->download(host.data(), table);
            all.insert(all.end(), host.begin(), host.end());
        }
        return all;
    }
};

std::vector<float> losses(const model::ModelConfig& m, const model::PostHocConfig& change, int64_t tokens) {
    const Example example = random_example(m.vocab_size, 2, tokens, false);
    ModelFixture fixture(m, {.sequences = 2, .length = length, .post_hoc = change});
    fixture.model().use_length(fixture.ops(), tokens);
    return fixture.evaluate(example);
}

const std::vector<std::string> methods{"pi",          "ntk",  "ntk_old", "ntk_su",      "ntk_mixed",
                                       "ntk_dynamic", "yarn", "rerope",  "leaky_rerope"};

}  // namespace

TEST_CASE("changed layers: full, all and layout names") {
    const model::ModelConfig m = mixed_reach();
    const auto of = [&](json::Value layers, int64_t at = length) {
        return model::changed_layers(m, change_of("yarn", std::move(layers)), at);
    };
    CHECK(of("full") == Layers{2, 6});
    CHECK(of("all") == Layers{0, 1, 2, 4, 5, 6});  // layers without rotary positions have none to change
    CHECK(of("window") == Layers{0, 4});
    CHECK(of(json::Value::array({"window", "full"})) == Layers{0, 2, 4, 6});  // here a layout's name
    CHECK(of("chunk,none") == Layers{1, 5});
    CHECK(of("attention").empty());
    // At 12 tokens chunks of 12 are the whole sequence.
    CHECK(of("full", 12) == Layers{1, 2, 5, 6});
    CHECK(of("full", 13) == Layers{2, 6});
    CHECK(of("all", trained).empty());
    model::PostHocConfig clip;
    clip.scale = "clip_logn";
    CHECK(model::changed_layers(m, clip, length) == Layers{2, 3, 6, 7});
    CHECK(model::changed_layers(m, model::PostHocConfig(), length).empty());
    model::ModelConfig wide = m;
    wide.layouts["window"].window = 100;
    const model::PostHocConfig yarn = change_of("yarn", "full");
    CHECK(model::changed_layers(wide, yarn, length) == Layers{0, 2, 4, 6});
    CHECK(model::changed_layers(wide, yarn, length, 20) == Layers{2, 6});  // a stage has narrowed the windows
    const model::ModelConfig plain = [] {
        model::ModelConfig p = tiny_model(3);
        p.train_context = trained;
        return p;
    }();
    CHECK(model::changed_layers(plain, change_of("pi", "attention"), length) == Layers{0, 1, 2});
}

TEST_CASE("changed layers: one line says which") {
    const model::ModelConfig m = mixed_reach();
    CHECK(model::changed_layers_line(m, change_of("yarn", "full"), {4, 16, length}) ==
          "changed positions (yarn) on 2 of 8 layers: 2, 6; --set eval.rope.layers=all changes all");
    CHECK(model::changed_layers_line(m, change_of("rerope", "chunk"), {length}) ==
          "changed positions (rerope) on 2 of 8 layers: 1, 5");
    CHECK(
        model::changed_layers_line(m, change_of("pi", "full"), {12, 16, length}) ==
        "changed positions (pi) on 4 of 8 layers: 1, 2, 5, 6 at 12; on 2 of 8 layers: 2, 6 at 16, 24; --set "
        "eval.rope.layers=all changes all");
    CHECK(model::changed_layers_line(m, change_of("yarn", "full"), {4, trained}).empty());
    CHECK(model::changed_layers_line(m, model::PostHocConfig(), {length}).empty());
    model::PostHocConfig clip;
    clip.scale = "clip_logn";
    clip.layers = "all";
    CHECK(model::changed_layers_line(m, clip, {length}) ==
          "changed scores (clip_logn) on 8 of 8 layers: 0, 1, 2, 3, 4, 5, 6, 7");
}

TEST_CASE("tables differ from the unchanged ones in the chosen layers only, for every method") {
    const model::ModelConfig m = mixed_reach();
    std::vector<model::PostHocConfig> changes;
    for (const std::string& kind : methods)
        for (const char* layers : {"full", "all", "window"}) changes.push_back(change_of(kind, layers));
    for (const std::string scale : {"clip_logn", "yarn_temp"})
        for (const char* layers : {"full", "all", "window"}) {
            changes.push_back(change_of("none", layers));
            changes.back().scale = scale;
        }
    PlannedTables plain(m, {});
    for (const model::PostHocConfig& change : changes) {
        CAPTURE(change.kind);
        CAPTURE(change.layers.as_string());
        PlannedTables changed(m, change);
        for (const int64_t at : {length, trained, int64_t{12}, int64_t{0}}) {
            CAPTURE(at);
            const Layers chosen = model::changed_layers(m, change, at);
            for (int64_t l = 0; l < m.layers; ++l) {
                CAPTURE(l);
                const bool named = std::find(chosen.begin(), chosen.end(), l) != chosen.end();
                CHECK((changed.read(l, at) != plain.read(l, at)) == named);
            }
        }
    }
}

TEST_CASE("rope: losses at a length are the same, whatever length came before") {
    const model::ModelConfig m = mixed_reach();
    std::vector<model::PostHocConfig> changes;
    for (const std::string& kind : methods) changes.push_back(change_of(kind, "all"));
    for (const char* scale : {"clip_logn", "yarn_temp"}) {
        changes.push_back(change_of("none", "all"));
        changes.back().scale = scale;
    }
    const Example example = random_example(m.vocab_size, 2, length, false);
    for (const model::PostHocConfig& change : changes) {
        CAPTURE(change.kind);
        CAPTURE(change.scale);
        const std::vector<float> expected = losses(m, change, length);
        ModelFixture fixture(m, {.sequences = 2, .length = length, .post_hoc = change});
        for (const int64_t before : {int64_t{12}, int64_t{0}}) {
            CAPTURE(before);
            fixture.model().use_length(fixture.ops(), before);
            fixture.model().use_length(fixture.ops(), length);
            CHECK(fixture.evaluate(example) == expected);
        }
    }
}

TEST_CASE("rope changes a windowed model only by the layers that attend to everything") {
    // Naming the layers without window, chunks or rotary positions is the same as full; the layers that full
    // leaves out keep their losses to the last bit, whatever the method.
    const model::ModelConfig m = mixed_reach();
    for (const std::string& kind : methods) {
        CAPTURE(kind);
        const std::vector<float> full = losses(m, change_of(kind, "full"), length);
        CHECK(full == losses(m, change_of(kind, json::Value::array({"full", "none"})), length));
        CHECK(full != losses(m, {}, length));
        CHECK(full != losses(m, change_of(kind, "all"), length));
        // The windowed layers alone, and all of them together with the rest.
        CHECK(losses(m, change_of(kind, "window,chunk,full"), length) ==
              losses(m, change_of(kind, "all"), length));
    }
    model::ModelConfig windows = m;
    windows.pattern = {"window"};
    for (const std::string& kind : methods) {
        CAPTURE(kind);
        CHECK(losses(windows, change_of(kind, "full"), length) == losses(windows, {}, length));
        // rerope's window of 3 is below these of 6.
        CHECK(losses(windows, change_of(kind, "all"), length) != losses(windows, {}, length));
    }
}
