#include "mixers/score_law.h"

#include <algorithm>
#include <cmath>

namespace longreach::model {

namespace {

InitRule init_of(const law::BoundLaw& law, size_t parameter, int64_t heads) {
    const law::Parameter& p = law.parameters()[parameter];
    const auto stored = [&](double value) { return p.positive ? std::log(value) : value; };
    if (const auto range = law.drawn(parameter)) {
        require(!p.positive, ExitCode::usage, "{} is learned as a logarithm and cannot start at random",
                p.name);
        return {.kind = InitRule::Kind::between, .value = range->second - range->first, .from = range->first};
    }
    InitRule rule{.kind = InitRule::Kind::listed};
    for (int64_t h = 0; h < (p.learn == law::Sharing::head ? heads : 1); ++h)
        rule.list.insert(rule.list.end(), static_cast<size_t>(p.size), stored(law.value(h, parameter)));
    return rule;
}

}  // namespace

ScoreLaw::ScoreLaw(ParamTable& table, const ModelConfig& model, int64_t layer, LayerScore score)
    : score_(std::make_shared<const LayerScore>(std::move(score))),
      count_(model.layer_attention(layer).score_count),
      heads_(score_->law.model().heads) {
    const std::vector<law::Parameter>& all = score_->law.parameters();
    parameters_.resize(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
        const law::Parameter& p = all[i];
        if (score_->tensors[i].empty()) continue;
        std::vector<int64_t> shape;
        if (p.learn == law::Sharing::head) shape.push_back(heads_);
        if (p.size > 1 || shape.empty()) shape.push_back(p.size);
        Param param{score_->tensors[i], shape, init_of(score_->law, i, heads_), ParamGroup::scalar};
        param.rate = p.rate;
        parameters_[i] = table.share(std::move(param));
    }
    const double bound = model.init.matrix_bound / std::sqrt(static_cast<double>(model.width));
    for (size_t k = 0; k < score_->law.terms().size(); ++k) {
        const law::Term& term = score_->law.terms()[k];
        const std::string name = fmt::format("layers.{}.attention.terms.{}.", layer, term.name);
        InitRule biases{.kind = InitRule::Kind::listed};
        for (int64_t h = 0; h < heads_; ++h) biases.list.push_back(score_->law.first_bias(h, k));
        Term& added = terms_.emplace_back();
        added.weight = table.add({name + "weight",
                                  {heads_, model.width},
                                  term.zero_weights ? InitRule{} : InitRule{InitRule::Kind::uniform, bound},
                                  ParamGroup::scalar});
        added.bias = table.add({name + "bias", {heads_}, biases, ParamGroup::scalar});
    }
}

ScoreLaw::Saved ScoreLaw::plan(Arena& arena, const std::string& name, int64_t tokens,
                               const ScoreRows& rows) const {
    Saved saved;
    if (rows.factor > 0) saved.factor = arena.reserve(name + "row_factor", DType::f32, {rows.factor, tokens});
    if (rows.square) saved.square = arena.reserve(name + "row_square", DType::f32, {1, tokens});
    if (!terms_.empty())
        saved.u = arena.activation(name + "terms", {tokens, static_cast<int64_t>(terms_.size()) * heads_});
    if (rows.sums) saved.sums = arena.reserve(name + "term_sums", DType::f64, {heads_, tokens});
    return saved;
}

ScoreLaw::Cache ScoreLaw::plan_kept(KeptTexts& kept, const std::string& name, const ScoreRows& rows) const {
    if (!rows.sums) return {};
    return {kept.columns(name + "term_sums_cache", DType::f64, heads_, kept.size().room),
            kept.columns(name + "term_totals", DType::f64, heads_, 1)};
}

ScoreLaw::Buffers ScoreLaw::plan_buffers(Arena& arena, int64_t tokens, int64_t longest, const ScoreRows& rows,
                                         bool training) const {
    Buffers b;
    const auto by_token = [&](const char* name) { return arena.reserve(name, DType::f32, {heads_, tokens}); };
    if (rows.sums) {
        b.between = by_token("term_between");
        b.key = by_token("term_key");
    }
    if (training && !terms_.empty()) {
        if (rows.sums) b.dsums = by_token("dterm_sums");
        b.of_token = by_token("term_derivative");
        b.du = arena.activation("dterms", {tokens, static_cast<int64_t>(terms_.size()) * heads_});
    }
    if (!score_->learns()) return b;
    const auto table = [&](const char* name, const ScorePart& part, bool wanted) {
        return wanted ? arena.reserve(name, DType::f32, {part.by_head ? heads_ : 1, longest}) : Tensor();
    };
    const ScorePart &row = score_->row, &gain = score_->gain, &bias = score_->bias;
    b.row = table("row_table", row, row.learned() && !row.of_token);
    b.gain = table("distance_gain", gain, gain.learned());
    b.bias = table("distance_bias", bias, bias.learned());
    if (!training) return b;
    if (row.learned()) b.drow = arena.reserve("drow_factor", DType::f32, {heads_, tokens});
    b.dgain = table("ddistance_gain", gain, gain.learned());
    b.dbias = table("ddistance_bias", bias, bias.learned());
    b.derivative = arena.reserve("law_derivative", DType::f32, {heads_, longest});
    return b;
}

Tensor ScoreLaw::count_start(const StepContext& run, const Tensor& row_start) const {
    if (run.decoding()) return Tensor();
    switch (count_) {
        case ScoreCount::sequence:
            return Tensor();
        case ScoreCount::automatic:
        case ScoreCount::document:
            return run.batch.doc_start;
        case ScoreCount::visible:
            return row_start;
    }
    fail(ExitCode::internal, "unknown count");
}

Tensor ScoreLaw::entries(StepContext& run, const law::CompiledTable& value, const ProgramTables& tables,
                         const Tensor& buffer, bool by_distance, int64_t first, int64_t length) const {
    // By distance, entry t is in the last column but t.
    const auto part = [&](const Tensor& table) {
        return table.col_range(by_distance ? table.cols() - first - length : first, length);
    };
    if (!value.learned) return part(tables.filled);
    LawSpec spec = law_spec(run, value);
    spec.length = length;
    spec.first = static_cast<double>(first + (by_distance ? 0 : 1));
    spec.backwards = by_distance;
    for (size_t i = 0; i < tables.inputs.size(); ++i)
        spec.tables[i] = tables.inputs[i].col_range(first, length);
    const Tensor rows = buffer.row_range(0, value.by_head ? heads_ : 1);
    const Tensor to = rows.col_range(by_distance ? rows.cols() - length : 0, length);
    run.ops.evaluate_law(to, spec);
    return to;
}

LawSpec ScoreLaw::law_spec(const StepContext& run, const law::CompiledTable& value) const {
    LawSpec spec;
    spec.program = value.program;
    for (size_t i = 0; i < value.parameters.size(); ++i) {
        spec.parameters[i] = run.weight(parameters_[value.parameters[i]]);
        spec.sizes[i] = static_cast<int32_t>(score_->law.parameters()[value.parameters[i]].size);
    }
    return spec;
}

void ScoreLaw::read(StepContext& run, const Saved& saved, const Tensor& xn) const {
    for (size_t k = 0; k < terms_.size(); ++k) {
        const Tensor x = columns(saved.u.first_rows(run.batch.count()), k);
        run.ops.linear(x, xn, run.matrix(terms_[k].weight), Write::set);
        run.ops.add_bias(x, run.weight(terms_[k].bias));
    }
}

Tensor ScoreLaw::of_tokens(StepContext& run, const law::CompiledTable& value, const ProgramTables& tables,
                           const Tensor& to, const ByToken& at) const {
    const int64_t n = run.batch.count();
    if (!value.learned) {
        run.ops.law_rows(to, tables.filled.col_range(at.first, at.count), at.queries);
        return to;
    }
    LawSpec spec = law_spec(run, value);
    spec.first = static_cast<double>(at.first + 1);
    spec.by_token = at.queries;
    for (size_t i = 0; i < value.tokens.size(); ++i)
        spec.tokens[i] = columns(at.saved.u.first_rows(n), value.tokens[i] - score_->law.parameters().size());
    for (size_t i = 0; i < tables.inputs.size(); ++i)
        spec.tables[i] = tables.inputs[i].col_range(at.first, at.count);
    run.ops.evaluate_law(to, spec);
    return to;
}

void ScoreLaw::apply_sums(AttentionSpec& spec, StepContext& run, const ScoreTables& tables,
                          const Memory& memory, const ByToken& at, bool fill) const {
    const LayerScore& s = *tables.score;
    const int64_t n = run.batch.count(), length = run.batch.length;
    const Tensor all = memory.saved.sums.shaped({heads_, n});
    spec.forget = all;
    if (!fill) return;
    const auto part = [&](const ScorePart& p, const PartTables& of, const Tensor& buffer) {
        return p.of_token ? of_tokens(run, p.value, of.value, buffer.shaped({heads_, n}), at) : Tensor();
    };
    const Tensor between = part(s.between, tables.between, memory.buffers.between),
                 key = part(s.key, tables.key, memory.buffers.key);
    if (run.generation != nullptr) {
        const int64_t sequences = run.batch.sequences;
        const Tensor kept = memory.cache.sums.col_range(0, sequences * run.generation->room);
        run.ops.running_sums(kept, memory.cache.total.col_range(0, sequences), between, key, length,
                             run.position());
        if (run.decoding() || run.in_pieces()) {
            spec.forget = run.decoding() ? kept : kept.col_range(0, run.position() + length);
            return;
        }
    }
    run.ops.running_sums(all, Tensor(), between, key, length, 0);
}

void ScoreLaw::apply(AttentionSpec& spec, StepContext& run, const ScoreTables& tables, const Memory& memory,
                     int64_t entry, bool fill) const {
    const auto& [saved, buffers, cache] = memory;
    const LayerScore& s = *tables.score;
    const int64_t n = run.batch.count(), length = run.batch.length;
    const LawEntries queries{.length = length, .start = count_start(run, spec.row_start)};
    // Starts count from the first query, so that with them queries read the table from its first entry on.
    const int64_t first = run.decoding() ? entry : queries.start ? 0 : run.position();
    const int64_t count = length + (queries.start ? run.position() : 0);
    const ByToken at{saved, queries, first, count};
    if (s.has_row) {
        spec.row_factor = saved.factor.shaped({s.row.by_head ? heads_ : 1, n});
        if (fill && s.row.of_token)
            of_tokens(run, s.row.value, tables.row.value, spec.row_factor, at);
        else if (fill)
            run.ops.law_rows(spec.row_factor,
                             entries(run, s.row.value, tables.row.value, buffers.row, false, first, count),
                             queries);
    }
    if (s.has_sums) apply_sums(spec, run, tables, memory, at, fill);
    if (s.has_distance) {
        const int64_t distances = run.position() + length;
        spec.distance_gain = entries(run, s.gain.value, tables.gain.value, buffers.gain, true, 0, distances);
        spec.distance_bias = entries(run, s.bias.value, tables.bias.value, buffers.bias, true, 0, distances);
        spec.bias_of_gain = static_cast<float>(tables.bias_of_gain);
    }
    if (s.has_square) {
        const Tensor square = saved.square.shaped({1, n});
        if (fill)
            run.ops.law_rows(square,
                             entries(run, s.square.value, tables.square.value, Tensor(), false, first, count),
                             queries);
        spec.row_square = square.shaped({n});
    }
}

AttentionGradients ScoreLaw::gradients(const Buffers& b, int64_t tokens) const {
    AttentionGradients g;
    if (b.drow) g.row_factor = b.drow.shaped({heads_, tokens});
    if (b.dsums) g.forget = b.dsums.shaped({heads_, tokens});
    g.distance_gain = b.dgain;
    g.distance_bias = b.dbias;
    return g;
}

void ScoreLaw::backward(StepContext& run, const ScoreTables& tables, const Saved& saved,
                        const Buffers& buffers, const AttentionGradients& gradients,
                        const Tensor& row_start) const {
    const int64_t n = run.batch.count(), length = run.batch.length;
    const auto part = [&](const ScorePart& p, const PartTables& of, const Tensor& gradient,
                          bool by_distance) {
        if (!gradient) return;
        const LawEntries entries_of =
            by_distance ? LawEntries{} : LawEntries{length, count_start(run, row_start)};
        const auto last = [&](const Tensor& t) { return t.col_range(t.cols() - length, length); };
        for (size_t i = 0; i < p.derivatives.size(); ++i) {
            const ScorePart::Derivative& d = p.derivatives[i];
            const Tensor derivative =
                entries(run, d.value, of.derivatives[i], buffers.derivative, by_distance, 0, length);
            Tensor elements = of.elements[i];
            if (elements) elements = elements.range(by_distance ? elements.count() - length : 0, length);
            run.ops.law_gradient(run.gradient(parameters_[d.parameter]), derivative,
                                 by_distance ? last(gradient) : gradient, entries_of, elements);
        }
    };
    const ByToken at{saved, {length, count_start(run, row_start)}, 0, length};
    std::vector<bool> written(terms_.size(), false);
    const auto part_of_tokens = [&](const ScorePart& p, const PartTables& of, const Tensor& gradient) {
        for (size_t i = 0; i < p.derivatives.size(); ++i) {
            const ScorePart::Derivative& d = p.derivatives[i];
            const Tensor derivative =
                of_tokens(run, d.value, of.derivatives[i], buffers.of_token.shaped({heads_, n}), at);
            if (d.parameter < parameters_.size()) {
                run.ops.law_gradient(run.gradient(parameters_[d.parameter]), derivative, gradient, {},
                                     Tensor());
                continue;
            }
            const size_t term = d.parameter - parameters_.size();
            run.ops.term_gradient(columns(buffers.du.first_rows(n), term), derivative, gradient,
                                  written[term] ? Write::add : Write::set);
            written[term] = true;
        }
    };
    if (score_->row.of_token)
        part_of_tokens(score_->row, tables.row, gradients.row_factor);
    else
        part(score_->row, tables.row, gradients.row_factor, false);
    part(score_->gain, tables.gain, gradients.distance_gain, true);
    part(score_->bias, tables.bias, gradients.distance_bias, true);
    if (score_->key.of_token) part_of_tokens(score_->key, tables.key, gradients.forget);
    if (!score_->between.of_token) return;
    const Tensor dbetween = buffers.between.shaped({heads_, n});  // free after the forward pass
    run.ops.running_sums_backward(dbetween, gradients.forget, length);
    part_of_tokens(score_->between, tables.between, dbetween);
}

void ScoreLaw::backward_input(StepContext& run, Tensor dxn, const Buffers& buffers, const Tensor& xn) const {
    for (size_t k = 0; k < terms_.size(); ++k) {
        const Tensor du = columns(buffers.du.first_rows(run.batch.count()), k);
        run.ops.add_bias_backward(run.gradient(terms_[k].bias), du);
        run.weight_gradient(terms_[k].weight, du, xn);
        run.ops.linear_backward_input(dxn, du, run.matrix(terms_[k].weight), Write::add);
    }
}

}  // namespace longreach::model
