#include "model/attention_config.h"

#include <algorithm>

#include "law/library.h"
#include "model/registry.h"

namespace longreach::model {

namespace {
constexpr config::NumberRange positive{.min = 0, .max = 1e30, .open_min = true};
constexpr config::NumberRange non_negative{.min = 0, .max = 1e30};
}  // namespace

void ScalingConfig::fields(config::Fields& f) {
    constexpr config::Acts active = config::unless("kind", "none"),
                           ramped = config::only("kind", "yarn llama3");
    f.word("kind", kind,
           {{"none", "as angle says"},
            {"pi", "positions divided by k"},
            {"ntk", "base * k^(d/(d-2)): the slowest rotation is divided by k"},
            {"yarn",
             "pairs that turn `fast` times over original_context as they are, those below `slow` divided by "
             "k, a ramp between; and scores times (0.1 log k + 1)^2"},
            {"llama3", "the same with a ramp in turns, and scores as they are"}},
           {.help = "how the angles of training are scaled; they are those of eval.rope.kind",
            .of_library = true});
    f.number("factor", factor, {.min = 0, .max = 1e6},
             {.help = "k; 0: L_train / original_context", .acts = active});
    f.integer(
        "original_context", original_context, {.min = 0, .max = int64_t{1} << 31, .tokens = true},
        {.help = "context that the angles were made for, in tokens; 0: L_train / factor", .acts = active});
    f.number("fast", fast, {.min = 0, .max = 1e6},
             {.help = "turns over original_context of the slowest pair that stays; 0: 32, llama3 4",
              .acts = ramped});
    f.number("slow", slow, {.min = 0, .max = 1e6},
             {.help = "turns over original_context of the fastest pair that is divided by k; 0: 1",
              .acts = ramped});
    f.number(
        "attention_factor", attention_factor, {.min = 0, .max = 1e6},
        {.help = "factor of queries and of keys; 0: 0.1 log k + 1", .acts = config::only("kind", "yarn")});
    f.flag("truncate", truncate,
           {.help = "the ramp begins and ends at whole pairs", .acts = config::only("kind", "yarn")});
}

void ScoreParameterConfig::fields(config::Fields& f) {
    f.any("init", init,
          {"first value: a number, a formula of h, H, l, layers, d and L, \"uniform(a, b)\", or \"parity\", "
           "with which the law equals the unscaled model at n = L/2; null: as the law has it"});
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

void TermConfig::fields(config::Fields& f) {
    f.text(
        "value", value,
        {"a formula of x = <w, what the layer reads> + b, with a w and a b for every head; \"\": as the law "
         "has it"});
    f.any("init", init, {"first value of b: a number, or a formula of h, H, l, layers, d and L; null: 0"});
    f.flag("zero_init", zero_init, {"w starts at 0, not at random"});
}

void QkConfig::fields(config::Fields& f) {
    f.choice<QkKind>(
        "kind", kind,
        {{QkKind::none, "none", "queries and keys as projected"},
         {QkKind::qk_rms, "qk_rms", "parameter-free RMS norm of every head's query and key",
          "RMS-normed queries and keys", "henry2020 nor2025"},
         {QkKind::qk_rms_w, "qk_rms_w", "RMS norm with a learned gain, shared by the heads",
          "RMS-normed queries and keys with a learned gain", "henry2020 nor2025"},
         {QkKind::qk_rms_full, "qk_rms_full",
          "RMS norm over the channels of all heads together, with a learned gain of each channel",
          "RMS norm of queries and of keys over all heads", "olmo2025"},
         {QkKind::qk_ln, "qk_ln", "LayerNorm with a learned gain and bias", "LayerNorm of queries and keys",
          "dehghani2023"},
         {QkKind::qk_l2, "qk_l2",
          "unit vectors; scores are sqrt(head_dim) cos, or cos under a scale for cosines",
          "queries and keys of length one", "henry2020"},
         {QkKind::qk_rms_eps, "qk_rms_eps", "RMS norm with a learned eps, one for queries, one for keys",
          "RMS-normed queries and keys with a learned epsilon", "henry2020 nor2025"},
         {QkKind::qna, "qna", "<q/|q|, k>", "queries of length one", "su9859"},
         {QkKind::kna, "kna", "<q, k/|k|>", "keys of length one", "su9859"},
         {QkKind::kna_w, "kna_w", "<q, gain k/|k|>, the gain learned and shared by the heads",
          "keys of length one with a learned gain", "su9859"},
         {QkKind::cosa, "cosa", "cos(q, k), under a scale for cosines", "cosines of queries and keys",
          "su9859 henry2020"},
         {QkKind::qkv_rms_w, "qkv_rms_w", "RMS norm with a learned gain of queries, keys and values",
          "RMS-normed queries, keys and values with learned gains", "zhuo2025hybridnorm"},
         {QkKind::qkv_ln, "qkv_ln", "LayerNorm with a learned gain and bias of queries, keys and values",
          "LayerNorm of queries, keys and values", "zhuo2025hybridnorm"}},
        {"treatment of queries and keys before rotary"});
    f.number(
        "eps", eps, positive,
        {.help = "of the norm (qk_rms_eps: at the start); 1.1920929e-7 is the f32 epsilon, 0.0078125 the "
                 "bf16 epsilon other trainers end up with",
         .acts = config::unless("kind", "none qk_l2 qna kna kna_w cosa")});
    f.flag("eps_per_head", eps_per_head,
           {.help = "one eps per head instead of one per layer", .acts = config::only("kind", "qk_rms_eps")});
}

void ConvConfig::fields(config::Fields& f) {
    f.integer("size", size, {.min = 0, .max = 16},
              {.help = "positions K of a causal depthwise convolution after the projections; 0: none",
               .words = "convolutions of {} positions",
               .sources = "jordan2024"});
    constexpr config::Acts some = config::unless("size", "0");
    f.flag("queries", queries, {.help = "convolve queries", .acts = some});
    f.flag("keys", keys, {.help = "convolve keys", .acts = some});
    f.flag("values", values, {.help = "convolve values", .acts = some});
}

void OutputNormConfig::fields(config::Fields& f) {
    f.choice<OutputNorm>(
        "kind", kind,
        {{OutputNorm::none, "none"},
         {OutputNorm::head, "head", "over the channels of each head", "a norm of each head's output"},
         {OutputNorm::all, "all", "over the channels of all heads together", "a norm of the output"},
         {OutputNorm::exclusive, "exclusive",
          "no norm: without its part along the token's own value, per head",
          "outputs without their part along the token's own value", "zhai2026"},
         {OutputNorm::position, "position", "no norm: the factor of the position",
          "a factor of the output by position"}},
        {.help = "RMS norm of the attention output, before gate and projection", .sources = "nor2025"});
    f.flag("gain", gain,
           {.help = "learn a per-channel gain (head: shared by the heads)",
            .acts = config::only("kind", "head all")});
    f.text("factor", factor,
           {.help = "factor of the output at position p of the sequence, a formula such as "
                    "\"(1 + p/16)^0.25\"",
            .acts = config::only("kind", "position")});
}

void GateConfig::fields(config::Fields& f) {
    f.choice<GateKind>(
        "kind", kind,
        {{GateKind::none, "none"},
         {GateKind::headwise, "headwise", "one gate per head", "a gate per head", "qiu2025gated"},
         {GateKind::elementwise, "elementwise", "one gate per channel", "a gate per channel", "qiu2025gated"},
         {GateKind::sparse, "sparse", "one gate per head, from the first 12 input channels",
          "a gate per head that reads twelve channels", "jordan2024"}},
        {"gates on the attention output, computed from the attention's input"});
    constexpr config::Acts some = config::unless("kind", "none");
    f.flag("doubled", doubled, {.help = "2 sigmoid(u) instead of sigmoid(u)", .acts = some});
    f.flag("zero_init", zero_init,
           {.help = "gate matrices start at zero: 1 doubled, 0.5 plain", .acts = some});
}

bool AttentionConfig::attends() const {
    return mixer_type(mixer).attends;
}

int64_t AttentionConfig::turned_dim() const {
    for (const LayerPart* part : parts_of(*this))
        if (part->turned_dim != nullptr) return part->turned_dim(*this);
    return head_dim;
}

namespace {

// How scores become weights.
void weight_fields(AttentionConfig& a, config::Fields& f) {
    f.choice<SinkKind>(
        "sink", a.sink,
        {{SinkKind::none, "none"},
         {SinkKind::zero, "zero", "the softmax denominator has one more term, exp(0)", "a sink of score 0"},
         {SinkKind::learned, "learned", "exp(s), s learned per head from 0", "a learned sink per head"}},
        {.help = "attention that goes nowhere", .sources = "openai2025gptoss"});
    f.choice<Normaliser>(
        "normaliser", a.normaliser,
        {{Normaliser::softmax, "softmax", "exp(score) over their sum"},
         {Normaliser::stick_breaking, "stick_breaking",
          "each key, from the nearest on, takes the share sigmoid(score) of what nearer ones left; "
          "a query does not see its own key, and what is left in the end has no value",
          "stick-breaking in place of the softmax", "tan2024stick"},
         {Normaliser::entmax, "entmax",
          "max(0, (a - 1)(score - theta))^(1/(a - 1)), a = entmax_alpha, theta such that the weights of a query "
          "add up to 1: lower scores have a weight of exactly 0; on a CPU alone",
          "entmax in place of the softmax", "peters2019entmax"}},
        {"how scores become weights"});
    f.number("entmax_alpha", a.entmax_alpha, {.min = 1.01, .max = 2},
             {.help = "alpha of entmax: near 1 almost the softmax, 2 the sparsest",
              .acts = config::only("normaliser", "entmax")});
    f.flag("entmax_learned", a.entmax_learned,
           {.help = "alpha = 1 + sigmoid(x), x learned per head, entmax_alpha at the start",
            .acts = config::only("normaliser", "entmax"),
            .words = "a learned alpha per head",
            .sources = "correia2019entmax"});
}

}  // namespace

void AttentionConfig::fields(config::Fields& f) {
    std::vector<config::Fields::Word> mixers;
    for (const MixerType& type : mixer_types())
        mixers.push_back({type.name(), type.help, type.words, type.sources});
    f.word("mixer", mixer, mixers,
           {"what moves information between positions; those that do not attend read heads, head_dim, "
            "pre_norm, post_norm and their own section"});
    f.integer("heads", heads, {.min = 1, .max = 1024}, {"query heads H"});
    f.integer("kv_heads", kv_heads, {.min = 0, .max = 1024},
              {"key/value heads G, each shared by H/G consecutive query heads; 0: as many as heads"});
    f.integer("head_dim", head_dim, {.min = 4, .max = 256},
              {"channels per head d; heads * head_dim need not be width"});
    f.integer("window", window, {.min = 0, .max = int64_t{1} << 40, .tokens = true},
              {.help = "keys a query sees, its own included (key j visible to query i if i - j < window); 0: "
                       "all before it",
               .words = "a window of {} keys"});
    f.integer("chunk", chunk, {.min = 0, .max = int64_t{1} << 40, .tokens = true},
              {.help = "positions per block; a query sees only keys of its own block; 0: no blocks",
               .words = "chunks of {} positions"});
    f.any("angle", angle,
          {.help =
               "the angle by which channel pair m turns at position p: a formula, \"p * 10000^(-2*m/d)\", or "
               "the name of an angle (longreach laws); {\"near\": that, \"growth\": g}: the pair of a query "
               "at i and a key at j also counts exp(g(i) - g(j)) times",
           .of_library = true,
           .also = "position rope"});
    f.section("angle_scaling", angle_scaling,
              {.help = "angles made for a shorter context, scaled to the one trained on",
               .also = "position scaling"});
    f.section("conv", conv, {"short causal convolution of queries, keys and values"});
    f.section("qk", qk, {"normalisation of queries and keys"});
    f.choice<AttentionBias>("bias", bias,
                            {{AttentionBias::none, "none"},
                             {AttentionBias::qkv, "qkv", "of queries, keys and values"},
                             {AttentionBias::all, "all", "of these and of the output projection"}},
                            {"learned biases of the projections"});
    f.any("score", score,
          {.help = "the score as a formula of z, n, t and more, as the name of a law (longreach laws), or as "
                   "a list of both, applied in order; null: z",
           .of_library = true,
           .also = "scale distance softcap"});
    f.variations(
        "params", params, ScoreParameterConfig(),
        {.help = "parameters of the formulas in score and angle, by name; a number or a text is an init",
         .main = "init"});
    f.variations(
        "terms", terms, TermConfig(),
        {.help =
             "numbers that the layer computes of each token for the formulas in score, by name: NAME_q is "
             "that of the query, NAME_k that of the key, between(NAME) their sum over the tokens after "
             "the key up to the query, also in place of p in angle; a text is a value",
         .also = "forget",
         .main = "value"});
    f.number("score_base", score_base, non_negative,
             {"factor of <q, k> in the model without a law, 0: 1/sqrt(head_dim), or 1 where qk.kind says so; "
              "where a parameter starts at parity it sets what parity means"});
    f.choice<ScoreCount>("score_count", score_count,
                         {{ScoreCount::automatic, "auto", "document with a document mask, else sequence"},
                          {ScoreCount::sequence, "sequence", "position in the sequence, from 1"},
                          {ScoreCount::document, "document", "position in the document, from 1"},
                          {ScoreCount::visible, "visible", "keys the query sees, window included"}},
                         {"what n counts"});
    weight_fields(*this, f);
    f.integer("index_heads", index_heads, {.min = 0, .max = 64},
              {.help = "heads of an index of keys, which learns which keys the layer's heads weigh most "
                       "(eval.top_k_by); on a CPU alone; 0: none",
               .words = "an index of keys of {} heads",
               .sources = "deepseek2025v32"});
    f.flag(
        "differential", differential,
        {.help = "heads 2k and 2k+1 read the same keys and values, and their output is that of the first "
                 "less sigmoid(u) times that of the second, u computed from the attention's input; half as "
                 "many heads reach gates and projection",
         .words = "differences of two heads",
         .sources = "ye2026diff"});
    f.section("output_norm", output_norm, {"norm of the attention output"});
    f.section("gate", gate, {"gates on the attention output"});
    list_sections(*this, f);
    f.flag("pre_norm", pre_norm, {"the block's norm before attention"});
    f.flag("post_norm", post_norm, {"a norm with a learned gain after the output projection"});
    f.text(
        "source", source,
        {.help = "the publication that the layer follows, for a formula of your own; the methods paragraph "
                 "of a report names it",
         .resumable = true});
}

}  // namespace longreach::model
