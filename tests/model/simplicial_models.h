// Tiny models with layers of 2-simplicial attention.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mixers/simplicial_layer.h"
#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> simplicial_models() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, model::SimplicialConfig windows, auto change,
                         bool documents = false) {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;
        small.config.attention.mixer = "simplicial";
        small.config.attention.own<model::SimplicialConfig>() = windows;
        change(small.config);
        all.push_back(std::move(small));
    };
    const auto as_it_is = [](model::ModelConfig&) {};
    add("2-simplicial, both windows inside the sequence", {7, 3}, as_it_is);
    add("2-simplicial, windows beyond the sequence, documents", {512, 32}, as_it_is, true);
    add("2-simplicial, the second window wider, documents", {2, 5}, as_it_is, true);
    add("2-simplicial, one key each, one head of 12", {1, 1}, [](model::ModelConfig& m) {
        m.attention.heads = 1;
        m.attention.head_dim = 12;
        m.norm.eps = 0.1;
    });
    add("three 2-simplicial to one attention, norms on both sides", {5, 4}, [](model::ModelConfig& m) {
        model::AttentionConfig global = m.attention;
        global.mixer = "attention";
        m.layouts = {{"pairs", m.attention}, {"global", global}};
        m.layers = 4;
        m.pattern = {"pairs", "pairs", "pairs", "global"};
        m.norm.placement = model::NormPlacement::peri;
    });
    all.push_back(all.front());
    all.back().name = "2-simplicial, several blocks of queries";
    all.back().sequences = 1;
    all.back().length = 150;
    return all;
}

}  // namespace longreach::test
