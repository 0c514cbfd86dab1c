// Tables by position and by distance: computed in double, stored as f32, shared by the layers that agree on
// them.
#pragma once

#include <vector>

#include "model/arena.h"
#include "model/distance_law.h"
#include "model/model_config.h"
#include "model/rotary.h"

namespace longreach {

// What one layer reads; empty tensors where the layer has no such table.
struct LayerTables {
    Tensor cosine, sine;  // [R, pairs]
    Tensor gain, bias;    // [1, R], by distance, backwards (AttentionSpec says why)
};

class Tables {
  public:
    // R = rows: the longest sequence the tables must serve.
    Tables(const ModelConfig& config, int64_t rows);
    void plan(Arena& arena);
    void fill(Ops& ops) const;  // after the arena is committed
    LayerTables layer(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }

  private:
    struct Rotary {
        std::vector<double> theta;
        Tensor cosine, sine;
    };
    struct Distance {
        DistanceConfig config;
        Tensor gain, bias;
    };
    int64_t rows_;
    std::vector<Rotary> rotary_;
    std::vector<Distance> distance_;
    std::vector<int> rotary_of_, distance_of_;  // per layer; -1: none
    std::vector<LayerTables> layers_;
};

}  // namespace longreach
