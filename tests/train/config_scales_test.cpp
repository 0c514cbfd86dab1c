// Where the scores of the configs start, and how far one optimiser step moves what is learned about them.
#include <doctest/doctest.h>

#include <cmath>

#include "io/safetensors.h"
#include "model/attention_score.h"
#include "model/laws.h"
#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

train::Experiment read(const std::string& file) {
    return config::load_config<train::Experiment>(
               {.file = io::join_path(LONGREACH_CONFIGS, file)},
               [](train::Experiment& e, config::Problems& p) { e.check(p); })
        .value;
}

// The parameters of a layer's score as they start.
std::vector<double> first_values(const law::BoundLaw& law) {
    std::vector<double> values;
    for (size_t i = 0; i < law.parameters().size(); ++i) values.push_back(law.value(0, i));
    return values;
}

// Deviation of the scores of a fresh layer at half the training context, next to the query: of <q, k> for normed random
// vectors it is sqrt(d), of raw ones, whose channels start with deviation 1/2 after matrices from U(+-sqrt(0.75 / C)), it
// is sqrt(d) / 4.
double first_deviation(const model::ModelConfig& m, int64_t layer) {
    const model::LayerScore score = model::layer_score(m, layer);
    const model::AttentionConfig& a = m.layer_attention(layer);
    const double d = static_cast<double>(a.head_dim), raw = a.qk.kind == model::QkKind::none ? 0.25 : 1;
    const std::vector<double> first = first_values(score.law);
    law::Values v;
    v[law::Variable::n] = static_cast<double>(m.train_context) / 2;
    v[law::Variable::L] = static_cast<double>(m.train_context);
    v[law::Variable::d] = d;
    for (const double& value : first) v.parameters.emplace_back(&value, 1);
    return score.base * law::evaluate(score.law.law().row, v) * raw * std::sqrt(d);
}

// One scalar of the checkpoint of a step.
double scalar_of(const std::string& run, int64_t step, const std::string& name) {
    const std::string file =
        io::join_path(run, "checkpoints/" + io::checkpoint_name(step) + "/model.safetensors");
    const io::SafetensorsFile tensors = io::SafetensorsFile::open(file);
    const io::StoredTensor* found = tensors.find(name);
    REQUIRE_MESSAGE(found != nullptr, name);
    float value = 0;
    tensors.read(*found, &value, sizeof value);
    return value;
}

}  // namespace

TEST_CASE("scale-invariant attention starts from scores of deviation 1 in every config") {
    int configs = 0;
    for (const char* study : {"si162", "nor2k", "nor4k", "hybrids", "quickstart"})
        for (const std::string& file : experiments(study)) {
            const train::Experiment e = read(file);
            for (const int64_t l : e.model.distinct_layers()) {
                const model::AttentionConfig& a = e.model.layer_attention(l);
                if (!has_law(a, "scale_invariant") && !has_law(a, "si_interp")) continue;
                CAPTURE(file);
                CHECK(first_deviation(e.model, l) == doctest::Approx(1).epsilon(1e-6));
                ++configs;
            }
        }
    CHECK(configs >= 16);
    for (const char* later : {"gate_elementwise", "gate_headwise", "hybrid_norm", "nope", "output_norm",
                              "peri_ln", "post_norm", "qkv_norm", "qkv_norm_alone"}) {
        CAPTURE(later);
        CHECK(has_law(read(fmt::format("nor2k/{}.json", later)).model.attention, "scale_invariant"));
    }
}

TEST_CASE("the critical-scaling study: the baseline starts at 1.92, and what starts at parity equals it") {
    for (const char* study : {"nor2k", "nor4k"}) {
        const train::Experiment baseline = read(fmt::format("{}/baseline.json", study));
        const model::LayerScore score = model::layer_score(baseline.model, 0);
        CHECK(score.base == 1);
        CHECK(first_values(score.law) == std::vector<double>{0.12});
        CHECK(first_deviation(baseline.model, 0) == doctest::Approx(1.92));
        for (const char* variant : {"logn", "sqrt2logn"}) {
            CAPTURE(variant);
            const train::Experiment e = read(fmt::format("{}/{}.json", study, variant));
            CHECK(first_deviation(e.model, 0) == doctest::Approx(1.92));
        }
    }
    const auto first_r = [](const std::string& variant) {
        return first_values(model::layer_score(read("nor2k/" + variant + ".json").model, 0).law).at(0);
    };
    CHECK(first_r("sqrt2logn") == doctest::Approx(0.516).epsilon(1e-3));
    CHECK(first_r("sqrt2logn_static_1") == 1);
    CHECK(first_r("sqrt2logn_static_2") == 2);
}

TEST_CASE("one Adam step moves the baseline's factor by the learning rate, as a scalar that starts at 0.12") {
    const TempDir dir;
    const std::string data = make_long_corpus(dir / "data");
    const auto config =
        load_tiny_version("nor2k/baseline.json", data, dir / "runs",
                          {"stages=[{\"steps\":1,\"context\":64}]", "checkpoint.at_start=true",
                           "model.init.zero_projections=false", "model.init.zero_head=false",
                           "optimizer.schedule.kind=constant", "eval.final_tokens=1024",
                           "optimizer.schedule.decay_fraction=", "optimizer.schedule.final="});
    REQUIRE(run_training(config) == ExitCode::ok);
    const std::string run = io::join_path(config.value.run.dir, config.value.run.name);
    for (int64_t l = 0; l < config.value.model.layers; ++l) {
        const std::string name = fmt::format("layers.{}.attention.score.r", l);
        CAPTURE(name);
        CHECK(scalar_of(run, 0, name) == doctest::Approx(0.12));
        CHECK(std::abs(scalar_of(run, 1, name) - scalar_of(run, 0, name)) ==
              doctest::Approx(0.04).epsilon(1e-3));
    }
}
