// The rules between the fields that attention reads. Those of other mixers and of optional parts are in their files,
// those that need the whole model in model_config.cpp, those of score laws in score_checks.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/attention_angle.h"
#include "model/attention_config.h"
#include "model/registry.h"

namespace longreach::model {

namespace {

// The rules of one attention section, by the part they are about.
struct AttentionRules : LayoutRules {
    bool counted;

    void shape() const {
        if (a.kv_heads != 0 && a.heads % a.kv_heads != 0)
            refuse(".kv_heads", fmt::format("{} key/value heads do not divide {} heads", a.kv_heads, a.heads),
                   ".heads");
        if (a.window > 0 && a.chunk > 0)
            refuse(".chunk", "a layer has a window or chunks, not both", ".window");
    }

    void scaling() const {
        const ScalingConfig& s = a.angle_scaling;
        const std::string section = ".angle_scaling.";
        if (!s.active()) return;
        if (a.written_angle() == "nope") no_effect(section + "kind", "angle is nope", ".angle");
        if (s.factor == 0 && s.original_context == 0)
            refuse(section + "kind", "needs factor or original_context", section + "factor");
        if (s.factor > 0 && s.factor < 1)
            p.add(path + section + "factor",
                  fmt::format("{} is below 1: it would shorten the range", s.factor));
    }

    void sticks() const {
        if (a.normaliser != Normaliser::stick_breaking) return;
        const auto none = [&](bool used, const char* key, const char* message) {
            if (used) refuse(key, message, ".normaliser");
        };
        none(a.sink != SinkKind::none, ".sink",
             "stick-breaking needs no sink: it may leave weight unassigned");
        none(a.window == 1, ".window",
             "a stick-breaking query does not see its own key, so a window of 1 holds none");
        none(a.chunk == 1, ".chunk",
             "a stick-breaking query does not see its own key, so a chunk of 1 holds none");
    }

    void entmax() const {
        if (a.entmax_learned && (a.entmax_alpha < 1.02 || a.entmax_alpha > 1.98))
            refuse(".entmax_alpha", "a learned alpha starts between 1.02 and 1.98", ".entmax_learned");
    }

    void modules() const {
        if (a.differential && a.heads / std::max<int64_t>(1, a.kv()) % 2 != 0)
            refuse(".differential",
                   fmt::format("each of the {} key/value heads needs an even number of the {} heads", a.kv(),
                               a.heads),
                   ".kv_heads");
        if (a.conv.size > 0 && !a.conv.queries && !a.conv.keys && !a.conv.values)
            refuse(".conv.size", "nothing is convolved", ".conv.queries");
        if (a.output_norm.kind == OutputNorm::position && a.output_norm.factor.empty())
            refuse(".output_norm.factor", "position needs a formula of p", ".output_norm.kind");
    }
};

}  // namespace

void check_attention(const AttentionConfig& attention, const std::string& path, config::Problems& problems,
                     bool counted) {
    const AttentionRules rules{{attention, path, problems}, counted};
    check_parts(rules);
    if (!attention.attends()) return;
    rules.shape();
    rules.scaling();
    if (attention.score.is_null())
        for (const auto& [name, unused] : attention.params)
            if (!angle_uses(attention, name)) report_unused(path, name, "score is null", problems);
    rules.sticks();
    rules.entmax();
    rules.modules();
}

}  // namespace longreach::model
