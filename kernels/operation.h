// A row of the table of operations in ops.h, and one call of it as a decorator sees it.
//
// Operation<&Ops::do_norm> is called as do_norm is. Its operands are those of the signature: a Tensor taken by
// value is written, one taken by reference is read; the tensors inside specs and slots count too. A decorator
// (timing, staging, tracing, a search for NaN) is therefore written once for all operations.
#pragma once

#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/operands.h"

namespace longreach {

// What one call has to do at least.
struct Cost {
    double flops = 0;     // of matrix products
    double bytes = 0;     // moved, each operand once
    std::string shape{};  // distinguishes calls of one name in a table of times: "128->384"
};

struct Operand {
    Tensor* tensor;  // never null; the tensor itself may be empty
    bool written;
};

class Call {
  public:
    virtual ~Call() = default;
    virtual const char* name() const = 0;
    virtual Cost cost() const = 0;
    // In the order of the signature. A decorator may point the tensors elsewhere before it calls run().
    virtual std::vector<Operand> operands() = 0;
    virtual void run() = 0;
};

class Decorator {
  public:
    virtual ~Decorator() = default;
    virtual void around(Call& call) = 0;  // call.run() does the work
};

// Tensors within an argument; of a type not named here, none.
inline std::vector<Operand> operands_of(Tensor& t, bool written) {
    return {{&t, written}};
}
inline std::vector<Operand> operands_of(AttentionSpec& s, bool) {
    return {{&s.row_start, false},     {&s.row_factor, false},   {&s.distance_gain, false},
            {&s.distance_bias, false}, {&s.row_square, false},   {&s.sink, false},
            {&s.far_queries, false},   {&s.far_keys, false},     {&s.forget, false},
            {&s.index.queries, false}, {&s.index.keys, false},   {&s.index.weights, false},
            {&s.alpha_logit, false},   {&s.channel_sums, false}, {&s.channel_memory, true}};
}
inline std::vector<Operand> operands_of(IndexScores& s, bool written) {
    return {{&s.queries, written}, {&s.keys, written}, {&s.weights, written}};
}
inline std::vector<Operand> operands_of(AttentionGradients& g, bool) {
    return {{&g.row_factor, true},  {&g.distance_gain, true}, {&g.distance_bias, true}, {&g.sink, true},
            {&g.alpha_logit, true}, {&g.forget, true},        {&g.channel_sums, true}};
}
inline std::vector<Operand> operands_of(HeadSpec& s, bool) {
    return {{&s.log_eps, false}, {&s.gain, false}, {&s.bias, false}, {&s.cosine, false}, {&s.sine, false}};
}
inline std::vector<Operand> operands_of(DeltaGateSpec& s, bool) {
    return {{&s.a_log, false}, {&s.bias, false}};
}
inline std::vector<Operand> operands_of(DeltaSpec& s, bool) {
    return {{&s.doc_start, false}, {&s.erase, false}, {&s.derase, true}};
}
inline std::vector<Operand> operands_of(SimplicialSpec& s, bool) {
    return {{&s.doc_start, false}};
}
inline std::vector<Operand> operands_of(SimplicialKeys& t, bool written) {
    return {{&t.k, written}, {&t.v, written}, {&t.k2, written}, {&t.v2, written}};
}
inline std::vector<Operand> operands_of(LawSpec& s, bool) {
    std::vector<Operand> all = {{&s.by_token.start, false}};
    for (auto* inputs : {&s.parameters, &s.tables, &s.tokens})
        for (Tensor& t : *inputs) all.push_back({&t, false});
    return all;
}
inline std::vector<Operand> operands_of(LawEntries& e, bool) {
    return {{&e.start, false}};
}
inline std::vector<Operand> operands_of(Coefficient& c, bool) {
    return {{&c.param, false}};
}
inline std::vector<Operand> operands_of(LossSpec& s, bool) {
    return {{&s.weights, false}};
}
inline std::vector<Operand> operands_of(AdamSlot& s, bool) {
    return {{&s.param, true}, {&s.gradient, false}, {&s.first, true}, {&s.second, true}};
}
inline std::vector<Operand> operands_of(MuonSlot& s, bool) {
    return {{&s.param, true}, {&s.gradient, false}, {&s.momentum, true}};
}
template <class Slot>
std::vector<Operand> operands_of(std::vector<Slot>& slots, bool written) {
    std::vector<Operand> all;
    for (Slot& slot : slots)
        for (const Operand& o : operands_of(slot, written)) all.push_back(o);
    return all;
}
template <class Scalar>
std::vector<Operand> operands_of(Scalar&, bool) {
    return {};
}

// What a call keeps of an argument, to change and pass on.
template <class Argument>
struct Kept {
    using Type = std::remove_cvref_t<Argument>;
};
template <class Slot>
struct Kept<std::span<const Slot>> {
    using Type = std::vector<Slot>;
};
template <class T>
const T& kept(const T& argument) {
    return argument;
}
template <class Slot>
std::vector<Slot> kept(std::span<const Slot> slots) {
    return {slots.begin(), slots.end()};
}

template <class... Tensors>
Cost moved(const Tensors&... tensors) {
    return {.bytes = (static_cast<double>(tensors.bytes()) + ...)};
}
// Every tensor of the signature moves once.
template <class... Arguments>
Cost all_moved(const Arguments&... arguments) {
    Cost cost;
    const auto add = [&](const auto& a) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(a)>, Tensor>)
            cost.bytes += static_cast<double>(a.bytes());
    };
    (add(arguments), ...);
    return cost;
}

template <auto method>
class Operation;
template <class Device, class... Arguments, void (Device::*method)(Arguments...)>
class Operation<method> {
  public:
    using CostFunction = Cost (*)(const std::remove_cvref_t<Arguments>&...);
    Operation(Device& device, const char* name, CostFunction cost = all_moved)
        : device_(device), name_(name), cost_(cost) {}

    void operator()(Arguments... arguments) const {
        if (Decorator* decorator = device_.decorator()) {
            ThisCall call(*this, arguments...);
            decorator->around(call);
        } else {
            (device_.*method)(arguments...);
            device_.finished(name_);
        }
    }

  private:
    class ThisCall final : public Call {
      public:
        ThisCall(const Operation& operation, const Arguments&... arguments)
            : operation_(operation), kept_(kept(arguments)...) {}
        const char* name() const override { return operation_.name_; }
        Cost cost() const override { return std::apply(operation_.cost_, kept_); }
        std::vector<Operand> operands() override {
            std::vector<Operand> all;
            std::apply([&](auto&... argument) { (append<Arguments>(all, argument), ...); }, kept_);
            return all;
        }
        void run() override {
            std::apply([&](auto&... argument) { (operation_.device_.*method)(argument...); }, kept_);
            operation_.device_.finished(operation_.name_);
        }

      private:
        template <class Argument>
        static void append(std::vector<Operand>& all, typename Kept<Argument>::Type& argument) {
            for (const Operand& o : operands_of(argument, !std::is_reference_v<Argument>)) all.push_back(o);
        }
        const Operation& operation_;
        std::tuple<typename Kept<Arguments>::Type...> kept_;
    };

    Device& device_;
    const char* name_;
    CostFunction cost_;
};

}  // namespace longreach
