// The gradient of the gated delta rule in chunks (delta_chunks.cuh): the pass along the sequence from its last chunk on.
// delta_chunks_gradients.cu has the rest, all chunks at once.
#include "kernels/cuda/delta_chunks.cuh"

namespace longreach::cuda {

using namespace delta;

namespace {

// --- backward along a sequence

// With decays per channel q[0] is qs, q[1] ke and k ks.
template <int D>
struct StateLayout {
    Rows<D> q[2], k[2];
    Square dout, scores, gram;
    Edges edges[2];
};
template <int D>
struct ResultsLayout : StateLayout<D> {
    Square v;
};
template <int D, Walk walk>
using BackwardLayout = std::conditional_t<walk == Walk::results, ResultsLayout<D>, StateLayout<D>>;

// The copies of load_keys() are committed with those of load_others(), which always follow.
template <int D, DecayPer per>
DEVICE void load_keys(StateLayout<D>& m, const DeltaChunks& c, const DeltaPlace& at, int number) {
    const int to = number % 2, begin = number * chunk;
    const int64_t entry = c.entry(at.sequence, number, at.head);
    if constexpr (per == DecayPer::head) {
        load_tile<pass_threads>(m.q[to], c.rows_of(c.q, at.sequence, at.head * c.d, c.d), begin);
        load_tile<pass_threads>(m.k[to], c.rows_of(c.k, at.sequence, at.head * c.d, c.d), begin);
    } else if (!c.additive) {
        load_tile<pass_threads>(m.k[to], c.faded_rows(entry, c.ks), 0);
    }
    copy_edges<D, per>(m.edges[to], c.edges[entry]);
}
// Past the last value, in blocks for a map, dO arrives as zeros.
template <int D, DecayPer per, Walk walk>
DEVICE void load_others(BackwardLayout<D, walk>& m, const DeltaBackward& b, const DeltaPlace& at,
                        int number) {
    const DeltaChunks& c = b.in;
    const int64_t entry = c.entry(at.sequence, number, at.head);
    const int group = static_cast<int>(blockIdx.y) * columns, begin = number * chunk;
    if constexpr (walk == Walk::results)
        load_tile<pass_threads>(m.v, c.rows_of(c.v, at.sequence, at.head * c.e + group, c.e - group), begin);
    load_tile<pass_threads>(m.dout, c.rows_of(b.dout, at.sequence, at.head * c.e + group, c.e - group),
                            begin);
    if constexpr (per == DecayPer::channel) load_tile<pass_threads>(m.q[1], c.faded_rows(entry, c.ke), 0);
    copy_square(m.scores, c.scores + entry * square);
    if (!c.additive) copy_square(m.gram, c.gram + entry * square);
    cp_async_commit();
}

// The saved state as a first factor [columns, channels]; returns the lane's part of <S, dS>.
template <int D>
DEVICE float load_saved(uint32_t (&words)[D / 16][1][4], const float* from, const Fragments<1, D / 8>& ds,
                        const DeltaChunks& c, int first_column) {
    float along = 0.0f;
    for_state<D>([&](int n, int half, int channel, int column) {
        float first = 0.0f, second = 0.0f;
        if (channel < c.d && first_column + column < c.e) {
            first = from[int64_t{channel} * c.e + column];
            second = from[int64_t{channel + 1} * c.e + column];
        }
        along += first * ds.of[0][n][2 * half] + second * ds.of[0][n][2 * half + 1];
        words[n / 2][0][n % 2 * 2 + half] = pack_bf16(first, second);
    });
    return along;
}

// dr comes as dU and leaves as dR; dw = diag(beta) dR.
DEVICE void unsolve(Fragments<1, 8>& dr, uint32_t (&dw)[blocks][4], const Square& gram, const Edges& edges,
                    bool additive) {
#pragma unroll
    for (int b = blocks - 1; b >= 0; --b) {
        float(&low)[4] = dr.of[0][2 * b], (&high)[4] = dr.of[0][2 * b + 1];
        uint32_t of_b[4];
#pragma unroll
        for (int k = blocks - 1; k >= b && !additive; --k) {
            if (k == b) pack_by_beta(dw[b], low, high, edges, b);
            load_columns(of_b, gram, k, b);
            subtract_product(low, high, dw[k], of_b);
        }
        pack_by_beta(dw[b], low, high, edges, b);
    }
}

// du [columns, positions] = (P^T dO + ke dS)^T
template <int D>
DEVICE void gradient_of_u(Fragments<1, 8>& du, const Fragments<1, D / 8>& ds,
                          const uint32_t (&outer)[blocks][4], const Rows<D>& keys, const Square& scores,
                          const Edges& edges, float key_scale) {
    du.clear();
    multiply_state<D>(du, ds, keys);
    scale_positions(du, du, edges.to_end, key_scale);
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int k = b; k < blocks; ++k) {
            uint32_t of_b[4];
            load_columns(of_b, scores, k, b);
            multiply(du.of[0][2 * b], du.of[0][2 * b + 1], outer[k], of_b);
        }
}

// <dR_t, rest_t> over the warp's columns.
DEVICE void write_dbeta(const DeltaBackward& b, const DeltaPlace& at, int begin, const Fragments<1, 8>& dr,
                        const Fragments<1, 8>& rest) {
    const DeltaChunks& c = b.in;
    const int lane = lane_of(), slab = at.column / warp_columns;
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float sum =
                dr.of[0][n][side] * rest.of[0][n][side] + dr.of[0][n][2 + side] * rest.of[0][n][2 + side];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(all_lanes, sum, offset);
            const int t = begin + 8 * n + 2 * lane + side;
            if (lane < 4 && t < c.length && at.column < c.e)
                b.dbeta[(slab * b.rows + at.first + t) * c.heads + at.head] = sum;
        }
}
template <int D, DecayPer per>
DEVICE void write_dstate(const DeltaBackward& b, const DeltaPlace& at, int64_t entry, float along,
                         const Fragments<1, D / 8>& ds) {
    const DeltaChunks& c = b.in;
    bf16* to = b.dstates + (entry * c.e + at.column) * c.d;
    for_state<D>([&](int n, int half, int channel, int column) {
        if (channel < c.d && at.column + column < c.e)
            *reinterpret_cast<uint32_t*>(to + int64_t{column} * c.d + channel) =
                pack_bf16(ds.of[0][n][2 * half], ds.of[0][n][2 * half + 1]);
    });
    if constexpr (per == DecayPer::channel) return;
    along = warp_sum(along);
    if (lane_of() == 0 && at.column < c.e) b.along[entry * b.slabs + at.column / warp_columns] = along;
}
// dS at the state before the chunk: a_0 ... a_(c-1) dS + qs^T dO - ks^T dW.
template <int D, DecayPer per>
DEVICE void retreat(Fragments<1, D / 8>& ds, uint32_t (&outer)[blocks][4], const Fragments<1, 8>& dr,
                    const Rows<D>& queries, const Rows<D>& keys, const Edges& edges, const DeltaChunks& c) {
    fade_state<D, per>(ds, edges);
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t& word = outer[n / 2][n % 2 * 2 + half];
            const float2 x = unpack_bf16(word), a = of_pair(edges.from_start, n);
            word = pack_bf16(c.query_scale * a.x * x.x, c.query_scale * a.y * x.y);
        }
    add_to_state<D>(ds, outer, queries);
    if (c.additive) return;
    uint32_t dw[blocks][4];
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n) {
        const float2 a = of_pair(edges.from_start, n), beta = of_pair(edges.beta, n);
        float x[4];
        scale_pair(x, dr.of[0][n], {-c.key_scale * a.x * beta.x, -c.key_scale * a.y * beta.y});
        dw[n / 2][n % 2 * 2] = pack_bf16(x[0], x[1]);
        dw[n / 2][n % 2 * 2 + 1] = pack_bf16(x[2], x[3]);
    }
    add_to_state<D>(ds, dw, keys);
}

