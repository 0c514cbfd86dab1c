// Shared by the kernel tests: instruction sets to try, aligned host matrices
// with guarded padding, comparisons.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/test_ops.h"

namespace longreach::test {

// Half an ulp of 1 in f32: the relative error of one correctly rounded operation.
inline constexpr double unit = 0x1p-24;
// The harness has schedules by them, the first that of one thread, and no threads.
inline const std::vector<int> thread_counts = brief() ? std::vector{2, 8} : std::vector{1, 2, 3, 8};

// The instruction sets this machine has; a missing one is an Error with code device, anything else a failure.
inline const std::vector<std::string>& instruction_sets() {
    static const std::vector<std::string> found = [] {
        std::vector<std::string> names;
        for (const char* isa : {"generic", "avx2", "avx512", "neon", "neon_bf16"}) {
            try {
                make_test_ops({.threads = 1, .isa = isa});
                names.push_back(isa);
            } catch (const Error& error) {
                if (error.code() != ExitCode::device) throw;
            }
        }
        return names;
    }();
    return found;
}

// Runs body(ops) for every instruction set, by default with two threads.
inline void for_each_isa(const std::function<void(Ops&)>& body, int threads = 2) {
    for (const std::string& isa : instruction_sets()) {
        CAPTURE(isa);
        const auto ops = make_test_ops({.threads = threads, .isa = isa});
        body(*ops);
    }
}

// A device that rounds the inputs of products to bf16; null on a machine without one.
inline std::unique_ptr<Ops> bf16_ops(int threads, const char* isa = "") {
    try {
        return make_test_ops({.threads = threads, .precision = Precision::bf16, .isa = isa});
    } catch (const Error& error) {
        if (error.code() != ExitCode::device) throw;
        return nullptr;
    }
}
// The instruction sets of such devices on this machine: its best, and vectors where that has tiles.
inline std::vector<const char*> bf16_sets() {
    const auto best = bf16_ops(1);
    if (!best) return {};
    if (best->describe().find("_amx") == std::string::npos) return {""};
    return {"", "avx512"};
}
// The largest relative error of the rounding of such an input: half an ulp of 8 bits.
inline constexpr double bf16_input = 0x1p-9;
// The nearest bf16, of two the even one.
inline float bf16_rounded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits += 0x7FFF + ((bits >> 16) & 1);
    bits &= 0xFFFF0000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

// A matrix on the host: 64-byte aligned, rows `stride` elements apart. The padding between rows
// and one stretch after the last row hold a guard pattern, so that a write outside the matrix
// shows up in `guards_intact`.
template <class T>
class Host {
  public:
    Host(int64_t rows, int64_t cols, int64_t stride = 0)
        : rows_(rows),
          cols_(cols),
          stride_(stride ? stride : cols),
          lines_(lines_for(rows_ * stride_ + guard)) {
        std::memset(static_cast<void*>(lines_.data()), guard_byte, lines_.size() * sizeof(Line));
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = 0; c < cols_; ++c) at(r, c) = T{};
    }

    T* data() { return reinterpret_cast<T*>(lines_.data()); }
    const T* data() const { return reinterpret_cast<const T*>(lines_.data()); }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    T& at(int64_t r, int64_t c) { return data()[r * stride_ + c]; }
    const T& at(int64_t r, int64_t c) const { return data()[r * stride_ + c]; }
    T& operator[](int64_t i) { return at(i / cols_, i % cols_); }
    const T& operator[](int64_t i) const { return at(i / cols_, i % cols_); }
    int64_t count() const { return rows_ * cols_; }

    // [rows, cols]; `vector` is the same memory as [count] and needs no padding between rows.
    Tensor tensor() {
        Tensor t(data(), dtype(), {rows_, cols_});
        t.row_stride = stride_;
        return t;
    }
    Tensor vector() { return Tensor(data(), dtype(), {count()}); }

