// Zero, copy, add.
//
//   zero  to = 0;  copy  to = from, f32 and bf16 converted where they differ;  add  to += from
//
// 4, 8 and 12 bytes per f32 element, no or one FLOP. One pack of 16 bytes per thread; matrices with gaps
// between their rows by tiles of 8 rows, others as one row.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

// Bytes, as words of 4 where they are.
template <class Word>
struct Zero {
    Word* to;
    template <int n>
    DEVICE void at(int64_t, int64_t c) const {
        if constexpr (n == 4) {
            *reinterpret_cast<float4*>(to + c) = float4{0, 0, 0, 0};
        } else {
            to[c] = Word{};
        }
    }
};

template <class To, class From>
struct Copy {
    View<To> to;
    View<const From> from;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        store(to.at(r, c), load<n>(from.at(r, c)));
    }
};
// Elements that are only moved.
template <class Word>
struct Move {
    View<Word> to;
    View<const Word> from;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        *to.at(r, c) = *from.at(r, c);
    }
};

template <class To, class From>
struct AddTo {
    View<To> to;
    View<const From> from;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        Pack<n> sum = load<n>(to.at(r, c));
        const Pack<n> other = load<n>(from.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) sum[k] += other[k];
        store(to.at(r, c), sum);
    }
};

bool floating(DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16;
}

// map() with packs of 4 where the types differ.
template <class To, class From, class Body>
void map_pair(const Body& body, const Extent& extent, bool vectors, Stream stream) {
    if constexpr (std::is_same_v<To, From>) {
        map<To>(body, extent.rows, extent.width, vectors, stream);
    } else {
        map<float>(body, extent.rows, extent.width, vectors, stream);
    }
}

}  // namespace

void zero(Tensor to, Stream stream) {
    check(to.contiguous(), "zero of a strided tensor");
    const int64_t bytes = to.bytes();
    if (bytes % 4 == 0)
        map<float>(Zero<float>{to.as<float>()}, 1, bytes / 4, aligned(to), stream);
    else
        launch_map<1>(Zero<unsigned char>{to.as<unsigned char>()}, 1, bytes, stream);
}

void copy(Tensor to, const Tensor& from, Stream stream) {
    check(to.rows() == from.rows() && to.cols() == from.cols(), "copy of {}x{} to {}x{}", from.rows(),
          from.cols(), to.rows(), to.cols());
    const Extent extent(to, from);
    if (!floating(to.dtype)) {
        check(to.dtype == from.dtype, "copy of {} to {}", name_of(from.dtype), name_of(to.dtype));
        if (to.dtype == DType::f64)
            launch_map<1>(Move<double>{view<double>(to), view<const double>(from)}, extent.rows, extent.width,
                          stream);
        else
            launch_map<1>(Move<int32_t>{view<int32_t>(to), view<const int32_t>(from)}, extent.rows,
                          extent.width, stream);
        return;
    }
    with_element(to.dtype, [&](auto out) {
        with_element(from.dtype, [&](auto in) {
            using To = typename decltype(out)::type;
            using From = typename decltype(in)::type;
            map_pair<To, From>(Copy<To, From>{view<To>(to), view<const From>(from)}, extent,
                               aligned(to, from), stream);
        });
    });
}

void add(Tensor to, const Tensor& from, Stream stream) {
    check(to.count() == from.count() && to.cols() == from.cols(), "add of {} to {}", from.count(),
          to.count());
    const Extent extent(to, from);
    with_element(to.dtype, [&](auto out) {
        with_element(from.dtype, [&](auto in) {
            using To = typename decltype(out)::type;
            using From = typename decltype(in)::type;
            map_pair<To, From>(AddTo<To, From>{view<To>(to), view<const From>(from)}, extent,
                               aligned(to, from), stream);
        });
    });
}

}  // namespace longreach::cuda
