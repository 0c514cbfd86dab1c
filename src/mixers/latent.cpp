#include "mixers/latent.h"

#include <cmath>

#include "mixers/heads.h"
#include "model/recent_rows.h"

namespace longreach::model {

Latent::Latent(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const AttentionConfig& config = model.layer_attention(layer);
    const LatentConfig latent = config.own<LatentConfig>();
    heads_ = config.heads;
    head_dim_ = config.head_dim;
    width_ = latent.width;
    shared_ = latent.shared;
    queries_ = latent.queries;
    const std::string name = fmt::format("layers.{}.attention.", layer);
    const auto matrix = [&](const char* what, int64_t out, int64_t in) {
        return Param{name + what,
                     {out, in},
                     {InitRule::Kind::uniform, model.init.matrix_bound / std::sqrt(static_cast<double>(in))},
                     ParamGroup::matrix,
                     true};
    };
    std::vector<Param> down{matrix("kv_down.weight", width_, model.width)};
    if (shared_ > 0) down.push_back(matrix("k_shared.weight", shared_, model.width));
    if (queries_ > 0) down.push_back(matrix("q_down.weight", queries_, model.width));
    down_ = table.add_joined(std::move(down));
    query_ = table.add(queries_ > 0 ? matrix("q_up.weight", heads_ * head_dim_, queries_)
                                    : matrix("q.weight", heads_ * head_dim_, model.width));
    key_ = table.add(matrix("k_up.weight", heads_ * content_channels(), width_));
    value_ = table.add(matrix("v_up.weight", heads_ * head_dim_, width_));
    norm_ = Norm(table, name + "kv_down_norm", model.norm, width_);
    if (queries_ > 0) query_norm_ = Norm(table, name + "q_down_norm", model.norm, queries_);
}

Qkv Latent::parts_of(const Tensor& qkv) const {
    const int64_t n = qkv.rows(), width = heads_ * head_dim_;
    const auto part = [&](int64_t i) { return qkv.range(i * n * width, n * width).shaped({n, width}); };
    return {part(0), part(1), part(2)};
}

std::unique_ptr<QkvSource::Memory> Latent::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    auto memory = std::make_unique<Memory>();
    memory->down = arena.activation(name + "down", {tokens, down_.rows});
    memory->c = norm_.plan(arena, name + "latent", tokens);
    if (queries_ > 0) memory->of_queries = query_norm_.plan(arena, name + "query_latent", tokens);
    return memory;
}

void Latent::plan_workspace(QkvSource::Memory& memory, Arena& arena, int64_t tokens, bool training) const {
    Memory& m = static_cast<Memory&>(memory);
    const auto rows = [&](const char* name, int64_t width) {
        return width > 0 ? arena.activation(name, {tokens, width}) : Tensor();
    };
    m.content = rows("content", heads_ * content_channels());
    m.turned = rows("turned", heads_ * shared_);
    m.shared = rows("shared", shared_);
    if (!training) return;
    m.ddown = rows("ddown", down_.rows);
    m.dc = rows("dlatent", width_);
    m.dof_queries = rows("dquery_latent", queries_);
}

void Latent::plan_kept(QkvSource::Memory& memory, KeptTexts& texts, const std::string& name, bool far) const {
    Memory& m = static_cast<Memory&>(memory);
    const auto by_head = [&](const char* what) {
        return texts.arena().activation(name + what, {texts.texts(), heads_ * kept()});
    };
    m.rows = texts.positions(name + "latents", kept());
    m.latent_queries = by_head("latent_queries");
    m.gathered = by_head("latent_outputs");
    if (!far) return;
    m.far_rows = texts.positions(name + "far_latents", kept());
    m.far_queries = by_head("far_latent_queries");
}

void Latent::forward(StepContext& run, const QkvSource::Memory& memory, const Tensor& qkv,
                     const Tensor& xn) const {
    const Memory& saved = static_cast<const Memory&>(memory);
    const auto [q, k, v] = parts_of(qkv);
    const int64_t n = run.batch.count();
    const Tensor down = saved.down.first_rows(n), c = saved.c.y.first_rows(n);
    run.ops.linear(down, xn, run.matrix(down_), Write::set);
    norm_.forward(run, saved.c, latent_of(down));
    if (queries_ > 0) query_norm_.forward(run, saved.of_queries, query_latent_of(down));
    run.ops.linear(q, queries_ > 0 ? saved.of_queries.y.first_rows(n) : xn, run.matrix(query_), Write::set);
    if (run.decoding()) return;
    const Tensor content = saved.content.shaped({n, heads_ * content_channels()});
    run.ops.linear(content, c, run.matrix(key_), Write::set);
    run.ops.copy(content_of(k), content.shaped({n * heads_, content_channels()}));
    run.ops.linear(v, c, run.matrix(value_), Write::set);
}

