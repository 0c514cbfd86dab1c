// Cross-field checks of the model section: contradictions are reported where they stand, never thrown.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "config/acts.h"
#include "model/small_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

class Recorder final : public config::Problems {
  public:
    explicit Recorder(std::set<std::string> written = {}) : written_(std::move(written)) {}
    bool is_set(std::string_view path) const override { return written_.count(std::string(path)) > 0; }
    void add(std::string_view path, std::string, std::string_view) override {
        paths.insert(std::string(path));
    }
    std::set<std::string> paths;

  private:
    std::set<std::string> written_;
};

using Paths = std::set<std::string>;

Paths problems(const model::ModelConfig& m, Paths written = {}) {
    Recorder recorder(std::move(written));
    model::ModelConfig held = m;
    config::check_acts(config::describe_fields([&](config::Fields& f) { f.section("model", held, {}); }),
                       recorder);
    m.check(recorder);
    return recorder.paths;
}

}  // namespace

TEST_CASE("the models of the tests are valid") {
    for (const SmallModel& small : small_models()) {
        CAPTURE(small.name);
        CHECK(problems(small.config).empty());
    }
    for (uint32_t i = 0; i < 500; ++i) {
        CAPTURE(i);
        CHECK(problems(random_model(i).config).empty());
    }
}

TEST_CASE("layouts: chosen by pattern and last layer") {
    model::ModelConfig m = tiny_model(5);
    CHECK(m.layout_name(3) == "");
    CHECK(&m.layer_attention(3) == &m.attention);
    m.layouts = {{"near", m.attention}, {"far", m.attention}, {"end", m.attention}};
    m.pattern = {"near", "near", "far"};
    m.last = "end";
    const std::vector<std::string> expected = {"near", "near", "far", "near", "end"};
    for (int64_t l = 0; l < 5; ++l) {
        CHECK(m.layout_name(l) == expected[static_cast<size_t>(l)]);
        CHECK(&m.layer_attention(l) == &m.layouts.at(expected[static_cast<size_t>(l)]));
    }
    CHECK(problems(m).empty());
    m.last.clear();
    CHECK(m.layout_name(4) == "near");
    CHECK(problems(m) == Paths{"model.layouts.end"});  // no layer uses it
}

// An unknown layout once ended the check with an exception where values are mixed.
TEST_CASE("unknown layouts are reported, also with a value residual") {
    for (model::ValueMix values : {model::ValueMix::none, model::ValueMix::first}) {
        model::ModelConfig m = tiny_model(4);
        m.residual.values = values;
        m.last = "gone";
        CHECK(problems(m) == Paths{"model.last"});
        m.pattern = {"missing"};
        CHECK(problems(m) == Paths{"model.last", "model.pattern"});
    }
}

TEST_CASE("contradictions between sizes") {
    model::ModelConfig m = tiny_model();
    m.attention.heads = 6;
    m.attention.kv_heads = 4;
    CHECK(problems(m) == Paths{"model.attention.kv_heads"});
    m = tiny_model();
    m.attention.head_dim = 6;
    CHECK(problems(m) == Paths{"model.attention.head_dim"});
    m = tiny_model(1);
    m.residual.unet = true;
    m.residual.values = model::ValueMix::first;
    CHECK(problems(m) == Paths{"model.residual.unet", "model.residual.values"});
    m = tiny_model(3);
    model::AttentionConfig wide = m.attention;
    wide.head_dim = 16;
    m.layouts = {{"wide", wide}};
    m.last = "wide";
    CHECK(problems(m).empty());
    m.residual.values = model::ValueMix::first;
    CHECK(problems(m) == Paths{"model.residual.values"});
}

TEST_CASE("keys without effect are reported where the user wrote them") {
    model::ModelConfig m = tiny_model();  // rope, qk_rms, no law, no softcap, untied
    m.attention.params = {{"base", starts(500)}, {"fraction", starts(0.3)}, {"tau", starts(3)}};
    const Paths idle = {"model.attention.params.fraction", "model.attention.params.tau",
                        "model.head.softcap.cap", "model.head.softcap.shift",
                        "model.head.softcap.temperature"};
    CHECK(problems(m, idle) == idle);
    CHECK(problems(m, {"model.attention.params.base", "model.attention.qk.eps", "model.init.zero_head"})
              .empty());
    model::ModelConfig other = m;
    other.attention.angle = "nope";
    other.attention.qk.kind = model::QkKind::none;
    other.head.tied = true;
    const Paths now_idle = {"model.attention.params.base", "model.attention.qk.eps", "model.init.zero_head"};
    CHECK(problems(other, now_idle) == now_idle);
    other = m;
    other.attention.angle = "p_rope";
    other.attention.score = "scale_invariant";
    other.head.softcap.kind = Softcap::sigmoid;
    CHECK(problems(other, idle).empty());
    other.head.softcap.kind = Softcap::tanh;
    CHECK(problems(other, idle) == Paths{"model.head.softcap.shift", "model.head.softcap.temperature"});
}
