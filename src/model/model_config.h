// What a model is: every architectural choice, as read from the "model" section of a config.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"
#include "kernels/ops.h"

namespace longreach {

struct NormConfig {
    NormKind kind = NormKind::rms;
    bool gain = false;
    double eps = 1e-6;
    void fields(Fields& f);
};

enum class MlpKind { relu2, gelu, gelu_tanh, swiglu };
struct MlpConfig {
    MlpKind kind = MlpKind::relu2;
    int64_t hidden = 0;  // F; 0: 4 * width
    void fields(Fields& f);
};

enum class PositionKind { rope, p_rope, nope };
enum class Spacing { geometric, linspace };
struct PositionConfig {
    PositionKind kind = PositionKind::rope;
    double base = 10000;
    double fraction = 0.5;                 // p_rope: share of channel pairs that keep their rotation
    Spacing spacing = Spacing::geometric;  // p_rope: how theta falls over the kept pairs
    void fields(Fields& f);
};

enum class QkKind { none, qk_rms };
struct QkConfig {
    QkKind kind = QkKind::qk_rms;
    double eps = 1.1920929e-7;
    void fields(Fields& f);
};

enum class DistanceKind { none, scale_invariant };
struct DistanceConfig {
    DistanceKind kind = DistanceKind::none;
    double tau = 10;
    void fields(Fields& f);
};

struct AttentionConfig {
    int64_t heads = 4;
    int64_t kv_heads = 0;  // 0: as many as heads
    int64_t head_dim = 64;
    int64_t window = 0;  // keys a query sees, itself included; 0: all
    PositionConfig position;
    QkConfig qk;
    DistanceConfig distance;
    void fields(Fields& f);

    int64_t kv() const { return kv_heads == 0 ? heads : kv_heads; }
};

enum class ValueMix { none, first };
struct ResidualConfig {
    bool x0 = false;
    bool unet = false;
    ValueMix values = ValueMix::none;
    void fields(Fields& f);
};

struct SoftcapConfig {
    Softcap kind = Softcap::none;
    double cap = 15;
    double shift = 0;          // sigmoid form only
    double temperature = 7.5;  // sigmoid form only
    void fields(Fields& f);
};
struct HeadConfig {
    bool tied = false;
    double z_loss = 0;
    SoftcapConfig softcap;
    void fields(Fields& f);
};

struct InitConfig {
    double matrix_bound = 1;   // W ~ U(+-matrix_bound / sqrt(fan_in))
    double embedding_std = 0;  // 0: 1, or 1/sqrt(width) when the head is tied to the embedding
    bool zero_projections = true;
    bool zero_head = true;
    void fields(Fields& f);
};

struct ModelConfig {
    int64_t layers = 4;
    int64_t width = 128;
    int64_t vocab_size = 257;
    bool embedding_norm = true;
    NormConfig norm;
    MlpConfig mlp;
    ResidualConfig residual;
    HeadConfig head;
    InitConfig init;
    AttentionConfig attention;
    std::map<std::string, AttentionConfig> layouts;
    std::vector<std::string> pattern;
    std::string last;
    void fields(Fields& f);
    void check(Problems& problems) const;

    int64_t mlp_hidden() const { return mlp.hidden == 0 ? 4 * width : mlp.hidden; }
    double embedding_deviation() const;
    // The attention of layer l after the pattern and `last` have been applied.
    const AttentionConfig& layer_attention(int64_t layer) const;
    std::string layout_name(int64_t layer) const;  // "" for the plain "attention" section
};

}  // namespace longreach
