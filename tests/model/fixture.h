// A model with everything it needs to run: device, planned memory, weights, one batch at a time.
//
// Every call first fills the memory that training and evaluation share with NaN, so that no result can depend
// on values of an earlier call.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/rng.h"
#include "kernels/test_ops.h"
#include "model/device_batch.h"
#include "model/transformer.h"
#include "reference/inputs.h"

namespace longreach::test {

using reference::Example;

enum class Watch { nothing, signed_values, absolute };

struct FixtureSize {
    int64_t sequences = 1, length = 1;  // the largest micro-batch
    bool document_mask = false;
    int64_t table_rows = 0;  // 0: length
    // Further T; such micro-batches have at most sequences * length tokens.
    std::vector<int64_t> other_lengths{};
    model::PostHocConfig post_hoc{};
    Watch watch = Watch::nothing;  // largest scores, for QK-clip
    bool recompute = false;        // of training
};

class ModelFixture {
  public:
    struct Step {
        std::vector<float> losses;     // [N]
        std::vector<float> gradients;  // [params().size()], laid out by the parameter table
    };

    ModelFixture(const model::ModelConfig& config, const FixtureSize& size,
                 const CpuOptions& cpu = {.threads = 1}, uint64_t seed = 1)
        : ops_(make_test_ops(cpu)),
          arena_(*ops_),
          model_(config, size.table_rows ? size.table_rows : size.length, size.post_hoc) {
        if (size.watch != Watch::nothing) model_.watch_scores(size.watch == Watch::absolute);
        plan(size);
        arena_.commit();
        model_.fill_tables(*ops_);
        model::initialise(model_.params(), seed, host_weights);
    }

    // Returns the losses, and the gradients of gradient_scale * (sum of the losses times the example's weights),
    // which are set where NaN was.
    Step train(const Example& example, float gradient_scale = 1) {
        const std::vector<float> nan(static_cast<size_t>(params().size()),
                                     std::numeric_limits<float>::quiet_NaN());
        ops_->upload(gradients_.flat, nan.data());
        return pass(example, gradient_scale, Write::set);
    }
    // The same, but adds to the gradients of earlier calls.
    Step accumulate(const Example& example, float gradient_scale = 1) {
        return pass(example, gradient_scale, Write::add);
    }
    std::vector<float> evaluate(const Example& example, model::ForwardObserver* observer = nullptr) {
        const model::Batch batch = prepare(example);
        model_.forward(*ops_, weights_, batch, observer);
        return download(model_.evaluation_losses(batch.count()));
    }

    std::vector<float> host_weights;  // flat, laid out by the parameter table; every call uploads them

    const model::ParamTable& params() const { return model_.params(); }
    model::Transformer& model() { return model_; }
    Ops& ops() { return *ops_; }
    const model::FlatParams& weights() const {
        return weights_;
    }  // on the device, as the last call left them
    const model::Arena& arena() const { return arena_; }

    // One tensor of a flat buffer.
    std::span<float> values(std::vector<float>& flat, const std::string& name) const {
        const model::Param* p = params().find(name);
        check(p != nullptr, "no parameter named {}", name);
        return {flat.data() + p->offset, static_cast<size_t>(p->count())};
    }
    void set(const std::string& name, float value) {
        for (float& w : values(host_weights, name)) w = value;
    }
    // Adds noise to parameters that start as a constant (gains, biases, mixing weights), so that they differ.
    void scatter_constants(double deviation, uint32_t stream = 0) {
        const Rng rng(5, Purpose::test, stream);
        uint64_t drawn = 0;
        for (const model::Param& p : params().params())
            if (p.init.kind == model::InitRule::Kind::constant)
                for (float& w : values(host_weights, p.name))
                    w += static_cast<float>(deviation * rng.normal(drawn++));
    }
    // The weights by name, as the reference model reads them.
    reference::Params<double> named_weights() {
        reference::Params<double> named;
        for (const model::Param& p : params().params()) {
            const auto part = values(host_weights, p.name);
            named[p.name].assign(part.begin(), part.end());
        }
        return named;
    }

  private:
    Step pass(const Example& example, float gradient_scale, Write write) {
        const model::Batch batch = prepare(example);
        gradients_.write = write;
        model_.forward_backward(*ops_, weights_, gradients_, batch, gradient_scale);
        return {download(model_.training_losses(batch.count())), download(gradients_.flat)};
    }
    void plan(const FixtureSize& size) {
        const int64_t n = size.sequences * size.length;
        arena_.group("weights");
        weights_ = model::plan_weights(arena_, params());
        gradients_.flat = arena_.reserve("gradients", DType::f32, {params().size()});
        batch_.plan(arena_, n, {.documents = true, .loss_weights = true});
        model_.plan_tables(arena_);
        arena_.group("shared");
        shared_ = arena_.reserve("shared_begin", DType::f32, {64});
        const int64_t mark = arena_.mark();
        model::PlanSize largest{n, size.other_lengths};
        largest.lengths.push_back(size.length);
        largest.recompute = size.recompute;
        model_.plan_training(arena_, *ops_, largest, size.document_mask);
        arena_.rewind(mark);
        model_.plan_evaluation(arena_, *ops_, largest, size.document_mask);
        shared_floats_ = (arena_.bytes() - mark) / 4 + 64;
    }

    model::Batch prepare(const Example& example) {
        poison();
        ops_->upload(weights_.flat, host_weights.data());
        weights_.round(*ops_);
        return batch_.upload(*ops_, example.length, example.tokens, example.targets, example.doc_start,
                             example.loss_weights);
    }

    void poison() {
        const std::vector<float> nan(static_cast<size_t>(shared_floats_),
                                     std::numeric_limits<float>::quiet_NaN());
        ops_->upload(Tensor(shared_.data(), DType::f32, {shared_floats_}), nan.data());
    }

    std::vector<float> download(const Tensor& t) const {
        std::vector<float> host(static_cast<size_t>(t.count()));
        ops_->download(host.data(), t);
        return host;
    }

    std::unique_ptr<Ops> ops_;
    model::Arena arena_;
    model::Transformer model_;
    model::FlatParams weights_, gradients_;
    model::DeviceBatch batch_;
    Tensor shared_;
    int64_t shared_floats_ = 0;
};

// Random tokens and targets; one target in eight is not scored. With documents, one token in five starts
// a new document.
inline Example random_example(int64_t vocab_size, int64_t sequences, int64_t length, bool documents,
                              uint32_t stream = 0) {
    const Rng rng(9, Purpose::test, stream);
    uint64_t drawn = 0;
    const auto below = [&](int64_t n) {
        return static_cast<int32_t>(rng.below(drawn++, static_cast<uint64_t>(n)));
    };
    Example e{sequences, length, {}, {}, {}};
    for (int64_t n = 0; n < sequences * length; ++n) {
        const int32_t position = static_cast<int32_t>(n % length);
        e.tokens.push_back(below(vocab_size));
        e.targets.push_back(below(8) == 0 ? -1 : below(vocab_size));
        if (documents) e.doc_start.push_back(position == 0 || below(5) == 0 ? position : e.doc_start.back());
    }
    return e;
}

// Some of an example's sequences.
inline Example sequences_of(const Example& e, int64_t begin, int64_t count) {
    const auto part = [&](const auto& v) {
        using Entries = std::remove_cvref_t<decltype(v)>;
        return v.empty() ? v : Entries(v.begin() + begin * e.length, v.begin() + (begin + count) * e.length);
    };
    return {count, e.length, part(e.tokens), part(e.targets), part(e.doc_start), part(e.loss_weights)};
}

}  // namespace longreach::test