    bool guards_intact() const {
        const auto* bytes = reinterpret_cast<const unsigned char*>(data());
        const int64_t row_bytes = cols_ * int64_t{sizeof(T)}, stride_bytes = stride_ * int64_t{sizeof(T)};
        const int64_t end = static_cast<int64_t>(lines_.size() * sizeof(Line));
        for (int64_t b = 0; b < end; ++b) {
            const bool inside = b < rows_ * stride_bytes && b % stride_bytes < row_bytes;
            if (!inside && bytes[b] != guard_byte) return false;
        }
        return true;
    }

  private:
    struct alignas(64) Line {
        std::byte bytes[64];
    };
    static constexpr unsigned char guard_byte = 0xA5;
    static constexpr int64_t guard = 32;  // elements after the last row

    static size_t lines_for(int64_t elements) { return static_cast<size_t>(elements) * sizeof(T) / 64 + 1; }
    static DType dtype() {
        if constexpr (std::is_same_v<T, double>)
            return DType::f64;
        else if constexpr (std::is_same_v<T, int32_t>)
            return DType::i32;
        else if constexpr (std::is_same_v<T, uint16_t>)
            return DType::bf16;
        else
            return DType::f32;
    }

    int64_t rows_, cols_, stride_;
    std::vector<Line> lines_;
};
using Floats = Host<float>;
using Ints = Host<int32_t>;
using Doubles = Host<double>;
using Bf16s = Host<uint16_t>;

// Normal numbers times `scale` plus `offset`; another `stream`, other numbers.
inline Floats normal(int64_t rows, int64_t cols, uint32_t stream, double scale = 1, double offset = 0,
                     int64_t stride = 0) {
    const Rng rng(11, Purpose::test, stream);
    Floats x(rows, cols, stride);
    for (int64_t i = 0; i < x.count(); ++i)
        x[i] = static_cast<float>(offset + scale * rng.normal(static_cast<uint64_t>(i)));
    return x;
}
inline Ints integers(int64_t rows, int64_t cols, uint32_t stream, int64_t below) {
    const Rng rng(11, Purpose::test, stream);
    Ints x(rows, cols);
    for (int64_t i = 0; i < x.count(); ++i)
        x[i] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), static_cast<uint64_t>(below)));
    return x;
}

// max over the elements of |actual - expected(i)| / bound(i): at most 1 where every element keeps its bound.
// A NaN counts as infinite.
template <class T, class Expected, class Bound>
double worst(const Host<T>& actual, Expected expected, Bound bound) {
    double most = 0;
    for (int64_t i = 0; i < actual.count(); ++i) {
        const double error = std::abs(static_cast<double>(actual[i]) - expected(i));
        const double ratio = error == 0 ? 0 : error / bound(i);
        if (!(ratio <= most)) most = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    }
    return most;
}

template <class T>
bool same_bits(const Host<T>& a, const Host<T>& b) {
    if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
    for (int64_t r = 0; r < a.rows(); ++r)
        if (std::memcmp(&a.at(r, 0), &b.at(r, 0), static_cast<size_t>(a.cols()) * sizeof(T)) != 0)
            return false;
    return true;
}

// The elements of several results in one row, for check_thread_independence.
inline Floats joined(std::initializer_list<const Floats*> parts) {
    int64_t count = 0, to = 0;
    for (const Floats* part : parts) count += part->count();
    Floats all(1, count);
    for (const Floats* part : parts)
        for (int64_t i = 0; i < part->count(); ++i) all[to++] = (*part)[i];
    return all;
}

// Runs `compute(ops)`, which returns a Host of results, at every thread count and expects the same bits.
template <class Compute>
void check_thread_independence(Compute compute) {
    for (const std::string& isa : instruction_sets()) {
        CAPTURE(isa);
        const auto one = make_test_ops({.threads = 1, .isa = isa});
        const auto expected = compute(*one);
        for (int threads : thread_counts) {
            CAPTURE(threads);
            const auto ops = make_test_ops({.threads = threads, .isa = isa});
            CHECK(same_bits(compute(*ops), expected));
        }
    }
}

}  // namespace longreach::test
