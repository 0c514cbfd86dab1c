// What every module of the model needs while it runs: the device, the weights, where gradients go, and the
// batch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/param_table.h"

namespace longreach {

// One micro-batch on the device: B sequences of T positions, N = B*T tokens.
struct Batch {
    int64_t sequences = 0, length = 0;
    Tensor tokens;     // i32 [N]
    Tensor targets;    // i32 [N], -1: not scored
    Tensor doc_start;  // i32 [N], position in the sequence where the document of each token starts; empty: no
                       // mask
    int64_t count() const { return sequences * length; }
};

// First visible key per query for every distinct window of the model; built once per micro-batch.
struct Masks {
    struct Entry {
        int64_t window;
        Tensor row_start;  // i32 [N]; empty: every earlier key is visible
    };
    std::vector<Entry> entries;
    const Tensor& of(int64_t window) const {
        for (const Entry& e : entries)
            if (e.window == window) return e.row_start;
        fail(ExitCode::internal, "no mask was built for window {}", window);
    }
};

struct StepContext {
    Ops& ops;
    FlatParams weights;
    FlatParams gradients;  // empty in evaluation
    Batch batch;
    const Masks& masks;

    Tensor weight(const ParamRef& ref) const { return ref ? weights.view(ref) : Tensor(); }
    Tensor gradient(const ParamRef& ref) const { return ref ? gradients.view(ref) : Tensor(); }
};

}  // namespace longreach
