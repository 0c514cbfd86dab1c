#include "mixers/simplicial_layer.h"

#include <cmath>

#include "base/units.h"
#include "model/recent_rows.h"

namespace longreach::model {

namespace {

void list_simplicial(AttentionConfig& layout, config::Fields& f) {
    f.section("simplicial", layout.own<SimplicialConfig>(), {"the windows of mixer simplicial"});
}

constexpr std::string_view simplicial_fields[] = {".simplicial"};

constexpr MixerType simplicial_rows[] = {
    {.help = "2-simplicial attention: a query weighs pairs of keys within two windows; on a CPU only",
     .words = "2-simplicial attention",
     .sources = "roy2025simplex clift2019simplicial",
     .part = {.field = ".mixer",
              .word = "simplicial",
              .no_gpu = "no GPU computes simplicial",
              .fields = list_simplicial},
     .reads = simplicial_fields,
     .construct = make_mixer<SimplicialLayer>},
};

}  // namespace

std::span<const MixerType> simplicial_mixers() {
    return simplicial_rows;
}

void SimplicialConfig::fields(config::Fields& f) {
    // The kernel keeps two matrices of second_window x window scores for each thread: of 16 MiB each at most.
    f.integer("window", window, {.min = 1, .max = 1 << 14, .tokens = true},
              {.help = "first keys of a pair that a query sees, its own included",
               .words = "a window of {} first keys"});
    f.integer("second_window", second_window, {.min = 1, .max = 256, .tokens = true},
              {.help = "second keys of a pair; the time of a step grows with the product of both windows",
               .words = "a window of {} second keys"});
}

SimplicialLayer::SimplicialLayer(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const AttentionConfig& config = model.layer_attention(layer);
    heads_ = config.heads;
    head_dim_ = config.head_dim;
    windows_ = config.own<SimplicialConfig>();
    eps_ = static_cast<float>(model.norm.eps);
    const auto uniform = [&](int64_t fan_in) {
        return InitRule{InitRule::Kind::uniform,
                        model.init.matrix_bound / std::sqrt(static_cast<double>(fan_in))};
    };
    const std::string name = fmt::format("layers.{}.simplicial.", layer);
    std::vector<Param> parts;
    for (const char* part : {"q", "k", "v", "k2", "v2"})
        parts.push_back({name + part + ".weight",
                         {width(), model.width},
                         uniform(model.width),
                         ParamGroup::matrix,
                         true});
    projections_ = table.add_joined(parts);
    out_ = table.add({name + "o.weight",
                      {model.width, width()},
                      model.init.zero_projections ? InitRule{} : uniform(width()),
                      ParamGroup::matrix,
                      true});
}

std::unique_ptr<Mixer::Memory> SimplicialLayer::plan(Arena& arena, const std::string& name,
                                                     const PassPlan& size) const {
    const int64_t tokens = size.tokens;
    auto memory = std::make_unique<Saved>();
    Saved& s = *memory;
    s.projected = arena.activation(name + "projected", {tokens, 5 * width()});
    s.query_inverse = arena.reserve(name + "query_inverse", DType::f32, {tokens, heads_});
    s.inverse_of_k = arena.reserve(name + "inverse_of_k", DType::f32, {tokens, heads_});
    s.inverse_of_k2 = arena.reserve(name + "inverse_of_k2", DType::f32, {tokens, heads_});
    s.o = arena.activation(name + "attention", {tokens, width()});
    s.lse = arena.reserve(name + "lse", DType::f32, {heads_, tokens});
    return memory;
}

void SimplicialLayer::plan_workspace(Memory& memory, Arena& arena, Ops&, const PassPlan& size) const {
    if (!size.training) return;
    const int64_t tokens = size.tokens;
    Workspace& w = static_cast<Saved&>(memory).workspace;
    w.dprojected = arena.activation("dprojected", {tokens, 5 * width()});
    w.dout = arena.activation("dattention", {tokens, width()});
}

void SimplicialLayer::plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const {
    Saved& s = static_cast<Saved&>(memory);
    if (kept.size().piece > 0) {
        const Reach reach{.window = std::max(windows_.window, windows_.second_window)};
        for (const auto& [rows, what] : {std::pair(&s.piece_k, "keys"),
                                         {&s.piece_v, "values"},
                                         {&s.piece_k2, "keys2"},
                                         {&s.piece_v2, "values2"}})
            rows->plan(kept, name + what, width(), reach);
        return;
    }
    SimplicialKeys& cache = s.cache;
    for (const auto& [rows, what] :
         {std::pair(&cache.k, "keys"), {&cache.v, "values"}, {&cache.k2, "keys2"}, {&cache.v2, "values2"}})
        *rows = kept.rows(name + what, kept.arena().traits().activations, kept.size().room, width());
}

SimplicialKeys SimplicialLayer::keys_of(const Tensor& projected) const {
    const auto part = [&](int64_t i) { return projected.col_range(i * width(), width()); };
    return {part(1), part(2), part(3), part(4)};
}

HeadSpec SimplicialLayer::norm(int64_t length) const {
    HeadSpec spec;
    spec.length = length;
    spec.heads = heads_;
    spec.head_dim = head_dim_;
    spec.norm = HeadNorm::rms;
    spec.eps = eps_;
    return spec;
}

SimplicialSpec SimplicialLayer::spec(const StepContext& run) const {
    SimplicialSpec spec;
    spec.batch = run.batch.sequences;
    spec.length = run.batch.length;
    spec.heads = heads_;
    spec.head_dim = head_dim_;
    spec.window = windows_.window;
    spec.second_window = windows_.second_window;
    spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim_)));
    if (run.decoding()) {
        spec.room = run.generation->room;
        spec.position = run.position();
    } else {
        spec.doc_start = run.batch.doc_start;
    }
    return spec;
}

