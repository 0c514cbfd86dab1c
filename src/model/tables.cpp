#include "model/tables.h"

#include <cmath>

namespace longreach {

Tables::Tables(const ModelConfig& config, int64_t rows) : rows_(rows) {
    for (int64_t l = 0; l < config.layers; ++l) {
        const AttentionConfig& a = config.layer_attention(l);
        int rotary = -1, distance = -1;
        std::vector<double> theta = rotary_frequencies(a.position, a.head_dim);
        if (!theta.empty()) {
            for (size_t i = 0; i < rotary_.size(); ++i)
                if (rotary_[i].theta == theta) rotary = static_cast<int>(i);
            if (rotary < 0) {
                rotary = static_cast<int>(rotary_.size());
                rotary_.push_back({std::move(theta), {}, {}});
            }
        }
        if (a.distance.kind != DistanceKind::none) {
            for (size_t i = 0; i < distance_.size(); ++i)
                if (distance_[i].config.kind == a.distance.kind && distance_[i].config.tau == a.distance.tau)
                    distance = static_cast<int>(i);
            if (distance < 0) {
                distance = static_cast<int>(distance_.size());
                distance_.push_back({a.distance, {}, {}});
            }
        }
        rotary_of_.push_back(rotary);
        distance_of_.push_back(distance);
    }
}

void Tables::plan(Arena& arena) {
    arena.group("tables");
    for (Rotary& r : rotary_) {
        const int64_t pairs = static_cast<int64_t>(r.theta.size());
        r.cosine = arena.reserve("rotary", DType::f32, {rows_, pairs});
        r.sine = arena.reserve("rotary", DType::f32, {rows_, pairs});
    }
    for (Distance& d : distance_) {
        d.gain = arena.reserve("distance", DType::f32, {1, rows_});
        d.bias = arena.reserve("distance", DType::f32, {1, rows_});
    }
    layers_.clear();
    for (size_t l = 0; l < rotary_of_.size(); ++l) {
        LayerTables t;
        if (rotary_of_[l] >= 0) {
            t.cosine = rotary_[static_cast<size_t>(rotary_of_[l])].cosine;
            t.sine = rotary_[static_cast<size_t>(rotary_of_[l])].sine;
        }
        if (distance_of_[l] >= 0) {
            t.gain = distance_[static_cast<size_t>(distance_of_[l])].gain;
            t.bias = distance_[static_cast<size_t>(distance_of_[l])].bias;
        }
        layers_.push_back(t);
    }
}

void Tables::fill(Ops& ops) const {
    std::vector<float> first, second;
    for (const Rotary& r : rotary_) {
        const size_t pairs = r.theta.size();
        first.resize(static_cast<size_t>(rows_) * pairs);
        second.resize(first.size());
        for (int64_t p = 0; p < rows_; ++p)
            for (size_t m = 0; m < pairs; ++m) {
                const double angle = static_cast<double>(p) * r.theta[m];
                first[static_cast<size_t>(p) * pairs + m] = static_cast<float>(std::cos(angle));
                second[static_cast<size_t>(p) * pairs + m] = static_cast<float>(std::sin(angle));
            }
        ops.upload(r.cosine, first.data());
        ops.upload(r.sine, second.data());
    }
    for (const Distance& d : distance_) {
        first.resize(static_cast<size_t>(rows_));
        second.resize(first.size());
        for (int64_t t = 0; t < rows_; ++t) {
            const GainBias g = distance_transform(d.config, t, 0, 1);
            first[static_cast<size_t>(rows_ - 1 - t)] = static_cast<float>(g.gain);
            second[static_cast<size_t>(rows_ - 1 - t)] = static_cast<float>(g.bias);
        }
        ops.upload(d.gain, first.data());
        ops.upload(d.bias, second.data());
    }
}

}  // namespace longreach
