// The gated delta rule as a mixer: Gated DeltaNet, and Kimi Delta Attention, whose states decay channel by channel, and
// Gated DeltaNet-2, which also erases and writes channel by channel.
//
//     q|k|v = silu(short convolution of xn Wqkv^T)          [N, W], W = H (2 d + e)
//     q, k  = q / |q|, k / |k|                              head by head
//     g     = -exp(a_log) softplus(p(xn) + time_bias)       [N, H], or [N, H d] by channel
//     beta  = sigmoid(xn Wb^T)                              [N, H]; twice as much with negative_eigenvalues
//     r, v  = sigmoid(xn Wb^T) k, sigmoid(xn Ww^T) v        Gated DeltaNet-2, in place of beta; r reads the state
//     o     = delta rule of q / sqrt(d), k, v, g, beta      [N, H e]; Ops::delta_rule
//     o     = rms(o) gain, then times a gate of z(xn)       head by head; silu, by channel sigmoid
//     y    += o Wo^T
//
// p and z are products with one matrix, by channel with two and few channels between them. A generation keeps the
// states and the last rows of q|k|v before the convolution.
#pragma once

#include "model/arena.h"
#include "model/registry.h"

namespace longreach::model {

// y = x W^T, or x down^T up^T with `narrow` channels between.
class DeltaProjection {
  public:
    struct Saved {
        Tensor y, hidden;  // [N, out], [N, narrow]
    };
    DeltaProjection() = default;
    // narrow: 0: one matrix, named `name`.weight. group: of one matrix; two are always hidden matrices.
    DeltaProjection(ParamTable& table, const ModelConfig& model, const std::string& name, int64_t out,
                    int64_t narrow, ParamGroup group);
    int64_t width() const { return matrix_.rows; }
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    Tensor forward(StepContext& run, const Saved& saved, const Tensor& xn) const;
    // dxn += the gradient through it. dhidden [N, narrow].
    void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Tensor& dhidden, const Saved& saved,
                  const Tensor& xn) const;

  private:
    ParamRef matrix_, down_;
};

// The state that a sequence of a training pass starts from: zero, or what the sequence before it in the pass left.
enum class StateStart { zero, previous };

struct DeltaConfig {
    int64_t value_dim = 0;  // channels of a head's values; 0: head_dim
    int64_t conv = 4;       // positions K of the short convolution; 0: none
    bool additive = false;  // values are added to the state, which is not corrected
    bool negative_eigenvalues = false;
    StateStart start = StateStart::zero;
    void fields(config::Fields& f);
    int64_t value_channels(int64_t head_dim) const { return value_dim == 0 ? head_dim : value_dim; }
};

enum class DeltaKind { gdn, kda, gdn2 };
std::span<const MixerType> delta_mixers();
bool passes_states(const AttentionConfig& layout);

class DeltaLayer : public Mixer {
  public:
    struct Cache {
        Tensor recent, convolved;  // [B K, W]: the last K rows before the convolution; what it makes of them
        Tensor state;              // f32 [B H, d e]
    };
    struct Workspace {
        Tensor dqkv, dprojected;  // [N, W]
        Tensor dout, dgate;       // [N, H e]
        Tensor ddecay, dbeta;     // f32 [N, H or H d], [N, H]
        Tensor du, dub, dw;       // at the projections of decay, beta or erase, and write
        Tensor derase;            // [N, H d]
        Tensor dhidden;           // [N, the wider of the narrow projections]
        Tensor rule;              // of the delta rule
    };
    struct Saved : Memory {
        // [N, W]: before, in pieces after K - 1 earlier rows, and after the convolution, then as the rule reads it
        Tensor projected, convolved, qkv;
        Tensor query_inverse, key_inverse;    // f32 [N, H]
        DeltaProjection::Saved u, ub, w, z;   // before decay, beta or erase, write and gate
        Tensor decay, beta;                   // f32
        Tensor erase, written;                // [N, H d], [N, H e]: r and v of Gated DeltaNet-2
        Tensor states;                        // f32 [chunks H, d e]: training only
        Tensor o, normalised, normed, gated;  // [N, H e]
        Tensor inverse;                       // f32 [N H]
        Workspace workspace;
        Cache cache;
    };

    DeltaLayer(ParamTable& table, const ModelConfig& model, int64_t layer, DeltaKind kind);

    std::unique_ptr<Memory> plan(Arena& arena, const std::string& name, const PassPlan& size) const override;
    void plan_workspace(Memory& memory, Arena& arena, Ops& ops, const PassPlan& size) const override;
    void plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const override;
    void forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                 const SharedValues& shared) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory, const Tensor& xn,
                  const SharedValues& shared) const override;
    double flops_per_token(int64_t length, const PassSettings& settings) const override;

  private:
    int64_t key_width() const { return heads_ * key_dim_; }
    int64_t value_width() const { return heads_ * value_dim_; }
    int64_t total_width() const { return 2 * key_width() + value_width(); }
    Tensor queries_of(const Tensor& qkv) const { return qkv.col_range(0, key_width()); }
    Tensor keys_of(const Tensor& qkv) const { return qkv.col_range(key_width(), key_width()); }
    Tensor values_of(const Tensor& qkv) const { return qkv.col_range(2 * key_width(), value_width()); }
    Tensor groups_of(const Tensor& x) const { return x.shaped({x.rows() * heads_, value_dim_}); }
    HeadSpec unit_heads(int64_t length) const;
    DeltaSpec rule(int64_t batch, int64_t length) const;
    DeltaSpec rule_of(const StepContext& run) const;
    GateSpec gate() const { return {1.0f, !by_channel_}; }
    DeltaGateSpec gates(const StepContext& run) const {
        return {run.weight(a_log_), run.weight(time_bias_), beta_max_};
    }
    bool erases() const { return write_.width() > 0; }
    // q|k|v before the silu, as rows of this pass.
    Tensor convolve(StepContext& run, const Saved& saved, const Tensor& xn) const;

    int64_t layer_ = 0, heads_ = 0, key_dim_ = 0, value_dim_ = 0;
    bool additive_ = false, chained_ = false;
    float beta_max_ = 1;
    bool by_channel_ = false;
    int64_t conv_size_ = 0;
    NormSpec norm_;
    ParamRef qkv_, conv_, a_log_, time_bias_, gain_, out_;
    DeltaProjection decay_, beta_, gate_;  // beta_: of Gated DeltaNet-2, the erase gate
    DeltaProjection write_;                // of Gated DeltaNet-2 alone
};

}  // namespace longreach::model
