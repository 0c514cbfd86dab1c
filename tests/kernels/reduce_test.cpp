// Sums in f64 over fixed blocks.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("sum and sum_squares agree with a plain loop") {
    for_each_isa([](Ops& ops) {
        for (int64_t count : {1, 7, 100, 16384, 100003, 3000001}) {
            CAPTURE(count);
            Floats x = normal(1, count, 1, 2.0, 0.1);
            Doubles out(1, 1);
            double sum = 0, squares = 0, magnitude = 0;
            for (int64_t i = 0; i < count; ++i) {
                sum += x[i];
                squares += double{x[i]} * x[i];
                magnitude += std::abs(double{x[i]});
            }
            // Either order of `count` additions in f64 errs by at most count * 2^-53 times the sum of
            // magnitudes; squares of f32 are exact in f64.
            const double step = 2 * static_cast<double>(count) * 0x1p-53;
            ops.sum(out.vector(), x.vector());
            CHECK(std::abs(out[0] - sum) <= step * magnitude);
            const Tensor part = x.vector();
            ops.sum_squares(out.vector(), {&part, 1});
            CHECK(std::abs(out[0] - squares) <= step * squares);
        }
    });
}

TEST_CASE("the sum of squares of a tensor has the same bits whatever is summed with it") {
    for_each_isa([](Ops& ops) {
        Floats x = normal(1, 40000, 1);
        std::vector<Tensor>
            parts;  // more than a launch takes; some without the alignment of vectors, one of many blocks
        for (int64_t i = 0; i < 350; ++i)
            parts.push_back(x.vector().range(7 * i, i == 170 ? 30000 : 1 + i % 9 * 36));
        Doubles together(1, std::ssize(parts)), alone(1, 1);
        ops.sum_squares(together.vector(), parts);
        for (size_t i = 0; i < parts.size(); i += i % 10 == 0 ? 1 : 9) {
            CAPTURE(i);
            ops.sum_squares(alone.vector(), {&parts[i], 1});
            CHECK(together[static_cast<int64_t>(i)] == alone[0]);
            CHECK(alone[0] > 0);
        }
        ops.sum_squares(Tensor(alone.data(), DType::f64, {0}), {});
    });
}

TEST_CASE("sums do not depend on the number of threads") {
    check_thread_independence([](Ops& ops) {
        Floats x = normal(1, 200001, 1);
        Doubles out(1, 2);
        ops.sum(Tensor(out.data(), DType::f64, {1}), x.vector());
        const Tensor part = x.vector();
        ops.sum_squares(Tensor(out.data() + 1, DType::f64, {1}), {&part, 1});
        return out;
    });
}
