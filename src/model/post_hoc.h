// Changes to a trained model for sequences longer than those of training; the "rope" section of an
// evaluation. With L the evaluation length and L_train the trained one, they act only if L > L_train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"

namespace longreach::model {

enum class RopeMethod {
    none,
    pi,
    ntk,
    ntk_old,
    ntk_su,
    ntk_mixed,
    ntk_dynamic,
    yarn,
    rerope,
    leaky_rerope,
};

enum class TestScale { none, clip_logn, yarn_temp };

struct PostHocConfig {
    RopeMethod kind = RopeMethod::none;
    double factor = 0;   // k; 0: L / L_train (ntk_dynamic: 1, which grows with L by itself)
    int64_t window = 0;  // rerope, leaky_rerope: w; 0: L_train / 4, at least 1
    // leaky_rerope: k; 0: the least that keeps every distance in the trained range, (L - w) / (L_train - w),
    // or L / L_train if w >= L_train.
    double leak = 0;
    double exponent = 0.625;  // ntk_mixed: b
    TestScale scale = TestScale::none;
    json::Value score;  // eval.score: null, a formula, the name of a law, or a list of them
    // "full": layers that attend to the whole sequence at the evaluation; "all"; or layout names,
    // as a list or as "a,b".
    json::Value layers = "full";
    void fields(config::Fields& f);
    bool takes_full() const { return layers == json::Value("full"); }
    bool takes_all() const { return layers == json::Value("all"); }
    bool layers_readable() const;
    std::vector<std::string> layer_names() const;  // if it is neither full nor all
    json::Value score_change() const;              // the laws that follow the model's own; null: none
    bool active() const { return kind != RopeMethod::none || scale != TestScale::none || !score.is_null(); }

    // path: the path of the section, "eval.rope".
    void check(const std::string& path, config::Problems& problems) const;
};

}  // namespace longreach::model
