// The gated delta rule in chunks (delta_chunks.cuh): scores of all chunks, then chunk after chunk along a sequence.
#include "kernels/cuda/delta_channels.cuh"

namespace longreach::cuda {

using namespace delta;

namespace {

struct Factors {
    float of[chunk * factor_stride];
};
template <int D, DecayPer per>
struct ScoreLayout {
    Rows<D> q, k;
    std::conditional_t<per == DecayPer::head, Factors, DecaySums<D>> decays;
    float diagonal[blocks][block * (block + 8)];  // M's blocks
    float decay[chunk], beta[chunk];
};

// X of a diagonal block, column by column from the first row on: X_t = M_t - sum over i < t of M_ti beta_i X_i.
DEVICE void solve_block(bf16* gram, const float* m, const float* beta, int begin) {
    const int j = lane_of();
    if (j >= block) return;
    float given[block];  // beta_i X_ij
#pragma unroll
    for (int t = 0; t < block; ++t) {
        float sum = m[t * (block + 8) + j];
#pragma unroll
        for (int i = 0; i < t; ++i) sum = fmaf(-m[t * (block + 8) + i], given[i], sum);
        given[t] = beta[begin + t] * sum;
        gram[place_in_square(begin + t, begin + j)] = narrow<bf16>(sum);
    }
}

// Writes a warp's 16 rows of P to device memory; of M the blocks before the diagonal one, which goes to shared memory.
template <int D, DecayPer per>
DEVICE void write_scores(ScoreLayout<D, per>& m, const DeltaChunks& c, int64_t entry, int warp,
                         const Fragments<1, 8>& of_q, const Fragments<1, 8>& of_k) {
    const int lane = lane_of(), g = lane / 4;
    bf16 *scores = c.scores + entry * square, *gram = c.gram + entry * square;
    const float at_q = c.query_scale * c.key_scale, at_k = c.key_scale * c.key_scale;
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int t = 16 * warp + 8 * half + g, j = 8 * n + lane % 4 * 2, at = place_in_square(t, j);
            float2 f{1.0f, 1.0f};
            if constexpr (per == DecayPer::head) f = factor_pair(m.decays.of, t, j);
            const float *q = of_q.of[0][n] + 2 * half, *k = of_k.of[0][n] + 2 * half;
            *reinterpret_cast<uint32_t*>(scores + at) = pack_bf16(at_q * f.x * q[0], at_q * f.y * q[1]);
            if (c.additive) continue;
            const float2 product{t > j ? at_k * f.x * k[0] : 0.0f, t > j + 1 ? at_k * f.y * k[1] : 0.0f};
            if (n / 2 == warp)
                *reinterpret_cast<float2*>(m.diagonal[warp] + (8 * half + g) * (block + 8) + j - 16 * warp) =
                    product;
            else
                *reinterpret_cast<uint32_t*>(gram + at) = pack_bf16(product.x, product.y);
        }
}

template <int D, DecayPer per>
KERNEL(pass_threads, per == DecayPer::head ? 5 : 3)  // as many blocks as need no spills
void delta_scores_kernel(DeltaChunks c) {
    auto& m = shared<ScoreLayout<D, per>>();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, head = static_cast<int>(blockIdx.y);
    const int64_t sequence = blockIdx.x / c.chunks;
    const int number = static_cast<int>(blockIdx.x) % c.chunks, begin = number * chunk;
    load_tile<pass_threads>(m.q, c.rows_of(c.q, sequence, head * c.d, c.d), begin);
    load_tile<pass_threads>(m.k, c.rows_of(c.k, sequence, head * c.d, c.d), begin);
    cp_async_commit();
    const int64_t first = sequence * c.length, entry = c.entry(sequence, number, head);
    Edges& edges = c.edges[entry];
    if (thread < chunk) {
        const int t = begin + thread;
        if constexpr (per == DecayPer::head) m.decay[thread] = c.decay_of(first, t, head);
        m.beta[thread] = edges.beta[thread] = t < c.length ? *c.beta.at(first + t, head) : 0.0f;
    }
    if constexpr (per == DecayPer::channel) {
        fill_sums<pass_threads>(m.decays, c, first, begin, head);
        if (thread < D) edges.kept[thread] = exp2_approx(-fabsf(*m.decays.at(chunk - 1, thread)));
    }
    cp_async_wait<0>();
    __syncthreads();
    Fragments<1, 8> of_q, of_k;
    of_q.clear();
    of_k.clear();
    if constexpr (per == DecayPer::head) {
        multiply_triangle<D>(of_q, m.q, m.k, warp);
        if (!c.additive) multiply_triangle<D>(of_k, m.k, m.k, warp);
        if (thread < chunk) {  // warps with the shorter rows
            edges.to_end[thread] = fill_factors(m.decays.of, m.decay, thread);
        } else if (thread == chunk) {
            float product = 1.0f;
            for (int t = 0; t < chunk; ++t) edges.from_start[t] = product *= m.decay[t];
        }
        __syncthreads();
    } else {
        multiply_levels(of_q, of_k, m.q, m.k, m.decays, warp, c.additive);
        write_faded(c, entry, m.q, m.k, m.decays, warp);
        if (thread < chunk) edges.from_start[thread] = edges.to_end[thread] = 1.0f;
    }
    write_scores(m, c, entry, warp, of_q, of_k);
    if (c.additive) return;
    __syncwarp(all_lanes);
    solve_block(c.gram + entry * square, m.diagonal[warp], m.beta, block * warp);
}

struct DeltaForward {
    DeltaChunks in;
    View<bf16> o;
    View<float> states, state;
};
// With decays per channel q is qs, k[0] ks and k[1] ke.
template <int D>
struct StateLayout {
    Rows<D> k[2];  // k and the edges stay until the next chunk's are there
    Square v, gram;
    Edges edges[2];
};
template <int D>
struct ResultsLayout : StateLayout<D> {
    Rows<D> q;
    Square scores;
};
template <int D, Walk walk>
using ForwardLayout = std::conditional_t<walk == Walk::results, ResultsLayout<D>, StateLayout<D>>;

// The copies of load_keys() are committed with those of load_others(), which always follow.
template <int D, DecayPer per>
DEVICE void load_keys(StateLayout<D>& m, const DeltaChunks& c, const DeltaPlace& at, int number) {
    if constexpr (per == DecayPer::head)
        load_tile<pass_threads>(m.k[number % 2], c.rows_of(c.k, at.sequence, at.head * c.d, c.d),
                                number * chunk);
    copy_edges<D, per>(m.edges[number % 2], c.edges[c.entry(at.sequence, number, at.head)]);
}
// Past the last value, in blocks for a map, v arrives as zeros.
template <int D, DecayPer per, Walk walk>
DEVICE void load_others(ForwardLayout<D, walk>& m, const DeltaChunks& c, const DeltaPlace& at, int number) {
    const int64_t entry = c.entry(at.sequence, number, at.head);
    const int group = static_cast<int>(blockIdx.y) * columns;
    if constexpr (walk == Walk::results) {
        if constexpr (per == DecayPer::head)
            load_tile<pass_threads>(m.q, c.rows_of(c.q, at.sequence, at.head * c.d, c.d), number * chunk);
        else
            load_tile<pass_threads>(m.q, c.faded_rows(entry, c.qs), 0);
        copy_square(m.scores, c.scores + entry * square);
    }
    if constexpr (per == DecayPer::channel)
        if (!c.additive) load_tile<pass_threads>(m.k[0], c.faded_rows(entry, c.ks), 0);
    load_tile<pass_threads>(m.v, c.rows_of(c.v, at.sequence, at.head * c.e + group, c.e - group),
                            number * chunk);
    if (!c.additive) copy_square(m.gram, c.gram + entry * square);
    cp_async_commit();
}

// out [columns, positions] = (qs S + P U)^T
template <int D>
DEVICE void read_out(Fragments<1, 8>& out, const ResultsLayout<D>& m, const Edges& edges,
                     const Fragments<1, D / 8>& s, const uint32_t (&u)[blocks][4], float query_scale) {
    out.clear();
    multiply_state<D>(out, s, m.q);
    scale_positions(out, out, edges.from_start, query_scale);
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int k = 0; k <= b; ++k) {
            uint32_t of_b[4];
            load_rows(of_b, m.scores, 16 * b, k);
            multiply(out.of[0][2 * b], out.of[0][2 * b + 1], u[k], of_b);
        }
}

