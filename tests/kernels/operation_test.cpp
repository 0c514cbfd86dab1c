// The table of operations: what a decorator sees of a call, and what it can do about it.
#include <cmath>
#include <limits>

#include "kernels/op_times.h"
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Names the first operation that writes a NaN or an infinity.
class NanScan final : public Decorator {
  public:
    std::string found;
    void around(Call& call) override {
        call.run();
        for (const Operand& o : call.operands())
            if (o.written && o.tensor->dtype == DType::f32 && found.empty())
                for (int64_t i = 0; i < o.tensor->count(); ++i)
                    if (!std::isfinite(o.tensor->f32()[i])) found = call.name();
    }
};

class Trace final : public Decorator {
  public:
    struct Seen {
        std::string name;
        Cost cost;
        std::vector<const void*> written, read;
    };
    std::vector<Seen> calls;
    void around(Call& call) override {
        Seen seen{call.name(), call.cost(), {}, {}};
        for (const Operand& o : call.operands())
            if (*o.tensor) (o.written ? seen.written : seen.read).push_back(o.tensor->data());
        calls.push_back(seen);
        call.run();
    }
};

// Runs an operation on other memory than it was given.
class Elsewhere final : public Decorator {
  public:
    explicit Elsewhere(std::vector<float>& memory) : memory_(memory) {}
    void around(Call& call) override {
        Tensor& first = *call.operands()[0].tensor;
        first = first.placed_at(memory_.data());
        call.run();
    }

  private:
    std::vector<float>& memory_;
};

struct Product {
    std::vector<float> x = {1, 2, 3, 4, 5, 6}, w = {1, 0, 1, 0, 1, 1}, y = std::vector<float>(4);
    Tensor in{x.data(), DType::f32, {2, 3}}, weight{w.data(), DType::f32, {2, 3}},
        out{y.data(), DType::f32, {2, 2}};
};

}  // namespace

TEST_CASE("a decorator sees name, cost and operands of a call") {
    const auto ops = make_test_ops({.threads = 1});
    const auto trace = std::make_shared<Trace>();
    Product p;
    ops->linear(p.out, p.in, p.weight, Write::set);
    ops->decorate(trace);
    ops->linear(p.out, p.in, p.weight, Write::set);
    ops->decorate(nullptr);
    ops->linear(p.out, p.in, p.weight, Write::set);
    REQUIRE(trace->calls.size() == 1);
    const Trace::Seen& seen = trace->calls[0];
    CHECK(seen.name == "linear");
    CHECK(seen.cost.shape == " 3->2");
    CHECK(seen.cost.flops == 2.0 * 2 * 3 * 2);
    CHECK(seen.cost.bytes == 4.0 * (4 + 6 + 6));
    CHECK(seen.written == std::vector<const void*>{p.y.data()});
    CHECK(seen.read == std::vector<const void*>{p.x.data(), p.w.data()});
    CHECK(p.y == std::vector<float>{4, 5, 10, 11});
}

TEST_CASE("tensors within specs and slots are operands") {
    const auto ops = make_test_ops({.threads = 1});
    const auto trace = std::make_shared<Trace>();
    ops->decorate(trace);
    std::vector<float> memory(6, 1.0f);
    const auto one = [&](size_t i) { return Tensor(&memory[i], DType::f32, {1, 1}); };
    const AdamSlot slot{.param = one(0), .gradient = one(1), .first = one(2), .second = one(3)};
    ops->adam(std::vector<AdamSlot>{slot, slot}, {});
    ops->mix(one(4), {.param = one(0)}, one(4), {.param = one(1)}, one(5));
    REQUIRE(trace->calls.size() == 2);
    const Trace::Seen &adam = trace->calls[0], &mix = trace->calls[1];
    CHECK(adam.cost.bytes == 2 * 7 * 4.0);
    CHECK(adam.written.size() == 6);
    CHECK(adam.read == std::vector<const void*>{&memory[1], &memory[1]});
    CHECK(mix.cost.bytes == 3 * 4.0);
    CHECK(mix.read == std::vector<const void*>{&memory[0], &memory[4], &memory[1], &memory[5]});
}

TEST_CASE("a decorator may run a call on other memory") {
    const auto ops = make_test_ops({.threads = 1});
    std::vector<float> memory(4);
    ops->decorate(std::make_shared<Elsewhere>(memory));
    Product p;
    ops->linear(p.out, p.in, p.weight, Write::set);
    CHECK(p.y == std::vector<float>(4));
    CHECK(memory == std::vector<float>{4, 5, 10, 11});
}

TEST_CASE("a search for NaN names the first operation that makes one") {
    const auto ops = make_test_ops({.threads = 1});
    const auto scan = std::make_shared<NanScan>();
    ops->decorate(scan);
    Product p;
    ops->linear(p.out, p.in, p.weight, Write::set);
    CHECK(scan->found.empty());
    p.w[2] = std::numeric_limits<float>::quiet_NaN();
    ops->copy(p.out, p.out);
    ops->linear_relu2(p.out, p.in, p.weight);
    ops->linear(p.out, p.in, p.weight, Write::set);
    CHECK(scan->found == "linear relu2");
}

TEST_CASE("a recording does not run past a decorator") {
    const auto ops = make_test_ops({.threads = 1});
    const auto times = std::make_shared<OpTimes>(*ops);
    ops->decorate(times);
    Product p;
    for (int i = 0; i < 3; ++i) ops->replay("key", [&] { ops->linear(p.out, p.in, p.weight, Write::set); });
    CHECK(times->totals().at("linear 3->2").calls == 3);
    CHECK(times->totals().at("linear 3->2").flops == 3 * 24.0);
}
