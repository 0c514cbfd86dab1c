#include "model/tables.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

Tables::Tables(const ModelConfig& config, int64_t rows, const PostHocConfig& post_hoc)
    : rows_(rows), train_context_(config.train_context), post_hoc_(post_hoc) {
    for (int64_t l = 0; l < config.layers; ++l)
        add_layer(config.layer_attention(l), layer_choice(config, post_hoc, l));
}

void Tables::add_layer(const AttentionConfig& a, const LayerChoice& choice) {
    most_heads_ = std::max(most_heads_, a.heads);
    int rotary = -1, shape = -1, distance = -1;
    const std::vector<double> theta = rotary_frequencies(a.position, a.head_dim);
    if (!theta.empty())
        rotary =
            index_of(rotary_,
                     [&](const Rotary& r) {
                         return rotary_frequencies(r.position, r.head_dim) == theta && r.choice == choice;
                     },
                     {a.position, a.head_dim, choice, {}, {}, {}});
    const bool clipped = post_hoc_.scale == TestScale::clip_logn && choice.possible(train_context_);
    if (a.scale.kind != ScaleKind::none || a.scale.learned() || clipped)
        shape = index_of(shapes_,
                         [&](const Shape& s) {
                             return s.config == a.scale && s.head_dim == a.head_dim && s.choice == choice;
                         },
                         {a.scale, a.head_dim, choice, {}});
    if (a.distance.kind != DistanceKind::none && !a.distance.learned()) {
        const int64_t heads = a.distance.kind == DistanceKind::alibi ? a.heads : 1;
        distance =
            index_of(distance_, [&](const Distance& d) { return d.config == a.distance && d.heads == heads; },
                     {a.distance, heads, {}, {}, {}});
    }
    rotary_of_.push_back(rotary);
    shape_of_.push_back(shape);
    distance_of_.push_back(distance);
}

bool Tables::far_possible(const Rotary& rotary) const {
    const bool far = post_hoc_.kind == RopeMethod::rerope || post_hoc_.kind == RopeMethod::leaky_rerope;
    return far && rotary.choice.possible(train_context_);
}

bool Tables::has_far_pairs(int64_t layer) const {
    const Rotary* rotary = at(rotary_, rotary_of_[static_cast<size_t>(layer)]);
    return rotary != nullptr && far_possible(*rotary);
}

void Tables::plan(Arena& arena) {
    arena.group("tables");
    zeros_ = arena.reserve("zeros", DType::f32, {most_heads_});
    const auto rotation = [&](int64_t pairs) {
        Rotation r;
        r.cosine = arena.reserve("rotary", DType::f32, {rows_, pairs});
        r.sine = arena.reserve("rotary", DType::f32, {rows_, pairs});
        return r;
    };
    for (Rotary& r : rotary_) {
        const int64_t pairs = static_cast<int64_t>(rotary_frequencies(r.position, r.head_dim).size());
        r.near = rotation(pairs);
        if (!far_possible(r)) continue;
        r.far_queries = rotation(pairs);
        r.far_keys = rotation(pairs);
    }
    for (Shape& s : shapes_) s.table = arena.reserve("scale", DType::f32, {rows_});
    for (Distance& d : distance_) {
        d.gain = arena.reserve("distance", DType::f32, {1, rows_});
        d.bias = arena.reserve("distance", DType::f32, {d.heads, rows_});
        if (d.config.kind == DistanceKind::si_interp)
            d.square_by_row = arena.reserve("distance", DType::f32, {rows_});
    }
}

LayerTables Tables::layer(int64_t layer) const {
    const size_t l = static_cast<size_t>(layer);
    LayerTables t;
    t.zeros = zeros_;
    if (const Rotary* r = at(rotary_, rotary_of_[l])) {
        t.rotation = r->near;
        t.logit_factor = r->plan.logit_factor;
        if (r->plan.far) {
            t.far_queries = r->far_queries;
            t.far_keys = r->far_keys;
            t.far_from = r->plan.far_from;
        }
    }
    if (const Shape* s = at(shapes_, shape_of_[l])) {
        const bool one = s->config.kind == ScaleKind::none && !s->config.learned() && !s->clipping;
        if (!one) t.scale_shape = s->table;
    }
    if (const Distance* d = at(distance_, distance_of_[l])) {
        t.gain = d->gain;
        t.bias = d->bias;
        t.square_by_row = d->square_by_row;
    }
    return t;
}

