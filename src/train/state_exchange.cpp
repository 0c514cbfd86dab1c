#include "train/state_exchange.h"

#include <algorithm>

namespace longreach::train {

namespace {

std::vector<io::StoredTensor> stored_state(const optim::Optimizer& optimizer) {
    std::vector<io::StoredTensor> tensors;
    for (const optim::Optimizer::Named& n : optimizer.state()) {
        io::StoredTensor t;
        t.name = n.name;
        t.type = io::StoredType::f32;
        t.shape = n.shape;
        tensors.push_back(t);
    }
    return tensors;
}

int64_t count_of(const optim::Optimizer::Named& state) {
    int64_t n = 1;
    for (int64_t d : state.shape) n *= d;
    return n;
}

}  // namespace

StateExchange::StateExchange(Ops& ops, ranks::Comm& comm, const optim::Optimizer& optimizer, Tensor scratch)
    : ops_(ops), comm_(comm), optimizer_(optimizer), scratch_(scratch), writer_(stored_state(optimizer)) {}

const optim::Optimizer::Named& StateExchange::next() {
    check(next_ < tensors().size(), "more tensors of state than there are");
    const std::string& name = tensors()[next_++].name;
    const auto& all = optimizer_.state();
    return *std::find_if(all.begin(), all.end(),
                         [&](const optim::Optimizer::Named& n) { return n.name == name; });
}

std::vector<ranks::Transfer> StateExchange::parts(const optim::Optimizer::Named& state) const {
    std::vector<ranks::Transfer> out;
    if (!optimizer_.sharded()) return out;
    for (int r = 1; r < comm_.ranks(); ++r) {
        const optim::Ownership::Range part = optimizer_.ownership().part(state.param, r);
        if (part.count > 0) out.push_back({r, scratch_.range(part.begin, part.count)});
    }
    return out;
}

Tensor StateExchange::fetch(const std::string& name) {
    const optim::Optimizer::Named& state = next();
    check(state.name == name, "{} is fetched in the place of {}", name, state.name);
    const std::vector<ranks::Transfer> others = parts(state);
    if (others.empty()) return state.tensor;
    const int64_t count = count_of(state);
    const optim::Ownership::Range own = optimizer_.ownership().part(state.param, 0);
    if (own.count > 0) ops_.copy(scratch_.range(own.begin, own.count), state.tensor);
    comm_.wait(comm_.exchange({ranks::CollectiveOp::send, DType::f32, count}, {}, others));
    return Tensor(scratch_.f32(), DType::f32, {count});
}

void StateExchange::fetch_rest() {
    while (next_ < tensors().size()) {
        if (comm_.rank() == 0) {
            fetch(tensors()[next_].name);
            continue;
        }
        const optim::Optimizer::Named& state = next();
        if (parts(state).empty()) continue;
        std::vector<ranks::Transfer> sends;
        if (state.tensor.count() > 0) sends.push_back({0, state.tensor});
        comm_.wait(comm_.exchange({ranks::CollectiveOp::send, DType::f32, count_of(state)}, sends, {}));
    }
}

void StateExchange::deliver(const float* host) {
    const optim::Optimizer::Named& state = next();
    const std::vector<ranks::Transfer> others = parts(state);
    const ranks::Collective what{ranks::CollectiveOp::broadcast, DType::f32, count_of(state)};
    if (comm_.rank() > 0) {
        check(host == nullptr, "rank {} reads a checkpoint", comm_.rank());
        std::vector<ranks::Transfer> receives;
        if (state.tensor.count() > 0) receives.push_back({0, state.tensor});
        comm_.wait(comm_.exchange(what, {}, receives));
        return;
    }
    const optim::Ownership::Range own = others.empty() ? optim::Ownership::Range{0, count_of(state)}
                                                       : optimizer_.ownership().part(state.param, 0);
    if (own.count > 0) ops_.upload(state.tensor, host + own.begin);
    if (comm_.ranks() == 1) return;
    // If the optimiser is not sharded, every rank gets the whole tensor.
    ops_.upload(Tensor(scratch_.f32(), DType::f32, {count_of(state)}), host);
    std::vector<ranks::Transfer> sends = others;
    if (!optimizer_.sharded())
        for (int r = 1; r < comm_.ranks(); ++r)
            sends.push_back({r, Tensor(scratch_.f32(), DType::f32, {count_of(state)})});
    comm_.wait(comm_.exchange(what, sends, {}));
}

}  // namespace longreach::train
