#include "model/tables.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace longreach::model {

namespace {

// Index of the element for which `same` holds. Adds `made` if there is none.
template <class T, class Same>
int index_of(std::vector<T>& all, Same same, T made) {
    const auto it = std::find_if(all.begin(), all.end(), same);
    if (it != all.end()) return static_cast<int>(it - all.begin());
    all.push_back(std::move(made));
    return static_cast<int>(all.size()) - 1;
}

template <class T>
const T* at(const std::vector<T>& all, int index) {
    return index < 0 ? nullptr : &all[static_cast<size_t>(index)];
}

// Whether two angles are copies of one another; equal ones that were made apart are not.
bool shares_trees(const law::Angle& a, const law::Angle& b) {
    return a.far_from == b.far_from && a.near == b.near && a.far_queries == b.far_queries &&
           a.far_keys == b.far_keys && a.growth == b.growth;
}

// cos and sin of the angles of all pairs at positions below `rows`, times the lengths of pair m by position, if it has any.
template <class LengthsOf>
CosineRows cosine_rows(const std::vector<law::Formula>& angles, int64_t rows, const LengthsOf& lengths_of) {
    const size_t pairs = angles.size();
    CosineRows out{std::vector<float>(static_cast<size_t>(rows) * pairs), {}};
    out.sine.resize(out.cosine.size());
    for (size_t m = 0; m < pairs; ++m) {
        const std::vector<double> of_pair = law::tabulate(angles[m], law::Variable::p, 0, rows, {});
        const std::vector<double> lengths = lengths_of(m);
        for (size_t p = 0; p < of_pair.size(); ++p) {
            const double length = lengths.empty() ? 1 : lengths[p];
            out.cosine[p * pairs + m] = static_cast<float>(length * std::cos(of_pair[p]));
            out.sine[p * pairs + m] = static_cast<float>(length * std::sin(of_pair[p]));
        }
    }
    return out;
}

}  // namespace

Tables::Tables(const ModelConfig& config, int64_t rows, const PostHocConfig& post_hoc)
    : config_(config), rows_(rows), post_hoc_(post_hoc), length_(config.train_context) {
    for (int64_t l = 0; l < config.layers; ++l) add_layer(config, l, layer_choice(config, post_hoc, l));
}

void Tables::add_layer(const ModelConfig& config, int64_t layer, const LayerChoice& choice) {
    const AttentionConfig& a = config.layer_attention(layer);
    if (!a.attends()) {  // it reads no table
        rotary_of_.push_back(-1);
        output_of_.push_back(-1);
        scores_.emplace_back();
        steps_.emplace_back();
        fading_.emplace_back();
        return;
    }
    most_heads_ = std::max(most_heads_, a.heads);
    largest_head_ = std::max(largest_head_, a.head_dim);
    int rotary = -1;
    const law::Angle angle = trained_angle(config, layer);
    const bool turned = !angle.near.empty(), steps = !angle_step(a).empty();
    steps_.emplace_back();
    if (steps) steps_.back().score = std::make_unique<const LayerScore>(layer_steps(config, layer));
    fading_.emplace_back();
    if (!fading_term(a).empty())
        fading_.back().score = std::make_unique<const LayerScore>(layer_fading(config, layer));
    if (turned)
        rotary = index_of(rotary_,
                          [&](const Rotary& r) {
                              const AttentionConfig& other = config.layer_attention(r.layer);
                              return r.steps == steps && r.trained.key() == angle.key() &&
                                     r.choice == choice && other.turned_dim() == a.turned_dim() &&
                                     other.angle_scaling == a.angle_scaling;
                          },
                          {angle, layer, choice, steps});
    rotary_of_.push_back(rotary);
    int output = -1;
    if (a.output_norm.kind == OutputNorm::position) {
        const law::Angle factor = output_factor(config, layer);
        output = index_of(output_,
                          [&](const OutputFactors& o) {
                              return o.factor.key() == factor.key() && o.head_dim == a.head_dim;
                          },
                          {factor, a.head_dim});
    }
    output_of_.push_back(output);

    Score score{.trained = std::make_unique<const LayerScore>(layer_score(config, layer)), .choice = choice};
    const ScoreChange change = post_hoc_.score_change(turned);
    if (!change.empty() && choice.possible(config.train_context))
        score.changed = std::make_unique<const LayerScore>(layer_score(config, layer, change));
    scores_.push_back(std::move(score));
}

