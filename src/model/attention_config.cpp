#include "model/attention_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/attention_angle.h"

namespace longreach::model {

namespace {
constexpr config::NumberRange positive{.min = 0, .max = 1e30, .open_min = true};
constexpr config::NumberRange non_negative{.min = 0, .max = 1e30};
}  // namespace

void PositionConfig::fields(config::Fields& f) {
    f.choice<PositionKind>("kind", kind,
                           {{PositionKind::rope, "rope", "rotate every channel pair"},
                            {PositionKind::p_rope, "p_rope", "rotate only the highest frequencies"},
                            {PositionKind::nope, "nope", "no rotary embedding"},
                            {PositionKind::evaluation_only, "rerope", "evaluation only: eval.rope"},
                            {PositionKind::evaluation_only, "leaky_rerope", "evaluation only: eval.rope"},
                            {PositionKind::evaluation_only, "yarn", "scaling.kind, or eval.rope"},
                            {PositionKind::evaluation_only, "ntk", "scaling.kind, or eval.rope"},
                            {PositionKind::evaluation_only, "pi", "scaling.kind, or eval.rope"}},
                           {"rotary position embedding of queries and keys"});
    f.number("base", base, {.min = 1, .max = 1e12, .open_min = true},
             {"geometric: theta_m = base^(-2m/d); linspace: the slowest kept pair has theta = 1/base"});
    f.number("fraction", fraction, {.min = 0, .max = 1},
             {"p_rope: share p of the d/2 channel pairs that is rotated, floor(p*d/2) pairs; 1 is rope, 0 is "
              "nope"});
    f.choice<Spacing>(
        "spacing", spacing,
        {{Spacing::geometric, "geometric", "the kept pairs keep the theta they have in full rope"},
         {Spacing::linspace, "linspace", "theta from 1 to 1/base over the kept pairs, both ends included"}},
        {"p_rope: frequencies of the kept pairs"});
    f.section("scaling", scaling, {"angles made for a shorter context, scaled to the one trained on"});
}

void ScalingConfig::fields(config::Fields& f) {
    f.word("kind", kind,
           {{"none", "angles as kind, or attention.angle, says"},
            {"pi", "positions divided by k"},
            {"ntk", "base * k^(d/(d-2)): the slowest rotation is divided by k"},
            {"yarn",
             "pairs that turn `fast` times over original_context as they are, those below `slow` divided by "
             "k, a ramp between; and scores times (0.1 log k + 1)^2"},
            {"llama3", "the same with a ramp in turns, and scores as they are"}},
           {"how the angles of training are scaled; they are those of eval.rope.kind"});
    f.number("factor", factor, {.min = 0, .max = 1e6}, {"k; 0: L_train / original_context"});
    f.integer("original_context", original_context, {.min = 0, .max = int64_t{1} << 31, .tokens = true},
              {"context that the angles were made for, in tokens; 0: L_train / factor"});
    f.number("fast", fast, {.min = 0, .max = 1e6},
             {"yarn, llama3: turns over original_context of the slowest pair that stays; 0: 32, llama3 4"});
    f.number("slow", slow, {.min = 0, .max = 1e6},
             {"yarn, llama3: turns over original_context of the fastest pair that is divided by k; 0: 1"});
    f.number("attention_factor", attention_factor, {.min = 0, .max = 1e6},
             {"yarn: factor of queries and of keys; 0: 0.1 log k + 1"});
    f.flag("truncate", truncate, {"yarn: the ramp begins and ends at whole pairs"});
}

void ScaleConfig::fields(config::Fields& f) {
    f.word("kind", kind,
           {{"none", "f = 1; with a granularity a learned factor r, 1 at the start"},
            {"logn", "r log n (scalable softmax)"},
            {"logn_bias", "r log n + b"},
            {"logn_fixed04", "0.4 log n"},
            {"logn_abc", "r log(b n + c)"},
            {"entinv", "log n / log L_train"},
            {"qwen_logn", "log n / log L_train beyond L_train, 1 up to it"},
            {"llama4", "1 + attn_scale log(1 + floor(n / floor_scale))"},
            {"grok2", "log(n-1) / log(attn_temperature_len) where n-1 is beyond it, else 1"},
            {"sqrt2logn", "r sqrt(2 log n)"},
            {"sqrt2lognp1", "r sqrt(2 log(n + 1))"},
            {"sqrt_abc", "r (a + sqrt(2 log(b n + c)))"},
            {"maxterm2", "r times two terms of the expected maximum of n normals"},
            {"beta_pow", "r n^(2/(d-1))"},
            {"solve_c", "1 / (largest weight) is `target` on average for normal scores"},
            {"solve_c_cos", "the same for cosines of random directions"},
            {"gammalogn", "r log n on cosines"},
            {"cosa_const", "4 log(L_train / 2) on cosines"},
            {"cosa_logn", "4 log n on cosines"},
            {"gradmax_gauss", "0.84 sqrt(log n)"},
            {"qknorm_g", "r on cosines, from log2(L_train^2 - L_train)"}},
           {"factor f(n) of the scores of a query that sees n keys"});
    f.number(
        "base", base, non_negative,
        {"scale of <q, k> in the unscaled model, 0: 1/sqrt(head_dim), or 1 where qk.kind says so; kind none: "
         "used as it is; else it only sets what parity means"});
    f.choice<ScaleGranularity>(
        "granularity", granularity,
        {{ScaleGranularity::by_kind, "by_kind",
          "head for logn and logn_bias, global for the other kinds with an r, fixed for the "
          "rest"},
         {ScaleGranularity::fixed, "static", "r is not learned"},
         {ScaleGranularity::global, "global", "one r for all layers of this layout"},
         {ScaleGranularity::layer, "layer"},
         {ScaleGranularity::head, "head"}},
        {"how many r are learned"});
    f.choice<ScaleInit>(
        "init", init,
        {{ScaleInit::by_kind, "by_kind",
          "0.43 for logn and logn_bias, log2(L^2 - L) for qknorm_g, parity for the other kinds with an "
          "r, 1 for the rest"},
         {ScaleInit::parity, "parity", "f equals the unscaled model's at n = L_train / 2"},
         {ScaleInit::value, "value", "r"}},
        {"first value of r"});
    f.number("r", r, {.min = -1e6, .max = 1e6}, {"init value: r at the start"});
    f.number("bias", bias, {.min = -1e6, .max = 1e6}, {"logn_bias: b at the start"});
    f.number("a", a, {.min = -1e6, .max = 1e6}, {"sqrt_abc"});
    f.number("b", b, non_negative, {"sqrt_abc, logn_abc"});
    f.number("c", c, non_negative, {"sqrt_abc, logn_abc; b + c must be at least 1"});
    f.number("target", target, {.min = 1, .max = 1e6, .open_min = true},
             {"solve_c, solve_c_cos: keys attended to, 1 / (largest weight)"});
    f.number("attn_scale", attn_scale, non_negative, {"llama4"});
    f.integer("floor_scale", floor_scale, {.min = 1, .max = int64_t{1} << 40, .tokens = true},
              {"llama4, in tokens"});
    f.integer("attn_temperature_len", attn_temperature_len,
              {.min = 2, .max = int64_t{1} << 40, .tokens = true}, {"grok2, in tokens"});
    f.choice<ScaleCount>("scale_n", scale_n,
                         {{ScaleCount::automatic, "auto", "document with a document mask, else sequence"},
                          {ScaleCount::sequence, "sequence", "position in the sequence, from 1"},
                          {ScaleCount::document, "document", "position in the document, from 1"},
                          {ScaleCount::visible, "visible", "keys the query sees, window included"}},
                         {"what n counts"});
}

ScaleGranularity ScaleConfig::granularity_used() const {
    if (granularity != ScaleGranularity::by_kind) return granularity;
    if (kind == "logn" || kind == "logn_bias") return ScaleGranularity::head;
    return learnable(kind) && kind != "none" ? ScaleGranularity::global : ScaleGranularity::fixed;
}

bool learnable(const std::string& kind) {
    const law::NamedLaw* named = law::find_law(kind);
    return named == nullptr ||
           std::any_of(named->parameters.begin(), named->parameters.end(),
                       [](const law::Parameter& p) { return p.learn != law::Sharing::fixed; });
}

void ScoreParameterConfig::fields(config::Fields& f) {
    f.any("init", init,
          {"first value: a number, a formula of h, H, l, layers, d and L, \"uniform(a, b)\", or \"parity\", "
           "with "
           "which the law equals the unscaled model at n = L/2; null: as the law has it"});
    f.choice<Learning>("learn", learn,
                       {{Learning::by_law, "by_law", "as the law has it; a formula's own parameter is fixed"},
                        {Learning::no, "no", "fixed"},
                        {Learning::model, "model", "one for all layers"},
                        {Learning::layout, "layout", "one for all layers of this layout"},
                        {Learning::layer, "layer"},
                        {Learning::head, "head"}},
                       {"which layers and heads share the learned number"});
    f.flag("positive", positive, {"learn the logarithm"});
    f.any("range", range, {"[a, b]: held between a and b where it is used; null: everywhere"});
    f.integer("size", size, {.min = 0, .max = 4096},
              {"elements of a vector, read by lookup(name, index); 0: as the law has it, else one number"});
    f.number("lr", lr, {.min = 0, .max = 1e6, .open_min = true}, {"factor of its learning rate"});
}

void QkConfig::fields(config::Fields& f) {
    f.choice<QkKind>(
        "kind", kind,
        {{QkKind::none, "none", "queries and keys as projected"},
         {QkKind::qk_rms, "qk_rms", "parameter-free RMS norm of every head's query and key"},
         {QkKind::qk_rms_w, "qk_rms_w", "RMS norm with a learned gain, shared by the heads"},
         {QkKind::qk_rms_full, "qk_rms_full",
          "RMS norm over the channels of all heads together, with a learned gain of each channel"},
         {QkKind::qk_ln, "qk_ln", "LayerNorm with a learned gain and bias"},
         {QkKind::qk_l2, "qk_l2",
          "unit vectors; scores are sqrt(head_dim) cos, or cos under a scale for cosines"},
         {QkKind::qk_rms_eps, "qk_rms_eps", "RMS norm with a learned eps, one for queries, one for keys"},
         {QkKind::qna, "qna", "<q/|q|, k>"},
         {QkKind::kna, "kna", "<q, k/|k|>"},
         {QkKind::kna_w, "kna_w", "<q, gain k/|k|>, the gain learned and shared by the heads"},
         {QkKind::cosa, "cosa", "cos(q, k), under a scale for cosines"},
         {QkKind::qkv_rms_w, "qkv_rms_w", "RMS norm with a learned gain of queries, keys and values"},
         {QkKind::qkv_ln, "qkv_ln", "LayerNorm with a learned gain and bias of queries, keys and values"}},
        {"treatment of queries and keys before rotary"});
    f.number("eps", eps, positive,
             {"of the norm (qk_rms_eps: at the start); 1.1920929e-7 is the f32 epsilon, 0.0078125 the bf16 "
              "epsilon "
              "other trainers end up with"});
    f.flag("eps_per_head", eps_per_head, {"qk_rms_eps: one eps per head instead of one per layer"});
}

void DistanceConfig::fields(config::Fields& f) {
    f.word(
        "kind", kind,
        {{"none", "scores do not depend on distance"},
         {"scale_invariant", "a(t) z - decay m(t) with m = 2 log(1 + t/tau), a = sqrt(1 + m)"},
         {"log_bias", "z - decay log(1 + t/tau)"},
         {"si_interp",
          "a z - (a^2 - 1)/2 - p log(1 + t/tau), a^2 = 1 + 2 (1 - kappa) log(1 + t/tau) + 2 kappa log(b n + "
          "c)"},
         {"alibi", "z - m_h t with fixed slopes m_h"},
         {"kerple_log", "z - p_h log(1 + a_h t), p and a learned per head"},
         {"kerple_power", "z - a_h t^p_h, p and a learned per head"}},
        {"how scores depend on the distance t between query and key"});
    f.number("tau", tau, positive, {"scale_invariant, log_bias, si_interp: length scale, in tokens"});
    f.flag("learn_tau", learn_tau, {"scale_invariant, log_bias: learn log(tau), one per layer"});
    f.number("decay", decay, {.min = -1e6, .max = 1e6},
             {"scale_invariant, log_bias: coefficient of the bias"});
    f.flag("learn_decay", learn_decay, {"scale_invariant, log_bias: learn it, one per layer"});
    f.number("kappa", kappa, {.min = 0, .max = 1},
             {"si_interp: 0 sharpens by distance, 1 by the number of keys"});
    f.number("p", p, {.min = -1e6, .max = 1e6}, {"si_interp: decay with distance"});
    f.number("b", b, non_negative, {"si_interp"});
    f.number("c", c, non_negative, {"si_interp"});
}

void ConvConfig::fields(config::Fields& f) {
    f.integer("size", size, {.min = 0, .max = 16},
              {"positions K of a causal depthwise convolution after the projections; 0: none"});
    f.flag("queries", queries, {"convolve queries"});
    f.flag("keys", keys, {"convolve keys"});
    f.flag("values", values, {"convolve values"});
}

void OutputNormConfig::fields(config::Fields& f) {
    f.choice<OutputNorm>("kind", kind,
                         {{OutputNorm::none, "none"},
                          {OutputNorm::head, "head", "over the channels of each head"},
                          {OutputNorm::all, "all", "over the channels of all heads together"},
                          {OutputNorm::position, "position", "no norm: the factor of the position"}},
                         {"RMS norm of the attention output, before gate and projection"});
    f.flag("gain", gain, {"learn a per-channel gain (head: shared by the heads)"});
    f.text("factor", factor,
           {"position: what the output at position p of the sequence is multiplied by, a formula such as "
            "\"(1 + p/16)^0.25\""});
}

void GateConfig::fields(config::Fields& f) {
    f.choice<GateKind>("kind", kind,
                       {{GateKind::none, "none"},
                        {GateKind::headwise, "headwise", "one gate per head"},
                        {GateKind::elementwise, "elementwise", "one gate per channel"},
                        {GateKind::sparse, "sparse", "one gate per head, from the first 12 input channels"}},
                       {"gates on the attention output, computed from the attention's input"});
    f.flag("doubled", doubled, {"2 sigmoid(u) instead of sigmoid(u)"});
    f.flag("zero_init", zero_init, {"gate matrices start at zero: 1 doubled, 0.5 plain"});
}

void DeltaConfig::fields(config::Fields& f) {
    f.integer("value_dim", value_dim, {.min = 0, .max = 512},
              {"channels of a head's values; head_dim are those of its keys; 0: head_dim"});
    f.integer("conv", conv, {.min = 0, .max = 16},
              {"positions K of the causal depthwise convolution of queries, keys and values; 0: none"});
}

void AttentionConfig::fields(config::Fields& f) {
    f.choice<MixerKind>(
        "mixer", mixer,
        {{MixerKind::attention, "attention", "attention, as the other keys say"},
         {MixerKind::gdn, "gdn",
          "Gated DeltaNet: a state of head_dim x value_dim per head that decays and is corrected by the "
          "delta rule"},
         {MixerKind::kda, "kda", "Kimi Delta Attention: the same with a decay for every key channel"},
         {MixerKind::gau, "gau",
          "gated attention unit, in place of attention and MLP: one query and key of head_dim channels, "
          "heads * head_dim channels of values and of gates"}},
        {"what moves information between positions; gdn and kda read heads, head_dim, delta, pre_norm and "
         "post_norm; gau reads what attention reads but kv_heads, bias, conv and gate"});
    f.integer("heads", heads, {.min = 1, .max = 1024}, {"query heads H"});
    f.integer("kv_heads", kv_heads, {.min = 0, .max = 1024},
              {"key/value heads G, each shared by H/G consecutive query heads; 0: as many as heads"});
    f.integer("head_dim", head_dim, {.min = 4, .max = 256},
              {"channels per head d; heads * head_dim need not be width"});
    f.integer("window", window, {.min = 0, .max = int64_t{1} << 40, .tokens = true},
              {"keys a query sees, its own included (key j visible to query i if i - j < window); 0: all "
               "before it"});
    f.integer("chunk", chunk, {.min = 0, .max = int64_t{1} << 40, .tokens = true},
              {"positions per block; a query sees only keys of its own block; 0: no blocks"});
    f.section("position", position, {"rotary position embedding"});
    f.any("angle", angle,
          {"the angle by which channel pair m turns at position p: a formula, \"p * 10000^(-2*m/d)\", or the "
           "name "
           "of an angle (longreach laws); {\"near\": that, \"growth\": g}: the pair of a query at i and a "
           "key at j also "
           "counts exp(g(i) - g(j)) times; null: as position says"});
    f.section("conv", conv, {"short causal convolution of queries, keys and values"});
    f.section("qk", qk, {"normalisation of queries and keys"});
    f.choice<AttentionBias>("bias", bias,
                            {{AttentionBias::none, "none"},
                             {AttentionBias::qkv, "qkv", "of queries, keys and values"},
                             {AttentionBias::all, "all", "of these and of the output projection"}},
                            {"learned biases of the projections"});
    f.section("scale", scale, {"score factor by the number of keys"});
    f.section("distance", distance, {"score transform by distance"});
    f.number("softcap", softcap, non_negative,
             {"c: scores become c tanh(z / c) before factors by n and t; 0: none"});
    f.any(
        "score", score,
        {"the score as a formula of z, n, t and more, as the name of a law (longreach laws), or as a list of "
         "both, applied in order; null: as scale, distance and softcap say"});
    f.variations("params", params, ScoreParameterConfig(),
                 {"parameters of the formulas in score and angle, by name"});
    f.choice<SinkKind>("sink", sink,
                       {{SinkKind::none, "none"},
                        {SinkKind::zero, "zero", "the softmax denominator has one more term, exp(0)"},
                        {SinkKind::learned, "learned", "exp(s), s learned per head from 0"}},
                       {"attention that goes nowhere"});
    f.choice<ForgetKind>("forget", forget,
                         {{ForgetKind::none, "none"},
                          {ForgetKind::head, "head",
                           "scores gain the sum of log f over the positions behind the key up to the query; "
                           "f = sigmoid(<w, x> + b) "
                           "per head from the attention's input x"}},
                         {"forget gates: weights fade by the content between key and query"});
    f.choice<Normaliser>(
        "normaliser", normaliser,
        {{Normaliser::softmax, "softmax", "exp(score) over their sum"},
         {Normaliser::stick_breaking, "stick_breaking",
          "each key, from the nearest on, takes the share sigmoid(score) of what nearer ones left; "
          "a query does not see its own key, and what is left in the end has no value"}},
        {"how scores become weights"});
    f.section("output_norm", output_norm, {"norm of the attention output"});
    f.section("gate", gate, {"gates on the attention output"});
    f.section("delta", delta, {"the gated delta rule of mixers gdn and kda"});
    f.flag("pre_norm", pre_norm, {"the block's norm before attention"});
    f.flag("post_norm", post_norm, {"a norm with a learned gain behind the output projection"});
}

namespace {

// The rules of one attention section, by the part they are about.
struct AttentionRules {
    const AttentionConfig& a;
    const std::string& path;
    config::Problems& p;
    bool counted;

