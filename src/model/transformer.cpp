#include "model/transformer.h"

#include <algorithm>
#include <limits>

#include "model/recent_rows.h"

namespace longreach::model {

Transformer::Transformer(const ModelConfig& config, int64_t table_rows, const PostHocConfig& post_hoc)
    : config_(config), tables_(config, table_rows, post_hoc) {
    settings_.tables = &tables_;
    embedding_ = table_.add({"embedding.weight",
                             {config.vocab_size, config.width},
                             {InitRule::Kind::normal, config.embedding_deviation()},
                             ParamGroup::embedding});
    require(config.positions == 0 || table_rows <= config.positions, ExitCode::usage,
            "sequences of {} tokens; the model has learned positions for {} (model.positions)", table_rows,
            config.positions);
    if (config.positions > 0)
        position_ = table_.add({"position_embedding.weight",
                                {config.positions, config.width},
                                {InitRule::Kind::normal, config.embedding_deviation()},
                                ParamGroup::embedding});
    if (config.residual.smear) {
        smear_weight_ = table_.add({"smear.weight", {smear_channels}, InitRule{}, ParamGroup::scalar});
        smear_mix_ = table_.add({"smear_mix", {1}, InitRule{}, ParamGroup::scalar});
    }
    end_segment();
    ParamTable parameter_free;  // the embedding norm has no parameters
    NormConfig plain;
    plain.eps = config.norm.eps;
    embedding_norm_ = Norm(parameter_free, "", plain, config.width);
    blocks_.reserve(static_cast<size_t>(config.layers));
    for (int64_t l = 0; l < config.layers; ++l) {
        blocks_.emplace_back(table_, config_, l);
        if (AttentionMixer* attention = blocks_.back().mixer().attention()) attention_.push_back(attention);
        end_segment();
    }
    if (config.residual.backout >= 0)
        backout_mix_ = table_.add({"backout_mix", {1}, {InitRule::Kind::constant, 0.5}, ParamGroup::scalar});
    head_ = std::make_unique<LossHead>(table_, config_, embedding_);
    end_segment();
}

void Transformer::end_segment() {
    const int64_t begin = segments_.empty() ? 0 : segments_.back().end;
    segments_.push_back({begin, table_.size()});
}

void Transformer::plan_tables(Arena& arena) {
    tables_.plan(arena);
    if (!watching_) return;
    int64_t heads = 0;
    for (int64_t l : config_.distinct_layers()) heads = std::max(heads, config_.layer_attention(l).heads);
    settings_.score_maxima = arena.reserve("score_maxima", DType::f32, {config_.layers, heads});
}

void Transformer::fill_tables(Ops& ops) {
    tables_.fill(ops);
    training_tables_ = true;
}

void Transformer::use_length(Ops& ops, int64_t length) {
    tables_.use_length(ops, length, settings_.stage_window);
    training_tables_ = length == 0;
}

std::vector<Tensor> Transformer::plan_streams(Arena& arena, const char* d, int64_t tokens) const {
    const auto stream = [&](bool used, const char* name) {
        return used ? arena.activation(fmt::format("{}{}", d, name), {tokens, config_.width}) : Tensor();
    };
    std::vector<Tensor> streams = {stream(config_.residual.x0, "x0"),
                                   stream(config_.residual.backout >= 0, "backout")};
    for (int64_t i = 0; config_.residual.unet && i < config_.layers / 2; ++i)
        streams.push_back(arena.activation(fmt::format("{}.{}skip", i, d), {tokens, config_.width}));
    return streams;
}

void Transformer::plan_common(Arena& arena, Activations& a, const PlanSize& size, bool document_mask,
                              bool training) {
    const int64_t n = size.tokens, c = config_.width;
    const auto rows = [&](const char* name, int64_t width) { return arena.activation(name, {n, width}); };
    a.x = rows("x", c);
    if (smear_mix_) a.unsmeared = arena.activation("unsmeared", {n + (training ? 0 : 1), c});
    if (config_.embedding_norm) a.embedding_norm = embedding_norm_.plan(arena, "embedding_norm", n);
    a.cross.streams.values = plan_streams(arena, "", n);
    const AttentionConfig& first = config_.layer_attention(0);
    const int64_t value_width = first.kv() * first.head_dim;
    if (config_.residual.values == ValueMix::first) a.cross.values.first = rows("first_values", value_width);
    if (config_.residual.value_embeddings > 0) {
        int64_t widest = 0;
        for (int64_t l = 0; l < config_.layers; ++l) {
            const AttentionConfig& attention = config_.layer_attention(l);
            widest = std::max(widest, attention.kv() * attention.head_dim);
        }
        a.cross.values.looked_up = rows("value_embedding", widest);
        if (training) a.cross.values.dlooked_up = rows("dvalue_embedding", widest);
    }
    a.masks.entries.clear();
    for (const AttentionMixer* attention : attention_) {
        const Reach reach = attention->reach();
        if (a.masks.find(reach) != nullptr) continue;
        Tensor row_start;
        if (reach.limited() || document_mask) row_start = arena.reserve("row_start", DType::i32, {n});
        a.masks.entries.push_back({reach, row_start});
    }
}

void Transformer::plan_training(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask) {
    Activations& a = training_;
    const int64_t n = size.tokens, c = config_.width;
    arena.group("activations, training");
    plan_common(arena, a, size, document_mask, true);
    const PassPlan passes{n, size.lengths, true, settings_};
    a.blocks.clear();
    a.inputs.clear();
    const auto plan_block = [&](size_t i) {
        a.blocks.push_back(block_at(i).plan(arena, fmt::format("layers.{}.", i), passes));
    };
    for (size_t i = 0; i < depth(); ++i)
        size.recompute ? a.inputs.push_back(arena.activation(fmt::format("layers.{}.input", i), {n, c}))
                       : plan_block(i);
    if (size.recompute) arena.overlay(depth(), plan_block);

    arena.group("workspace, training");
    a.dx = arena.activation("dx", {n, c});
    a.cross.streams.gradients = plan_streams(arena, "d", n);
    if (config_.residual.values == ValueMix::first)
        a.cross.values.dfirst = arena.activation("dfirst_values", {n, a.cross.values.first.cols()});
    a.workspace = Block::plan_workspace(arena, ops, blocks_, a.blocks, passes);
    a.head = head_->plan(arena, n, true);
    if (const int64_t indexes = trained_indexes(); indexes > 0)
        index_losses_ = arena.reserve("index_losses", DType::f32, {indexes * n});
}

void Transformer::plan_evaluation(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask) {
    Activations& a = evaluation_;
    arena.group("activations, evaluation");
    plan_common(arena, a, size, document_mask, false);
    PlanSize passes = size;
    if (size.room > 0) passes.lengths.push_back(size.room);
    plan_layers(arena, ops, a, passes);
    a.head = head_->plan(arena, size.tokens, false);
    if (size.room == 0) return;
    arena.group("kept between pieces");
    KeptTexts kept(arena, 1, {.room = size.room, .piece = size.piece});
    plan_kept(kept, a);
}

void Transformer::plan_kept(KeptTexts& kept, Activations& a) const {
    if (smear_mix_) {
        a.recent_embeddings = kept.recent("recent_embeddings", 2, config_.width);
        a.smeared = kept.arena().activation("smeared", {2 * kept.texts(), config_.width});
    }
    for (size_t l = 0; l < a.blocks.size(); ++l)
        block_at(l).mixer().plan_kept(*a.blocks[l].mixer, kept, fmt::format("layers.{}.", l));
}

void Transformer::plan_layers(Arena& arena, Ops& ops, Activations& a, const PlanSize& size) {
    const PassPlan passes{size.tokens, size.lengths, false, settings_, size.texts};
    a.blocks.clear();
    arena.overlay(depth(), [&](size_t i) {
        a.blocks.push_back(block_at(i).plan(arena, fmt::format("layers.{}.", i), passes));
    });
    a.workspace = Block::plan_workspace(arena, ops, blocks_, a.blocks, passes);
}

void Transformer::watch_scores(bool absolute) {
    watching_ = true;
    settings_.absolute_maxima = absolute;
}

void Transformer::clear_maxima(Ops& ops) const {
    const std::vector<float> none(static_cast<size_t>(score_maxima().count()),
                                  -std::numeric_limits<float>::infinity());
    ops.upload(score_maxima(), none.data());
}

void Transformer::clip_scores(Ops& ops, const FlatParams& weights, float limit) const {
    for (const AttentionMixer* attention : attention_) attention->clip_scores(ops, weights, settings_, limit);
}

float Transformer::largest_score(Ops& ops) const {
    std::vector<float> host(static_cast<size_t>(score_maxima().count()));
    ops.download(host.data(), score_maxima());
    return *std::max_element(host.begin(), host.end());
}

void Transformer::build_masks(Ops& ops, const Batch& batch, Activations& a, Masks& masks,
                              const Generation* at) const {
    const int64_t n = batch.count();
    check(n <= a.x.rows(), "a batch of {} tokens in a plan for {}", n, a.x.rows());
    std::vector<int32_t> documents(at != nullptr ? static_cast<size_t>(n) : 0), rows(documents.size());
    if (at != nullptr) ops.download(documents.data(), batch.doc_start);
    for (const Masks::Entry& planned : a.masks.entries) {
        Tensor row_start = planned.row_start;
        check(row_start || !batch.doc_start || at != nullptr,
              "a batch with documents in a plan without a document mask");
        if (row_start) {
            const Reach reach = planned.reach.narrowed(settings_.stage_window);
            row_start = row_start.first(n);
            if (at == nullptr)
                ops.row_starts(row_start, batch.doc_start, batch.length, reach.window, reach.chunk);
            for (size_t i = 0; i < rows.size(); ++i) {
                const int64_t first = reach.first_key(at->position + static_cast<int64_t>(i)) - at->position;
                rows[i] = std::max(documents[i], static_cast<int32_t>(first));
            }
            if (at != nullptr) ops.upload(row_start, rows.data());
        }
        masks.entries.push_back({planned.reach, row_start});
    }
}

void Transformer::embed(StepContext& run, Activations& a, Tensor x) {
    if (!smear_mix_) return run.ops.embedding(x, run.weight(embedding_), run.batch.tokens);
    const auto smear = [&](const Tensor& y, const Tensor& from, int64_t length) {
        run.ops.smear(y, from, run.weight(smear_weight_), run.weight(smear_mix_), run.batch.doc_start,
                      length);
    };
    const Tensor unsmeared = behind_recent(run, a.unsmeared, a.recent_embeddings, 2);
    run.ops.embedding(unsmeared, run.weight(embedding_), run.batch.tokens);
    if (run.generation != nullptr) keep_recent(run, a.recent_embeddings, unsmeared, 2);
    if (!run.decoding()) return smear(x, unsmeared, run.batch.length);
    const Tensor smeared = a.smeared.first_rows(2 * x.rows());
    smear(smeared, a.recent_embeddings.first_rows(2 * x.rows()), 2);
    run.ops.copy(x, every(smeared, 2, 1));
}

void Transformer::add_positions(StepContext& run, const Tensor& x) const {
    if (!position_) return;
    const int64_t length = run.batch.length;
    const Tensor rows = run.weight(position_).shaped({config_.positions, config_.width});
    for (int64_t b = 0; b < run.batch.sequences; ++b)
        run.ops.add(x.row_range(b * length, length), rows.row_range(run.position(), length));
}

void Transformer::add_positions_backward(StepContext& run, const Tensor& dx) const {
    if (!position_) return;
    const int64_t length = run.batch.length;
    const Tensor rows = run.gradient(position_).shaped({config_.positions, config_.width});
    for (int64_t b = 0; b < run.batch.sequences; ++b)
        run.ops.add(rows.first_rows(length), dx.row_range(b * length, length));
}

void Transformer::run_forward(StepContext& run, Activations& a, ParameterTraffic* traffic) {
    const int64_t n = run.batch.count();
    const Tensor x = a.x.first_rows(n);
    const auto need = [&](size_t segment) {
        if (traffic != nullptr) run.ops.host_step([=] { traffic->need(static_cast<int64_t>(segment)); });
    };
    need(0);
    embed(run, a, x);
    add_positions(run, x);
    if (config_.embedding_norm) embedding_norm_.replace(run, a.embedding_norm, x);
    const std::vector<Tensor>& streams = a.cross.streams.values;
    if (config_.residual.x0) run.ops.copy(streams[x0_stream].first_rows(n), x);
    StepContext unobserved = run;  // of the passes before the last
    unobserved.observer = nullptr;
    for (size_t i = 0; i < depth(); ++i) {
        const size_t l = i % blocks_.size();
        if (i == l) need(l + 1);
        StepContext& pass = in_last_pass(i) ? run : unobserved;
        if (!a.inputs.empty()) run.ops.copy(a.inputs[i].first_rows(n), x);
        blocks_[l].forward(pass, a.blocks[i], a.cross, a.workspace, x);
        if (pass.observer) pass.observer->block(run, static_cast<int64_t>(l), x);
    }
    need(blocks_.size() + 1);
    if (backout_mix_)
        run.ops.mix(x, Coefficient(), x, taken_back(run), streams[backout_stream].first_rows(n));
}

void Transformer::forward_backward(Ops& ops, const FlatParams& weights, const FlatParams& gradients,
                                   const Batch& batch, float gradient_scale, ParameterTraffic* traffic) {
    check(training_tables_, "training with tables made for an evaluation");
    tables_.train_at(ops, batch.length);
    Activations& a = training_;
    Masks masks;
    build_masks(ops, batch, a, masks);
    StepContext run{ops, weights, gradients, batch, masks, true};
    run.settings = settings_;
    run.gradient_scale = gradient_scale;
    if (indexes_alone_) return learn_indexes(run, a, traffic);
    if (gradients.write == Write::set)
        for (const ParamTable::Stretch& s : table_.added_to())
            ops.zero(gradients.flat.range(s.begin, s.count));
    run_forward(run, a, traffic);
    const auto done = [&](size_t segment) {
        if (traffic != nullptr) ops.host_step([=] { traffic->done(static_cast<int64_t>(segment)); });
    };

    const int64_t n = batch.count();
    const Tensor x = a.x.first_rows(n), dx = a.dx.first_rows(n);
    head_->forward_backward(run, dx, a.head, x, gradient_scale);
    for (const Tensor& gradient : a.cross.streams.gradients)
        if (gradient) ops.zero(gradient.first_rows(n));
    if (a.cross.values.dfirst) ops.zero(a.cross.values.dfirst.first_rows(n));
    if (backout_mix_)
        ops.mix_backward(dx, a.cross.streams.gradients[backout_stream].first_rows(n), Tensor(),
                         run.gradient(backout_mix_), dx, Coefficient(), Tensor(), taken_back(run),
                         a.cross.streams.values[backout_stream].first_rows(n));
    done(blocks_.size() + 1);
    for (size_t i = depth(); i-- > 0;) {
        if (!in_last_pass(i)) run.gradients.write = Write::add;  // to those of the later passes
        recompute(run, a, i);
        run.index_losses = index_losses_at(i, n);
        block_at(i).backward(run, dx, a.blocks[i], a.cross, a.workspace);
        if (i < blocks_.size()) done(i + 1);
    }
    if (config_.residual.x0) ops.add(dx, a.cross.streams.gradients[x0_stream].first_rows(n));
    if (config_.embedding_norm) embedding_norm_.backward(run, dx, dx, a.embedding_norm, Write::set);
    add_positions_backward(run, dx);
    Tensor dembedding = dx;
    if (smear_mix_) {
        dembedding = x;  // the residual stream is no longer needed
        ops.smear_backward(dembedding, run.gradient(smear_weight_), run.gradient(smear_mix_), dx,
                           a.unsmeared.first_rows(n), run.weight(smear_weight_), run.weight(smear_mix_),
                           batch.doc_start, batch.length);
    }
    ops.embedding_backward(run.gradient(embedding_), dembedding, batch.tokens);
    done(0);
}

void Transformer::recompute(StepContext& run, Activations& a, size_t place) const {
    if (a.inputs.empty() || place + 1 == depth()) return;  // the memory still holds the last block's
    const int64_t n = run.batch.count();
    const Tensor x = a.x.first_rows(n);  // no longer needed
    run.ops.copy(x, a.inputs[place].first_rows(n));
    block_at(place).forward(run, a.blocks[place], a.cross, a.workspace, x);
}

void Transformer::learn_indexes(StepContext& run, Activations& a, ParameterTraffic* traffic) {
    if (run.gradients.write == Write::set) run.ops.zero(run.gradients.flat);
    run.gradients.write = Write::add;
    run_forward(run, a, traffic);
    const int64_t n = run.batch.count();
    // For the losses; the gradients at the head are not used.
    head_->forward_backward(run, a.dx.first_rows(n), a.head, a.x.first_rows(n), run.gradient_scale);
    for (size_t i = depth(); i-- > 0;) {
        recompute(run, a, i);
        run.index_losses = index_losses_at(i, n);
        block_at(i).learn_index(run, a.blocks[i]);
    }
    for (size_t segment = segments_.size(); traffic != nullptr && segment-- > 0;)
        run.ops.host_step([=] { traffic->done(static_cast<int64_t>(segment)); });
}

void Transformer::forward(Ops& ops, const FlatParams& weights, const Batch& batch, ForwardObserver* observer,
                          const Generation* at) {
    check(
        at == nullptr || (at->piece > 0 && at->position % at->piece == 0 && batch.length <= at->piece &&
                          batch.sequences == 1 && at->position + batch.length <= at->room && batch.doc_start),
        "a piece of {} tokens at {}", batch.length, at ? at->position : 0);
    Activations& a = evaluation_;
    Masks masks;
    build_masks(ops, batch, a, masks, at);
    StepContext run{ops, weights, {}, batch, masks, false, observer, at};
    run.settings = settings_;
    run_forward(run, a);
    head_->forward(run, a.head, a.x.first_rows(batch.count()));
}

Tensor Transformer::training_losses(int64_t tokens) const {
    return training_.head.losses.first(tokens);
}

Tensor Transformer::index_losses(int64_t tokens) const {
    return index_losses_.first(trained_indexes() * tokens);
}

int64_t Transformer::indexed_layers() const {
    return std::count_if(blocks_.begin(), blocks_.end(),
                         [](const Block& block) { return block.has_index(); });
}

Tensor Transformer::index_losses_at(size_t place, int64_t tokens) const {
    const auto layer = static_cast<std::ptrdiff_t>(place % blocks_.size());
    if (!blocks_[static_cast<size_t>(layer)].has_index()) return Tensor();
    const int64_t before = std::count_if(blocks_.begin(), blocks_.begin() + layer,
                                         [](const Block& block) { return block.has_index(); });
    const int64_t pass = static_cast<int64_t>(place / blocks_.size());
    return index_losses_.range((pass * indexed_layers() + before) * tokens, tokens);
}

Tensor Transformer::evaluation_losses(int64_t tokens) const {
    return evaluation_.head.losses.first(tokens);
}

Tensor Transformer::evaluation_best(int64_t tokens) const {
    return evaluation_.head.best.first(tokens);
}

std::vector<ParamRef> Transformer::products() const {
    std::vector<ParamRef> all = table_.products();
    if (config_.head.tied) all.push_back(embedding_);
    return all;
}

double Transformer::evaluation_flops_per_token(int64_t length) const {
    double flops = 0;
    for (const Param& p : table_.params()) {
        const bool product = p.of_product() || (p.offset == embedding_.offset && config_.head.tied);
        const bool of_layer = p.offset >= segments_.front().end && p.offset < segments_[blocks_.size()].end;
        const double passes = of_layer ? static_cast<double>(config_.loops) : 1;
        if (product) flops += 2.0 * passes * static_cast<double>(p.count());
    }
    for (size_t i = 0; i < depth(); ++i) flops += block_at(i).mixer().flops_per_token(length, settings_);
    return flops;
}

double Transformer::training_flops_per_token(int64_t length) const {
    return 3 * evaluation_flops_per_token(length);
}

}  // namespace longreach::model
