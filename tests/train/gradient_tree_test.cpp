// The gradient of a step is a fixed binary tree over its micro-batches, bit for bit.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "train/gradient_tree.h"

using namespace longreach;

namespace {

constexpr int64_t parameters = 37;
using Vector = std::vector<float>;

Vector gradient_of(int64_t micro_batch) {
    const Rng rng(4, Purpose::test, static_cast<uint32_t>(micro_batch));
    Vector g(parameters);
    for (size_t i = 0; i < g.size(); ++i)
        g[i] = static_cast<float>(rng.normal(i) * std::exp(4 * rng.normal(1000 + i)));
    return g;
}

void add(Vector& to, const Vector& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// The tree as the header describes it, written down as a recursion.
Vector leaf(int64_t index, int64_t leaves, int64_t micro_batches) {
    Vector sum(parameters, 0.0f);
    for (int64_t m = 0; m < micro_batches; ++m)
        if (m * leaves / micro_batches == index) add(sum, gradient_of(m));
    return sum;
}
Vector subtree(int64_t begin, int64_t end, int64_t leaves, int64_t micro_batches) {
    if (end - begin == 1) return leaf(begin, leaves, micro_batches);
    const int64_t middle = (begin + end) / 2;
    Vector sum = subtree(begin, middle, leaves, micro_batches);
    add(sum, subtree(middle, end, leaves, micro_batches));
    return sum;
}

struct Machine {
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena{*ops};
    train::GradientTree tree;
    Tensor scratch;
    explicit Machine(int64_t max_micro_batches, const train::GradientTree& kind = train::GradientTree())
        : tree(kind) {
        tree.plan(arena, parameters, max_micro_batches);
        scratch = arena.reserve("scratch", DType::f32, {parameters});
        arena.commit();
    }
    void put(const model::FlatParams& to) {  // as a pass does
        if (to.write == Write::set)
            ops->copy(to.flat, scratch);
        else
            ops->add(to.flat, scratch);
    }
    Vector run(int64_t micro_batches) {
        tree.begin_step(micro_batches);
        for (int64_t m = 0; m < micro_batches; ++m) {
            ops->upload(scratch, gradient_of(m).data());
            put(tree.begin(m));
            tree.end(*ops, m);
        }
        Vector host(parameters);
        ops->download(host.data(), tree.result().flat);
        return host;
    }
    int64_t buffers() const { return static_cast<int64_t>(arena.entries().size()) - 1; }
};

}  // namespace

TEST_CASE("gradient tree: leaves are the largest power of two up to 8 and the number of micro-batches") {
    const std::vector<int64_t> expected{1, 2, 2, 4, 4, 4, 4, 8, 8};
    for (size_t i = 0; i < expected.size(); ++i)
        CHECK(train::gradient_leaves(static_cast<int64_t>(i) + 1, 8) == expected[i]);
    CHECK(train::gradient_leaves(1000, 8) == 8);
}

TEST_CASE("gradient tree: for any number of micro-batches the sum is that of the recursion, bit for bit") {
    Machine largest(40);
    bool order_matters = false;
    for (int64_t n = 1; n <= 40; ++n) {
        CAPTURE(n);
        const int64_t leaves = train::gradient_leaves(n, 8);
        const Vector expected = subtree(0, leaves, leaves, n);
        CHECK(largest.run(n) == expected);  // also: nothing is left over from the steps before
        CHECK(Machine(n).run(n) == expected);
        Vector straight(parameters, 0.0f);
        for (int64_t m = 0; m < n; ++m) add(straight, gradient_of(m));
        order_matters = order_matters || straight != expected;
    }
    CHECK(order_matters);  // else the comparison above could not fail
}

TEST_CASE("gradient tree: log2(leaves) + 1 buffers") {
    const std::map<int64_t, int64_t> buffers{{1, 1}, {2, 2}, {3, 2}, {4, 3}, {7, 3}, {8, 4}, {9, 4}, {40, 4}};
    for (const auto& [n, count] : buffers) {
        CAPTURE(n);
        CHECK(Machine(n).buffers() == count);
    }
}

TEST_CASE("gradient tree: leaves computed anywhere and combined pairwise give the same total") {
    for (int64_t n : {8, 11, 16, 40}) {
        CAPTURE(n);
        std::vector<Vector> sums;
        for (int64_t l = 7; l >= 0; --l) sums.insert(sums.begin(), leaf(l, 8, n));
        for (size_t apart = 1; apart < 8; apart *= 2)
            for (size_t l = 0; l < 8; l += 2 * apart) add(sums[l], sums[l + apart]);
        CHECK(Machine(n).run(n) == sums[0]);
    }
}

TEST_CASE("gradient tree: each rank's sum is a subtree; with its stretches merged one by one, the same") {
    for (int ranks : {2, 4, 8}) {
        for (int64_t n : {8, 11, 16, 40}) {
            CAPTURE(ranks);
            CAPTURE(n);
            const int64_t each = 8 / ranks;
            int64_t next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                Machine machine(n, train::GradientTree(8, rank, ranks));
                machine.tree.begin_step(n);
                const train::GradientTree::Range own = machine.tree.own();
                CHECK(own.first == next);
                next = own.end;
                for (int64_t m = own.first; m < own.end; ++m) {
                    machine.ops->upload(machine.scratch, gradient_of(m).data());
                    machine.put(machine.tree.begin(m));
                    machine.tree.merge(*machine.ops, m, 20, parameters);
                    machine.tree.merge(*machine.ops, m, 0, 20);
                    machine.tree.advance(m);
                }
                Vector host(parameters);
                machine.ops->download(host.data(), machine.tree.result().flat);
                CHECK(host == subtree(rank * each, (rank + 1) * each, 8, n));
            }
            CHECK(next == n);
        }
    }
}

TEST_CASE("gradient tree: asking for the result of an unfinished step is a bug that is caught") {
    Machine machine(4);
    machine.tree.begin_step(4);
    machine.tree.begin(0);
    machine.tree.end(*machine.ops, 0);
    machine.tree.begin(1);
    machine.tree.end(*machine.ops, 1);
    machine.tree.begin(2);
    machine.tree.end(*machine.ops, 2);
    CHECK_THROWS_AS(machine.tree.result(), Error);
}
