// Matrix products callable from inside a parallel region: one thread, one product. Include between
// isa_begin.h and isa_end.h; defined in gemm.cpp.

// A row-major f32 matrix or its transpose: element (i, j) is data[i * row_stride + j], transposed
// data[j * row_stride + i].
struct Factor {
    const float* data = nullptr;
    int64_t row_stride = 0;
    bool transposed = false;
};

// The columns of one head, from a sequence's first row on.
struct HeadRows {
    float* at;
    int64_t stride;
    HeadRows(const Tensor& t, int64_t first_row, int64_t col)
        : at(t.f32() + first_row * t.row_stride + col), stride(t.row_stride) {}
    float* operator[](int64_t row) const { return at + row * stride; }
    Factor from(int64_t row, bool transposed = false) const {
        return {at + row * stride, stride, transposed};
    }
};

enum class Finish { none, relu2, relu2_backward };

// c [m, n] = alpha * a [m, k] b [k, n] + beta * c, sums in f32; c is not read when beta is 0 and must not overlap
// a or b. Rows of c lie c_stride floats apart.
struct MatrixProduct {
    float* c = nullptr;
    int64_t c_stride = 0;
    Factor a, b;
    int64_t m = 0, n = 0, k = 0;
    float alpha = 1.0f, beta = 0.0f;
    // Of c only what lies on and below its diagonal is wanted, and little more is computed; a is not transposed.
    bool lower = false;
    Finish finish = Finish::none;
    const float* h = nullptr;  // [m, n]: what relu2_backward multiplies with, as 2 sqrt(h)
    int64_t h_stride = 0;
};

// 64-byte aligned floats that gemm_serial needs for any shape: what CpuOps::scratch_of(thread) holds.
inline constexpr int64_t gemm_serial_scratch = 1 << 17;

// What a product multiplies: f32, or both sides rounded to bf16, in vectors or in the tiles of AMX (tiles.h).
enum class Products { f32, bf16, bf16_tiles };

// The sum order of an element depends on k alone. Both sides are rounded as in products of all threads.
void gemm_serial(const MatrixProduct& product, float* scratch, Products products);

#if defined(LONGREACH_ISA_AVX512)
// Whether a product in tiles agrees with one in vectors, on a CPU that says it has tiles.
bool tiles_agree();
#endif
