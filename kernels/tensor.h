// A typed view of device memory. Owns nothing; whoever planned the memory does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/error.h"

namespace longreach {

enum class DType : uint8_t { f32, bf16, f64, i32 };

inline constexpr int64_t size_of(DType dtype) {
    switch (dtype) {
        case DType::bf16:
            return 2;
        case DType::f32:
            return 4;
        case DType::i32:
            return 4;
        case DType::f64:
            return 8;
    }
    return 0;
}
const char* name_of(DType dtype);

// Up to four dimensions, row-major. The last dimension is contiguous; consecutive rows
// (all leading dimensions taken together) lie `row_stride` elements apart, so a slice of columns of a matrix
// is a Tensor too.
struct Tensor {
    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<int64_t, 4> shape{};
    int64_t row_stride = 0;

    Tensor() = default;
    Tensor(void* where, DType type, std::initializer_list<int64_t> dims) : data(where), dtype(type) {
        check(dims.size() >= 1 && dims.size() <= 4, "a tensor has 1 to 4 dimensions, not {}", dims.size());
        for (int64_t d : dims) shape[static_cast<size_t>(rank++)] = d;
        row_stride = cols();
    }

    explicit operator bool() const { return data != nullptr; }
    int64_t cols() const { return rank == 0 ? 0 : shape[static_cast<size_t>(rank - 1)]; }
    int64_t rows() const {
        int64_t n = 1;
        for (int i = 0; i + 1 < rank; ++i) n *= shape[static_cast<size_t>(i)];
        return n;
    }
    int64_t count() const { return rank == 0 ? 0 : rows() * cols(); }
    int64_t bytes() const { return count() * size_of(dtype); }
    bool contiguous() const { return row_stride == cols() || rows() <= 1; }

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
    float* f32() const { return as<float>(); }
    double* f64() const { return as<double>(); }
    int32_t* i32() const { return as<int32_t>(); }

    // The first n rows, as a matrix.
    Tensor first_rows(int64_t n) const { return row_range(0, n); }
    Tensor row_range(int64_t begin, int64_t n) const {
        check(begin >= 0 && n >= 0 && begin + n <= rows(), "rows {}+{} of {}", begin, n, rows());
        Tensor t = *this;
        t.rank = 2;
        t.shape = {n, cols(), 0, 0};
        t.data = data ? static_cast<std::byte*>(data) + begin * row_stride * size_of(dtype) : nullptr;
        return t;
    }
    // The same, or nothing of nothing.
    Tensor first_rows_if_any(int64_t n) const { return data ? first_rows(n) : Tensor(); }
    // Columns [begin, begin + n) of every row, as a matrix.
    Tensor col_range(int64_t begin, int64_t n) const {
        check(begin >= 0 && n >= 0 && begin + n <= cols(), "columns {}+{} of {}", begin, n, cols());
        Tensor t = *this;
        t.rank = 2;
        t.shape = {rows(), n, 0, 0};
        t.data = data ? static_cast<std::byte*>(data) + begin * size_of(dtype) : nullptr;
        return t;
    }
    // The first elements of contiguous memory as another shape.
    Tensor shaped(std::initializer_list<int64_t> dims) const {
        const Tensor t(data, dtype, dims);
        check(contiguous() && t.count() <= count(), "{} elements of {}", t.count(), count());
        return t;
    }
    // The first n elements of a one-dimensional tensor.
    Tensor first(int64_t n) const {
        check(rank == 1 && n <= shape[0], "first {} of {}", n, shape[0]);
        Tensor t = *this;
        t.shape[0] = n;
        t.row_stride = n;
        return t;
    }
};

}  // namespace longreach
