#include "optim/optimizer_config.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace longreach::optim {

namespace {
constexpr config::NumberRange rate{.min = 0, .max = 1e3};
constexpr config::NumberRange decay{.min = 0, .max = 1, .open_max = true};
}  // namespace

void MuonConfig::fields(config::Fields& f) {
    f.number("lr", lr, rate, {"learning rate"});
    f.number("momentum", momentum, decay, {"decay mu of the momentum"});
    f.flag("nesterov", nesterov, {"orthogonalise the look-ahead G + mu M instead of M"});
    f.choice<MomentumForm>("form", form,
                           {{MomentumForm::classic, "classic", "M = mu M + G"},
                            {MomentumForm::averaged, "averaged", "M = mu M + (1 - mu) G"}},
                           {"how the momentum gathers gradients"});
    f.number("warmup_from", warmup_from, decay,
             {.help = "momentum of the first step", .acts = config::unless("warmup_steps", "0")});
    f.integer("warmup_steps", warmup_steps, {.min = 0},
              {"steps over which the momentum rises linearly to its value"});
    f.choice<MuonScale>(
        "scale", scale,
        {{MuonScale::classic, "classic", "sqrt(max(1, rows / cols))"},
         {MuonScale::moonshot, "moonshot", "0.2 sqrt(max(rows, cols)), matches AdamW step sizes"}},
        {"factor on the orthogonalised update"});
    f.flag("swapped_mlp", swapped_mlp,
           {.help = "rows and columns of the MLP's matrices change places in the factor, as where they are "
                    "kept transposed",
            .acts = config::only("scale", "classic")});
    f.flag("joined_qkv", joined_qkv,
           {"orthogonalise queries, keys and values of a layer as one matrix, and not each for itself"});
    f.number("weight_decay", weight_decay, {.min = 0, .max = 10},
             {"decoupled: W shrinks by lr * weight_decay per step"});
    f.integer("iterations", iterations, {.min = 1, .max = 20}, {"Newton-Schulz iterations"});
}

void AdamConfig::fields(config::Fields& f) {
    f.number(
        "matrix_lr", matrix_lr, rate,
        {.help = "learning rate of hidden matrices", .acts = config::only("optimizer.matrices", "adam")});
    f.number("embedding_lr", embedding_lr, rate, {"learning rate of the token embedding"});
    f.number("head_lr", head_lr, rate,
             {.help = "learning rate of an untied head", .acts = config::unless("model.head.tied", "true")});
    f.number("scalar_lr", scalar_lr, rate, {"learning rate of gains, biases and mixing weights"});
    f.number("beta1", beta1, decay, {"decay of the first moment"});
    f.number("beta2", beta2, decay, {"decay of the second moment"});
    f.number("eps", eps, {.min = 0, .max = 1, .open_min = true},
             {"added to the square root of the second moment"});
    f.number("weight_decay", weight_decay, {.min = 0, .max = 10},
             {"decoupled, on hidden matrices (with matrices: adam) and an untied head"});
}

void ScheduleConfig::fields(config::Fields& f) {
    f.choice<ScheduleKind>(
        "kind", kind,
        {{ScheduleKind::constant, "constant", "1 throughout"},
         {ScheduleKind::linear, "linear", "1, then linear to `final` over the last decay_fraction"},
         {ScheduleKind::cosine, "cosine", "half a cosine from 1 to `final` over the whole run"}},
        {"learning-rate multiplier over the run"});
    f.integer("warmup_steps", warmup_steps, {.min = 0},
              {"the first steps are multiplied by (step + 1) / warmup_steps"});
    f.number("decay_fraction", decay_fraction, {.min = 0, .max = 1},
             {.help = "share of all steps that decays", .acts = config::only("kind", "linear")});
    f.number("final", final, {.min = 0, .max = 1},
             {.help = "multiplier that the decay approaches", .acts = config::unless("kind", "constant")});
}

void QkClipConfig::fields(config::Fields& f) {
    f.number(
        "limit", limit, {.min = 0, .max = 1e30},
        {.help = "largest score scale * <q, k> a head may reach before its query and key matrices are scaled "
                 "down after the step; 0: off",
         .sources = "kimi2025"});
    f.choice<ScoreMeasure>("measure", measure,
                           {{ScoreMeasure::signed_value, "signed"}, {ScoreMeasure::absolute, "absolute"}},
                           {.help = "which scores count", .acts = config::unless("limit", "0")});
}

void OptimizerConfig::fields(config::Fields& f) {
    f.choice<MatrixOptimizer>("matrices", matrices,
                              {{MatrixOptimizer::muon, "muon", "", "Muon", "jordan2024muon kingma2014"},
                               {MatrixOptimizer::adam, "adam", "", "AdamW", "kingma2014"}},
                              {"optimiser of the hidden matrices; everything else is Adam's"});
    f.section("muon", muon,
              {.help = "momentum orthogonalised by Newton-Schulz", .acts = config::only("matrices", "muon")});
    f.section("adam", adam, {"Adam, with decoupled weight decay"});
    f.section("schedule", schedule, {"learning-rate multiplier over the run"});
    f.section("qk_clip", qk_clip, {"bound on attention scores by way of the weights"});
    f.number("clip_norm", clip_norm, {.min = 0, .max = 1e30},
             {"largest global gradient norm; 0: no clipping"});
    f.integer(
        "max_bad_steps", max_bad_steps, {.min = 0},
        {"steps with a non-finite loss or gradient are skipped; give up after this many in a row", true});
    f.texts("only", only,
            {"names of the tensors to train, where * stands for any characters, [\"*.index.*\"]: all others "
             "stay as they start; []: all are trained"});
}

bool OptimizerConfig::trains(const std::string& name) const {
    return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& pattern) {
               return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
           });
}

void OptimizerConfig::check(config::Problems& p) const {
    if (qk_clip.limit > 0 && !only.empty())
        p.add("optimizer.only", "qk_clip changes queries and keys, whether they are trained or not",
              "optimizer.qk_clip.limit");
    if (schedule.kind == ScheduleKind::linear && schedule.decay_fraction == 0)
        p.no_effect("optimizer.schedule.final", "schedule.decay_fraction is 0",
                    "optimizer.schedule.decay_fraction");
}

double schedule_multiplier(const ScheduleConfig& schedule, int64_t step, int64_t total) {
    const double s = static_cast<double>(step), n = static_cast<double>(total);
    const double warmup = static_cast<double>(schedule.warmup_steps);
    if (step < schedule.warmup_steps) return (s + 1) / warmup;
    switch (schedule.kind) {
        case ScheduleKind::constant:
            return 1;
        case ScheduleKind::linear: {
            const double falling = std::round(schedule.decay_fraction * n);
            if (falling == 0 || s < n - falling) return 1;
            return schedule.final + (1 - schedule.final) * (n - s) / falling;
        }
        case ScheduleKind::cosine: {
            const double progress = n > warmup ? std::min(1.0, (s - warmup) / (n - warmup)) : 1.0;
            return schedule.final + (1 - schedule.final) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
        }
    }
    return 1;
}

double muon_momentum(const MuonConfig& muon, int64_t step) {
    if (step >= muon.warmup_steps) return muon.momentum;
    const double f = static_cast<double>(step) / static_cast<double>(muon.warmup_steps);
    return (1 - f) * muon.warmup_from + f * muon.momentum;
}

}  // namespace longreach::optim
