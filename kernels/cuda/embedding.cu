// Token embedding: x [N, C] = rows of table [V, C]; dtable[token] += dx row.
//
// Backward needs the tokens only. In units of the element size: 2 accesses per element forward, 1 to 3
// backward. Forward one pack per thread. A token outside the table gives a row of NaN and no gradient.
//
// Backward, for any frequency of any token, in time linear in N:
//   sort   positions by token, those of one token in order: 9 bits of the token at a time, tiles of 1024 counted, their
//          counts summed, then placed
//   sum    chunks of 64 sorted positions. A token's rows within a chunk are added in order; the sum goes to dtable if
//          the chunk holds all of them, else to a partial row: one for a token that the chunk before began, one for a
//          token that goes on in the next one
//   join   per token that spans chunks: its partial rows in order, added to dtable by the block of its first chunk
// The order of the additions depends on the tokens alone. An element is the sum of at most 64 + 1 + N / 64 terms in a row.
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

constexpr int digit_bits = 9, digits = 1 << digit_bits;
constexpr int sort_threads = 256, sort_warps = sort_threads / 32, per_warp = 128;
constexpr int sort_tile = sort_warps * per_warp;
constexpr int chunk_size = 64;

// One pass of the sort. A token outside the table sorts after all others, as `vocabulary`.
struct Sort {
    const int32_t* tokens;
    int32_t count, vocabulary;
    const int32_t* from;  // positions in the order of the pass before; null: 0, 1, 2, ...
    int32_t* to;
    int32_t* counts;  // [digits, tiles]
    int32_t tiles;
    int32_t shift;  // of this pass' digit
};
DEVICE int32_t key_at(const int32_t* tokens, int32_t vocabulary, int32_t position) {
    const int32_t token = tokens[position];
    return token >= 0 && token < vocabulary ? token : vocabulary;
}

struct DigitCounts {
    int32_t of_warp[sort_warps][digits];
};
// What lane holds in turn r of its warp: a position, its digit and the lanes with the same digit.
struct Digit {
    int32_t position, value;
    unsigned peers;
};
DEVICE Digit digit_of(const Sort& a, int turn) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int32_t i =
        static_cast<int32_t>(blockIdx.x) * sort_tile + thread / 32 * per_warp + turn * 32 + lane;
    const bool valid = i < a.count;
    Digit d{};
    if (valid) {
        d.position = a.from ? a.from[i] : i;
        d.value = (key_at(a.tokens, a.vocabulary, d.position) >> a.shift) & (digits - 1);
    }
    d.peers = __ballot_sync(all_lanes, valid);
#pragma unroll
    for (int bit = 0; bit < digit_bits; ++bit) {
        const bool set = (d.value >> bit) & 1;
        const unsigned votes = __ballot_sync(all_lanes, set);
        d.peers &= set ? votes : ~votes;
    }
    if (!valid) d.peers = 0;
    return d;
}
// How many of each digit a warp holds; the warp's first lane with a digit counts for all.
DEVICE void count_digits(const Sort& a, DigitCounts& counts) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    for (int d = lane; d < digits; d += 32) counts.of_warp[warp][d] = 0;
    __syncwarp();
    for (int turn = 0; turn < per_warp / 32; ++turn) {
        const Digit d = digit_of(a, turn);
        if (__ffs(static_cast<int>(d.peers)) == lane + 1) counts.of_warp[warp][d.value] += __popc(d.peers);
        __syncwarp();
    }
    __syncthreads();
}

KERNEL(sort_threads)
void count_digits_kernel(Sort a) {
    DigitCounts& counts = shared<DigitCounts>();
    count_digits(a, counts);
    for (int d = static_cast<int>(threadIdx.x); d < digits; d += sort_threads) {
        int32_t sum = 0;
        for (int w = 0; w < sort_warps; ++w) sum += counts.of_warp[w][d];
        a.counts[static_cast<int64_t>(d) * a.tiles + static_cast<int>(blockIdx.x)] = sum;
    }
}

struct DigitTotals {
    int32_t of[digits];
};
// counts[d, t] becomes the number of positions before digit d of tile t: all of smaller digits, and digit d of earlier
// tiles. One block, a thread per digit.
KERNEL(digits)
void start_digits_kernel(Sort a) {
    DigitTotals& totals = shared<DigitTotals>();
    const int d = static_cast<int>(threadIdx.x);
    int32_t* mine = a.counts + static_cast<int64_t>(d) * a.tiles;
    int32_t total = 0;
    for (int t = 0; t < a.tiles; ++t) total += mine[t];
    totals.of[d] = total;
    __syncthreads();
    for (int step = 1; step < digits; step *= 2) {
        const int32_t before = d >= step ? totals.of[d - step] : 0;
        __syncthreads();
        totals.of[d] += before;
        __syncthreads();
    }
    int32_t start = totals.of[d] - total;
    for (int t = 0; t < a.tiles; ++t) {
        const int32_t count = mine[t];
        mine[t] = start;
        start += count;
    }
}

