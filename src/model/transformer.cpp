#include "model/transformer.h"

#include <algorithm>

namespace longreach {

Transformer::Transformer(const ModelConfig& config, int64_t table_rows)
    : config_(config), tables_(config, table_rows) {
    embedding_ = table_.add({"embedding.weight",
                             {config.vocab_size, config.width},
                             {InitRule::Kind::normal, config.embedding_deviation()},
                             ParamGroup::embedding});
    ParamTable parameter_free;  // the embedding norm learns nothing
    embedding_norm_ =
        Norm(parameter_free, "", NormConfig{NormKind::rms, false, config.norm.eps}, config.width);
    blocks_.reserve(static_cast<size_t>(config.layers));
    for (int64_t l = 0; l < config.layers; ++l) blocks_.emplace_back(table_, config_, l);
    head_ = std::make_unique<LossHead>(table_, config_, embedding_);
}

void Transformer::plan_tables(Arena& arena) {
    tables_.plan(arena);
    for (size_t l = 0; l < blocks_.size(); ++l)
        blocks_[l].attention().set_tables(tables_.layer(static_cast<int64_t>(l)));
}

void Transformer::plan_common(Arena& arena, Activations& a, const PlanSize& size, bool document_mask) {
    const int64_t n = size.tokens, c = config_.width;
    a.x = arena.reserve("x", DType::f32, {n, c});
    if (config_.embedding_norm) a.embedding_norm = embedding_norm_.plan(arena, "embedding_norm", n);
    if (config_.residual.x0) a.cross.x0 = arena.reserve("x0", DType::f32, {n, c});
    if (config_.residual.values == ValueMix::first)
        a.cross.first_values =
            arena.reserve("first_values", DType::f32, {n, blocks_[0].attention().value_width()});
    a.cross.skip.clear();
    a.cross.dskip.clear();
    if (config_.residual.unet)
        for (int64_t i = 0; i < config_.layers / 2; ++i)
            a.cross.skip.push_back(arena.reserve(fmt::format("{}.skip", i), DType::f32, {n, c}));
    a.masks.entries.clear();
    for (const Block& block : blocks_) {
        const int64_t window = block.attention().configured_window();
        const auto same = [&](const Masks::Entry& e) { return e.window == window; };
        if (std::any_of(a.masks.entries.begin(), a.masks.entries.end(), same)) continue;
        Tensor row_start;
        if (window > 0 || document_mask) row_start = arena.reserve("row_start", DType::i32, {n});
        a.masks.entries.push_back({window, row_start});
    }
}

void Transformer::plan_training(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask) {
    Activations& a = training_;
    const int64_t n = size.tokens, c = config_.width;
    arena.group("activations, training");
    plan_common(arena, a, size, document_mask);
    a.blocks.clear();
    for (size_t l = 0; l < blocks_.size(); ++l)
        a.blocks.push_back(blocks_[l].plan(arena, fmt::format("layers.{}.", l), n));

    arena.group("workspace, training");
    a.dx = arena.reserve("dx", DType::f32, {n, c});
    // Asked of the config, not of the tensors: in the measuring pass those have no memory yet and count as
    // absent.
    if (config_.residual.x0) a.cross.dx0 = arena.reserve("dx0", DType::f32, {n, c});
    if (config_.residual.values == ValueMix::first)
        a.cross.dfirst_values = arena.reserve("dfirst_values", DType::f32, {n, a.cross.first_values.cols()});
    for (size_t i = 0; i < a.cross.skip.size(); ++i)
        a.cross.dskip.push_back(arena.reserve(fmt::format("{}.dskip", i), DType::f32, {n, c}));
    std::vector<const AttentionLayer*> attentions;
    for (const Block& block : blocks_) attentions.push_back(&block.attention());
    a.workspace.dxn = arena.reserve("dnorm", DType::f32, {n, c});
    a.workspace.attention = AttentionLayer::plan_workspace(arena, ops, attentions, n, size.lengths);
    a.workspace.mlp = blocks_[0].mlp().plan_workspace(arena, n);
    a.head = head_->plan(arena, n, true);
}

void Transformer::plan_evaluation(Arena& arena, const PlanSize& size, bool document_mask) {
    Activations& a = evaluation_;
    arena.group("activations, evaluation");
    plan_common(arena, a, size, document_mask);
    // Layers may differ in layout, so each plans over the same place and the largest decides.
    const int64_t place = arena.mark();
    int64_t end = place;
    a.blocks.clear();
    for (size_t l = 0; l < blocks_.size(); ++l) {
        arena.rewind(place);
        a.blocks.push_back(blocks_[l].plan(arena, fmt::format("layers.{}.", l), size.tokens));
        end = std::max(end, arena.mark());
    }
    arena.rewind(end);
    a.head = head_->plan(arena, size.tokens, false);
}

void Transformer::set_stage_window(int64_t window) {
    for (Block& block : blocks_) {
        const int64_t configured = block.attention().configured_window();
        block.attention().set_window(window > 0 && configured > 0 ? std::min(window, configured)
                                                                  : configured);
    }
}

void Transformer::build_masks(Ops& ops, const Batch& batch, Activations& a, Masks& masks) const {
    check(batch.count() <= a.x.rows(), "a batch of {} tokens in a plan for {}", batch.count(), a.x.rows());
    // Layers that share a configured window share a buffer; a stage may have narrowed several windows to the
    // same.
    for (const Block& block : blocks_) {
        const int64_t window = block.attention().window(), configured = block.attention().configured_window();
        const auto same = [&](const Masks::Entry& e) { return e.window == window; };
        if (std::any_of(masks.entries.begin(), masks.entries.end(), same)) continue;
        Tensor row_start = a.masks.of(configured);
        check(row_start || !batch.doc_start, "a batch with documents in a plan without a document mask");
        if (row_start) {
            row_start = Tensor(row_start.data, DType::i32, {batch.count()});
            ops.row_starts(row_start, batch.doc_start, batch.length, window, 0);
        }
        masks.entries.push_back({window, row_start});
    }
}

void Transformer::run_forward(StepContext& run, Activations& a) {
    const int64_t n = run.batch.count();
    const Tensor x = a.x.first_rows(n);
    run.ops.embedding(x, run.weight(embedding_), run.batch.tokens);
    if (config_.embedding_norm) {
        embedding_norm_.forward(run, a.embedding_norm, x);
        run.ops.copy(x, a.embedding_norm.y.first_rows(n));
    }
    if (a.cross.x0) run.ops.copy(a.cross.x0.first_rows(n), x);
    for (size_t l = 0; l < blocks_.size(); ++l) blocks_[l].forward(run, a.blocks[l], a.cross, x);
}

void Transformer::forward_backward(Ops& ops, const FlatParams& weights, const FlatParams& gradients,
                                   const Batch& batch, float gradient_scale) {
    Activations& a = training_;
    Masks masks;
    build_masks(ops, batch, a, masks);
    StepContext run{ops, weights, gradients, batch, masks};
    run_forward(run, a);

    const int64_t n = batch.count();
    const Tensor x = a.x.first_rows(n), dx = a.dx.first_rows(n);
    head_->forward_backward(run, dx, a.head, x, gradient_scale);
    if (a.cross.dx0) ops.zero(a.cross.dx0.first_rows(n));
    if (a.cross.dfirst_values) ops.zero(a.cross.dfirst_values.first_rows(n));
    for (size_t l = blocks_.size(); l-- > 0;) blocks_[l].backward(run, dx, a.blocks[l], a.cross, a.workspace);
    if (a.cross.dx0) ops.add(dx, a.cross.dx0.first_rows(n));
    if (config_.embedding_norm) embedding_norm_.backward(run, dx, dx, a.embedding_norm, Write::set);
    ops.embedding_backward(run.gradient(embedding_), dx, batch.tokens);
    last_ = &a;
}

void Transformer::forward(Ops& ops, const FlatParams& weights, const Batch& batch) {
    Activations& a = evaluation_;
    Masks masks;
    build_masks(ops, batch, a, masks);
    StepContext run{ops, weights, {}, batch, masks};
    run_forward(run, a);
    head_->forward(run, a.head, a.x.first_rows(batch.count()));
    last_ = &a;
}

Tensor Transformer::losses(int64_t tokens) const {
    check(last_ != nullptr, "losses before any forward pass");
    return Tensor(last_->head.losses.data, DType::f32, {tokens});
}

double Transformer::evaluation_flops_per_token(int64_t length) const {
    double flops = 0;
    for (const Param& p : table_.params()) {
        const bool product = p.group == ParamGroup::matrix || p.group == ParamGroup::head ||
                             (p.group == ParamGroup::embedding && config_.head.tied);
        if (product) flops += 2.0 * static_cast<double>(p.count());
    }
    for (const Block& block : blocks_) flops += block.attention().flops_per_token(length);
    return flops;
}

double Transformer::training_flops_per_token(int64_t length) const {
    return 3 * evaluation_flops_per_token(length);
}

}  // namespace longreach