    void no_effect(const std::string& key, const std::string& reason, const std::string& other) const {
        p.no_effect(path + key, reason, path + other);
    }
    void refuse(const std::string& key, const std::string& message, const std::string& other) const {
        p.add(path + key, message, path + other);
    }

    // What only the other mixers read.
    void mixer() const {
        if (a.attends())
            return no_effect(".delta", a.gated_unit() ? "mixer is gau" : "mixer is attention", ".mixer");
        for (const char* key :
             {".kv_heads", ".window", ".chunk", ".position", ".angle", ".conv", ".qk", ".scale", ".distance",
              ".softcap", ".score", ".params", ".sink", ".forget", ".normaliser", ".output_norm", ".gate"})
            no_effect(key, "mixer is not attention", ".mixer");
        if (a.head_dim % 4 != 0)
            p.add(path + ".head_dim", fmt::format("{} is not a multiple of 4", a.head_dim));
        if (a.delta.value_dim % 4 != 0)
            p.add(path + ".delta.value_dim", fmt::format("{} is not a multiple of 4", a.delta.value_dim));
    }

    // What a gated attention unit has in a form of its own, or lacks.
    void gated_unit() const {
        if (!a.gated_unit()) return;
        const auto without = [&](bool used, const char* key, const char* message) {
            if (used) refuse(key, message, ".mixer");
        };
        without(a.kv() != a.heads, ".kv_heads", "a gated attention unit has values for each of its heads");
        without(a.bias != AttentionBias::none, ".bias",
                "the matrices of a gated attention unit have no biases");
        without(a.conv.size > 0, ".conv.size", "a gated attention unit has no convolution");
        without(a.gate.kind != GateKind::none, ".gate.kind", "a gated attention unit has a gate of its own");
    }