void Tables::fill_rotary(Ops& ops, Rotary& rotary, const RotaryPlan& plan) const {
    const size_t pairs = plan.theta.size();
    std::vector<float> cosine(static_cast<size_t>(rows_) * pairs), sine(cosine.size());
    const auto fill = [&](const Rotation& to, double offset, double rate) {
        for (int64_t p = 0; p < rows_; ++p)
            for (size_t m = 0; m < pairs; ++m) {
                const double angle = (offset + rate * static_cast<double>(p)) * plan.theta[m];
                cosine[static_cast<size_t>(p) * pairs + m] = static_cast<float>(std::cos(angle));
                sine[static_cast<size_t>(p) * pairs + m] = static_cast<float>(std::sin(angle));
            }
        ops.upload(to.cosine, cosine.data());
        ops.upload(to.sine, sine.data());
    };
    fill(rotary.near, 0, 1);
    if (plan.far) {
        fill(rotary.far_queries, plan.far_query_offset, plan.far_query_rate);
        fill(rotary.far_keys, 0, plan.far_key_rate);
    }
    rotary.plan = plan;
}

void Tables::fill_shape(Ops& ops, const Shape& shape) const {
    std::vector<double> values = scale_shapes(shape.config, shape.head_dim, train_context_, rows_);
    if (shape.clipping)
        for (int64_t n = 1; n <= rows_; ++n)
            values[static_cast<size_t>(n - 1)] *= clip_logn(static_cast<double>(n), train_context_);
    const std::vector<float> table(values.begin(), values.end());
    ops.upload(shape.table, table.data());
}

void Tables::fill_distance(Ops& ops, const Distance& d) const {
    const size_t rows = static_cast<size_t>(rows_);
    std::vector<float> gain(rows), bias(rows * static_cast<size_t>(d.heads));
    for (int64_t h = 0; h < d.heads; ++h)
        for (size_t t = 0; t < rows; ++t) {
            const GainBias g = distance_transform(d.config, static_cast<int64_t>(t), h, d.heads);
            gain[rows - 1 - t] = static_cast<float>(g.gain);
            bias[static_cast<size_t>(h) * rows + rows - 1 - t] = static_cast<float>(g.bias);
        }
    ops.upload(d.gain, gain.data());
    ops.upload(d.bias, bias.data());
    if (!d.square_by_row) return;
    for (size_t n = 1; n <= rows; ++n)
        gain[n - 1] = static_cast<float>(si_interp_row(d.config, static_cast<double>(n)));
    ops.upload(d.square_by_row, gain.data());
}

void Tables::fill(Ops& ops) {
    ops.zero(zeros_);
    for (const Distance& d : distance_) fill_distance(ops, d);
    for (const Shape& s : shapes_) fill_shape(ops, s);
    for (Rotary& r : rotary_)
        fill_rotary(ops, r, plan_rotary(r.position, r.head_dim, post_hoc_, train_context_, 0));
}

bool Tables::use_length(Ops& ops, int64_t length, int64_t stage_window) {
    bool changed = false;
    for (Rotary& r : rotary_) {
        const PostHocConfig& change = r.choice.at(length, stage_window) ? post_hoc_ : PostHocConfig();
        const RotaryPlan plan = plan_rotary(r.position, r.head_dim, change, train_context_, length);
        if (plan == r.plan) continue;
        fill_rotary(ops, r, plan);
        changed = true;
    }
    const bool clipping = post_hoc_.scale == TestScale::clip_logn && length > train_context_;
    for (Shape& s : shapes_) {
        const bool clips = clipping && s.choice.at(length, stage_window);
        if (clips == s.clipping) continue;
        s.clipping = clips;
        fill_shape(ops, s);
        changed = true;
    }
    return changed;
}

}  // namespace longreach::model