bool Tables::far_possible(const Rotary& rotary) const {
    return post_hoc_.far_pairs() && rotary.choice.possible(config_.train_context);
}

bool Tables::has_far_pairs(int64_t layer) const {
    const Rotary* rotary = at(rotary_, rotary_of_[static_cast<size_t>(layer)]);
    return rotary != nullptr && far_possible(*rotary);
}

void Tables::plan(Arena& arena) {
    arena.group("tables");
    zeros_ = arena.reserve("zeros", DType::f32, {most_heads_});
    ones_ = arena.reserve("ones", DType::f32, {largest_head_});
    const auto rotation = [&](int64_t pairs) {
        Rotation r;
        r.cosine = arena.reserve("rotary", DType::f32, {rows_, pairs});
        r.sine = arena.reserve("rotary", DType::f32, {rows_, pairs});
        return r;
    };
    for (Rotary& r : rotary_) {
        const int64_t pairs = static_cast<int64_t>(r.trained.near.size());
        if (r.steps) {
            r.theta = arena.reserve("theta", DType::f64, {1, pairs});
            continue;
        }
        r.queries = r.keys = rotation(pairs);
        if (!r.trained.growth.empty()) r.keys = rotation(pairs);
        if (!far_possible(r)) continue;
        r.far_queries = rotation(pairs);
        r.far_keys = rotation(pairs);
    }
    for (OutputFactors& o : output_) o.table = rotation(o.head_dim / 2);
    constants_.clear();
    constant_keys_.clear();
    for (Score& s : scores_) {
        if (!s.trained) continue;
        s.trained_tables = plan_score(arena, *s.trained);
        if (s.changed) s.changed_tables = plan_score(arena, *s.changed);
    }
    for (std::vector<Sums>* of : {&steps_, &fading_})
        for (Sums& s : *of)
            if (s.score) s.tables = plan_score(arena, *s.score);
    collect();
}

ScoreTables Tables::plan_score(Arena& arena, const LayerScore& score) {
    const auto part = [&](const ScorePart& p, law::Variable over) {
        PartTables tables{.value = plan_program(arena, score, p.formula, p.value, over)};
        for (const ScorePart::Derivative& d : p.derivatives) {
            tables.derivatives.push_back(plan_program(arena, score, d.formula, d.value, over));
            Tensor elements;
            if (d.element)
                elements = constant(arena, DType::i32,
                                    {d.element,
                                     &score.law,
                                     over,
                                     over == law::Variable::t,
                                     score.law.parameters()[d.parameter].size,
                                     {}});
            tables.elements.push_back(elements);
        }
        return tables;
    };
    ScoreTables tables{.score = &score};
    if (score.has_row) tables.row = part(score.row, law::Variable::n);
    if (score.has_square) tables.square = part(score.square, law::Variable::n);
    if (score.has_sums) {
        tables.between = part(score.between, law::Variable::n);
        tables.key = part(score.key, law::Variable::n);
    }
    if (!score.has_distance) return tables;
    tables.gain = part(score.gain, law::Variable::t);
    tables.bias = part(score.bias, law::Variable::t);
    if (score.gain.learned() || score.bias.learned()) return tables;
    const std::string key = fmt::format("{} {} {}", law::write(score.gain.formula, {}),
                                        law::write(score.bias.formula, {}), score.law.model().heads);
    const auto [known, added] = bias_of_gain_.emplace(key, 0);
    if (added) known->second = bias_of_gain(score, rows_);
    tables.bias_of_gain = known->second;
    return tables;
}

ProgramTables Tables::plan_program(Arena& arena, const LayerScore& score, const law::Formula& formula,
                                   const law::CompiledTable& value, law::Variable over) {
    ProgramTables tables;
    if (!value.learned)
        tables.filled =
            constant(arena, DType::f32, {formula, &score.law, over, over == law::Variable::t, 0, {}});
    else
        for (const law::Formula& input : value.tables)
            tables.inputs.push_back(constant(arena, DType::f64, {input, &score.law, over, false, 0, {}}));
    return tables;
}