    void shape() const {
        if (a.kv_heads != 0 && a.heads % a.kv_heads != 0)
            refuse(".kv_heads", fmt::format("{} key/value heads do not divide {} heads", a.kv_heads, a.heads),
                   ".heads");
        if (a.head_dim % 4 != 0)
            p.add(path + ".head_dim", fmt::format("{} is not a multiple of 4", a.head_dim));
        if (a.window > 0 && a.chunk > 0)
            refuse(".chunk", "a layer has a window or chunks, not both", ".window");
    }

    void scaling() const {
        const ScalingConfig& s = a.position.scaling;
        const std::string section = ".position.scaling.";
        const auto only = [&](const char* key, bool used, const char* users) {
            if (!used)
                no_effect(section + key, s.active() ? users : "position.scaling.kind is none",
                          section + "kind");
        };
        only("factor", s.active(), "");
        only("original_context", s.active(), "");
        for (const char* key : {"fast", "slow"})
            only(key, counts_turns(s.kind), "it belongs to yarn and llama3");
        for (const char* key : {"attention_factor", "truncate"})
            only(key, s.kind == "yarn", "it belongs to yarn");
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
            for (const char* key :
                 {".position.kind", ".position.base", ".position.fraction", ".position.spacing"})
                no_effect(key, "angle takes its place", ".angle");
            return;
        }
        if (kind == PositionKind::evaluation_only)
            p.add(path + ".position.kind",
                  "changes the angles of another kind: train with rope, scaled as position.scaling says",
                  "eval.rope.kind");
        if (kind == PositionKind::nope)
            no_effect(".position.base", "position.kind is nope", ".position.kind");
        if (kind == PositionKind::p_rope) return;
        no_effect(".position.fraction", "position.kind is not p_rope", ".position.kind");
        no_effect(".position.spacing", "position.kind is not p_rope", ".position.kind");
    }

