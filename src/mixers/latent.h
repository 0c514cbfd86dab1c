// Queries, keys and values of a layer whose keys and values are made of one latent per token (multi-head latent
// attention), and how decoding reads the latents.
//
//     c   = norm(xn Wc^T)                         [N, d_c] the latent
//     s   = rotary(xn Ws^T)                       [N, d_s] the shared channels of the keys
//     k_h = (c Wk_h^T | s)                        d - d_s channels of content, d_s shared ones
//     v_h = c Wv_h^T                              d channels
//     q_h = xn Wq_h^T, its last d_s channels turned; with a latent of queries of norm(xn Wl^T) instead of xn
//
// A generation keeps c and s alone, d_c + d_s numbers per token. A score is <q_h Wk_h, c> + <q_h, s>, its two parts
// over the channels of content and the shared ones: decoding is attention of H query heads to one key head of
// d_c + d_s channels, whose values are its keys. Wv_h maps the first d_c channels of what a head gets.
#pragma once

#include "mixers/qkv_source.h"
#include "model/norm.h"
#include "model/registry.h"

namespace longreach::model {

struct LatentConfig {
    static constexpr int64_t most_kept = 640;  // width and shared together: decoding reads them as one head
    int64_t width = 0;                         // channels of the latent; 0: none
    int64_t shared = 0;   // channels of every head whose keys are one for all heads; only these turn
    int64_t queries = 0;  // channels of the latent of queries; 0: queries have none
    void fields(config::Fields& f);
    explicit operator bool() const { return width > 0; }
};

void list_latent(AttentionConfig& layout, config::Fields& f);
int64_t latent_turned_dim(const AttentionConfig& layout);
void check_latent(const LayoutRules& rules);
void check_latent_values(const ModelConfig& model, const LayoutRules& rules);
inline constexpr LayerPart latent_part{.field = ".latent.width",
                                       .fields = list_latent,
                                       .turned_dim = latent_turned_dim,
                                       .check = check_latent,
                                       .check_model = check_latent_values};

class Latent : public QkvSource {
  public:
    struct Memory : QkvSource::Memory {
        Tensor down;    // [N, d_c + d_s + d_l] latents before their norms, and s before it turns
        Norm::Saved c;  // of keys and values
        Norm::Saved of_queries;
        // Of one call.
        Tensor content;  // [N, H (d - d_s)]
        Tensor turned;   // [N, H d_s]
        Tensor shared;   // [N, d_s]
        Tensor ddown, dc, dof_queries;
        // Of a generation.
        Tensor rows, far_rows;  // [B R, d_c + d_s]: c | s; far_rows: s as far pairs have it
        Tensor latent_queries,
            gathered;  // [B, H (d_c + d_s)] of a step: q_h Wk_h | q_h; far ones in far_queries
        Tensor far_queries;
    };

    Latent(ParamTable& table, const ModelConfig& model, int64_t layer);

    Qkv parts_of(const Tensor& qkv) const override;  // one after the other
    std::unique_ptr<QkvSource::Memory> plan(Arena& arena, const std::string& name,
                                            int64_t tokens) const override;
    void plan_workspace(QkvSource::Memory& memory, Arena& arena, int64_t tokens,
                        bool training) const override;
    void plan_kept(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name,
                   bool far) const override;

    // In a decoding step queries alone.
    void forward(StepContext& run, const QkvSource::Memory& memory, const Tensor& qkv,
                 const Tensor& xn) const override;
    // Turns the shared channels of q. Puts the turned s into those of k and, with a generation, the latents and
    // the turned s into the rows that are kept.
    void turn(StepContext& run, const QkvSource::Memory& memory, const Tensor& q, const Tensor& k,
              const LayerTables& tables, bool far) const override;
    void decode(StepContext& run, const QkvSource::Memory& memory, const Tensor& o, const Tensor& q,
                AttentionSpec scores, int64_t first) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor& qkv,
                  const QkvSource::Memory& memory, const Tensor& xn,
                  const LayerTables& tables) const override;
    // Content of queries and of keys by sqrt(g), shared channels of queries by g; s belongs to all heads.
    void clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima, float limit) const override;

  private:
    int64_t content_channels() const { return head_dim_ - shared_; }
    int64_t kept() const { return width_ + shared_; }
    Tensor latent_of(const Tensor& down) const { return down.col_range(0, width_); }
    Tensor shared_of(const Tensor& down) const { return down.col_range(width_, shared_); }
    Tensor query_latent_of(const Tensor& down) const { return down.col_range(kept(), queries_); }
    // Channels of every head of a contiguous x [N, H d], as a matrix with a row for each head.
    Tensor content_of(const Tensor& x) const { return heads_of(x).col_range(0, content_channels()); }
    Tensor turning_of(const Tensor& x) const { return heads_of(x).col_range(content_channels(), shared_); }
    Tensor heads_of(const Tensor& x) const { return x.shaped({x.rows() * heads_, head_dim_}); }
    // Of queries [B, H d]: what meets the rows of a cache.
    void absorb(StepContext& run, Tensor absorbed, const Tensor& q) const;

    int64_t heads_ = 0, head_dim_ = 0, width_ = 0, shared_ = 0, queries_ = 0;
    ParamRef down_, query_, key_, value_;
    Norm norm_, query_norm_;
};

}  // namespace longreach::model