// The state before the block's chunks, or the identity.
template <int D, Walk walk>
DEVICE void begin_state(Fragments<1, D / 8>& s, const DeltaForward& f, const DeltaPlace& at) {
    const DeltaChunks& c = f.in;
    s.clear();
    if (walk == Walk::state && at.map_column >= 0)
        set_identity<D>(s, at.map_column);
    else if (walk == Walk::results && c.segments > 1 && (c.continues || at.segment > 0))
        read_state<D>(s, c.bound(at.item, at.segment), c, at.column);
    else if (c.continues && at.segment == 0)
        read_state<D>(s, f.state.at(at.item), c, at.column);
}
// What is left of it after them. Of a whole sequence f.state is read and written, of segments read by the first walk alone.
template <int D, Walk walk>
DEVICE void end_state(const Fragments<1, D / 8>& s, const DeltaForward& f, const DeltaPlace& at) {
    const DeltaChunks& c = f.in;
    if (walk == Walk::results) {
        if (f.state.data && at.end == c.chunks) write_state<D>(s, f.state.at(at.item), c, at.column);
    } else if (at.map_column < 0) {
        write_state<D>(s, c.bound(at.item, at.segment + 1), c, at.column);
    } else {
        write_map<D>(s, c.map(at.item, at.segment + 1), c, at.map_column);
    }
}