// Of the walk for results: rest and U by the saved state, before the chunk's gradients. Writes U and dS. receive()
// waits for the tiles of the chunk.
template <int D, DecayPer per, class Receive>
DEVICE void read_saved(Fragments<1, 8>& rest, ResultsLayout<D>& m, const DeltaBackward& b,
                       const DeltaPlace& at, int number, const Fragments<1, D / 8>& ds, Receive receive) {
    const DeltaChunks& c = b.in;
    const Rows<D>& keys = m.k[number % 2];
    const Edges& edges = m.edges[number % 2];
    const int64_t entry = c.entry(at.sequence, number, at.head), column = int64_t{at.head} * c.e + at.column;
    rest.clear();
    {
        uint32_t saved[D / 16][1][4];
        const float along = load_saved<D>(saved, b.states.at(entry, at.column), ds, c, at.column);
        receive();
        write_dstate<D, per>(b, at, entry, along, ds);
        const int lane = lane_of();
        if (!c.additive)
#pragma unroll
            for (int k = 0; k < D / 16; ++k) multiply_step(rest, saved[k], keys, k, lane);
    }
    uint32_t u[blocks][4];
    Fragments<1, 8> x;
    solve(rest, u, m.v, m.gram, edges, c, at.warp);
    scale_positions(x, rest, edges.beta, 1.0f);
    write_columns(m.v, x, c, b.u.at(at.first + number * chunk, column), b.u.stride, number * chunk,
                  c.e - at.column);
}

// The gradient at the state after the block's chunks, or the identity.
template <int D, Walk walk>
DEVICE void begin_gradient(Fragments<1, D / 8>& ds, const DeltaChunks& c, const DeltaPlace& at) {
    ds.clear();
    if (walk == Walk::state && at.map_column >= 0) set_identity<D>(ds, at.map_column);
    if (walk == Walk::results && at.end < c.chunks)
        read_state<D>(ds, c.bound(at.item, at.segment), c, at.column);
}

