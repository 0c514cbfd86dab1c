// Laws for the scores and angles of attention in tests.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/json.h"
#include "model/attention_config.h"

namespace longreach::test {

// A parameter's first value, a number or a text, and how it learns; by_law: as the law has it.
inline model::ScoreParameterConfig starts(json::Value init, model::Learning learn = model::Learning::by_law,
                                          bool positive = false) {
    model::ScoreParameterConfig p;
    p.init = std::move(init);
    p.learn = learn;
    p.positive = positive;
    return p;
}

using ScoreParameters = std::map<std::string, model::ScoreParameterConfig>;

// Appends a law to the score: a name of the library or a formula. `params` say what of it differs.
inline void add_law(model::AttentionConfig& attention, const std::string& law,
                    const ScoreParameters& params = {}) {
    json::Value& score = attention.score;
    if (score.is_null()) {
        score = law;
    } else {
        if (!score.is_array()) score = json::Value::array({score});
        score.push(law);
    }
    for (const auto& [name, p] : params) attention.params[name] = p;
}

// An angle of the library, with its base and, of p-rope, the fraction of pairs that turn.
struct Turning {
    std::string angle = "rope";
    double base = 10000, fraction = 0.5;
};
inline void set_angle(model::AttentionConfig& attention, const Turning& turning) {
    attention.angle = turning.angle;
    attention.params.erase("base");
    attention.params.erase("fraction");
    if (turning.angle != "nope" && turning.base != 10000) attention.params["base"] = starts(turning.base);
    if (turning.angle.starts_with("p_rope") && turning.fraction != 0.5)
        attention.params["fraction"] = starts(turning.fraction);
}

// Whether the score is this law of the library, or has it in its list.
inline bool has_law(const model::AttentionConfig& attention, const std::string& law) {
    const json::Array* list = attention.score.to_array();
    if (list == nullptr) return attention.score == json::Value(law);
    return std::find(list->begin(), list->end(), json::Value(law)) != list->end();
}

}  // namespace longreach::test
