// Configuration of the mixer of one layer: the "attention" section of a model and each of its layouts.
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <string>
#include <typeindex>

#include "config/fields.h"
#include "config/problems.h"
#include "kernels/attention_spec.h"

namespace longreach::model {

// Angles scaled in training: by how much, and what they were made for. Of factor and original_context one follows
// from the other and L_train if it is 0.
struct ScalingConfig {
    std::string kind = "none";  // or the name of an angle that changes another (law/angle.h)
    double factor = 0;          // k
    int64_t original_context = 0;
    double fast = 0, slow = 0;    // yarn, llama3: turns over the original context; 0: as the angle has them
    double attention_factor = 0;  // yarn: of queries and of keys; 0: 0.1 log k + 1
    bool truncate = true;         // yarn: the ramp begins and ends at whole pairs
    void fields(config::Fields& f);
    bool operator==(const ScalingConfig&) const = default;
    bool active() const { return kind != "none"; }
};
// Whether an angle of this name depends on how often a pair turns over the context.
inline bool counts_turns(const std::string& angle) {
    return angle == "yarn" || angle == "llama3";
}

enum class QkKind {
    none,
    qk_rms,
    qk_rms_w,
    qk_ln,
    qk_l2,
    qk_rms_eps,
    qna,
    kna,
    cosa,
    qkv_rms_w,
    qkv_ln,
    kna_w,
    qk_rms_full
};
struct QkConfig {
    QkKind kind = QkKind::qk_rms;
    double eps = 1.1920929e-7;
    bool eps_per_head = false;  // qk_rms_eps
    void fields(config::Fields& f);
};

// A parameter of the formulas in `score` and `angle`. What is not set is as the law has it.
enum class Learning { by_law, no, model, layout, layer, head };
struct ScoreParameterConfig {
    json::Value init{};  // null, a number, or a text: law::Parameter::init
    Learning learn = Learning::by_law;
    bool positive = false;
    json::Value range{};  // null, or [least, most]
    int64_t size = 0;     // 0: as the law has it; a formula's own: 1
    double lr = 1;
    void fields(config::Fields& f);
};

// A number that the layer computes of each token for each head, for the formulas in `score`.
struct TermConfig {
    std::string value{};  // a formula of x; "": as the law has it
    json::Value init{};   // of b; null: as the law has it, else 0
    bool zero_init = false;
    void fields(config::Fields& f);
};

enum class ScoreCount { automatic, sequence, document, visible };

enum class AttentionBias { none, qkv, all };

enum class SinkKind { none, zero, learned };

enum class GateKind { none, headwise, elementwise, sparse };
inline constexpr int64_t sparse_gate_channels = 12;  // channels of the layer input that a sparse gate reads
struct GateConfig {
    GateKind kind = GateKind::none;
    bool doubled = true;    // 2 sigmoid(u) instead of sigmoid(u)
    bool zero_init = true;  // u = 0 at the start
    void fields(config::Fields& f);
};

enum class OutputNorm { none, head, all, exclusive, position };
struct OutputNormConfig {
    OutputNorm kind = OutputNorm::none;
    bool gain = false;
    std::string factor{};  // position: a formula of p, the position in the sequence
    void fields(config::Fields& f);
};

struct ConvConfig {
    int64_t size = 0;  // K; 0: none
    bool queries = true, keys = true, values = true;
    void fields(config::Fields& f);
};

using longreach::Normaliser;

struct AttentionConfig {
    std::string mixer = "attention";  // a row of model/registry.h
    int64_t heads = 4;
    int64_t kv_heads = 0;  // 0: as many as heads
    int64_t head_dim = 64;
    int64_t window = 0;             // keys a query sees, its own included; 0: all
    int64_t chunk = 0;              // keys are visible within blocks of this many positions; 0: everywhere
    json::Value angle{"rope"};      // a formula, the name of an angle, or {near, growth}
    ScalingConfig angle_scaling{};  // of this angle
    QkConfig qk;
    AttentionBias bias = AttentionBias::none;
    json::Value score;  // null: z; a formula, the name of a law, or a list of them
    std::map<std::string, ScoreParameterConfig> params;
    std::map<std::string, TermConfig> terms;
    double score_base = 0;  // s_base of the model without a law; 0: the default of qk.kind
    ScoreCount score_count = ScoreCount::automatic;  // what n counts
    SinkKind sink = SinkKind::none;
    ConvConfig conv;
    bool differential = false;  // heads 2k and 2k + 1 give one output
    OutputNormConfig output_norm;
    GateConfig gate;
    bool pre_norm = true;
    bool post_norm = false;
    Normaliser normaliser = Normaliser::softmax;
    double entmax_alpha = 1.5;
    bool entmax_learned = false;
    int64_t index_heads = 0;                       // of an index of keys; 0: none
    std::string source;                            // the publication that the layer follows, in words
    std::map<std::type_index, std::any> sections;  // by the type that own() names; absent: as it begins
    void fields(config::Fields& f);

    // The section of a mixer, or of a part that some layers have: src/mixers alone knows its type.
    template <class S>
    S own() const {
        const auto held = sections.find(typeid(S));
        return held == sections.end() ? S() : std::any_cast<S>(held->second);
    }
    template <class S>
    S& own() {
        std::any& held = sections[typeid(S)];
        if (!held.has_value()) held = S();
        return std::any_cast<S&>(held);
    }

    bool attends() const;  // to keys, by scores: tables, masks and formulas act

    // The text of `angle`; "": there is none.
    std::string written_angle() const {
        const std::string* text = angle.to_string();
        return text != nullptr ? *text : "";
    }
    // Channels of a head that positions may turn.
    int64_t turned_dim() const;
    int64_t kv() const { return kv_heads == 0 ? heads : kv_heads; }
    int64_t output_heads() const { return differential ? heads / 2 : heads; }  // that reach the projection
};

// path: the path of the section, "model.attention" or "model.layouts.NAME".
// counted: an evaluation scales its scores by the number of keys.
void check_attention(const AttentionConfig& attention, const std::string& path, config::Problems& problems,
                     bool counted = false);

}  // namespace longreach::model