void Latent::turn(StepContext& run, const QkvSource::Memory& memory, const Tensor& q, const Tensor& k,
                  const LayerTables& tables, bool far) const {
    const Memory& saved = static_cast<const Memory&>(memory);
    const Tensor& cached = far ? saved.far_rows : saved.rows;
    const Rotation queries = (far ? tables.far_queries : tables.queries).from(run.position());
    const Rotation keys = (far ? tables.far_keys : tables.keys).from(run.position());
    const int64_t n = run.batch.count();
    if (run.generating()) keep_rows(run, latent_of(cached), saved.c.y.first_rows(n));
    if (shared_ == 0) return;
    if (queries.cosine) {
        const Tensor turned = saved.turned.shaped({n, heads_ * shared_}),
                     heads = turned.shaped({n * heads_, shared_});
        run.ops.copy(heads, turning_of(q));
        run.ops.prepare_heads(turned, Tensor(), Tensor(), turned_heads(run, heads_, shared_, queries));
        run.ops.copy(turning_of(q), heads);
    }
    const Tensor s = saved.shared.shaped({n, shared_});
    run.ops.copy(s, shared_of(saved.down.first_rows(n)));
    if (keys.cosine) run.ops.prepare_heads(s, Tensor(), Tensor(), turned_heads(run, 1, shared_, keys));
    if (run.generating()) keep_rows(run, shared_of(cached), s);
    for (int64_t h = 0; h < heads_ && !run.decoding(); ++h)
        run.ops.copy(k.col_range(h * head_dim_ + content_channels(), shared_), s);
}

void Latent::absorb(StepContext& run, Tensor absorbed, const Tensor& q) const {
    const Tensor w = run.matrix(key_);
    for (int64_t h = 0; h < heads_; ++h)
        run.ops.linear_backward_input(absorbed.col_range(h * kept(), width_),
                                      q.col_range(h * head_dim_, content_channels()),
                                      w.row_range(h * content_channels(), content_channels()), Write::set);
    if (shared_ > 0)
        run.ops.copy(absorbed.shaped({q.rows() * heads_, kept()}).col_range(width_, shared_), turning_of(q));
}

void Latent::decode(StepContext& run, const QkvSource::Memory& memory, const Tensor& o, const Tensor& q,
                    AttentionSpec scores, int64_t first) const {
    const Memory& cache = static_cast<const Memory&>(memory);
    const int64_t n = run.batch.sequences;
    const Tensor queries = cache.latent_queries.first_rows(n), gathered = cache.gathered.first_rows(n);
    absorb(run, queries, q);
    if (scores.far_queries) {
        absorb(run, cache.far_queries.first_rows(n), scores.far_queries);
        scores.far_queries = cache.far_queries.first_rows(n);
        scores.far_keys = cache.far_rows.first_rows(n * scores.length);
    }
    scores.kv_heads = 1;
    scores.head_dim = kept();
    const Tensor rows = cache.rows.first_rows(n * scores.length), w = run.matrix(value_);
    run.ops.attention_decode(gathered, queries, rows, rows, scores, first, run.position());
    for (int64_t h = 0; h < heads_; ++h)
        run.ops.linear(o.col_range(h * head_dim_, head_dim_), gathered.col_range(h * kept(), width_),
                       w.row_range(h * head_dim_, head_dim_), Write::set);
}

void Latent::backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor&,
                      const QkvSource::Memory& memory, const Tensor& xn, const LayerTables& tables) const {
    const Memory& saved = static_cast<const Memory&>(memory);
    const auto [dq, dk, dv] = parts_of(dqkv);
    const int64_t n = run.batch.count();
    const Tensor c = saved.c.y.first_rows(n), ddown = saved.ddown.shaped({n, down_.rows});
    if (tables.queries.cosine) {
        const Tensor turned = saved.turned.shaped({n, heads_ * shared_}),
                     heads = turned.shaped({n * heads_, shared_});
        run.ops.copy(heads, turning_of(dq));
        run.ops.prepare_heads_backward(turned, Tensor(), Tensor(), Tensor(), turned, Tensor(), Tensor(),
                                       turned_heads(run, heads_, shared_, tables.queries));
        run.ops.copy(turning_of(dq), heads);
    }
    run.weight_gradient(query_, dq, queries_ > 0 ? saved.of_queries.y.first_rows(n) : xn);
    if (queries_ > 0) {
        const Tensor dof_queries = saved.dof_queries.shaped({n, queries_});
        run.ops.linear_backward_input(dof_queries, dq, run.matrix(query_), Write::set);
        query_norm_.backward(run, query_latent_of(ddown), dof_queries, saved.of_queries, Write::set);
    } else {
        run.ops.linear_backward_input(dxn, dq, run.matrix(query_), Write::set);
    }

    if (shared_ > 0) {
        const Tensor ds = saved.shared.shaped({n, shared_});
        const auto of_head = [&, dk = dk](int64_t h) {
            return dk.col_range(h * head_dim_ + content_channels(), shared_);
        };
        run.ops.copy(ds, of_head(0));
        for (int64_t h = 1; h < heads_; ++h) run.ops.mix(ds, Coefficient(), ds, Coefficient(), of_head(h));
        if (tables.keys.cosine)
            run.ops.prepare_heads_backward(ds, Tensor(), Tensor(), Tensor(), ds, Tensor(), Tensor(),
                                           turned_heads(run, 1, shared_, tables.keys));
        run.ops.copy(shared_of(ddown), ds);
    }
    const Tensor content = saved.content.shaped({n, heads_ * content_channels()}),
                 dc = saved.dc.shaped({n, width_});
    run.ops.copy(content.shaped({n * heads_, content_channels()}), content_of(dk));
    run.weight_gradient(key_, content, c);
    run.ops.linear_backward_input(dc, content, run.matrix(key_), Write::set);
    run.weight_gradient(value_, dv, c);
    run.ops.linear_backward_input(dc, dv, run.matrix(value_), Write::add);
    norm_.backward(run, latent_of(ddown), dc, saved.c, Write::set);
    run.weight_gradient(down_, ddown, xn);
    run.ops.linear_backward_input(dxn, ddown, run.matrix(down_), queries_ > 0 ? Write::set : Write::add);
}

