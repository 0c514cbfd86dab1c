// Changes to a trained model for sequences longer than those of training; the "rope" section of an
// evaluation. With L the evaluation length and L_train the trained one, they act only if L > L_train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"

namespace longreach::model {

// What an evaluation changes in the score of a layer.
struct ScoreChange {
    std::string stretch;  // k of the temperature of yarn: a formula of T and L; "": none
    std::string factor;   // the name of a law that changes the factor of z; "": none
    json::Value laws;     // eval.score: laws that follow those of the layer; null: none
    bool empty() const { return stretch.empty() && factor.empty() && laws.is_null(); }
};

// What decides which keys eval.top_k keeps.
enum class TopBy { scores, index };

struct PostHocConfig {
    std::string kind = "none";  // or the name of an angle that changes another (law/angle.h)
    double factor = 0;          // k; 0: L / L_train (ntk_dynamic: 1, which grows with L by itself)
    int64_t window = 0;         // rerope, leaky_rerope: w; 0: L_train / 4, at least 1
    // leaky_rerope: k; 0: the least that keeps every distance in the trained range, (L - w) / (L_train - w),
    // or L / L_train if w >= L_train.
    double leak = 0;
    double exponent = 0.625;     // ntk_mixed: b
    std::string scale = "none";  // or the name of a law
    json::Value angle;  // eval.angle: null, a formula, the name of an angle, or an object of formulas
    // eval.top_k, eval.top_k_block: keys that a query attends to, at every length; 0: all. They are taken one by
    // one or, with a block size > 0, in blocks.
    int64_t top_k = 0, top_k_block = 0;
    TopBy top_k_by = TopBy::scores;  // eval.top_k_by
    json::Value score;               // eval.score: null, a formula, the name of a law, or a list of them
    // "full": layers that attend to the whole sequence at the evaluation; "all"; or layout names,
    // as a list or as "a,b".
    json::Value layers = "full";
    void fields(config::Fields& f);
    bool takes_full() const { return layers == json::Value("full"); }
    bool takes_all() const { return layers == json::Value("all"); }
    bool layers_readable() const;
    std::vector<std::string> layer_names() const;  // if it is neither full nor all
    ScoreChange score_change(bool turned) const;   // of a layer that turns pairs, or does not
    bool turns() const { return kind != "none" || !angle.is_null(); }  // it changes angles
    bool needs_angle() const { return turns() || scale == "yarn_temp"; }
    bool far_pairs() const;  // it gives far pairs angles of their own
    const char* angle_key() const { return kind != "none" ? "eval.rope.kind" : "eval.angle"; }
    bool active() const { return turns() || scale != "none" || !score.is_null(); }

    // path: the path of the section, "eval.rope".
    void check(const std::string& path, config::Problems& problems) const;
};

}  // namespace longreach::model
