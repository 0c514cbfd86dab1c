// The angles of a layer: the formula or name under `angle`, scaled by `angle_scaling`; and as an evaluation changes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "law/angle.h"
#include "model/attention_score.h"
#include "model/post_hoc.h"

namespace longreach::model {

// As trained, angle_scaling included. Throws ScoreError.
law::Angle trained_angle(const ModelConfig& model, int64_t layer);

// angle_scaling as numbers. They throw a ScoreError.
struct Scaling {
    double factor;
    int64_t original;  // context
};
Scaling scaling_of(const ModelConfig& model, const ScalingConfig& scaling);
struct Ramp {
    double fast, slow;  // turns over the original context; 0 for a kind without a ramp
};
Ramp ramp_of(const ScalingConfig& scaling);

// What yarn in angle_scaling multiplies s_base by, and the k of this temperature; 1 without it.
double trained_temperature(const ModelConfig& model, int64_t layer);
double trained_stretch(const ModelConfig& model, int64_t layer);

// The factor of attention's output by position (OutputNorm::position), in `near` of the one pair. It throws a
// ScoreError if the formula is wrong.
law::Angle output_factor(const ModelConfig& model, int64_t layer);

// At a length beyond the trained one, in a layer that `change` chooses; otherwise, and in a layer that turns nothing,
// the trained angle. Throws ScoreError.
law::Angle changed_angle(const ModelConfig& model, int64_t layer, const PostHocConfig& change,
                         int64_t length);

// What the names in the angle stand for, in words where it is a term; and all on one line.
std::vector<law::Definition> angle_definitions(const AttentionConfig& attention);
std::string angle_written_out(const AttentionConfig& attention);
law::AngleText angle_text(const AttentionConfig& attention);
// The base of rotary positions, if `angle` names them and their base is a number.
std::optional<double> rotary_base(const AttentionConfig& attention);

// The term whose sum between key and query takes the place of the position in the angle; "": none.
std::string angle_step(const AttentionConfig& attention);

// Whether the angle uses a parameter of `params`; those that it uses are not the score's.
bool angle_uses(const AttentionConfig& attention, const std::string& parameter);

// Reports params.NAME, which neither the angle nor, for this reason, the score uses. section: "model.attention".
void report_unused(const std::string& section, const std::string& name, const std::string& of_score,
                   config::Problems& problems);

}  // namespace longreach::model