KERNEL(sort_threads)
void place_kernel(Sort a) {
    DigitCounts& next = shared<DigitCounts>();
    count_digits(a, next);
    for (int d = static_cast<int>(threadIdx.x); d < digits; d += sort_threads) {
        int32_t start = a.counts[static_cast<int64_t>(d) * a.tiles + static_cast<int>(blockIdx.x)];
        for (int w = 0; w < sort_warps; ++w) {
            const int32_t count = next.of_warp[w][d];
            next.of_warp[w][d] = start;
            start += count;
        }
    }
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    for (int turn = 0; turn < per_warp / 32; ++turn) {
        const Digit d = digit_of(a, turn);
        const int before = __popc(d.peers & ((1u << lane) - 1u));
        const int32_t start = next.of_warp[warp][d.value];
        if (d.peers != 0) a.to[start + before] = d.position;
        __syncwarp();
        if (d.peers != 0 && before == 0) next.of_warp[warp][d.value] = start + __popc(d.peers);
        __syncwarp();
    }
}

// Sorted positions, and what the sums need besides. partials [chunks, 2, width].
template <class T>
struct Sums {
    View<float> dtable;
    View<const T> dx;
    const int32_t *tokens, *order;
    int32_t count, vocabulary;
    int64_t width;
    float* partials;
    DEVICE int32_t key(int32_t i) const { return key_at(tokens, vocabulary, order[i]); }
    DEVICE float* partial(int32_t chunk, int which, int64_t c) const {
        return partials + (2 * static_cast<int64_t>(chunk) + which) * width + c;
    }
};
constexpr int begun_before = 0, goes_on = 1;  // which of a chunk's partial rows

struct Chunk {
    int32_t position[chunk_size];
    int32_t key[chunk_size + 2];  // the neighbours' too; -1 where there is none
};

template <int n>
DEVICE void add_to(Pack<n>& sum, const Pack<n>& d) {
#pragma unroll
    for (int k = 0; k < n; ++k) sum[k] += d[k];
}

template <class T, int n>
KERNEL(256)
void sum_chunks_kernel(Sums<T> a) {
    Chunk& chunk = shared<Chunk>();
    const int32_t index = static_cast<int32_t>(blockIdx.x), begin = index * chunk_size;
    const int32_t size = a.count - begin < chunk_size ? a.count - begin : chunk_size;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < chunk_size + 2) {
        const int32_t i = begin + thread - 1;
        const bool exists = i >= 0 && i < a.count;
        chunk.key[thread] = exists ? a.key(i) : -1;
        if (thread > 0 && thread <= size) chunk.position[thread - 1] = a.order[i];
    }
    __syncthreads();
    const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * n;
    if (c >= a.width) return;
    constexpr int ahead = 4;  // rows in flight
    Pack<n> sum{};
    bool whole = true;  // the rows of the token, as far as this chunk has seen them
    for (int32_t first = 0; first < size; first += ahead) {
        Pack<n> row[ahead];
#pragma unroll
        for (int k = 0; k < ahead; ++k)
            if (first + k < size) row[k] = load<n>(a.dx.at(chunk.position[first + k], c));
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            const int32_t e = first + k;
            if (e >= size) break;
            const int32_t key = chunk.key[e + 1];
            if (key == a.vocabulary) return;  // those after it are outside the table too
            if (e == 0) whole = chunk.key[0] != key;
            add_to(sum, row[k]);
            if (e + 1 < size && chunk.key[e + 2] == key) continue;
            if (!whole) {
                store(a.partial(index, begun_before, c), sum);
            } else if (chunk.key[e + 2] == key) {
                store(a.partial(index, goes_on, c), sum);
            } else {
                Pack<n> old = load<n>(a.dtable.at(key, c));
                add_to(old, sum);
                store(a.dtable.at(key, c), old);
            }
            sum = Pack<n>{};
            whole = true;
        }
    }
}