void Latent::clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima, float limit) const {
    const int64_t in = query_.cols;
    const Tensor heads = weights.view(query_).shaped({heads_, head_dim_ * in});
    const Tensor content = heads.col_range(0, content_channels() * in);
    const Tensor shared = heads.col_range(content_channels() * in, shared_ * in);
    ops.qk_clip(content, weights.view(key_).shaped({heads_, content_channels() * width_}), maxima, 1, limit);
    const Tensor no_keys = shared.first_rows(0);  // so that the queries take the whole factor
    if (shared_ > 0) ops.qk_clip(shared, no_keys, maxima, 1, limit);
}

void LatentConfig::fields(config::Fields& f) {
    f.integer(
        "width", width, {.min = 0, .max = most_kept},
        {.help = "channels of the normed latent of which the keys and values of all heads are made, and "
                 "which a generation keeps in their place; 0: keys and values are projected from the input",
         .words = "keys and values made of a latent of {} channels",
         .sources = "deepseek2024v2"});
    f.integer("shared", shared, {.min = 0, .max = 256},
              {.help = "the last channels of every head, whose keys are projected from the input, the same "
                       "for all heads; positions turn these channels alone",
               .acts = config::unless("width", "0")});
    f.integer(
        "queries", queries, {.min = 0, .max = 1 << 16},
        {.help =
             "channels of a normed latent of which queries are made; 0: they are projected from the input",
         .acts = config::unless("width", "0")});
}

void list_latent(AttentionConfig& layout, config::Fields& f) {
    f.section("latent", layout.own<LatentConfig>(),
              {"keys and values made of one latent per token (multi-head latent attention)"});
}

int64_t latent_turned_dim(const AttentionConfig& layout) {
    return layout.own<LatentConfig>().shared;
}

// A generation keeps the latent alone, so nothing may change keys and values after they are made of it.
void check_latent(const LayoutRules& rules) {
    const AttentionConfig& a = rules.a;
    const LatentConfig l = a.own<LatentConfig>();
    if (!l) return;
    const auto only_without = [&](bool used, const char* key, const char* message) {
        if (used) rules.refuse(key, message, ".latent.width");
    };
    only_without(a.kv_heads != 0 && a.kv_heads != a.heads, ".kv_heads",
                 "with a latent every head has a key and a value of its own");
    only_without(a.qk.kind != QkKind::none, ".qk.kind",
                 "with a latent it must be none: a generation keeps latents, and the norm of a key cannot "
                 "be had from its latent without the key (optimizer.qk_clip bounds scores instead)");
    only_without(a.bias != AttentionBias::none, ".bias", "projections of a latent have no biases");
    only_without(!angle_step(a).empty(), ".angle", "with a latent positions turn, not sums of tokens");
    only_without(!fading_term(a).empty(), ".score",
                 "a generation keeps latents, not keys whose channels fade");
    only_without(a.conv.size > 0, ".conv.size",
                 "a generation keeps latents, not the keys and values that a convolution reads");
    for (const auto& [key, channels] : {std::pair(".latent.width", l.width), {".latent.shared", l.shared}})
        rules.needs_multiple_of_4(key, channels);
    if (l.width + l.shared > LatentConfig::most_kept)
        rules.refuse(".latent.width",
                     fmt::format("{} and {} shared channels are more than the {} that a generation can read",
                                 l.width, l.shared, LatentConfig::most_kept),
                     ".latent.shared");
    if (l.shared >= a.head_dim)
        rules.refuse(".latent.shared",
                     fmt::format("{} of {} channels leave none for the latent", l.shared, a.head_dim),
                     ".head_dim");
    if (l.shared == 0 && a.written_angle() != "nope")
        rules.refuse(".latent.shared",
                     "positions turn the shared channels alone: without any, angle must be nope", ".angle");
}

void check_latent_values(const ModelConfig& model, const LayoutRules& rules) {
    const auto refuse = [&](bool used, const char* key, const char* message) {
        if (used) rules.p.add(rules.path + ".latent.width", message, key);
    };
    refuse(model.residual.values == ValueMix::first, "model.residual.values",
           "a generation keeps latents, not the values that a value residual mixes");
    refuse(model.residual.value_embeddings > 0, "model.residual.value_embeddings",
           "a generation keeps latents, not the values into which value embeddings are mixed");
}

}  // namespace longreach::model
