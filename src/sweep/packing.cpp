#include "sweep/packing.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <vector>

#include "base/memory.h"
#include "config/loader.h"
#include "kernels/cpu_device.h"
#include "kernels/cuda_device.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "train/schedule.h"

namespace longreach::sweep {

namespace {

int64_t usable_cores() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

bool runs_on_cpu(train::Device device) {
    return device == train::Device::cpu ||
           (device == train::Device::automatic && !cuda_status().unusable.empty());
}

}  // namespace

Packing pack(const PackingRequest& request) {
    Packing packing{request.jobs, request.threads};
    if (packing.jobs == 0) {
        const int64_t runs = static_cast<int64_t>(request.bytes.size());
        const int64_t at_once = request.threads > 0 ? request.cores / request.threads : request.cores;
        packing.jobs = request.on_cpu ? std::clamp<int64_t>(at_once, 1, std::max<int64_t>(1, runs)) : 1;
        std::vector<int64_t> largest(request.bytes.begin(), request.bytes.end());
        std::sort(largest.rbegin(), largest.rend());
        const auto needed = [&] {
            const auto end = largest.begin() + std::min(packing.jobs, runs);
            return std::accumulate(largest.begin(), end, int64_t{0});
        };
        while (packing.jobs > 1 && needed() > request.free_bytes / 4 * 3) --packing.jobs;
    }
    if (packing.threads == 0) packing.threads = std::max<int64_t>(1, request.cores / packing.jobs);
    return packing;
}

int64_t memory_of(const train::Experiment& e) {
    const auto ops = make_cpu_ops({.threads = 1});
    model::Transformer model(e.model, e.table_rows(), e.eval.rope);
    model::Arena arena(*ops);
    model::plan_weights(arena, model.params());
    model.plan_tables(arena);
    const std::vector<train::Stage> stages = e.resolved_stages();
    model::PlanSize training{train::most_micro_tokens(stages), {}};
    training.recompute = e.system.recompute;
    for (const train::Stage& s : stages) training.lengths.push_back(s.context);
    const model::PlanSize evaluation{e.eval_batch_tokens(eval::piece_of(e.eval, *ops)),
                                     e.evaluated_lengths()};
    arena.overlay(2, [&](size_t i) {
        if (i == 0)
            model.plan_training(arena, *ops, training, e.data.document_mask);
        else
            model.plan_evaluation(arena, *ops, evaluation, e.data.document_mask);
    });
    // Gradients, and a sum of them for every level of the tree of leaves.
    const int64_t sums = 1 + std::bit_width(static_cast<uint64_t>(e.batch.leaves));
    return arena.bytes() + 4 * sums * model.params().size() +
           optim::Optimizer(e.optimizer, model.params()).state_bytes();
}

void pack_runs(SweepPlan& plan, const SweepConfig& sweep) {
    std::vector<int64_t> bytes;
    bool on_cpu = true;
    std::map<std::string, int64_t> of_variants;  // seeds change nothing
    for (const PlannedRun& run : plan.runs) {
        on_cpu = on_cpu && runs_on_cpu(run.experiment.system.device);
        if (sweep.jobs == 0 && !of_variants.contains(run.variant))
            of_variants[run.variant] = memory_of(run.experiment);
        bytes.push_back(of_variants[run.variant]);
    }
    const Packing packing =
        pack({sweep.jobs, sweep.threads, usable_cores(), free_memory().bytes, on_cpu, bytes});
    plan.jobs = packing.jobs;
    plan.threads = packing.threads;
    for (PlannedRun& run : plan.runs) {
        run.experiment.system.threads = packing.threads;
        run.resolved = config::write_resolved(run.experiment);
    }
}

}  // namespace longreach::sweep