    void queries_and_keys() const {
        const QkKind kind = a.qk.kind;
        const bool unit = kind == QkKind::qk_l2 || kind == QkKind::qna || kind == QkKind::kna ||
                          kind == QkKind::kna_w || kind == QkKind::cosa;
        if (kind == QkKind::none) no_effect(".qk.eps", "qk.kind is none", ".qk.kind");
        if (unit) no_effect(".qk.eps", "unit vectors have no eps", ".qk.kind");
        if (kind != QkKind::qk_rms_eps)
            no_effect(".qk.eps_per_head", "qk.kind is not qk_rms_eps", ".qk.kind");
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
        if (a.conv.size == 0)
            for (const char* key : {".conv.queries", ".conv.keys", ".conv.values"})
                no_effect(key, "conv.size is 0", ".conv.size");
        else if (!a.conv.queries && !a.conv.keys && !a.conv.values)
            refuse(".conv.size", "nothing is convolved", ".conv.queries");
        if (a.output_norm.kind == OutputNorm::none)
            no_effect(".output_norm.gain", "output_norm.kind is none", ".output_norm.kind");
        if (a.output_norm.kind == OutputNorm::position) {
            no_effect(".output_norm.gain", "the factor takes its place", ".output_norm.kind");
            if (a.output_norm.factor.empty())
                refuse(".output_norm.factor", "position needs a formula of p", ".output_norm.kind");
        } else {
            no_effect(".output_norm.factor", "output_norm.kind is not position", ".output_norm.kind");
        }
        if (a.gate.kind != GateKind::none) return;
        no_effect(".gate.doubled", "gate.kind is none", ".gate.kind");
        no_effect(".gate.zero_init", "gate.kind is none", ".gate.kind");
    }
};

}  // namespace

void check_attention(const AttentionConfig& attention, const std::string& path, config::Problems& problems,
                     bool counted) {
    const AttentionRules rules{attention, path, problems, counted};
    rules.mixer();
    if (!attention.attends()) return;
    rules.gated_unit();
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
