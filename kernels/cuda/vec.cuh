// Rows of memory as kernels see them: packs of elements loaded in 16-byte accesses and computed in f32, views
// with a row stride, and elementwise kernels over them.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/dialect.h"
#include "kernels/tensor.h"

namespace longreach::cuda {

using bf16 = __nv_bfloat16;

// n elements of a row, in f32 whatever the storage.
template <int n>
struct Pack {
    float v[n];
    DEVICE float& operator[](int i) { return v[i]; }
    DEVICE float operator[](int i) const { return v[i]; }
};

DEVICE float widen(float x) {
    return x;
}
DEVICE float widen(bf16 x) {
    return __bfloat162float(x);
}
template <class T>
DEVICE T narrow(float x) {
    if constexpr (std::is_same_v<T, float>)
        return x;
    else
        return __float2bfloat16(x);
}

// Accesses of n elements: 16 bytes at a time where n is 4 or 8, which the caller has found to be aligned.
template <int n>
DEVICE Pack<n> load(const float* p) {
    Pack<n> pack;
    if constexpr (n % 4 == 0) {
#pragma unroll
        for (int k = 0; k < n / 4; ++k) {
            const float4 q = reinterpret_cast<const float4*>(p)[k];
            pack[4 * k] = q.x;
            pack[4 * k + 1] = q.y;
            pack[4 * k + 2] = q.z;
            pack[4 * k + 3] = q.w;
        }
    } else {
#pragma unroll
        for (int k = 0; k < n; ++k) pack[k] = p[k];
    }
    return pack;
}
template <int n>
DEVICE void store(float* p, const Pack<n>& pack) {
    if constexpr (n % 4 == 0) {
#pragma unroll
        for (int k = 0; k < n / 4; ++k)
            reinterpret_cast<float4*>(p)[k] =
                float4{pack[4 * k], pack[4 * k + 1], pack[4 * k + 2], pack[4 * k + 3]};
    } else {
#pragma unroll
        for (int k = 0; k < n; ++k) p[k] = pack[k];
    }
}
// 8 elements are 16 bytes, 4 are 8.
template <int n>
DEVICE Pack<n> load(const bf16* p) {
    using Words = std::conditional_t<n == 8, uint4, uint2>;
    Pack<n> pack;
    if constexpr (n % 4 == 0) {
        const Words words = *reinterpret_cast<const Words*>(p);
        bf16 e[n];
        memcpy(static_cast<void*>(e), &words, sizeof(words));
#pragma unroll
        for (int k = 0; k < n; ++k) pack[k] = widen(e[k]);
    } else {
#pragma unroll
        for (int k = 0; k < n; ++k) pack[k] = widen(p[k]);
    }
    return pack;
}
template <int n>
DEVICE void store(bf16* p, const Pack<n>& pack) {
    using Words = std::conditional_t<n == 8, uint4, uint2>;
    if constexpr (n % 4 == 0) {
        bf16 e[n];
#pragma unroll
        for (int k = 0; k < n; ++k) e[k] = narrow<bf16>(pack[k]);
        Words words;
        memcpy(&words, static_cast<const void*>(e), sizeof(words));
        *reinterpret_cast<Words*>(p) = words;
    } else {
#pragma unroll
        for (int k = 0; k < n; ++k) p[k] = narrow<bf16>(pack[k]);
    }
}

// A matrix in device memory: rows `stride` elements apart.
template <class T>
struct View {
    T* data;
    int64_t stride;
    DEVICE T* at(int64_t row, int64_t col = 0) const { return data + row * stride + col; }
};
template <class T>
View<T> view(const Tensor& t) {
    return {t.as<T>(), t.row_stride};
}

// Piece i of [0, count) cut into `pieces` equal pieces (the last may be shorter or empty).
struct Range {
    int64_t begin, end;
};
DEVICE Range piece_of(int64_t count, int64_t pieces, int64_t i) {
    const int64_t size = (count + pieces - 1) / pieces;
    const int64_t begin = i * size < count ? i * size : count;
    return {begin, begin + size < count ? begin + size : count};
}

// s = 1 / (1 + e^-x) and 1 - s, each to a few units of its own size. The bound keeps e^-x finite.
struct Logistic {
    float value, rest;
};
DEVICE Logistic logistic(float x) {
    const float e = expf(fminf(-x, 87.0f));
    const float value = 1.0f / (1.0f + e);
    return {value, e * value};
}

// --- host side

// Elements of T in 16 bytes.
template <class T>
inline constexpr int wide = 16 / static_cast<int>(sizeof(T));

// Whether every row of these tensors starts on 16 bytes, and rows past the last would: an asynchronous copy of no
// bytes from there needs an aligned address too.
template <class... Tensors>
bool aligned(const Tensors&... tensors) {
    const auto one = [](const Tensor& t) {
        return reinterpret_cast<uintptr_t>(t.data()) % 16 == 0 && t.row_stride * size_of(t.dtype) % 16 == 0;
    };
    return (one(tensors) && ...);
}

template <class T>
struct Element {
    using type = T;
};
// body(Element<float>{}) or body(Element<bf16>{}).
template <class Body>
void with_element(DType dtype, Body body) {
    check(dtype == DType::f32 || dtype == DType::bf16, "a kernel on elements of another type");
    if (dtype == DType::f32)
        body(Element<float>{});
    else
        body(Element<bf16>{});
}
// body(n) with as many elements per access as T allows, or 1.
template <class T, class Body>
void with_pack(bool vectors, Body body) {
    if (vectors)
        body(std::integral_constant<int, wide<T>>{});
    else
        body(std::integral_constant<int, 1>{});
}

// The matrix an elementwise op runs over: one long row where every tensor is contiguous.
struct Extent {
    int64_t rows, width;
    template <class... Others>
    explicit Extent(const Tensor& shape, const Others&... others) : rows(shape.rows()), width(shape.cols()) {
        if (shape.contiguous() && (others.contiguous() && ...)) {
            width *= rows;
            rows = 1;
        }
    }
};

// body.at<n>(row, column) for every pack of n elements.
template <int n, class Body>
KERNEL(256)
void map_rows(Body body, int64_t rows, int64_t width) {
    const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * n;
    if (col >= width) return;
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
#pragma unroll 1  // more than one turn is rare
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += step)
        body.template at<n>(row, col);
}

inline unsigned blocks_for(int64_t items, int64_t each) {
    return static_cast<unsigned>((items + each - 1) / each);
}

template <int n, class Body>
void launch_map(const Body& body, int64_t rows, int64_t width, cudaStream_t stream) {
    if (rows <= 0 || width <= 0) return;
    const unsigned across = rows == 1 ? 256 : 32, down = 256 / across;
    const unsigned tall = blocks_for(rows, down);
    const dim3 grid(blocks_for(width, static_cast<int64_t>(across) * n), tall < 65535 ? tall : 65535);
    launch(map_rows<n, Body>, {grid, dim3(across, down), 0, stream}, body, rows, width);
}
// Packs of 16 bytes of T where `vectors` and the width allow.
template <class T, class Body>
void map(const Body& body, int64_t rows, int64_t width, bool vectors, cudaStream_t stream) {
    with_pack<T>(vectors && width % wide<T> == 0,
                 [&](auto n) { launch_map<decltype(n)::value>(body, rows, width, stream); });
}

}  // namespace longreach::cuda