// Blocks of the walk for states are of the segments from the second one on.
template <int D, DecayPer per, Walk walk>
KERNEL(pass_threads, 2)
void delta_backward_kernel(DeltaBackward b) {
    auto& m = shared<BackwardLayout<D, walk>>();
    const DeltaChunks& c = b.in;
    const DeltaPlace at(c, walk == Walk::state ? 1 : 0);
    if (walk == Walk::state && at.end == c.chunks && at.map_column >= 0) return;  // nothing comes after it
    Fragments<1, D / 8> ds;
    begin_gradient<D, walk>(ds, c, at);
    load_keys<D, per>(m, c, at, at.end - 1);
    load_others<D, per, walk>(m, b, at, at.end - 1);
#pragma unroll 1
    for (int number = at.end - 1; number >= at.begin; --number) {
        const Rows<D>&queries = m.q[per == DecayPer::head ? number % 2 : 0], &keys = m.k[number % 2],
              &late_keys = per == DecayPer::head ? keys : m.q[1];
        const Edges& edges = m.edges[number % 2];
        const int begin = number * chunk;
        Fragments<1, 8> rest, dr;
        uint32_t outer[blocks][4];
        const auto receive = [&] {
            cp_async_wait<0>();
            __syncthreads();
            if (number > at.begin) load_keys<D, per>(m, c, at, number - 1);
            if constexpr (per == DecayPer::channel) {
                load_tile<pass_threads>(m.q[0], c.faded_rows(c.entry(at.sequence, number, at.head), c.qs), 0);
                cp_async_commit();
            }
        };
        if constexpr (walk == Walk::results)
            read_saved<D, per>(rest, m, b, at, number, ds, receive);
        else
            receive();
        load_own_columns(outer, m.dout, at.warp);
        gradient_of_u<D>(dr, ds, outer, late_keys, m.scores, edges, c.key_scale);
        {
            uint32_t dw[blocks][4];
            unsolve(dr, dw, m.gram, edges, c.additive);
        }
        if constexpr (walk == Walk::results) {
            Fragments<1, 8> x;
            scale_positions(x, dr, edges.beta, 1.0f);
            write_columns(m.dout, x, c, b.to_dv.at(at.first + begin, int64_t{at.head} * c.e + at.column),
                          b.to_dv.stride, begin, c.e - at.column);
            write_dbeta(b, at, begin, dr, rest);
        }
        if constexpr (per == DecayPer::channel) cp_async_wait<0>();
        __syncthreads();
        if (number > at.begin) load_others<D, per, walk>(m, b, at, number - 1);
        retreat<D, per>(ds, outer, dr, queries, keys, edges, c);
    }
    if constexpr (walk == Walk::state) {
        if (at.map_column < 0)
            write_state<D>(ds, c.bound(at.item, at.segment - 1), c, at.column);
        else
            write_map<D>(ds, c.map(at.item, at.segment - 1), c, at.map_column);
    }
}

// --- host side

void place_gradient(DeltaBackward& b, const Tensor& workspace, const DeltaPlaces& at, const DeltaSpec& s) {
    const int64_t values = s.heads * s.value_dim;
    b.u = {piece<bf16>(workspace, at.u), values};
    b.dstates = piece<bf16>(workspace, at.dstates);
    b.dbeta = piece<float>(workspace, at.dbeta);
    b.along = piece<float>(workspace, at.along);
    b.slabs = static_cast<int>((s.value_dim + warp_columns - 1) / warp_columns);
    b.rows = s.batch * s.length;
}

}  // namespace

void delta_rule_in_chunks_backward(const DeltaGradients& d, Tensor workspace, const Tensor& dout,
                                   const Tensor& states, const DeltaInputs& in, const DeltaSpec& spec,
                                   Stream stream) {
    const DeltaPlaces places(spec, true);
    check_space(workspace, places);
    DeltaBackward b{};
    b.in = chunks_of(in, spec);
    b.dout = view<const bf16>(dout);
    b.dv = view<const bf16>(d.v);
    b.states = view<const float>(states);
    b.to_dq = view<bf16>(d.q);
    b.to_dk = view<bf16>(d.k);
    b.to_dv = view<bf16>(d.v);
    b.to_ddecay = view<float>(d.decay);
    b.to_dbeta = view<float>(d.beta);
    place_scores(b.in, workspace, places);
    place_gradient(b, workspace, places, spec);
    launch_scores(b.in, spec, stream);
    const auto pass = [&](auto walk) {
        constexpr Walk what = decltype(walk)::value;
        with_form(b.in, [&](auto channels, auto decays) {
            constexpr int D = decltype(channels)::value;
            launch(delta_backward_kernel<D, decltype(decays)::value, what>,
                   {pass_grid(spec, what), dim3(pass_threads), sizeof(BackwardLayout<D, what>), stream}, b);
        });
    };
    if (b.in.segments > 1) {
        pass(std::integral_constant<Walk, Walk::state>{});
        join_segments(b.in, spec, true, stream);
    }
    pass(std::integral_constant<Walk, Walk::results>{});
    launch_gradients(b, spec, stream);
}

}  // namespace longreach::cuda
