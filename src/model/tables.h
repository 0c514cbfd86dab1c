// Tables by position, by number of keys and by distance: computed in double, stored as f32, shared by the
// layers that agree on them.
//
// An evaluation may change the tables for sequences longer than those of training (PostHocConfig), in all
// layers or in some. The tables are then refilled for each length; the layers need not know. Layers share a
// table only if they are changed at the same lengths.
#pragma once

#include <vector>

#include "model/arena.h"
#include "model/changed_layers.h"
#include "model/distance_law.h"
#include "model/model_config.h"
#include "model/post_hoc.h"
#include "model/rotary.h"
#include "model/scale_law.h"

namespace longreach::model {

// cos and sin of the angle of every rotated channel pair, [R, pairs]; empty: no rotation.
struct Rotation {
    Tensor cosine, sine;
    // The rows for sequences whose first token is at `position`.
    Rotation from(int64_t position) const {
        if (!cosine || position == 0) return *this;
        const int64_t rows = cosine.rows() - position;
        return {cosine.row_range(position, rows), sine.row_range(position, rows)};
    }
};

// The tables of one layer; a tensor is empty if the layer has no such table.
struct LayerTables {
    Rotation rotation;
    Rotation far_queries, far_keys;  // for pairs at distance far_from or more; evaluation only
    int64_t far_from = 0;            // 0: there are no far pairs
    double logit_factor = 1;
    Tensor scale_shape;    // [R], entry n - 1 belongs to n keys
    Tensor square_by_row;  // [R], by number of keys as well; source of AttentionSpec::row_square
    Tensor zeros;          // [heads], the logits of sinks fixed at 0
    Tensor gain, bias;     // [1 or H, R], by distance, stored backwards (see AttentionSpec)
};

class Tables {
  public:
    // rows R: the longest sequence the tables must serve.
    Tables(const ModelConfig& config, int64_t rows, const PostHocConfig& post_hoc = {});
    void plan(Arena& arena);
    void fill(Ops& ops);  // after the arena is committed; with the values of training
    // Refills tables for sequences of `length`; returns true if any changed. stage_window: see LayerChoice.
    bool use_length(Ops& ops, int64_t length, int64_t stage_window = 0);
    LayerTables layer(int64_t layer) const;
    bool has_far_pairs(int64_t layer) const;  // whether it has any at some length

  private:
    struct Rotary {
        PositionConfig position;
        int64_t head_dim;
        LayerChoice choice;
        Rotation near, far_queries, far_keys;
        RotaryPlan plan{};  // from which they are filled now
    };
    struct Shape {
        ScaleConfig config;
        int64_t head_dim;
        LayerChoice choice;
        Tensor table;
        bool clipping = false;  // the table now includes clip_logn
    };
    struct Distance {
        DistanceConfig config;
        int64_t heads;  // 1 if all heads are alike
        Tensor gain, bias, square_by_row;
    };
    void add_layer(const AttentionConfig& attention, const LayerChoice& choice);
    void fill_rotary(Ops& ops, Rotary& rotary, const RotaryPlan& plan) const;
    void fill_shape(Ops& ops, const Shape& shape) const;
    void fill_distance(Ops& ops, const Distance& distance) const;
    bool far_possible(const Rotary& rotary) const;

    int64_t rows_, train_context_;
    int64_t most_heads_ = 0;
    Tensor zeros_;
    PostHocConfig post_hoc_;
    std::vector<Rotary> rotary_;
    std::vector<Shape> shapes_;
    std::vector<Distance> distance_;
    std::vector<int> rotary_of_, shape_of_, distance_of_;  // per layer; -1: none
};

}  // namespace longreach::model
