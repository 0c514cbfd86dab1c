// Gradients of attention. Per visible pair of a query i and a key j, with P = exp(y - lse) rebuilt tile by
// tile from the saved lse (attention_spec.h says how y comes from s = <q_i, k_j>):
//
//   delta_i = <dO_i, O_i>     dY = P (<dO_i, v_j> - delta_i)     dS = dY dy/ds
//   dV = P^T dO     dK = dS^T Q     dQ = dS K     df_i = sum over j of dY gain z     (row factors)
//   dgain(t) = sum of dY f z and dbias(t) = sum of dY over i - j = t
//   dsink = -sum over i of exp(sink - lse_i) delta_i
//   dc_i = sum over j of dY_ij - sum over i' of dY_i'i     (forget sums)
//
// q, o, dO, dQ [N, H d]; k, v, dK, dV [N, G d]; lse, delta, df [H, N]. Reads q, k, v, o, dO and lse; nothing
// of size T x T is stored. Both passes compute S and dP: 14 d FLOPs and two exp2 per visible pair; heads of
// more than 128 channels and the gradients of distance tables compute them once more, 4 d each. Bytes per
// token at least, e those of an element: o and dO for delta, 2 H d e; q, dO, k, v and dK, dV in the key pass,
// (2 H + 4 G) d e; q, dO, k, v and dQ in the query pass, (3 H + 2 G) d e; lse and delta 20 H in all. Every
// tile of keys reads q and dO of the queries that see it, every tile of queries k and v, mostly from L2.
//
//   delta pass    a few lanes per (row, head)
//   key pass      a block per (tile of keys, key/value head, sequence[, half of 256 channels]): rows of the
//                 fragments are keys, P^T and dS^T go from registers into dV and dK, summed over the queries
//                 of all heads of the group in order; the second half of dc. bf16 heads of 128 channels, but for mode
//                 forget: two warps share their rows in this pass and the next (Tiles)
//   query pass    a block per (tile of queries, head, sequence): dQ and df, the first half of dc, which is 0 only
//                 without sinks and but for the rounding of delta (kernels/cpu/attention_backward.cpp)
//   distance pass only where asked for: a block per (diagonal of tiles, head, sequence). Query and key tile
//                 move together, so an element of the fragments keeps its distance; sums along the diagonals
//                 of a tile go to a slab, which a last kernel adds up by distance in f64.
//   The last three are in attention_backward_keys.cuh, _queries.cuh and _distances.cuh.
//
// Only the sums of the slab and the sinks cross blocks; their partials are added in fixed order.
#include <algorithm>

#include "kernels/cuda/attention_backward_distances.cuh"
#include "kernels/cuda/attention_backward_keys.cuh"
#include "kernels/cuda/attention_backward_queries.cuh"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/workspaces.h"

