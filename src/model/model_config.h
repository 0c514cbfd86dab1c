// Every architectural choice of a model, as read from the "model" section of a config.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"
#include "kernels/ops.h"
#include "model/attention_config.h"

namespace longreach::model {

enum class NormPlacement { pre, peri, hybrid, after };
struct NormConfig {
    NormKind kind = NormKind::rms;
    bool gain = false;
    double eps = 1e-6;
    NormPlacement placement = NormPlacement::pre;
    double out_gain = 1;  // initial value of the gains of norms after a module
    void fields(config::Fields& f);
};

enum class MlpKind { relu2, gelu, gelu_tanh, swiglu, geglu_tanh };
struct MlpConfig {
    MlpKind kind = MlpKind::relu2;
    int64_t hidden = 0;  // F; 0: 4 * width
    bool bias = false;
    bool gated() const { return kind == MlpKind::swiglu || kind == MlpKind::geglu_tanh; }
    void fields(config::Fields& f);
};

enum class ValueMix { none, first };
inline constexpr int64_t smear_channels = 12;  // channels of the embedding that decide how much is smeared
struct ResidualConfig {
    bool x0 = false;
    bool unet = false;
    ValueMix values = ValueMix::none;
    int64_t value_embeddings = 0;  // number of tables, for the first and the last layers; 0: none
    bool smear = false;
    int64_t backout = -1;  // layer whose output is subtracted before the head; -1: none
    void fields(config::Fields& f);
};

struct SoftcapConfig {
    Softcap kind = Softcap::none;
    double cap = 15;
    double shift = 0;          // sigmoid form only
    double temperature = 7.5;  // sigmoid form only
    void fields(config::Fields& f);
};
struct HeadConfig {
    bool tied = false;
    double z_loss = 0;
    SoftcapConfig softcap;
    void fields(config::Fields& f);
};

struct InitConfig {
    double matrix_bound = 1;   // W ~ U(+-matrix_bound / sqrt(fan_in))
    double embedding_std = 0;  // 0: 1, or 1/sqrt(width) when the head is tied to the embedding
    bool zero_projections = true;
    bool zero_head = true;
    void fields(config::Fields& f);
};

struct ModelConfig {
    int64_t layers = 4;
    int64_t loops = 1;  // passes through the layers, with the same weights
    int64_t width = 128;
    int64_t vocab_size = 257;
    int64_t train_context = 0;  // L_train of formulas; 0: the context of the last training stage
    bool embedding_norm = true;
    int64_t positions = 0;  // rows of a learned table by position; 0: none
    NormConfig norm;
    MlpConfig mlp;
    ResidualConfig residual;
    HeadConfig head;
    InitConfig init;
    AttentionConfig attention;
    std::map<std::string, AttentionConfig> layouts;
    std::vector<std::string> pattern;
    std::string last;
    void fields(config::Fields& f);
    // counting: paths of the attention sections in which an evaluation scales scores by the number of keys.
    void check(config::Problems& problems, const std::set<std::string>& counting = {}) const;

    int64_t mlp_hidden() const { return mlp.hidden == 0 ? 4 * width : mlp.hidden; }
    double embedding_deviation() const;
    // The attention of layer l after the pattern and `last` have been applied.
    const AttentionConfig& layer_attention(int64_t layer) const;
    std::string layout_name(int64_t layer) const;            // "" for the plain "attention" section
    std::vector<int64_t> distinct_layers() const;            // the first layer of every layout in use
    std::vector<int64_t> distinct_attention_layers() const;  // of these, those whose mixer is attention
    std::string layout_path(int64_t layer) const;            // where its attention is configured
    int64_t value_embedding_of(int64_t layer) const;         // index of its table; -1: none

  private:
    void check_layers(config::Problems& problems) const;
    void check_score(config::Problems& problems, int64_t layer, bool counted) const;
};

}  // namespace longreach::model
