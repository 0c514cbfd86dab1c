// A typed view of device memory. It owns nothing: the arena that planned the memory, or whoever allocated it, does.
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
//
// A tensor of a plan exists before its memory does: it is an offset into memory that the plan's owner allocates
// later (model::Arena). data() needs the memory; everything else works without it.
struct Tensor {
    DType dtype = DType::f32;
    int rank = 0;
    std::array<int64_t, 4> shape{};
    int64_t row_stride = 0;

    Tensor() = default;
    Tensor(void* where, DType type, std::initializer_list<int64_t> dims)
        : Tensor(nullptr, reinterpret_cast<uintptr_t>(where), type, dims) {}
    // `offset` bytes into *memory, which may be null until data() is called and must not move after that.
    Tensor(std::byte* const* memory, int64_t offset, DType type, std::initializer_list<int64_t> dims)
        : Tensor(memory, static_cast<uintptr_t>(offset), type, dims) {}

    explicit operator bool() const { return memory_ != nullptr || at_ != 0; }
    void* data() const {
        if (memory_ == nullptr) return reinterpret_cast<void*>(at_);
        check(*memory_ != nullptr, "a tensor is used before its plan has memory");
        return *memory_ + at_;
    }
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
        return static_cast<T*>(data());
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
        return t.moved(begin * row_stride);
    }
    // The same, or nothing of nothing.
    Tensor first_rows_if_any(int64_t n) const { return *this ? first_rows(n) : Tensor(); }
    // Columns [begin, begin + n) of every row, as a matrix.
    Tensor col_range(int64_t begin, int64_t n) const {
        check(begin >= 0 && n >= 0 && begin + n <= cols(), "columns {}+{} of {}", begin, n, cols());
        Tensor t = *this;
        t.rank = 2;
        t.shape = {rows(), n, 0, 0};
        return t.moved(begin);
    }
    // The first elements of contiguous memory as another shape.
    Tensor shaped(std::initializer_list<int64_t> dims) const {
        const Tensor t(memory_, at_, dtype, dims);
        check(contiguous() && t.count() <= count(), "{} elements of {}", t.count(), count());
        return t;
    }
    // Elements [begin, begin + n) of contiguous memory, as a vector.
    Tensor range(int64_t begin, int64_t n) const {
        check(contiguous() && begin >= 0 && n >= 0 && begin + n <= count(), "elements {}+{} of {}", begin, n,
              count());
        return Tensor(memory_, at_, dtype, {n}).moved(begin);
    }
    Tensor first(int64_t n) const { return range(0, n); }

    // The same shape, `elements` further on.
    Tensor moved(int64_t elements) const {
        Tensor t = *this;
        if (t) t.at_ += static_cast<uintptr_t>(elements * size_of(dtype));
        return t;
    }
    // The same shape in other memory.
    Tensor placed_at(void* where) const {
        Tensor t = *this;
        t.memory_ = nullptr;
        t.at_ = reinterpret_cast<uintptr_t>(where);
        return t;
    }

  private:
    Tensor(std::byte* const* memory, uintptr_t at, DType type, std::initializer_list<int64_t> dims)
        : dtype(type), memory_(memory), at_(at) {
        check(dims.size() >= 1 && dims.size() <= 4, "a tensor has 1 to 4 dimensions, not {}", dims.size());
        for (int64_t d : dims) shape[static_cast<size_t>(rank++)] = d;
        row_stride = cols();
    }

    std::byte* const* memory_ = nullptr;  // null: at_ is the address
    uintptr_t at_ = 0;                    // bytes from *memory_
};

}  // namespace longreach