void SimplicialLayer::forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                              const SharedValues&) const {
    const Saved& s = static_cast<const Saved&>(memory);
    const int64_t n = run.batch.count();
    const Tensor projected = s.projected.first_rows(n), q = queries_of(projected);
    SimplicialKeys keys = keys_of(projected);
    run.ops.linear(projected, xn, run.matrix(projections_), Write::set);
    const HeadSpec heads = norm(run.batch.length);
    run.ops.prepare_heads(q, Tensor(), s.query_inverse.first_rows(n), heads);
    run.ops.prepare_heads(keys.k, Tensor(), s.inverse_of_k.first_rows(n), heads);
    run.ops.prepare_heads(keys.k2, Tensor(), s.inverse_of_k2.first_rows(n), heads);
    if (run.generating())
        for (const auto& [cache, rows] : {std::pair(s.cache.k, keys.k),
                                          {s.cache.v, keys.v},
                                          {s.cache.k2, keys.k2},
                                          {s.cache.v2, keys.v2}})
            keep_rows(run, cache, rows);
    SimplicialSpec pairs = spec(run);
    if (run.in_pieces()) {
        pairs.position = s.piece_k.before(run);
        pairs.room = pairs.position + n;
        keys = {s.piece_k.add(run, keys.k), s.piece_v.add(run, keys.v), s.piece_k2.add(run, keys.k2),
                s.piece_v2.add(run, keys.v2)};
    }
    if (run.decoding()) {
        const int64_t rows = n * pairs.room;
        keys = {s.cache.k.first_rows(rows), s.cache.v.first_rows(rows), s.cache.k2.first_rows(rows),
                s.cache.v2.first_rows(rows)};
    }
    const Tensor o = s.o.first_rows(n);
    run.ops.simplicial(o, s.lse.shaped({heads_, n}), q, keys, pairs);
    run.ops.linear(y, o, run.matrix(out_), write);
}

void SimplicialLayer::backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory,
                               const Tensor& xn, const SharedValues&) const {
    const Saved& s = static_cast<const Saved&>(memory);
    const int64_t n = run.batch.count();
    const Tensor projected = s.projected.first_rows(n), q = queries_of(projected), o = s.o.first_rows(n);
    const Tensor dprojected = s.workspace.dprojected.shaped({n, 5 * width()}), dq = queries_of(dprojected);
    const Tensor dout = s.workspace.dout.shaped({n, width()});
    const SimplicialKeys keys = keys_of(projected), d = keys_of(dprojected);
    run.weight_gradient(out_, dy, o);
    run.ops.linear_backward_input(dout, dy, run.matrix(out_), Write::set);
    run.ops.simplicial_backward(dq, d, dout, o, s.lse.shaped({heads_, n}), q, keys, spec(run));
    const HeadSpec heads = norm(run.batch.length);
    const auto through_norm = [&](const Tensor& dx, const Tensor& x, const Tensor& inverse) {
        run.ops.prepare_heads_backward(dx, Tensor(), Tensor(), Tensor(), x, Tensor(), inverse.first_rows(n),
                                       heads);
    };
    through_norm(dq, q, s.query_inverse);
    through_norm(d.k, keys.k, s.inverse_of_k);
    through_norm(d.k2, keys.k2, s.inverse_of_k2);
    run.weight_gradient(projections_, dprojected, xn);
    run.ops.linear_backward_input(dxn, dprojected, run.matrix(projections_), Write::set);
}

double SimplicialLayer::flops_per_token(int64_t length, const PassSettings&) const {
    return 4 * static_cast<double>(width()) *
           simplicial_pairs(length, windows_.window, windows_.second_window);
}

}  // namespace longreach::model
