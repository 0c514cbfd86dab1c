// The kernel behind Ops::attention_statistics launched directly: f32 and bf16, heads for each of its tiles,
// under several schedules. Products, scores and sums are f32 in both types: bf16 inputs keep the bounds of f32.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/kernels.h"
#include "kernels/statistics_reference.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using bf16 = __nv_bfloat16;

// A matrix in device memory, as T, rows `gap` elements apart.
template <class T>
struct OnDevice {
    int64_t rows, cols, stride;
    simt::DeviceArray<T> memory;
    OnDevice(const Floats& from, int64_t gap)
        : rows(from.rows()), cols(from.cols()), stride(cols + gap), memory(laid_out(from)) {}
    std::vector<T> laid_out(const Floats& from) const {
        std::vector<T> all(static_cast<size_t>(rows * stride), T(0.0f));
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) all[static_cast<size_t>(r * stride + c)] = T(from.at(r, c));
        return all;
    }
    Tensor tensor() const {
        Tensor t(memory.data(), std::is_same_v<T, float> ? DType::f32 : DType::bf16, {rows, cols});
        t.row_stride = stride;
        return t;
    }
};

template <class T>
void check_launch(const Variant& c, int schedules) {
    Problem p(c);
    for (Floats* x : {&p.qkv, &p.far})
        for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = static_cast<float>(T((*x)[i]));
    const auto cpu = make_cpu_ops({.threads = 1});
    p.forward(*cpu);  // row starts, and the lse that the statistics take

    const OnDevice<T> qkv(p.qkv, 3), far(p.far, 1);
    const OnDevice<float> lse(p.lse, 2), factor(p.factor, 1), gain(p.gain, 0), bias(p.bias, 1),
        square(p.square, 0), sink(p.sink, 0);
    simt::DeviceArray<int32_t> row_start(
        std::vector<int32_t>(p.row_start.data(), p.row_start.data() + c.tokens()));
    const Ints keys = watched_of(c);
    simt::DeviceArray<int32_t> watched(
        std::vector<int32_t>(keys.data(), keys.data() + keys.rows() * (c.tokens() + 1)));
    Tensor watched_tensor(watched.data(), DType::i32, {watched_keys, c.tokens()});
    watched_tensor.row_stride = c.tokens() + 1;
    const simt::DeviceArray<double> forget(
        std::vector<double>(p.forget.data(), p.forget.data() + p.forget.count()));
    AttentionSpec spec = p.spec();
    if (spec.forget) spec.forget = Tensor(forget.data(), DType::f64, {c.heads, c.tokens()});
    if (spec.row_start) spec.row_start = Tensor(row_start.data(), DType::i32, {c.batch, c.length});
    if (spec.row_factor) spec.row_factor = factor.tensor();
    if (spec.distance_gain) spec.distance_gain = gain.tensor(), spec.distance_bias = bias.tensor();
    if (spec.row_square) spec.row_square = Tensor(square.memory.data(), DType::f32, {c.tokens()});
    if (spec.sink) spec.sink = Tensor(sink.memory.data(), DType::f32, {c.heads});
    if (spec.far_queries) {
        spec.far_queries = far.tensor().col_range(0, p.query_cols);
        spec.far_keys = far.tensor().col_range(p.query_cols, p.kv_cols);
    }
    Floats result(row_statistics * c.heads, c.tokens());
    const Floats poison = [&] {
        Floats all(result.rows(), result.cols());
        for (int64_t i = 0; i < all.count(); ++i) all[i] = std::numeric_limits<float>::quiet_NaN();
        return all;
    }();
    OnDevice<float> out(poison, 0);
    const simt::Options before = simt::options();
    const auto prepare = [&] { out.memory.set(out.laid_out(poison)); };
    const auto launch = [&] {
        cuda::attention_statistics(out.tensor(), lse.tensor(), qkv.tensor().col_range(0, p.query_cols),
                                   qkv.tensor().col_range(p.query_cols, p.kv_cols), watched_tensor, spec,
                                   nullptr);
    };
    CHECK(simt::run_schedules(schedules, prepare, launch, {out.memory.output()}) == schedules);
    simt::options() = before;
    const std::vector<float> host = out.memory.get();
    for (int64_t i = 0; i < result.count(); ++i) result[i] = host[static_cast<size_t>(i)];
    const ExactInputs inputs(p);
    CHECK(StatisticsReference(p, inputs, p.lse).all.worst(result) <= 1);
}

}  // namespace

TEST_CASE("row statistics in both types, heads of up to 64, 128, 256 channels, under schedules") {
    for (int64_t channels : {64, 128, 256})
        for (const Variant& c :
             std::vector<Variant>{{.batch = 1,
             .length = channels == 64 ? 135 : 70,  // more than two tiles of queries, or one
                                   .heads = 2,
             .kv_heads = 1,
             .head_dim = channels,
             .factor_rows = 2,
             .sink = true,
             .seed = 1},
                                  {.batch = 2,
                                  .length = 70,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = channels - 24,
                                  .window = 40,
                                  .documents = true,
                                  .gain_rows = 1,
                                  .bias_rows = 1,
                                  .row_square = true,
                                  .seed = 2},
                                  {.batch = 1,
                                  .length = 99,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .head_dim = channels / 2 + 1,
                                  .chunk = 80,
                                  .softcap = 2,
                                  .far = true,
                                  .far_from = 21,
                                  .forget = true,
                                  .seed = 3}}) {
            CAPTURE(channels);
            CAPTURE(c.length);
            check_launch<float>(c, channels == 256 ? 4 : simt::usual_schedules());
            check_launch<bf16>(c, simt::usual_schedules());
        }
}

TEST_CASE("row statistics of one key, in a tile of many, and of a sequence that ends with a tile") {
    for (int64_t length : {1, 2, 64, 65, 128}) {
        CAPTURE(length);
        check_launch<bf16>({.batch = 2, .length = length, .heads = 1, .kv_heads = 1, .head_dim = 16}, 2);
    }
}
