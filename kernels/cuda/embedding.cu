// Token embedding: x [N, C] = rows of table [V, C]; dtable[token] += dx row.
//
// Backward needs the tokens only. In units of the element size: 2 accesses per element forward, 1 to 3
// backward. Forward one pack per thread. Backward a block per (class of tokens, strip of channels): a class
// is the low bits of the token, so each element of dtable has one owner. A block walks all N tokens (4 bytes
// each, from L2), lists its own in order and adds, token by token of the table, the rows of dx in the order
// of their positions: the same sum on every machine, for any number of classes. A token outside the table
// gives a row of NaN and no gradient.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

template <class T, class Table>
struct Lookup {
    View<T> x;
    View<const Table> table;
    const int32_t* tokens;
    int64_t vocabulary;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const int64_t token = tokens[r];
        Pack<n> v;
        if (token >= 0 && token < vocabulary) {
            v = load<n>(table.at(token, c));
        } else {
#pragma unroll
            for (int k = 0; k < n; ++k) v[k] = nanf("");
        }
        store(x.at(r, c), v);
    }
};

constexpr int scan_threads = 256, scan_each = 4;         // a tile of 1024 tokens
constexpr int list_size = 2 * scan_threads * scan_each;  // a whole tile always fits behind a half full list

struct Found {
    int32_t token[list_size], position[list_size];
    int32_t of_warp[scan_threads / 32];
};

DEVICE int ones(unsigned bits) {
    bits = bits - ((bits >> 1) & 0x55555555u);
    bits = (bits & 0x33333333u) + ((bits >> 2) & 0x33333333u);
    return static_cast<int>((((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u) >> 24);
}

template <class Gradient, class T>
struct Scatter {
    View<Gradient> dtable;
    View<const T> dx;
    const int32_t* tokens;
    int64_t count, vocabulary, width;
    int32_t classes;  // a power of two
};

// Adds the listed rows, all of a token together.
template <int n, class Gradient, class T>
DEVICE void add_listed(const Scatter<Gradient, T>& a, const Found& found, int listed, int64_t c) {
    for (int e = 0; e < listed; ++e) {
        const int32_t token = found.token[e];
        bool seen = false;
        for (int before = 0; before < e && !seen; ++before) seen = found.token[before] == token;
        if (seen || c >= a.width) continue;
        Pack<n> sum = load<n>(a.dtable.at(token, c));
        for (int f = e; f < listed; ++f) {
            if (found.token[f] != token) continue;
            const Pack<n> d = load<n>(a.dx.at(found.position[f], c));
#pragma unroll
            for (int k = 0; k < n; ++k) sum[k] += d[k];
        }
        store(a.dtable.at(token, c), sum);
    }
}

template <class Gradient, class T, int n>
KERNEL(scan_threads)
void embedding_backward_kernel(Scatter<Gradient, T> a) {
    Found& found = shared<Found>();
    const int32_t own = static_cast<int32_t>(blockIdx.x);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int64_t c = (static_cast<int64_t>(blockIdx.y) * scan_threads + thread) * n;
    int listed = 0;  // the same in every thread
    for (int64_t tile = 0; tile < a.count; tile += scan_threads * scan_each) {
        for (int part = 0; part < scan_each; ++part) {
            const int64_t i = tile + part * scan_threads + thread;
            const int32_t token = i < a.count ? a.tokens[i] : -1;
            const bool mine = token >= 0 && token < a.vocabulary && (token & (a.classes - 1)) == own;
            const unsigned votes = __ballot_sync(all_lanes, mine);
            if (lane == 0) found.of_warp[warp] = ones(votes);
            __syncthreads();
            int at = listed;
            for (int w = 0; w < scan_threads / 32; ++w) {
                if (w < warp) at += found.of_warp[w];
                listed += found.of_warp[w];
            }
            if (mine) {
                at += ones(votes & ((1u << lane) - 1u));
                found.token[at] = token;
                found.position[at] = static_cast<int32_t>(i);
            }
            __syncthreads();
        }
        if (listed <= list_size / 2 && tile + scan_threads * scan_each < a.count) continue;
        add_listed<n>(a, found, listed, c);
        listed = 0;
        __syncthreads();
    }
}

// One class for 64 tokens, so that a block's list stays short and the scans cheap.
int32_t classes_for(int64_t tokens) {
    int32_t classes = 1;
    while (classes < 1024 && classes * 64 < tokens) classes *= 2;
    return classes;
}

}  // namespace

void embedding(Tensor x, const Tensor& table, const Tensor& tokens, Stream stream) {
    const int64_t n = tokens.count(), width = table.cols();
    check(x.rows() == n && x.cols() == width, "embedding of {} tokens, width {}, into {}x{}", n, width,
          x.rows(), x.cols());
    with_element(x.dtype, [&](auto element) {
        with_element(table.dtype, [&](auto of_table) {
            using T = typename decltype(element)::type;
            using Table = typename decltype(of_table)::type;
            // Where the types differ, packs of 4 elements.
            using Packed = std::conditional_t<std::is_same_v<T, Table>, T, float>;
            map<Packed>(Lookup<T, Table>{view<T>(x), view<const Table>(table), tokens.i32(), table.rows()}, n,
                        width, aligned(x, table), stream);
        });
    });
}

void embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens, Stream stream) {
    const int64_t n = tokens.count(), width = dtable.cols();
    check(dx.rows() == n && dx.cols() == width, "embedding_backward of {} tokens, width {}, from {}x{}", n,
          width, dx.rows(), dx.cols());
    check(dtable.dtype == DType::f32 && n < int64_t{1} << 31, "embedding_backward of {} tokens into {}", n,
          name_of(dtable.dtype));
    with_element(dx.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        with_pack<float>(width % 4 == 0 && aligned(dtable, dx), [&](auto pack) {
            constexpr int each = decltype(pack)::value;
            const int32_t classes = classes_for(n);
            const Scatter<float, T> arguments{
                view<float>(dtable), view<const T>(dx), tokens.i32(), n, dtable.rows(), width, classes};
            launch(embedding_backward_kernel<float, T, each>,
                   {dim3(static_cast<unsigned>(classes), blocks_for(width, scan_threads * each)),
                    dim3(scan_threads), sizeof(Found), stream},
                   arguments);
        });
    });
}

}  // namespace longreach::cuda