Tensor Tables::constant(Arena& arena, DType type, Constant made) {
    const int64_t heads = law::uses(made.formula, law::Variable::h) ? made.law->model().heads : 1;
    const std::string key =
        fmt::format("{} {} {} {} {} {}", law::write(made.formula, {}), law::name_of(made.over), heads,
                    made.backwards, made.elements, static_cast<int>(type));
    const auto known = std::find(constant_keys_.begin(), constant_keys_.end(), key);
    if (known != constant_keys_.end())
        return constants_[static_cast<size_t>(known - constant_keys_.begin())].tensor;
    made.tensor =
        type == DType::i32 ? arena.reserve("law", type, {rows_}) : arena.reserve("law", type, {heads, rows_});
    constant_keys_.push_back(key);
    constants_.push_back(std::move(made));
    return constants_.back().tensor;
}

void Tables::collect() {
    layers_.assign(scores_.size(), {});
    for (size_t l = 0; l < scores_.size(); ++l)
        if (scores_[l].trained) layers_[l] = tables_of(static_cast<int64_t>(l));
}

LayerTables Tables::tables_of(int64_t layer) const {
    const size_t l = static_cast<size_t>(layer);
    LayerTables t;
    t.zeros = zeros_;
    t.ones = ones_;
    if (takes_top_) {
        t.top_k = post_hoc_.top_k;
        t.top_k_block = post_hoc_.top_k_block;
    }
    if (const OutputFactors* o = at(output_, output_of_[l])) t.output = o->table;
    t.steps = steps_[l].tables;
    t.fading = fading_[l].tables;
    if (const Rotary* r = at(rotary_, rotary_of_[l])) {
        t.theta = r->theta;
        t.queries = r->queries;
        t.keys = r->keys;
        if (r->angle.far_from > 0) {
            t.far_queries = r->far_queries;
            t.far_keys = r->far_keys;
            t.far_from = r->angle.far_from;
        }
    }
    const Score& s = scores_[l];
    t.score = s.changing ? s.changed_tables : s.trained_tables;
    if (t.score.score->factor) {
        law::Values values;
        values[law::Variable::T] = static_cast<double>(length_);
        t.score.factor = law::evaluate(t.score.score->factor, values);
    }
    return t;
}

ScoreRows Tables::score_rows(int64_t layer) const {
    const Score& s = scores_[static_cast<size_t>(layer)];
    ScoreRows rows;
    for (const LayerScore* score : {s.trained.get(), s.changed.get()}) {
        if (score == nullptr) continue;
        if (score->has_row)
            rows.factor = std::max<int64_t>(rows.factor, score->row.by_head ? score->law.model().heads : 1);
        rows.square = rows.square || score->has_square;
        rows.sums = rows.sums || score->has_sums;
    }
    return rows;
}

void Tables::fill_rotary(Ops& ops, Rotary& rotary, law::Angle angle, int64_t length) const {
    // log of the length of pair m at each position, 0 in the middle of a sequence. Rows that no sequence of this length
    // reaches are kept finite.
    const auto growth_of = [&](size_t m) {
        std::vector<double> growth =
            law::tabulate(angle.growth[m], law::Variable::p, 0, std::max(rows_, length / 2 + 1), {});
        const double middle = growth[static_cast<size_t>(length / 2)];
        for (double& g : growth)
            g = std::clamp(g - middle, -law::Angle::most_growth, law::Angle::most_growth);
        return growth;
    };
    if (rotary.steps) {
        ops.upload(rotary.theta, law::frequencies(angle.near).value().data());
        rotary.angle = std::move(angle);
        rotary.length = length;
        return;
    }
    const auto fill = [&](const Rotation& to, const std::vector<law::Formula>& angles, double sign) {
        const CosineRows rows = cosine_rows(angles, rows_, [&](size_t m) {
            std::vector<double> lengths = angle.growth.empty() ? std::vector<double>() : growth_of(m);
            for (double& g : lengths) g = std::exp(sign * g);
            return lengths;
        });
        ops.upload(to.cosine, rows.cosine.data());
        ops.upload(to.sine, rows.sine.data());
    };
    fill(rotary.queries, angle.near, 1);
    if (!angle.growth.empty()) fill(rotary.keys, angle.near, -1);
    if (angle.far_from > 0) {
        fill(rotary.far_queries, angle.far_queries, 1);
        fill(rotary.far_keys, angle.far_keys, -1);
    }
    rotary.angle = std::move(angle);
    rotary.length = length;
    rotary.placed = false;
}