namespace longreach::cuda {
namespace {

// --- delta and sinks

template <class T, int n>
KERNEL(256)
void delta_kernel(Backward<T> b, View<const T> o, int lanes) {
    const int64_t tokens = b.in.tokens(), pairs = tokens * b.in.heads;
    const int lane = static_cast<int>(threadIdx.x) % lanes, each = 256 / lanes;
    const int64_t pair = static_cast<int64_t>(blockIdx.x) * each + static_cast<int>(threadIdx.x) / lanes;
    const int64_t row = pair / b.in.heads, head = pair % b.in.heads;
    float sum = 0.0f;
    if (pair < pairs)
        for (int c = lane * n; c < b.in.channels; c += lanes * n) {
            const Pack<n> x = load<n>(b.dout.at(row, head * b.in.channels + c));
            const Pack<n> y = load<n>(o.at(row, head * b.in.channels + c));
#pragma unroll
            for (int k = 0; k < n; ++k) sum = fmaf(x[k], y[k], sum);
        }
    sum = lanes_sum(sum, lanes);
    if (pair < pairs && lane == 0) b.delta[head * tokens + row] = sum;
}

// partials [H, blocks]: sum of exp(sink - lse) delta over a block of rows. The share is at most 1.
KERNEL(256)
void sink_kernel(double* partials, const float* sink, const float* lse, int64_t lse_step, const float* delta,
                 int64_t tokens) {
    auto& results = shared<WarpResults<double, 256>>();
    const int64_t head = blockIdx.y;
    const Range rows = piece_of(tokens, gridDim.x, blockIdx.x);
    double sum = 0.0;
    for (int64_t n = rows.begin + threadIdx.x; n < rows.end; n += 256)
        sum += static_cast<double>(expf(fminf(0.0f, sink[head] - lse[head * lse_step + n])) *
                                   delta[head * tokens + n]);
    sum = block_sum<256>(sum, results);
    if (threadIdx.x == 0) partials[head * gridDim.x + blockIdx.x] = sum;
}

// --- sums of the slab

// to [1 or H, R], entry R - 1 - t of distance t < length, = the sums of all sequences and, in a shared table,
// heads. A distance lies on two diagonals of tiles, or on one. A row of blocks for each row of the table.
KERNEL(256)
void fold_distances_kernel(View<float> to, int64_t columns, const float* slab, int which, int batch,
                           int heads, int length, int edge) {
    const int t = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (t >= length) return;
    const int across = (length + edge - 1) / edge, diagonals = 2 * edge - 1;
    const int row = static_cast<int>(blockIdx.y), number = t / edge, rest = t % edge;
    const bool shared_table = gridDim.y == 1;
    double total = 0.0;
    for (int sequence = 0; sequence < batch; ++sequence)
        for (int head = shared_table ? 0 : row; head < (shared_table ? heads : row + 1); ++head) {
            const int64_t first = (static_cast<int64_t>(sequence) * heads + head) * across;
            const auto sum = [&](int tile, int diagonal) {
                return static_cast<double>(slab[((first + tile) * 2 + which) * diagonals + diagonal]);
            };
            total += sum(number, rest + edge - 1);
            if (rest > 0 && number + 1 < across) total += sum(number + 1, rest - 1);
        }
    *to.at(row, columns - 1 - t) = static_cast<float>(total);
}

// --- host side

template <ScoreMode mode>
inline constexpr std::integral_constant<ScoreMode, mode> constant{};

template <class T, int D, ScoreMode mode>
void launch_distances(const Backward<T>& arguments, const AttentionGradients& gradients, float* slab,
                      Stream stream) {
    using Size = Squares<T, D>;
    using Pass = DistancePass<T, D, mode>;
    static_assert(sizeof(Pass) <= most_shared);
    const AttentionInput<T>& a = arguments.in;
    const unsigned across = blocks_for(a.length, Size::edge);
    const unsigned heads = static_cast<unsigned>(a.batch * a.heads);
    launch(distance_kernel<T, D, mode>, {dim3(across * heads), dim3(Size::threads), sizeof(Pass), stream},
           arguments, slab);
    for (int which = 0; which < 2; ++which) {
        const Tensor& to = which == 0 ? gradients.distance_gain : gradients.distance_bias;
        if (!to) continue;
        launch(fold_distances_kernel,
               {dim3(blocks_for(a.length, 256), static_cast<unsigned>(to.rows())), dim3(256), 0, stream},
               view<float>(to), to.cols(), slab, which, a.batch, a.heads, a.length, Size::edge);
    }
}

template <class T, int D, ScoreMode mode>
void launch_passes(const Backward<T>& arguments, Stream stream) {
    using Keys = KeyPass<T, D, mode>;
    using Queries = QueryPass<T, D, mode>;
    static_assert(sizeof(Keys) <= most_shared && sizeof(Queries) <= most_shared);
    const AttentionInput<T>& a = arguments.in;
    const auto blocks = [&](int own, int heads, int slices) {
        const int64_t across = blocks_for(a.length, own);
        return dim3(static_cast<unsigned>(across * heads * a.batch * slices));
    };
    launch(
        key_kernel<T, D, mode>,
        {blocks(Keys::Size::own, a.kv_heads, Keys::slices), dim3(Keys::Size::threads), sizeof(Keys), stream},
        arguments);
    launch(query_kernel<T, D, mode>,
           {blocks(Queries::Size::own, a.heads, 1), dim3(Queries::Size::threads), sizeof(Queries), stream},
           arguments);
}

template <class T>
void launch_delta(const Backward<T>& arguments, const Tensor& o, Stream stream) {
    const AttentionInput<T>& a = arguments.in;
    with_pack<T>(a.vectors && aligned(o), [&](auto n) {
        constexpr int pack = decltype(n)::value;
        int lanes = 1;
        while (lanes < 32 && lanes * pack < a.channels) lanes *= 2;
        launch(delta_kernel<T, pack>,
               {dim3(blocks_for(a.tokens() * a.heads, 256 / lanes)), dim3(256), 0, stream}, arguments,
               view<const T>(o), lanes);
    });
}

}  // namespace

void attention_backward(const QueryKeyValue& d, const AttentionGradients& gradients, Tensor workspace,
                        const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                        Stream stream, const HopperWorkers& workers) {
    const Tensor &q = saved.in.q, &k = saved.in.k, &v = saved.in.v, &o = saved.o, &lse = saved.lse;
    const int64_t tokens = spec.batch * spec.length;
    check(!spec.far_queries && !spec.far_keys, "attention_backward: a far pair is for forward passes only");
    check(!gradients.sink || spec.sink, "attention_backward: gradient of a sink that is not there");
    check(!gradients.forget || spec.forget, "attention_backward: gradient of forget sums that are not there");
    const bool tables = gradients.distance_gain || gradients.distance_bias;
    check(!tables || (spec.distance_gain && !spec.row_square),
          "attention_backward: gradients of distance tables need tables and no row_square");
    check(d.q.rows() == tokens && d.k.rows() == tokens && d.v.rows() == tokens && dout.rows() == tokens &&
              o.rows() == tokens && d.q.cols() == q.cols() && d.k.cols() == k.cols() &&
              d.v.cols() == v.cols() && dout.cols() == q.cols() && o.cols() == q.cols() &&
              lse.cols() == tokens,
          "attention_backward: o {}x{} of q {}x{}", o.rows(), o.cols(), q.rows(), q.cols());
    check((spec.length + 15) / 16 * spec.heads * spec.batch < int64_t{1} << 31,
          "attention_backward over {} positions, {} heads of {} sequences", spec.length, spec.heads,
          spec.batch);
    const AttentionPlaces places(spec, gradients);
    check(workspace.bytes() >= places.bytes, "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), places.bytes);
    if (tokens == 0) return;
    const bool hopper = workers.count > 0 && attention_backward_sm90_serves(d, dout, saved, spec);
    auto* memory = workspace.as<std::byte>();
    auto* sinks = reinterpret_cast<double*>(memory + places.sinks);
    auto* slab = reinterpret_cast<float*>(memory + places.slab);
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        Backward<T> arguments{.in = attention_input<T>(q, k, v, spec),
                              .dout = view<const T>(dout),
                              .dq = view<T>(d.q),
                              .dk = view<T>(d.k),
                              .dv = view<T>(d.v),
                              .lse = lse.f32(),
                              .lse_step = lse.row_stride,
                              .delta = reinterpret_cast<float*>(memory),
                              .dfactor = gradients.row_factor.f32(),
                              .dfactor_step = gradients.row_factor.row_stride,
                              .dforget = gradients.forget.f32(),
                              .dforget_step = gradients.forget.row_stride,
                              .pairs = spec.head_dim % 2 == 0 && aligned(d.q, d.k, d.v)};
        arguments.in.vectors = arguments.in.vectors && aligned(dout);
        launch_delta(arguments, o, stream);
        if (hopper)
            attention_backward_sm90(d, gradients, arguments.delta, dout, saved, spec, workers, stream);
        if (gradients.sink) {
            const int64_t blocks = flat_blocks(tokens);
            launch(sink_kernel,
                   {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(spec.heads)), dim3(256),
                    sizeof(WarpResults<double, 256>), stream},
                   sinks, spec.sink.f32(), lse.f32(), lse.row_stride, arguments.delta, tokens);
            fold_totals({.partials = sinks,
                         .count = blocks,
                         .step = blocks,
                         .add_to = gradients.sink.f32(),
                         .factor = -1.0},
                        spec.heads, stream);
        }
        with_head_tile(spec.head_dim, [&](auto channels) {
            constexpr int D = decltype(channels)::value;
            const auto launch_all = [&](auto of_mode) {
                constexpr ScoreMode mode = decltype(of_mode)::value;
                if constexpr (mode == ScoreMode::table || mode == ScoreMode::general)
                    if (tables) launch_distances<T, D, mode>(arguments, gradients, slab, stream);
                if (!hopper) launch_passes<T, D, mode>(arguments, stream);
            };
            using enum ScoreMode;
            if constexpr (std::is_same_v<T, float>) {
                launch_all(constant<general>);
            } else {
                const ScoreMode mode = score_mode(spec);
                if (mode == plain)
                    launch_all(constant<plain>);
                else if (mode == forget)
                    launch_all(constant<forget>);
                else if (mode == table)
                    launch_all(constant<table>);
                else
                    launch_all(constant<general>);
            }
        });
    });
}

}  // namespace longreach::cuda