template <class T, int n>
KERNEL(256)
void join_chunks_kernel(Sums<T> a) {
    const int32_t index = static_cast<int32_t>(blockIdx.x), begin = index * chunk_size;
    const int32_t end = begin + chunk_size;  // a full chunk, or nothing goes on
    const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * n;
    if (end >= a.count || c >= a.width) return;
    const int32_t key = a.key(end - 1);
    if (key == a.vocabulary || a.key(end) != key) return;
    if (begin > 0 && a.key(begin - 1) == key) return;  // an earlier chunk's block does it
    int32_t last = index + 1;                          // the last chunk with the token
    while ((last + 1) * chunk_size < a.count && a.key((last + 1) * chunk_size) == key) ++last;
    Pack<n> sum = load<n>(static_cast<const float*>(a.partial(index, goes_on, c)));
#pragma unroll 4
    for (int32_t chunk = index + 1; chunk <= last; ++chunk)
        add_to(sum, load<n>(static_cast<const float*>(a.partial(chunk, begun_before, c))));
    Pack<n> old = load<n>(a.dtable.at(key, c));
    add_to(old, sum);
    store(a.dtable.at(key, c), old);
}

struct BackwardPlan {
    int32_t tiles, chunks;
    int64_t partials, orders, counts;  // where they begin, in floats of the workspace
    int64_t size;
};
BackwardPlan plan_of(int64_t tokens, int64_t width) {
    BackwardPlan p{};
    p.tiles = static_cast<int32_t>(blocks_for(tokens, sort_tile));
    p.chunks = static_cast<int32_t>(blocks_for(tokens, chunk_size));
    p.orders = 2 * p.chunks * width;
    p.counts = p.orders + 2 * tokens;
    p.size = p.counts + int64_t{digits} * p.tiles;
    return p;
}

// The order of the positions by token, stable, in the workspace.
const int32_t* sorted(const int32_t* tokens, int64_t count, int64_t vocabulary, int32_t* space,
                      const BackwardPlan& plan, Stream stream) {
    int32_t* orders[2] = {space + plan.orders, space + plan.orders + count};
    Sort a{tokens,
           static_cast<int32_t>(count),
           static_cast<int32_t>(vocabulary),
           nullptr,
           orders[0],
           space + plan.counts,
           plan.tiles,
           0};
    for (int turn = 0; a.shift == 0 || vocabulary >> a.shift != 0; ++turn, a.shift += digit_bits) {
        a.to = orders[turn % 2];
        const dim3 tiles(static_cast<unsigned>(plan.tiles));
        launch(count_digits_kernel, {tiles, dim3(sort_threads), sizeof(DigitCounts), stream}, a);
        launch(start_digits_kernel, {dim3(1), dim3(digits), sizeof(DigitTotals), stream}, a);
        launch(place_kernel, {tiles, dim3(sort_threads), sizeof(DigitCounts), stream}, a);
        a.from = a.to;
    }
    return a.from;
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

int64_t embedding_backward_workspace(int64_t tokens, int64_t width) {
    return 4 * plan_of(tokens, width).size;
}

void embedding_backward(Tensor dtable, Tensor workspace, const Tensor& dx, const Tensor& tokens,
                        Stream stream) {
    const int64_t n = tokens.count(), width = dtable.cols();
    check(dx.rows() == n && dx.cols() == width, "embedding_backward of {} tokens, width {}, from {}x{}", n,
          width, dx.rows(), dx.cols());
    check(dtable.dtype == DType::f32 && n <= int64_t{1} << 30 && dtable.rows() < int64_t{1} << 31,
          "embedding_backward of {} tokens into {} rows of {}", n, dtable.rows(), name_of(dtable.dtype));
    const BackwardPlan plan = plan_of(n, width);
    check(workspace.bytes() >= 4 * plan.size, "embedding_backward workspace of {} bytes", workspace.bytes());
    if (n == 0) return;
    auto* space = static_cast<int32_t*>(workspace.data());
    const int32_t* order = sorted(tokens.i32(), n, dtable.rows(), space, plan, stream);
    with_element(dx.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        with_pack<float>(width % 4 == 0 && aligned(dtable, dx, workspace), [&](auto pack) {
            constexpr int each = decltype(pack)::value;
            const Sums<T> sums{view<float>(dtable),
                               view<const T>(dx),
                               tokens.i32(),
                               order,
                               static_cast<int32_t>(n),
                               static_cast<int32_t>(dtable.rows()),
                               width,
                               workspace.as<float>()};
            const unsigned threads = width > 128 * each ? 256 : width > 32 * each ? 128 : 96;
            const dim3 grid(static_cast<unsigned>(plan.chunks), blocks_for(width, threads * each));
            launch(sum_chunks_kernel<T, each>, {grid, dim3(threads), sizeof(Chunk), stream}, sums);
            if (plan.chunks > 1) launch(join_chunks_kernel<T, each>, {grid, dim3(threads), 0, stream}, sums);
        });
    });
}

}  // namespace longreach::cuda
