// Launches of a training step, as the program issues them: kernels, and products of the library, a call of it being one.
//   simt_count_launches CONFIG     prints those of a micro-batch, and those that a step has besides
// tools/roofline --launches compares them with its sheet.
#include <numeric>

#include "config/loader.h"
#include "kernels/cuda_device.h"
#include "model/device_batch.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "simt/cublaslt.h"
#include "simt/simt.h"
#include "train/experiment.h"
#include "train/gradient_tree.h"

using namespace longreach;

namespace {

int64_t launched() {
    return static_cast<int64_t>(simt::launches().count) + simt::matmul_counts().calls;
}

// What train::Stepper does in a step of one rank, on tokens that mean nothing.
struct Step {
    const train::Experiment& e;
    int64_t context, micro_tokens, micro_batches;
    std::unique_ptr<Ops> ops = make_cuda_ops({.precision = Precision::bf16});
    model::Arena arena{*ops};
    model::Transformer model;
    optim::Optimizer optimizer;
    train::GradientTree tree;
    model::FlatParams weights;
    model::DeviceBatch memory;
    Tensor losses;

    explicit Step(const train::Experiment& experiment)
        : e(experiment),
          context(e.resolved_stages().back().context),
          micro_tokens(e.resolved_stages().back().micro_tokens),
          micro_batches(e.batch.tokens / micro_tokens),
          model(e.model, context),
          optimizer(e.optimizer, model.params()) {
        weights = model::plan_weights(arena, model.params());
        tree.plan(arena, model.params().size(), micro_batches);
        optimizer.plan(arena, *ops);
        model.plan_tables(arena);
        memory.plan(arena, micro_tokens, {});
        losses = arena.reserve("losses", DType::f64, {micro_batches});
        model.plan_training(arena, *ops, {micro_tokens, {context}}, false);
        arena.commit();
        model.fill_tables(*ops);
        std::vector<float> first;
        model::initialise(model.params(), 1, first);
        ops->upload(weights.flat, first.data());
        weights.round(*ops);
    }

    struct Counts {
        int64_t micro_batch = 0, once = 0;
    };
    Counts run() {
        std::vector<int32_t> ids(static_cast<size_t>(micro_tokens));
        std::iota(ids.begin(), ids.end(), 0);
        for (int32_t& id : ids) id %= static_cast<int32_t>(e.model.vocab_size);
        Counts counts;
        const int64_t begin = launched();
        tree.begin_step(micro_batches);
        for (int64_t m = 0; m < micro_batches; ++m) {
            const model::Batch batch = memory.upload(*ops, context, ids, ids, {});
            const int64_t before = launched();
            model.forward_backward(*ops, weights, tree.begin(m), batch,
                                   1.0f / static_cast<float>(e.batch.tokens));
            if (m == 0) counts.micro_batch = launched() - before;
            counts.once -= launched() - before;
            tree.end(*ops, m);
            ops->sum(losses.range(m, 1), model.training_losses(micro_tokens));
        }
        optimizer.measure(*ops, tree.result());
        optimizer.update(*ops, weights, tree.result(), optimizer.gradient_norm(*ops), 1.0, 0);
        weights.round(*ops);
        counts.once += launched() - begin;
        return counts;
    }
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) return 2;
    simt::options().watch_memory = false;
    const auto config = config::load_config<train::Experiment>(
        {.file = arguments[1]}, [](train::Experiment& e, config::Problems& p) { e.check(p); });
    const Step::Counts counts = Step(config.value).run();
    fmt::print("of a micro-batch, and of a step besides: {} {}\n", counts.micro_batch, counts.once);
    return 0;
}
