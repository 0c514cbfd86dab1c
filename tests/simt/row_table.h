// A table of row operations: each is run on the kernels in f32 and in bf16, at several shapes, under the
// schedules of the harness, and compared with the CPU's on the numbers that the kernels were given.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "simt/row_matrices.h"

namespace longreach::test {

// How far a result may be from the CPU's: `steps` roundings of f32 of numbers up to `scale`, both sides
// together. A bf16 result may be one rounding of its own further away.
struct Bound {
    double steps = 0, scale = 0;
};

struct Shape {
    int64_t rows, width;
    int64_t gap = 0;  // elements between the rows of activations: 8 keeps 16 bytes aligned, 3 does not
};

using Tensors = std::vector<Tensor>;

// The operands of one operation at one shape, in host memory for the CPU and in device
// memory for the kernels.
class Problem {
  public:
    Problem(DType type, const Shape& of, int schedules);
    ~Problem();
    const Shape shape;

    // Operands are known by the number that these return. Activations are matrices [rows, cols] of the type
    // under test, `gap` elements between the rows; inputs are normal numbers times `scale` plus `offset`.
    // What is only written starts as NaN on the device.
    int in(int64_t rows, int64_t cols, double scale = 1, double offset = 0);
    int out(int64_t rows, int64_t cols, Bound bound);
    int in_out(int64_t rows, int64_t cols, Bound bound, double scale = 1);
    // f32 on the device whatever the type; contiguous.
    int f32(int64_t rows, int64_t cols, double scale = 1, double offset = 0);
    int f32_out(int64_t rows, int64_t cols, Bound bound);
    int f32_in_out(int64_t rows, int64_t cols, Bound bound, double scale = 1);
    // The same with one dimension.
    int vec(int64_t count, double scale = 1, double offset = 0);
    int vec_out(int64_t count, Bound bound);
    int vec_in_out(int64_t count, Bound bound, double scale = 1);
    int total_out(Bound bound);  // f64 [1]
    int doubles_out(int64_t rows, int64_t cols, Bound bound);
    int integers(const std::vector<int32_t>& values);   // i32 [count]
    int integers_out(int64_t count);                    // equal to the CPU's
    int in_of(DType type, int64_t rows, int64_t cols);  // an activation of this type
    int out_of(DType type, int64_t rows, int64_t cols, Bound bound);
    int in_out_of(DType type, int64_t rows, int64_t cols, Bound bound);
    Floats& values(int operand);  // of an input, to be changed before run()

    DType type() const { return type_; }
    // Device memory of exactly this many bytes, never written, as long as the problem.
    Tensor workspace(int64_t bytes);
    // The CPU's, then the kernels under every schedule, then the comparison: results, and what
    // lies between the rows.
    void run(const std::function<void(Ops& cpu, const Tensors& t)>& reference,
             const std::function<void(const Tensors& t)>& launches);

  private:
    struct Operand;
    int add(DType type, int64_t rows, int64_t cols, bool vector, int64_t gap);
    int fill(int operand, double scale, double offset);
    int result(int operand, Bound bound);

    DType type_;
    int schedules_;
    std::vector<std::unique_ptr<Operand>> operands_;
    std::vector<std::unique_ptr<simt::DeviceArray<float>>> workspaces_;
};

struct RowCase {
    std::string launcher;  // of kernels/cuda/kernels.h
    std::string variant;
    std::vector<Shape> shapes;
    std::function<void(Problem&)> body;
    bool activations = true;  // false: all of its operands are f32 by contract, there is no bf16 run
};

// The parts of the table.
std::vector<RowCase> element_cases();    // memory, embedding, gates, activations, mixing
std::vector<RowCase> row_cases();        // norms, heads, neighbours, loss
std::vector<RowCase> delta_cases();      // the gated delta rule
std::vector<RowCase> parameter_cases();  // what decides scores, sums, optimisers

}  // namespace longreach::test
