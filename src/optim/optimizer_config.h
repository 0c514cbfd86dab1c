// Which optimiser updates which tensors, learning rates, clipping and the schedule over a run.
#pragma once

#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"

namespace longreach::optim {

enum class MatrixOptimizer { muon, adam };
enum class MomentumForm { classic, averaged };
enum class MuonScale { classic, moonshot };
struct MuonConfig {
    double lr = 0.02;
    double momentum = 0.95;
    bool nesterov = true;
    MomentumForm form = MomentumForm::classic;
    double warmup_from = 0.85;
    int64_t warmup_steps = 0;
    MuonScale scale = MuonScale::classic;
    bool swapped_mlp = false, joined_qkv = false;
    double weight_decay = 0;
    int64_t iterations = 5;
    void fields(config::Fields& f);
};

struct AdamConfig {
    double matrix_lr = 0.001;
    double embedding_lr = 0.3;
    double head_lr = 0.002;
    double scalar_lr = 0.002;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0;
    void fields(config::Fields& f);
};

enum class ScheduleKind { constant, linear, cosine };
struct ScheduleConfig {
    ScheduleKind kind = ScheduleKind::linear;
    int64_t warmup_steps = 0;
    double decay_fraction = 0.4;
    double final = 0;
    void fields(config::Fields& f);
};

// QK-clip: after a step, queries and keys are scaled down in heads whose largest score was above the limit.
enum class ScoreMeasure { signed_value, absolute };
struct QkClipConfig {
    double limit = 0;  // 0: off
    ScoreMeasure measure = ScoreMeasure::signed_value;
    void fields(config::Fields& f);
};

struct OptimizerConfig {
    MatrixOptimizer matrices = MatrixOptimizer::muon;
    MuonConfig muon;
    AdamConfig adam;
    ScheduleConfig schedule;
    double clip_norm = 0;
    QkClipConfig qk_clip;
    int64_t max_bad_steps = 10;
    std::vector<std::string> only;  // patterns of the names of trained tensors; empty: all are trained
    bool trains(const std::string& name) const;
    void fields(config::Fields& f);
    void check(config::Problems& problems) const;
};

// Learning-rate multiplier of step (0-based) out of total.
double schedule_multiplier(const ScheduleConfig& schedule, int64_t step, int64_t total);
// Muon momentum at step (0-based).
double muon_momentum(const MuonConfig& muon, int64_t step);

}  // namespace longreach::optim
