// Tables by position, by number of keys and by distance: computed in double, stored as f32, shared by the
// layers that agree on them.
//
// An evaluation may change the tables for sequences longer than those of training (PostHocConfig), in all
// layers or in some. The tables are then refilled for each length; the layers need not know. Layers share a
// table only if they are changed at the same lengths.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/arena.h"
#include "model/attention_angle.h"
#include "model/attention_score.h"
#include "model/changed_layers.h"
#include "model/model_config.h"
#include "model/post_hoc.h"

namespace longreach::model {

// cos and sin of the angle of every rotated channel pair, [R, pairs], both times the length to which the
// pair grows; empty: no rotation.
struct Rotation {
    Tensor cosine, sine;
    // The rows for sequences whose first token is at `position`.
    Rotation from(int64_t position) const {
        if (!cosine || position == 0) return *this;
        const int64_t rows = cosine.rows() - position;
        return {cosine.row_range(position, rows), sine.row_range(position, rows)};
    }
};

// The same on the host, row by row.
struct CosineRows {
    std::vector<float> cosine, sine;
};

// What one program of a law reads (law::CompiledTable). By number of keys, entry n - 1 is in column n - 1; by distance,
// `filled` is stored backwards, as AttentionSpec has it.
struct ProgramTables {
    Tensor filled{};               // f32 [1 or H, R], if nothing in it learns
    std::vector<Tensor> inputs{};  // f64 [1 or H, R] each, otherwise
};
struct PartTables {
    ProgramTables value{};
    std::vector<ProgramTables> derivatives{};
    std::vector<Tensor>
        elements{};  // i32 [R], of each derivative by a vector: the element that the entry reads
};
struct ScoreTables {
    const LayerScore* score = nullptr;
    double factor = 1;        // of s_base
    double bias_of_gain = 0;  // as in AttentionSpec
    PartTables row{}, gain{}, bias{}, square{}, between{}, key{};
};
// What the tables by query must have room for, at any length.
struct ScoreRows {
    int64_t factor = 0;  // rows of the row factor, 1 or H; 0: there is none
    bool square = false, sums = false;
};

// The tables of one layer; a tensor is empty if the layer has no such table.
struct LayerTables {
    Rotation queries, keys;              // the same tables unless they grow
    Rotation far_queries, far_keys;      // for pairs at distance far_from or more; evaluation only
    int64_t far_from = 0;                // 0: there are no far pairs
    Rotation output;                     // OutputNorm::position: no turn, the factor of the position
    Tensor zeros;                        // [heads], the logits of sinks fixed at 0
    Tensor ones;                         // [head_dim], the gain of heads whose rotation grows
    int64_t top_k = 0, top_k_block = 0;  // as in PostHocConfig; 0 in training
    ScoreTables score;
    ScoreTables steps;   // of a layer whose angle has a step; its queries and keys above are empty
    ScoreTables fading;  // of a layer whose channels fade
    Tensor theta;        // f64 [1, pairs]: by how much a pair turns for each unit of the sum of steps
};

class Tables {
  public:
    // rows R: the longest sequence the tables must serve.
    Tables(const ModelConfig& config, int64_t rows, const PostHocConfig& post_hoc = {});
    void plan(Arena& arena);
    void fill(Ops& ops);  // after the arena is committed; with the values of training
    // Refills tables for sequences of `length`. stage_window: see LayerChoice.
    void use_length(Ops& ops, int64_t length, int64_t stage_window = 0);
    // Until use_length: row i of the tables of rotations is that of positions[i], rising and below `range`. Not with growth.
    void place(Ops& ops, std::span<const int64_t> positions, int64_t range);
    // The T of laws, for a pass of training; the tables of rotations stay.
    void train_at(Ops& ops, int64_t length) { set_length(ops, length); }
    // Of the length in use; after plan().
    const LayerTables& layer(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }
    ScoreRows score_rows(int64_t layer) const;
    bool has_far_pairs(int64_t layer) const;  // whether it has any at some length
    bool takes_top_by_index() const { return post_hoc_.top_k > 0 && post_hoc_.top_k_by == TopBy::index; }

  private:
    struct Rotary {
        law::Angle trained;
        int64_t layer;  // the first that has it
        LayerChoice choice;
        bool steps;  // it turns by theta times the sum of steps
        Tensor theta{};
        Rotation queries{}, keys{}, far_queries{}, far_keys{};
        law::Angle angle{};  // from which they are filled now
        int64_t length = 0;  // for which; it matters to growth alone
        CosineRows all{};    // of place(): all positions of its range
        bool placed = false;
    };
    // Factors of attention's output by position.
    struct OutputFactors {
        law::Angle factor;
        int64_t head_dim;
        Rotation table{};
    };
    // A table of a law in which nothing learns. Equal ones are shared.
    struct Constant {
        law::Formula formula;
        const law::BoundLaw* law;
        law::Variable over;
        bool backwards;
        int64_t elements;  // of the vector that it is an index of; 0: no index
        Tensor tensor;     // f32, f64 or i32 [1 or H, R]
    };
    struct Score {
        std::unique_ptr<const LayerScore> trained{};  // null: the layer does not attend
        std::unique_ptr<const LayerScore> changed{};  // at lengths that `choice` chooses; null: never
        LayerChoice choice{};
        ScoreTables trained_tables{}, changed_tables{};
        bool changing = false;
    };
    void add_layer(const ModelConfig& config, int64_t layer, const LayerChoice& choice);
    ScoreTables plan_score(Arena& arena, const LayerScore& score);
    ProgramTables plan_program(Arena& arena, const LayerScore& score, const law::Formula& formula,
                               const law::CompiledTable& value, law::Variable over);
    Tensor constant(Arena& arena, DType type, Constant made);
    void fill_rotary(Ops& ops, Rotary& rotary, law::Angle angle, int64_t length) const;
    void fill_output(Ops& ops, const OutputFactors& factors) const;
    void fill_constant(Ops& ops, const Constant& constant) const;
    bool far_possible(const Rotary& rotary) const;
    void set_length(Ops& ops, int64_t length);
    LayerTables tables_of(int64_t layer) const;
    void collect();  // in layers_

    ModelConfig config_;
    int64_t rows_;
    int64_t most_heads_ = 1, largest_head_ = 1;
    Tensor zeros_, ones_;
    PostHocConfig post_hoc_;
    std::vector<Rotary> rotary_;
    std::vector<Constant> constants_;
    std::vector<std::string> constant_keys_;
    std::map<std::string, double> bias_of_gain_;  // by law
    int64_t length_ = 0;                          // T of the laws
    bool takes_top_ = false;                      // top_k acts: not in training
    std::vector<Score> scores_;                   // per layer
    // Sums of a term that no score adds.
    struct Sums {
        std::unique_ptr<const LayerScore> score{};  // null: there are none
        ScoreTables tables{};
    };
    std::vector<Sums> steps_;     // per layer, of its angle
    std::vector<Sums> fading_;    // per layer, by channel
    std::vector<int> rotary_of_;  // per layer; -1: none
    std::vector<OutputFactors> output_;
    std::vector<int> output_of_;
    std::vector<LayerTables> layers_;  // of those that attend; others have empty tables
};

}  // namespace longreach::model
