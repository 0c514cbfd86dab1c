// The rules between the fields that attention reads. Those of other mixers and of optional parts are in their files,
// those that need the whole model in model_config.cpp, those of score laws in score_checks.cpp.
#include <fmt/format.h>

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
        const ScalingConfig& s = a.position.scaling;
        const std::string section = ".position.scaling.";
        if (!s.active()) return;
        if (a.angle.is_null() && a.position.kind == PositionKind::nope)
            no_effect(section + "kind", "position.kind is nope", ".position.kind");
        if (s.factor == 0 && s.original_context == 0)
            refuse(section + "kind", "needs factor or original_context", section + "factor");
        if (s.factor > 0 && s.factor < 1)
            p.add(path + section + "factor",
                  fmt::format("{} is below 1: it would shorten the range", s.factor));
    }

    void position() const {
        const PositionKind kind = a.position.kind;
        scaling();
        if (!a.angle.is_null()) {
            for (const char* key : {".position.kind", ".position.base"})
                no_effect(key, "angle takes its place", ".angle");
            return;
        }
        if (kind == PositionKind::evaluation_only)
            p.add(path + ".position.kind",
                  "changes the angles of another kind: train with rope, scaled as position.scaling says",
                  "eval.rope.kind");
    }

    void queries_and_keys() const {
        const QkKind kind = a.qk.kind;
        const bool cosines = acts_on_cosines(a.scale.kind);
        if (a.written()) return;
        if (kind == QkKind::cosa && !cosines)
            refuse(".qk.kind",
                   "cosines need a scale made for them: gammalogn, cosa_const, cosa_logn or qknorm_g",
                   ".scale.kind");
        if (cosines && kind != QkKind::cosa && kind != QkKind::qk_l2)
            refuse(".scale.kind", "is made for cosines; qk.kind must be cosa or qk_l2", ".qk.kind");
    }

    // Formulas take the place of the keys that stand for some of them.
    void written() const {
        for (const char* key : {".scale.kind",
                                ".scale.base",
                                ".scale.granularity",
                                ".scale.init",
                                ".scale.r",
                                ".scale.bias",
                                ".scale.a",
                                ".scale.b",
                                ".scale.c",
                                ".scale.target",
                                ".scale.attn_scale",
                                ".scale.floor_scale",
                                ".scale.attn_temperature_len",
                                ".distance.kind",
                                ".distance.tau",
                                ".distance.learn_tau",
                                ".distance.decay",
                                ".distance.learn_decay",
                                ".distance.kappa",
                                ".distance.p",
                                ".distance.b",
                                ".distance.c",
                                ".softcap"})
            no_effect(key, "score takes its place", ".score");
    }

    void scale() const {
        const ScaleConfig& s = a.scale;
        const std::string& kind = s.kind;
        const bool has_r = learnable(kind) && kind != "none";
        if (!learnable(kind) && s.learned())
            refuse(".scale.granularity", "this kind of scale learns nothing", ".scale.kind");
        const auto only = [&](const char* key, bool used, const char* users) {
            if (!used)
                no_effect(std::string(".scale.") + key, std::string("it belongs to ") + users, ".scale.kind");
        };
        const bool plain = kind == "none" && s.learned();  // r itself, of shape 1
        only("init", has_r || plain, "scales with an r");
        if (plain && s.init == ScaleInit::parity)
            no_effect(".scale.init", "kind none starts at r = 1 or at a value; base is its multiplier",
                      ".scale.kind");
        only("bias", kind == "logn_bias", "logn_bias");
        only("a", kind == "sqrt_abc", "sqrt_abc");
        const bool abc = kind == "sqrt_abc" || kind == "logn_abc";
        only("b", abc, "sqrt_abc and logn_abc");
        only("c", abc, "sqrt_abc and logn_abc");
        only("target", kind == "solve_c" || kind == "solve_c_cos", "solve_c and solve_c_cos");
        only("attn_scale", kind == "llama4", "llama4");
        only("floor_scale", kind == "llama4", "llama4");
        only("attn_temperature_len", kind == "grok2", "grok2");
        if (abc && s.b + s.c < 1)
            refuse(".scale.c", fmt::format("log(b + c) is negative for b {}, c {}", s.b, s.c), ".scale.b");
        const bool valued = (has_r || plain) && s.init == ScaleInit::value;
        if (!valued)
            no_effect(".scale.r", "init is not value", has_r || plain ? ".scale.init" : ".scale.kind");
        const bool own_first = kind == "logn" || kind == "logn_bias" || kind == "qknorm_g";
        const bool parity =
            has_r && (s.init == ScaleInit::parity || (s.init == ScaleInit::by_kind && !own_first));
        if (kind != "none" && !parity)
            no_effect(".scale.base", "r does not start at parity", has_r ? ".scale.init" : ".scale.kind");
        const bool counts = counted || (kind != "none" && kind != "cosa_const" && kind != "qknorm_g");
        if (!counts && a.distance.kind != "si_interp")
            no_effect(".scale.scale_n", "nothing depends on n", ".scale.kind");
    }

    void distance() const {
        const DistanceConfig& d = a.distance;
        const bool logarithmic = d.kind == "scale_invariant" || d.kind == "log_bias";
        const bool interpolated = d.kind == "si_interp";
        const auto only = [&](const char* key, bool used, const char* users) {
            if (used) return;
            no_effect(std::string(".distance.") + key,
                      d.kind == "none" ? "distance.kind is none" : std::string("it belongs to ") + users,
                      ".distance.kind");
        };
        only("tau", logarithmic || interpolated, "scale_invariant, log_bias and si_interp");
        for (const char* key : {"learn_tau", "decay", "learn_decay"})
            only(key, logarithmic, "scale_invariant and log_bias");
        for (const char* key : {"kappa", "p", "b", "c"}) only(key, interpolated, "si_interp");
        if (d.kind == "alibi" && a.angle.is_null() && a.position.kind != PositionKind::nope)
            refuse(".distance.kind", "alibi takes the place of rotary positions; position.kind must be nope",
                   ".position.kind");
        // The smallest a^2, of the first query: 1 + 2 kappa log(b + c).
        if (interpolated && !(1 + 2 * d.kappa * std::log(d.b + d.c) >= -1e-9))
            refuse(".distance.c",
                   fmt::format("a^2 is negative for the first query with b {}, c {}", d.b, d.c),
                   ".distance.b");
    }

    void normaliser() const {
        if (a.normaliser == Normaliser::softmax) return;
        const auto only_softmax = [&](bool used, const char* key, const char* message) {
            if (used) refuse(key, message, ".normaliser");
        };
        only_softmax(a.sink != SinkKind::none, ".sink",
                     "stick-breaking needs no sink: it may leave weight unassigned");
        only_softmax(a.forget != ForgetKind::none, ".forget", "forget gates need the softmax");
        only_softmax(a.window == 1, ".window",
                     "a stick-breaking query does not see its own key, so a window of 1 holds none");
        only_softmax(a.chunk == 1, ".chunk",
                     "a stick-breaking query does not see its own key, so a chunk of 1 holds none");
    }

    void modules() const {
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
    rules.position();
    rules.queries_and_keys();
    if (attention.written()) {
        rules.written();
    } else {
        rules.scale();
        rules.distance();
        for (const auto& [name, unused] : attention.params)
            if (!angle_uses(attention, name))
                problems.no_effect(path + ".params." + name, "score is null", path + ".score");
    }
    rules.normaliser();
    rules.modules();
}

}  // namespace longreach::model
