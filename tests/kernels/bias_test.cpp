// A bias in every row, and its gradient, against plain loops.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {
struct Shape {
    int64_t rows, width;
};
const std::vector<Shape> shapes = {{1, 1}, {3, 7}, {5, 33}, {300, 20}, {1000, 130}};
}  // namespace

TEST_CASE("a bias is added to every row of a range of columns") {
    for_each_isa([](Ops& ops) {
        for (const auto& [rows, width] : shapes) {
            CAPTURE(rows);
            Floats wide = normal(rows, width + 5, 1), before = wide, bias = normal(1, width, 2);
            ops.add_bias(wide.tensor().col_range(2, width), bias.vector());
            bool right = true;
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = 0; c < width + 5; ++c) {
                    const bool inside = c >= 2 && c < width + 2;
                    right =
                        right && wide.at(r, c) == (inside ? before.at(r, c) + bias[c - 2] : before.at(r, c));
                }
            CHECK(right);
        }
    });
}

TEST_CASE("the gradient of a bias adds up the rows") {
    for_each_isa([](Ops& ops) {
        for (const auto& [rows, width] : shapes) {
            CAPTURE(rows);
            Floats dy = normal(rows, width + 3, 1), dbias = normal(1, width, 2), before = dbias;
            ops.add_bias_backward(dbias.vector(), dy.tensor().col_range(1, width));
            double most = 0;
            for (int64_t c = 0; c < width; ++c) {
                double sum = before[c], magnitude = std::abs(sum);
                for (int64_t r = 0; r < rows; ++r) {
                    sum += dy.at(r, c + 1);
                    magnitude += std::abs(double{dy.at(r, c + 1)});
                }
                // Every addition rounds a partial sum, which is below the sum of magnitudes.
                most = std::max(
                    most, std::abs(dbias[c] - sum) / (static_cast<double>(rows + 1) * unit * magnitude));
            }
            CHECK(most <= 1);
        }
    });
}

TEST_CASE("biases and their gradients do not depend on the number of threads") {
    check_thread_independence([](Ops& ops) {
        Floats y = normal(400, 200, 1), bias = normal(1, 200, 2);
        ops.add_bias(y.tensor(), bias.vector());
        ops.add_bias_backward(bias.vector(), y.tensor());
        return bias;
    });
}
