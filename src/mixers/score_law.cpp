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

ScoreLaw::ScoreLaw(ParamTable& table, const ModelConfig& model, int64_t layer)
    : score_(std::make_shared<const LayerScore>(layer_score(model, layer))),
      count_(model.layer_attention(layer).score_count),
      heads_(model.layer_attention(layer).heads) {
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
}

ScoreLaw::Saved ScoreLaw::plan(Arena& arena, const std::string& name, int64_t tokens,
                               const ScoreRows& rows) const {
    Saved saved;
    if (rows.factor > 0) saved.factor = arena.reserve(name + "row_factor", DType::f32, {rows.factor, tokens});
    if (rows.square) saved.square = arena.reserve(name + "row_square", DType::f32, {1, tokens});
    return saved;
}

ScoreLaw::Buffers ScoreLaw::plan_buffers(Arena& arena, int64_t tokens, int64_t longest, bool training) const {
    Buffers b;
    if (!score_->learns()) return b;
    const auto table = [&](const char* name, const ScorePart& part, bool wanted) {
        const int64_t rows = part.by_head ? heads_ : 1;
        return wanted ? arena.reserve(name, DType::f32, {rows, longest}) : Tensor();
    };
    const ScorePart &row = score_->row, &gain = score_->gain, &bias = score_->bias;
    b.row = table("row_table", row, row.learned());
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
    LawSpec spec;
    spec.program = value.program;
    spec.length = length;
    spec.first = static_cast<double>(first + (by_distance ? 0 : 1));
    spec.backwards = by_distance;
    for (size_t i = 0; i < value.parameters.size(); ++i) {
        spec.parameters[i] = run.weight(parameters_[value.parameters[i]]);
        spec.sizes[i] = static_cast<int32_t>(score_->law.parameters()[value.parameters[i]].size);
    }
    for (size_t i = 0; i < tables.inputs.size(); ++i)
        spec.tables[i] = tables.inputs[i].col_range(first, length);
    const Tensor rows = buffer.row_range(0, value.by_head ? heads_ : 1);
    const Tensor to = rows.col_range(by_distance ? rows.cols() - length : 0, length);
    run.ops.evaluate_law(to, spec);
    return to;
}

void ScoreLaw::apply(AttentionSpec& spec, StepContext& run, const ScoreTables& tables, const Saved& saved,
                     const Buffers& buffers, int64_t entry, bool fill) const {
    const LayerScore& s = *tables.score;
    const int64_t n = run.batch.count(), length = run.batch.length;
    const LawEntries queries{.length = length, .start = count_start(run, spec.row_start)};
    const int64_t first = run.decoding() ? entry : 0;
    if (s.has_row) {
        spec.row_factor = saved.factor.shaped({s.row.by_head ? heads_ : 1, n});
        if (fill)
            run.ops.law_rows(spec.row_factor,
                             entries(run, s.row.value, tables.row.value, buffers.row, false, first, length),
                             queries);
    }
    if (s.has_distance) {
        const int64_t distances = run.position() + length;
        spec.distance_gain = entries(run, s.gain.value, tables.gain.value, buffers.gain, true, 0, distances);
        spec.distance_bias = entries(run, s.bias.value, tables.bias.value, buffers.bias, true, 0, distances);
        spec.bias_of_gain = static_cast<float>(tables.bias_of_gain);
    }
    if (s.has_square) {
        const Tensor square = saved.square.shaped({1, n});
        if (fill)
            run.ops.law_rows(
                square, entries(run, s.square.value, tables.square.value, Tensor(), false, first, length),
                queries);
        spec.row_square = square.shaped({n});
    }
}

AttentionGradients ScoreLaw::gradients(const Buffers& b, int64_t tokens) const {
    AttentionGradients g;
    if (b.drow) g.row_factor = b.drow.shaped({heads_, tokens});
    g.distance_gain = b.dgain;
    g.distance_bias = b.dbias;
    return g;
}

void ScoreLaw::backward(StepContext& run, const ScoreTables& tables, const Buffers& buffers,
                        const AttentionGradients& gradients, const Tensor& row_start) const {
    const int64_t length = run.batch.length;
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
    part(score_->row, tables.row, gradients.row_factor, false);
    part(score_->gain, tables.gain, gradients.distance_gain, true);
    part(score_->bias, tables.bias, gradients.distance_bias, true);
}

}  // namespace longreach::model