void Tables::place(Ops& ops, std::span<const int64_t> positions, int64_t range) {
    for (Rotary& r : rotary_) {
        check(r.trained.growth.empty(), "drawn positions of an angle with growth");
        const size_t pairs = r.trained.near.size();
        if (r.all.cosine.size() != static_cast<size_t>(range) * pairs)
            r.all = cosine_rows(r.trained.near, range, [](size_t) { return std::vector<double>(); });
        const auto gather = [&](const Tensor& to, const std::vector<float>& all) {
            std::vector<float> rows;
            rows.reserve(positions.size() * pairs);
            for (const int64_t p : positions) {
                const auto row = all.begin() + p * static_cast<int64_t>(pairs);
                rows.insert(rows.end(), row, row + static_cast<int64_t>(pairs));
            }
            ops.upload(to.row_range(0, static_cast<int64_t>(positions.size())), rows.data());
        };
        gather(r.queries.cosine, r.all.cosine);
        gather(r.queries.sine, r.all.sine);
        r.placed = true;
    }
}

void Tables::fill_output(Ops& ops, const OutputFactors& factors) const {
    const size_t pairs = static_cast<size_t>(factors.head_dim) / 2;
    std::vector<float> factor;
    for (const double f : law::tabulate(factors.factor.near[0], law::Variable::p, 0, rows_, {}))
        factor.insert(factor.end(), pairs, static_cast<float>(f));
    ops.upload(factors.table.cosine, factor.data());
    ops.zero(factors.table.sine);
}

void Tables::fill_constant(Ops& ops, const Constant& c) const {
    const int64_t heads = c.tensor.rows(), rows = rows_;
    std::vector<double> values;
    for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> of_head =
            c.law->tabulate(c.formula, c.over, h, rows, static_cast<double>(length_));
        if (c.backwards) std::reverse(of_head.begin(), of_head.end());
        values.insert(values.end(), of_head.begin(), of_head.end());
    }
    if (c.tensor.dtype == DType::f64) return ops.upload(c.tensor, values.data());
    if (c.tensor.dtype == DType::f32) {
        const std::vector<float> rounded(values.begin(), values.end());
        return ops.upload(c.tensor, rounded.data());
    }
    std::vector<int32_t> elements;
    for (const double v : values)
        elements.push_back(
            static_cast<int32_t>(std::clamp(std::floor(v), 0.0, static_cast<double>(c.elements - 1))));
    ops.upload(c.tensor, elements.data());
}

void Tables::fill(Ops& ops) {
    ops.zero(zeros_);
    const std::vector<float> ones(static_cast<size_t>(largest_head_), 1.0f);
    ops.upload(ones_, ones.data());
    for (const Constant& c : constants_) fill_constant(ops, c);
    for (Rotary& r : rotary_) fill_rotary(ops, r, r.trained, config_.train_context);
    for (const OutputFactors& o : output_) fill_output(ops, o);
    collect();
}

void Tables::use_length(Ops& ops, int64_t length, int64_t stage_window) {
    const int64_t longest = std::max(length, config_.train_context);
    const bool takes_top = length > 0 && post_hoc_.top_k > 0;
    bool stays = takes_top == takes_top_;  // all that collect() reads
    takes_top_ = takes_top;
    for (Rotary& r : rotary_) {
        const bool changes = r.choice.at(length, stage_window), changed = !shares_trees(r.angle, r.trained);
        // Every token of a generation asks for the same, so that is seen before any formula is made or compared.
        const bool in_use = changes ? changed && length == longest && r.length == longest
                                    : !changed && (r.length == longest || r.trained.growth.empty());
        if (in_use && !r.placed) continue;
        law::Angle angle = changes ? changed_angle(config_, r.layer, post_hoc_, length) : r.trained;
        if (!r.placed && angle.key() == r.angle.key() && (angle.growth.empty() || r.length == longest))
            continue;
        fill_rotary(ops, r, std::move(angle), longest);
        stays = false;
    }
    for (Score& s : scores_) {
        const bool changing =
            s.changed && length > config_.train_context && s.choice.at(length, stage_window);
        stays = stays && s.changing == changing && !(s.trained && (s.trained->factor || changing));
        s.changing = changing;
    }
    set_length(ops, length == 0 ? config_.train_context : length);
    if (!stays) collect();
}

void Tables::set_length(Ops& ops, int64_t length) {
    if (length == length_) return;
    length_ = length;
    for (const Constant& c : constants_)
        if (law::uses(c.formula, law::Variable::T)) fill_constant(ops, c);
}

}  // namespace longreach::model
