// Angles of a layer as numbers: frequencies, and the distances of far pairs.
#pragma once

#include "model/attention_angle.h"
#include "model/changed_layers.h"
#include "model/laws.h"

namespace longreach::test {

struct TurnPlan {
    std::vector<double> theta;  // near angles are p * theta
    bool far = false;
    int64_t far_from = 0;
    // Far queries turn by (offset + rate * p) * theta, far keys by rate * p * theta.
    double far_query_offset = 0, far_query_rate = 0, far_key_rate = 0;
    law::Formula far_query{}, far_key{};  // of the pair with theta = 1
    double logit_factor = 1;              // of all scores, at one key
};

inline model::ModelConfig one_layer(const Turning& turning, int64_t head_dim, int64_t train_context) {
    model::ModelConfig m;
    m.layers = 1;
    set_angle(m.attention, turning);
    m.attention.head_dim = head_dim;
    m.train_context = train_context;
    return m;
}

inline std::vector<double> rotary_frequencies(const Turning& turning, int64_t head_dim) {
    return law::frequencies(model::trained_angle(one_layer(turning, head_dim, 2048), 0).near).value();
}

inline double angle_at(const law::Formula& angle, double position) {
    law::Values v;
    v[law::Variable::p] = position;
    return law::evaluate(angle, v);
}

inline TurnPlan plan_rotary(const Turning& turning, int64_t head_dim, const model::PostHocConfig& change,
                            int64_t train_context, int64_t length) {
    const model::ModelConfig m = one_layer(turning, head_dim, train_context);
    const law::Angle angle = model::changed_angle(m, 0, change, length);
    TurnPlan plan{.theta = law::frequencies(angle.near).value()};
    if (angle.far_from > 0) {  // the first pair has theta = 1
        plan.far = true;
        plan.far_from = angle.far_from;
        plan.far_query_offset = angle_at(angle.far_queries[0], 0);
        plan.far_query_rate = angle_at(angle.far_queries[0], 1) - plan.far_query_offset;
        plan.far_key_rate = angle_at(angle.far_keys[0], 1);
        plan.far_query = angle.far_queries[0];
        plan.far_key = angle.far_keys[0];
    }
    const model::ScoreChange laws = change.score_change(!angle.near.empty());
    if (length > train_context && !laws.empty()) {
        const model::LayerScore score = model::layer_score(m, 0, laws);
        law::Values values;
        values[law::Variable::T] = static_cast<double>(length);
        plan.logit_factor = score.factor ? law::evaluate(score.factor, values) : 1;
    }
    return plan;
}

}  // namespace longreach::test
