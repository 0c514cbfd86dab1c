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
            ops.sum_squares(out.vector(), x.vector());
            CHECK(std::abs(out[0] - squares) <= step * squares);
        }
    });
}

TEST_CASE("sums do not depend on the number of threads") {
    check_thread_independence([](Ops& ops) {
        Floats x = normal(1, 200001, 1);
        Doubles out(1, 2);
        ops.sum(Tensor(out.data(), DType::f64, {1}), x.vector());
        ops.sum_squares(Tensor(out.data() + 1, DType::f64, {1}), x.vector());
        return out;
    });
}
