// Matrix products callable from inside a parallel region: one thread, one product. Include between
// isa_begin.h and isa_end.h; defined in gemm.cpp.

// A row-major f32 matrix or its transpose: element (i, j) is data[i * row_stride + j], transposed
// data[j * row_stride + i].
struct Factor {
    const float* data = nullptr;
    int64_t row_stride = 0;
    bool transposed = false;
};

// Floats of 64-byte aligned scratch gemm_serial needs, whatever the
// shape: what CpuOps::scratch_of(thread) holds.
inline constexpr int64_t gemm_serial_scratch = 1 << 17;

// c [m, n] = alpha * a [m, k] b [k, n] + beta * c, in f32; c is not read when beta is 0 and must not overlap
// a or b. Rows of c lie c_stride floats apart. The sum order of an element depends on k alone.
void gemm_serial(float* c, int64_t c_stride, const Factor& a, const Factor& b, int64_t m, int64_t n,
                 int64_t k, float alpha, float beta, float* scratch);
