// Shared by the tests of row kernels: matrices in device memory in either element type, and comparisons.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <type_traits>

#include "kernels/support.h"
#include "simt/simt.h"

namespace longreach::test {

using bf16 = __nv_bfloat16;
inline constexpr double bf16_unit =
    0x1p-8;  // bf16 has 8 significant bits: the relative error of one rounding

inline float rounded(float x) {
    return __bfloat162float(__float2bfloat16(x));
}

// Device memory of a matrix of floats stored as T, with a stride, and back.
template <class T>
class Matrix {
  public:
    Matrix(const Floats& from, int64_t stride = 0)
        : rows_(from.rows()),
          cols_(from.cols()),
          stride_(stride ? stride : cols_),
          memory_(static_cast<size_t>(rows_ * stride_)) {
        std::vector<T> all(memory_.size());
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = 0; c < cols_; ++c) {
                if constexpr (std::is_same_v<T, float>)
                    all[static_cast<size_t>(r * stride_ + c)] = from.at(r, c);
                else
                    all[static_cast<size_t>(r * stride_ + c)] = __float2bfloat16(from.at(r, c));
            }
        memory_.set(all);
    }
    Tensor tensor() const {
        Tensor t(memory_.data(), std::is_same_v<T, float> ? DType::f32 : DType::bf16, {rows_, cols_});
        t.row_stride = stride_;
        return t;
    }
    Tensor vector() const { return Tensor(memory_.data(), DType::f32, {rows_ * cols_}); }
    Floats get() const {
        const std::vector<T> all = memory_.get();
        Floats to(rows_, cols_);
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = 0; c < cols_; ++c) {
                if constexpr (std::is_same_v<T, float>)
                    to.at(r, c) = all[static_cast<size_t>(r * stride_ + c)];
                else
                    to.at(r, c) = __bfloat162float(all[static_cast<size_t>(r * stride_ + c)]);
            }
        return to;
    }
    simt::Output output() const { return memory_.output(); }

  private:
    int64_t rows_, cols_, stride_;
    simt::DeviceArray<T> memory_;
};

inline Floats normal_bf16(int64_t rows, int64_t cols, uint32_t stream, double scale = 1) {
    Floats x = normal(rows, cols, stream, scale);
    for (int64_t i = 0; i < x.count(); ++i) x[i] = rounded(x[i]);
    return x;
}

inline Tensor ints(const simt::DeviceArray<int32_t>& a) {
    return Tensor(a.data(), DType::i32, {static_cast<int64_t>(a.size())});
}
inline Tensor workspace(const simt::DeviceArray<float>& a) {
    return Tensor(a.data(), DType::f32, {static_cast<int64_t>(a.size())});
}
inline size_t floats(int64_t bytes) {
    return static_cast<size_t>(bytes / 4);
}

}  // namespace longreach::test
