// How a module joins the residual stream, as data.
//
//     x = x + module(norm(x))           pre: the plain rule
//     x = x + norm(module(norm(x)))     peri
//     x = x + norm(module(x))           after
//     x = x + module(x)                 hybrid, attention
//     n = norm(x), x = n + module(n)    hybrid, MLP
//
// Streams bypass the modules, from the embedding or a block to a later block: x = own x + other stream.
#pragma once

#include <optional>
#include <vector>

#include "model/norm.h"

namespace longreach::model {

struct Residual {
    struct Saved {
        Tensor input;  // [N, C] what the module reads; with a norm, the memory of before.y
        Norm::Saved before, after;
    };
    struct Workspace {
        Tensor module;   // [N, C] output of a module, before the norm that follows it
        Tensor dinput;   // [N, C]
        Tensor dmodule;  // [N, C]
    };

    int64_t width = 0;
    std::optional<Norm> before, after;
    bool replaces = false;  // norm(x) takes the place of x

    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    // Shared by all modules of a model. after: a norm follows some of them.
    static Workspace plan_workspace(Arena& arena, int64_t tokens, int64_t width, bool after, bool training);

    // module(y, write, input) must compute y = or += the module's output for input.
    template <class Module>
    void forward(StepContext& run, const Saved& saved, const Workspace& workspace, Tensor x,
                 Module module) const {
        const int64_t n = run.batch.count();
        const Tensor input = saved.input.first_rows(n);
        before ? before->forward(run, saved.before, x) : run.ops.copy(input, x);
        if (replaces) run.ops.copy(x, input);
        if (!after) return module(x, Write::add, input);
        const Tensor y = workspace.module.first_rows(n);
        module(y, Write::set, input);
        after->forward(run, saved.after, y);
        run.ops.add(x, saved.after.y.first_rows(n));
    }
    // dx: on entry the gradient at x after forward(), on return at x before it. module(dinput, dy, input)
    // must compute dinput = the gradient at input.
    template <class Module>
    void backward(StepContext& run, Tensor dx, const Saved& saved, const Workspace& workspace,
                  Module module) const {
        const int64_t n = run.batch.count();
        const Tensor dinput = workspace.dinput.first_rows(n);
        Tensor dy = dx;
        if (after) {
            dy = workspace.dmodule.first_rows(n);
            after->backward(run, dy, dx, saved.after, Write::set);
        }
        module(dinput, dy, saved.input.first_rows(n));
        if (replaces) run.ops.add(dinput, dx);
        if (before)
            before->backward(run, dx, dinput, saved.before, replaces ? Write::set : Write::add);
        else
            run.ops.add(dx, dinput);
    }
};

// Streams that outlive one block, [N, C] each; an unused one is empty.
constexpr size_t x0_stream = 0;       // the embedding; with x0 mixing
constexpr size_t backout_stream = 1;  // layer output that is subtracted before the head
constexpr size_t first_skip = 2;      // one per storing block; with U-net
struct Streams {
    std::vector<Tensor> values, gradients;
};

// x = own x + other stream; own is 1 if it is not learned.
struct StreamMix {
    size_t stream;
    ParamRef other, own{};

    // before: [N, C], keeps x for backward() if own is learned.
    void forward(StepContext& run, Tensor x, const Tensor& before, const Streams& streams) const;
    void backward(StepContext& run, Tensor dx, const Tensor& before, const Streams& streams) const;
};

}  // namespace longreach::model
