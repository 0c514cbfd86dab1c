// Every config under configs/, shrunk: losses and the gradient of every parameter agree
// with the scalar reference.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "config/loader.h"
#include "mixers/latent.h"
#include "model/check_model.h"
#include "model/laws.h"
#include "train/experiment.h"

using namespace longreach;
using namespace longreach::test;

namespace {

void shrink(model::AttentionConfig& a) {
    a.kv_heads = a.kv_heads > 0 && a.kv_heads < a.heads ? 1 : 0;
    a.heads = 2;
    a.head_dim = 8;
    model::LatentConfig& latent = a.own<model::LatentConfig>();
    if (latent) latent = {12, latent.shared > 0 ? 4 : 0, latent.queries > 0 ? 8 : 0};
    if (a.window > 0) a.window = 5;
    if (a.chunk > 0) a.chunk = 5;
    if (has_law(a, "llama4")) a.params["floor_scale"] = starts(3);
    if (has_law(a, "grok2")) a.params["length"] = starts(4);
}

// The same architecture at a size the reference can differentiate; all gradients made non-zero.
model::ModelConfig shrunk(model::ModelConfig m) {
    m.layers = std::min<int64_t>(m.layers, std::max<int64_t>(2, static_cast<int64_t>(m.pattern.size())));
    m.width = 24;
    m.train_context = 10;
    m.positions = std::min<int64_t>(m.positions, 14);  // no row without a gradient
    m.residual.value_embeddings = std::min<int64_t>(m.residual.value_embeddings, 1);
    m.residual.backout = std::min(m.residual.backout, m.layers - 2);
    m.vocab_size = 19;
    m.mlp.hidden = 0;
    m.init.zero_projections = false;
    m.init.zero_head = false;
    shrink(m.attention);
    for (auto& [name, layout] : m.layouts) shrink(layout);
    return m;
}

}  // namespace

TEST_CASE("every config under configs/, shrunk: gradients agree with the reference") {
    int configs = 0;
    std::set<std::string> seen;  // many configs differ in data or optimiser alone
    for (const auto& entry : std::filesystem::recursive_directory_iterator(LONGREACH_CONFIGS)) {
        if (entry.path().extension() != ".json") continue;
        if (entry.path().parent_path().filename() == "reproduce") continue;  // sweeps, not experiments
        CAPTURE(entry.path().string());
        const train::Experiment e = config::load_config<train::Experiment>(
                                        {.file = entry.path().string(), .overrides = {}},
                                        [](train::Experiment& x, config::Problems& p) { x.check(p); })
                                        .value;
        SmallModel small;
        small.name = entry.path().filename().string();
        small.config = shrunk(e.model);
        small.sequences = 2;
        small.length = 14;
        small.documents = e.data.document_mask;
        const std::string text = config::write_resolved(small.config);
        if (seen.insert(fmt::format("{} {}", text, small.documents)).second)
            check_model(small, available_isas(), 30, true);
        ++configs;
    }
    CHECK(configs >= 3);
}
