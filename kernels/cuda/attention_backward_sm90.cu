// Gradients of attention for Hopper (sm_90a), bf16, heads of 64 or 128 channels: the key pass and the query pass.
// attention_backward.cu says what is computed, does the rest (delta, sinks, distance tables) and serves everything else.
//
// Blocks as in attention_forward_sm90.cu: one warpgroup copies, two compute 64 rows of a tile of 128 each.
//
//   key pass      own tile: 128 keys, their values. Per tile of queries S^T = K Q^T and dP^T = V dO^T, both operands in
//                 shared memory; P^T and dS^T go from registers into dV += P^T dO and dK += dS^T Q.
//   query pass    own tile: 128 queries, their dO, both in registers as operands for the whole walk. Per tile of keys
//                 S = Q K^T, dP = dO V^T and dQ += dS K.
//
// Seven products where one kernel would need five; in return nothing is added across blocks, so the order of every sum
// is fixed. A warpgroup's exponentials run under the products of the other.
#define LONGREACH_SM90 1  // what the builds that have these kernels define
#include "kernels/cuda/attention_backward_keys_sm90.cuh"
#include "kernels/cuda/attention_backward_queries_sm90.cuh"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/tensor_map.h"

namespace longreach::cuda {
namespace {

template <int D, ScoreMode mode>
void launch_backward(const QueryKeyValue& d, const AttentionGradients& d_scores, const float* delta,
                     const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                     const HopperWorkers& workers, Stream stream) {
    using Shape = Sm90Backward<D>;
    constexpr size_t keys_bytes = sizeof(Sm90KeyPass<D, mode>),
                     queries_bytes = sizeof(Sm90QueryPass<D, mode>);
    static_assert(keys_bytes <= 227 * 1024 && queries_bytes <= 227 * 1024);
    const auto map = [&](const Tensor& t, int rows) { return tensor_map(t, spec.batch, spec.length, rows); };
    const QueryKeyValue& in = saved.in;
    Sm90BackwardArguments x{.q = map(in.q, Shape::queries_met),
                            .k = map(in.k, Shape::own),
                            .v = map(in.v, Shape::own),
                            .dout = map(dout, Shape::queries_met),
                            .dk = map(d.k, 64),
                            .dv = map(d.v, 64),
                            .dq = map(d.q, 64),
                            .a = attention_input<bf16>(in.q, in.k, in.v, spec),
                            .lse = saved.lse.f32(),
                            .lse_step = saved.lse.row_stride,
                            .delta = delta,
                            .dfactor = d_scores.row_factor.f32(),
                            .dforget = d_scores.forget.f32(),
                            .dfactor_step = d_scores.row_factor.row_stride,
                            .dforget_step = d_scores.forget.row_stride,
                            .list = work_list(spec, Shape::own, spec.kv_heads, workers)};
    launch(key_sm90_kernel<D, mode>, {grid_of(x.list, workers), dim3(Shape::threads), keys_bytes, stream}, x);
    x.q = map(in.q, Shape::own);
    x.dout = map(dout, Shape::own);
    x.k = map(in.k, Shape::keys_met);
    x.v = map(in.v, Shape::keys_met);
    x.list = work_list(spec, Shape::own, spec.heads, workers);
    launch(query_sm90_kernel<D, mode>,
           {grid_of(x.list, workers), dim3(Shape::threads), queries_bytes, stream}, x);
}

}  // namespace

bool attention_backward_sm90_serves(const QueryKeyValue& d, const Tensor& dout, const AttentionSaved& saved,
                                    const AttentionSpec& spec) {
    const QueryKeyValue& in = saved.in;
    bool maps = sm90_serves(spec);
    for (const Tensor* t : {&in.q, &in.k, &in.v, &dout, &d.q, &d.k, &d.v}) maps = maps && has_tensor_map(*t);
    return maps;
}

void attention_backward_sm90(const QueryKeyValue& d, const AttentionGradients& d_scores, const float* delta,
                             const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                             const HopperWorkers& workers, Stream stream) {
    with_sm90_instance(spec, [&](auto channels, auto mode) {
        launch_backward<decltype(channels)::value, decltype(mode)::value>(d, d_scores, delta, dout, saved,
                                                                          spec, workers, stream);
    });
}

}  // namespace longreach::cuda
