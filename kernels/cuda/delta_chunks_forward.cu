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
struct ForwardLayout {
    Rows<D> q, k[2];  // k and the edges stay until the next chunk's are there
    Square v, scores, gram;
    Edges edges[2];
};

// The copies of load_keys() are committed with those of load_others(), which always follow.
template <int D, DecayPer per>
DEVICE void load_keys(ForwardLayout<D>& m, const DeltaChunks& c, const DeltaPlace& at, int number) {
    if constexpr (per == DecayPer::head)
        load_tile<pass_threads>(m.k[number % 2], c.rows_of(c.k, at.sequence, at.head * c.d, c.d),
                                number * chunk);
    copy_edges<D, per>(m.edges[number % 2], c.edges[c.entry(at.sequence, number, at.head)]);
}
template <int D, DecayPer per>
DEVICE void load_others(ForwardLayout<D>& m, const DeltaChunks& c, const DeltaPlace& at, int number) {
    const int64_t entry = c.entry(at.sequence, number, at.head);
    const int group = static_cast<int>(blockIdx.y) * columns;
    if constexpr (per == DecayPer::head) {
        load_tile<pass_threads>(m.q, c.rows_of(c.q, at.sequence, at.head * c.d, c.d), number * chunk);
    } else {
        load_tile<pass_threads>(m.q, c.faded_rows(entry, c.qs), 0);
        if (!c.additive) load_tile<pass_threads>(m.k[0], c.faded_rows(entry, c.ks), 0);
    }
    load_tile<pass_threads>(m.v, c.rows_of(c.v, at.sequence, at.head * c.e + group, c.e - group),
                            number * chunk);
    copy_square(m.scores, c.scores + entry * square);
    if (!c.additive) copy_square(m.gram, c.gram + entry * square);
    cp_async_commit();
}

// out [columns, positions] = (qs S + P U)^T
template <int D>
DEVICE void read_out(Fragments<1, 8>& out, const ForwardLayout<D>& m, const Edges& edges,
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

template <int D>
DEVICE void write_state(const Fragments<1, D / 8>& s, float* to, const DeltaChunks& c, int first_column) {
    for_state<D>([&](int n, int half, int channel, int column) {
        if (channel >= c.d || first_column + column >= c.e) return;
        to[int64_t{channel} * c.e + column] = s.of[0][n][2 * half];
        to[int64_t{channel + 1} * c.e + column] = s.of[0][n][2 * half + 1];
    });
}

template <int D, DecayPer per>
KERNEL(pass_threads, 2)
void delta_forward_kernel(DeltaForward f) {
    auto& m = shared<ForwardLayout<D>>();
    const DeltaChunks& c = f.in;
    const DeltaPlace at(c);
    Fragments<1, D / 8> s;
    s.clear();
    if (c.continues) {
        const float* from = f.state.at(at.item, at.column);
        for_state<D>([&](int n, int half, int channel, int column) {
            if (channel >= c.d || at.column + column >= c.e) return;
            s.of[0][n][2 * half] = from[int64_t{channel} * c.e + column];
            s.of[0][n][2 * half + 1] = from[int64_t{channel + 1} * c.e + column];
        });
    }
    load_keys<D, per>(m, c, at, 0);
    load_others<D, per>(m, c, at, 0);
#pragma unroll 1
    for (int number = 0; number < c.chunks; ++number) {
        const Rows<D>&keys = m.k[per == DecayPer::head ? number % 2 : 0],
              &late_keys = m.k[per == DecayPer::head ? number % 2 : 1];
        const Edges& edges = m.edges[number % 2];
        const int begin = number * chunk;
        cp_async_wait<0>();
        __syncthreads();
        if (number + 1 < c.chunks) load_keys<D, per>(m, c, at, number + 1);
        if constexpr (per == DecayPer::channel) {
            load_tile<pass_threads>(m.k[1], c.faded_rows(c.entry(at.sequence, number, at.head), c.ke), 0);
            cp_async_commit();
        }
        if (f.states.data)
            write_state<D>(s, f.states.at(c.entry(at.sequence, number, at.head), at.column), c, at.column);
        Fragments<1, 8> rest;
        uint32_t u[blocks][4];
        rest.clear();
        if (!c.additive) multiply_state<D>(rest, s, keys);
        solve(rest, u, m.v, m.gram, edges, c, at.warp);
        {
            Fragments<1, 8> out;
            read_out<D>(out, m, edges, s, u, c.query_scale);
            write_columns(m.v, out, c, f.o.at(at.first + begin, int64_t{at.head} * c.e + at.column),
                          f.o.stride, begin, c.e - at.column);
        }
        if constexpr (per == DecayPer::channel) cp_async_wait<0>();
        __syncthreads();
        if (number + 1 < c.chunks) load_others<D, per>(m, c, at, number + 1);
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
    if (f.state.data) write_state<D>(s, f.state.at(at.item, at.column), c, at.column);
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
    check_space(workspace, spec, false);
    DeltaForward f{chunks_of(in, spec), view<bf16>(o), numbers_of(states.of_chunks), numbers_of(states.last)};
    DeltaSpace space{static_cast<std::byte*>(workspace.data())};
    take_scores(f.in, space, spec);
    launch_scores(f.in, spec, stream);
    with_form(f.in, [&](auto channels, auto decays) {
        constexpr int D = decltype(channels)::value;
        launch(delta_forward_kernel<D, decltype(decays)::value>,
               {pass_grid(spec), dim3(pass_threads), sizeof(ForwardLayout<D>), stream}, f);
    });
}

}  // namespace longreach::cuda
