// What every module of the model needs while it runs: the device, the weights, where gradients
// go, and the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/param_table.h"

namespace longreach::model {

// One micro-batch on the device: B sequences of T positions, N = B*T tokens.
struct Batch {
    int64_t sequences = 0, length = 0;
    Tensor tokens;     // i32 [N]
    Tensor targets;    // i32 [N], -1: not scored
    Tensor doc_start;  // i32 [N], position in the sequence where the document of each token
        // starts; empty: no mask. In pieces it counts from the first token of the piece and is never empty
    Tensor loss_weights{};  // f32 [N], factors of the losses in the gradient; empty: 1
    int64_t count() const { return sequences * length; }
};

// Which earlier keys a layer's queries see, documents aside; 0: no such limit. Ops::row_starts makes masks of it.
struct Reach {
    int64_t window = 0, chunk = 0;
    bool limited() const { return window > 0 || chunk > 0; }
    // Of a sequence, the first key that the query at this position sees.
    int64_t first_key(int64_t position) const {
        int64_t first = 0;
        if (window > 0) first = std::max(first, position - window + 1);
        if (chunk > 0) first = std::max(first, position / chunk * chunk);
        return first;
    }
    // The mean number of keys that the queries of a sequence see; its last chunk counts as a whole one.
    double mean_keys(int64_t length) const {
        const double w = static_cast<double>(window);
        const double t = static_cast<double>(chunk > 0 ? std::min(length, chunk) : length);
        return window == 0 || w >= t ? (t + 1) / 2 : w - w * (w - 1) / (2 * t);
    }
    // The reach under the window of a stage (0: none), which narrows windows but adds none.
    Reach narrowed(int64_t stage_window) const {
        return {stage_window > 0 && window > 0 ? std::min(stage_window, window) : window, chunk};
    }
    bool operator==(const Reach&) const = default;
};

// First visible key per query for every distinct configured reach of the model; built once per micro-batch.
struct Masks {
    struct Entry {
        Reach reach;
        Tensor row_start;  // i32 [N]; empty: every earlier key is visible
    };
    std::vector<Entry> entries;
    const Tensor* find(const Reach& reach) const {
        for (const Entry& e : entries)
            if (e.reach == reach) return &e.row_start;
        return nullptr;
    }
    const Tensor& of(const Reach& reach) const {
        const Tensor* found = find(reach);
        check(found != nullptr, "no mask was built for window {}, chunk {}", reach.window, reach.chunk);
        return *found;
    }
};

class Tables;
// What the plans and the passes of a model have in common; Transformer keeps it.
struct PassSettings {
    const Tables* tables = nullptr;
    int64_t stage_window = 0;      // narrows the windows of windowed layers; 0: as configured
    Tensor score_maxima = {};      // f32 [L, most heads], raised by training passes; empty: not gathered
    bool absolute_maxima = false;  // of the absolute values
};

class ForwardObserver;
// Sequences that are read in several passes. Every layer keeps what later tokens need from earlier ones, for `room`
// positions of every sequence. A generation reads the prompt as a whole, then token by token. An evaluation reads one
// sequence piece by piece, and every token gets the bits of a pass over the whole sequence.
struct Generation {
    int64_t room = 0;
    int64_t position = 0;  // of the batch's first token: 0 for the prompt
    int64_t piece = 0;     // of an evaluation: tokens of every piece but the last; 0: a generation
    bool step() const { return piece == 0 && position > 0; }
};

struct StepContext {
    Ops& ops;
    FlatParams weights;
    FlatParams gradients;  // empty in evaluation
    Batch batch;
    const Masks& masks;
    bool training = false;
    ForwardObserver* observer = nullptr;     // may be null
    const Generation* generation = nullptr;  // null: an ordinary pass
    bool probing = observer != nullptr;      // of a pass that is observed, also where a part of it is not
    float gradient_scale = 0;                // of every loss, in training
    Tensor index_losses{};                   // f32 [N], of a layer with an index of keys, in training
    PassSettings settings = {};

    bool decoding() const { return generation != nullptr && generation->step(); }
    bool in_pieces() const { return generation != nullptr && generation->piece > 0; }
    bool generating() const { return generation != nullptr && generation->piece == 0; }
    int64_t position() const { return generation != nullptr ? generation->position : 0; }

    Tensor weight(const ParamRef& ref) const { return ref ? weights.view(ref) : Tensor(); }
    // The parameter in the type that matrix products read.
    Tensor matrix(const ParamRef& ref) const { return weights.matrix(ref); }
    Tensor gradient(const ParamRef& ref) const { return ref ? gradients.view(ref) : Tensor(); }
    // The gradient of a matrix that maps rows x, dy^T x, set or added as the pass wants it. first: of this pass.
    void weight_gradient(const ParamRef& ref, const Tensor& dy, const Tensor& x, bool first = true) const {
        const bool sets = first && ref.of_product && gradients.write == Write::set;
        ops.linear_backward_weight(gradient(ref), dy, x, sets ? Write::set : Write::add);
    }
};

}  // namespace longreach::model