template <int D, DecayPer per, Walk walk>
KERNEL(pass_threads, 2)
void delta_forward_kernel(DeltaForward f) {
    auto& m = shared<ForwardLayout<D, walk>>();
    const DeltaChunks& c = f.in;
    const DeltaPlace at(c);
    if (walk == Walk::state && at.segment == 0 && at.map_column >= 0) return;  // nothing comes before it
    Fragments<1, D / 8> s;
    begin_state<D, walk>(s, f, at);
    if (walk == Walk::state && at.segment == 0 && c.continues)
        write_state<D>(s, c.bound(at.item, 0), c, at.column);
    load_keys<D, per>(m, c, at, at.begin);
    load_others<D, per, walk>(m, c, at, at.begin);
#pragma unroll 1
    for (int number = at.begin; number < at.end; ++number) {
        const Rows<D>&keys = m.k[per == DecayPer::head ? number % 2 : 0],
              &late_keys = m.k[per == DecayPer::head ? number % 2 : 1];
        const Edges& edges = m.edges[number % 2];
        const int begin = number * chunk;
        cp_async_wait<0>();
        __syncthreads();
        if (number + 1 < at.end) load_keys<D, per>(m, c, at, number + 1);
        if constexpr (per == DecayPer::channel) {
            load_tile<pass_threads>(m.k[1], c.faded_rows(c.entry(at.sequence, number, at.head), c.ke), 0);
            cp_async_commit();
        }
        if (walk == Walk::results && f.states.data)
            write_state<D>(s, f.states.at(c.entry(at.sequence, number, at.head)), c, at.column);
        Fragments<1, 8> rest;
        uint32_t u[blocks][4];
        rest.clear();
        if (!c.additive) multiply_state<D>(rest, s, keys);
        solve(rest, u, m.v, m.gram, edges, c, at.warp);
        if constexpr (walk == Walk::results) {
            Fragments<1, 8> out;
            read_out<D>(out, m, edges, s, u, c.query_scale);
            write_columns(m.v, out, c, f.o.at(at.first + begin, int64_t{at.head} * c.e + at.column),
                          f.o.stride, begin, c.e - at.column);
        }
        if constexpr (per == DecayPer::channel) cp_async_wait<0>();
        __syncthreads();
        if (number + 1 < at.end) load_others<D, per, walk>(m, c, at, number + 1);
        fade_state<D, per>(s, edges);
#pragma unroll
        for (int b = 0; b < blocks; ++b) {  // u becomes that of the products with ke
            float low[4], high[4];
            const float2 x = of_pair(edges.beta, 2 * b), y = of_pair(edges.beta, 2 * b + 1);
            const float2 p = of_pair(edges.to_end, 2 * b), q = of_pair(edges.to_end, 2 * b + 1);
            scale_pair(low, rest.of[0][2 * b], {c.key_scale * p.x * x.x, c.key_scale * p.y * x.y});
            scale_pair(high, rest.of[0][2 * b + 1], {c.key_scale * q.x * y.x, c.key_scale * q.y * y.y});
            pack_operand(u[b], low, high);
        }
        add_to_state<D>(s, u, late_keys);
    }
    end_state<D, walk>(s, f, at);
}

View<float> numbers_of(const Tensor& t) {
    return t ? view<float>(t) : View<float>{nullptr, 0};
}

}  // namespace

void delta::launch_scores(const DeltaChunks& c, const DeltaSpec& s, Stream stream) {
    with_form(c, [&](auto channels, auto decays) {
        constexpr int D = decltype(channels)::value;
        constexpr DecayPer per = decltype(decays)::value;
        launch(delta_scores_kernel<D, per>,
               {chunk_grid(s), dim3(pass_threads), sizeof(ScoreLayout<D, per>), stream}, c);
    });
}

bool delta_in_chunks(const DeltaInputs& in, const DeltaSpec& s) {
    return in.q.dtype == DType::bf16 && s.key_dim >= 32 && s.key_dim <= 128 && s.length >= block &&
           s.key_dim % 8 == 0 && s.value_dim % 8 == 0 && aligned(in.q, in.k, in.v);
}

void delta_rule_in_chunks(Tensor o, const DeltaStates& states, Tensor workspace, const DeltaInputs& in,
                          const DeltaSpec& spec, Stream stream) {
    const DeltaPlaces places(spec, false);
    check_space(workspace, places);
    DeltaForward f{chunks_of(in, spec), view<bf16>(o), numbers_of(states.of_chunks), numbers_of(states.last)};
    place_scores(f.in, workspace, places);
    launch_scores(f.in, spec, stream);
    const auto pass = [&](auto walk) {
        constexpr Walk what = decltype(walk)::value;
        with_form(f.in, [&](auto channels, auto decays) {
            constexpr int D = decltype(channels)::value;
            launch(delta_forward_kernel<D, decltype(decays)::value, what>,
                   {pass_grid(spec, what), dim3(pass_threads), sizeof(ForwardLayout<D, what>), stream}, f);
        });
    };
    if (f.in.segments > 1) {
        pass(std::integral_constant<Walk, Walk::state>{});
        join_segments(f.in, spec, false, stream);
    }
    pass(std::integral_constant<Walk, Walk::results>{});
}

}  // namespace longreach::cuda
