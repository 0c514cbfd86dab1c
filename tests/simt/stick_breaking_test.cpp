// The kernels of stick-breaking attention launched directly: f32 and bf16, heads for each tile of channels, under
// the schedules of the harness. Products, weights and sums are f32 in both types, so bf16 adds one rounding of
// o, which backward reads, and one of every gradient: 2^-8 of them.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/kernels.h"
#include "kernels/stick_breaking_reference.h"
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
        std::vector<T> all(static_cast<size_t>(rows * stride), T(guard));
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) all[static_cast<size_t>(r * stride + c)] = T(from.at(r, c));
        return all;
    }
    void set(const Floats& from) { memory.set(laid_out(from)); }
    // What lies between the rows must not change.
    void get(Floats& to) const {
        const std::vector<T> all = memory.get();
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < stride; ++c) {
                const auto x = static_cast<float>(all[static_cast<size_t>(r * stride + c)]);
                if (c < cols)
                    to.at(r, c) = x;
                else
                    REQUIRE(x == guard);
            }
    }
    Tensor tensor() const {
        Tensor t(memory.data(), std::is_same_v<T, float> ? DType::f32 : DType::bf16, {rows, cols});
        t.row_stride = stride;
        return t;
    }
    static constexpr float guard = 77.0f;
};

Floats poison(int64_t rows, int64_t cols) {
    Floats all(rows, cols);
    for (int64_t i = 0; i < all.count(); ++i) all[i] = std::numeric_limits<float>::quiet_NaN();
    return all;
}

// A problem in device memory, activations as T, and all four operations on it.
template <class T>
struct Launch {
    Problem p;
    Floats statistics, last;  // last: o of the last position, by decoding
    OnDevice<T> qkv, dout, o, dqkv, decoded;
    OnDevice<float> lse, factor, gain, bias, dfactor, dgain, dbias, all;
    simt::DeviceArray<int32_t> row_start, watched;
    simt::DeviceArray<float> workspace;

    static Problem rounded(const Variant& c) {
        Problem p(c);
        for (Floats* x : {&p.qkv, &p.dout})
            for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = static_cast<float>(T((*x)[i]));
        const auto cpu = make_cpu_ops({.threads = 1});
        cpu->row_starts(p.row_start.tensor(), c.documents ? p.doc_start.tensor() : Tensor(), c.length,
                        c.window, c.chunk);
        return p;
    }
    static std::vector<int32_t> numbers(const Ints& x) {
        std::vector<int32_t> all;
        for (int64_t i = 0; i < x.count(); ++i) all.push_back(x[i]);
        return all;
    }
    explicit Launch(const Variant& c)
        : p(rounded(c)),
          statistics(row_statistics * c.heads, c.tokens()),
          last(c.batch, p.query_cols),
          qkv(p.qkv, 3),
          dout(p.dout, 5),
          o(p.o, 1),
          dqkv(p.dqkv, 2),
          decoded(last, 1),
          lse(p.lse, 2),
          factor(p.factor, 1),
          gain(p.gain, 0),
          bias(p.bias, 1),
          dfactor(p.dfactor, 3),
          dgain(p.dgain, 1),
          dbias(p.dbias, 2),
          all(statistics, 0),
          row_start(numbers(p.row_start)),
          watched(numbers(watched_of(c))),
          workspace(static_cast<size_t>(cuda::stick_workspace(spec(), gradients()) / 4)) {}

    Tensor part(const OnDevice<T>& fused, int which) const {
        const Tensor t = fused.tensor();
        if (which == 0) return t.col_range(0, p.query_cols);
        return t.col_range(p.query_cols + (which - 1) * p.kv_cols, p.kv_cols);
    }
    AttentionSpec spec() {
        AttentionSpec s = p.spec();
        if (s.row_start) s.row_start = Tensor(row_start.data(), DType::i32, {p.c.batch, p.c.length});
        if (s.row_factor) s.row_factor = factor.tensor();
        if (s.distance_gain) s.distance_gain = gain.tensor(), s.distance_bias = bias.tensor();
        return s;
    }
    AttentionGradients gradients() {
        AttentionGradients g = p.gradients();
        if (g.row_factor) g.row_factor = dfactor.tensor();
        if (g.distance_gain) g.distance_gain = dgain.tensor();
        if (g.distance_bias) g.distance_bias = dbias.tensor();
        return g;
    }
    // Nothing that is written may depend on what was there.
    void clear() {
        for (OnDevice<T>* x : {&o, &dqkv, &decoded}) x->set(poison(x->rows, x->cols));
        for (OnDevice<float>* x : {&lse, &dfactor, &all}) x->set(poison(x->rows, x->cols));
        Problem fresh(p.c);
        dgain.set(fresh.dgain);
        dbias.set(fresh.dbias);
        workspace.set(std::vector<float>(workspace.size(), std::numeric_limits<float>::quiet_NaN()));
    }
    void forward() {
        cuda::break_sticks(o.tensor(), lse.tensor(), part(qkv, 0), part(qkv, 1), part(qkv, 2), spec(),
                           nullptr);
    }
    void run() {
        forward();
        const Tensor memory(workspace.data(), DType::f32, {static_cast<int64_t>(workspace.size())});
        cuda::break_sticks_backward(
            {part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)}, gradients(), memory, dout.tensor(),
            {{part(qkv, 0), part(qkv, 1), part(qkv, 2)}, o.tensor(), lse.tensor()}, spec(), nullptr);
        const Tensor keys(watched.data(), DType::i32, {watched_keys, p.c.tokens()});
        cuda::stick_statistics(all.tensor(), lse.tensor(), part(qkv, 0), part(qkv, 1), keys, spec(), nullptr);
        if (!p.c.documents) decode();
        cudaDeviceSynchronize();
    }
    // The last position of every sequence.
    void decode() {
        const Variant& c = p.c;
        const int64_t position = c.length - 1;
        AttentionSpec s = spec();
        if (s.row_factor) s.row_factor = at_last(s.row_factor.col_range(position, 1), true);
        s.row_start = Tensor();
        int64_t first = 0;
        if (c.window > 0) first = std::max(first, position - c.window + 1);
        if (c.chunk > 0) first = std::max(first, position / c.chunk * c.chunk);
        cuda::stick_decode(decoded.tensor(), at_last(part(qkv, 0), false), part(qkv, 1), part(qkv, 2), s,
                           first, position, nullptr);
    }
    // A row (a column of factors) per sequence; of factors only one sequence is used.
    Tensor at_last(Tensor t, bool factors) const {
        if (factors) return t;
        t = t.moved((p.c.length - 1) * t.row_stride);
        t.shape = {p.c.batch, t.cols(), 0, 0};
        t.row_stride *= p.c.length;
        return t;
    }
    void check() {
        o.get(p.o);
        lse.get(p.lse);
        dqkv.get(p.dqkv);
        dfactor.get(p.dfactor);
        dgain.get(p.dgain);
        dbias.get(p.dbias);
        all.get(statistics);
        decoded.get(last);
        const double narrow = std::is_same_v<T, float> ? 0 : 0x1p-8;
        check_sticks(p, narrow);
        check_stick_statistics(p, statistics);
        if (p.c.documents) return;
        const ExactInputs inputs(p);
        const StickReference exact(p, inputs, narrow);
        for (int64_t b = 0; b < p.c.batch; ++b)
            for (int64_t c = 0; c < p.query_cols; ++c) {
                const auto at = static_cast<size_t>(((b + 1) * p.c.length - 1) * p.query_cols + c);
                CHECK(std::abs(double{last.at(b, c)} - exact.o.value[at]) <=
                      safety * exact.o.bound[at] + floor_of_bounds);
            }
    }
    void under_schedules(int count) {
        const simt::Options before = simt::options();
        std::vector<simt::Output> outputs{
            o.memory.output(),       dqkv.memory.output(),  lse.memory.output(),  all.memory.output(),
            dfactor.memory.output(), dgain.memory.output(), dbias.memory.output()};
        if (!p.c.documents) outputs.push_back(decoded.memory.output());
        if (!p.c.factor_gradient) outputs.erase(outputs.begin() + 4);  // poison, as nobody writes it
        CHECK(simt::run_schedules(
                  count, [&] { clear(); }, [&] { run(); }, outputs) == count);
        simt::options() = before;
        check();
    }
};

// Three shapes for heads of up to `channels`: everything; a window and several sequences; documents.
std::vector<Variant> shapes(int64_t channels) {
    return {{.length = 97,  // the last tile holds one query
             .heads = 2,
             .kv_heads = 1,
             .head_dim = channels,
             .factor_rows = 2,
             .gain_rows = 1,
             .bias_rows = 2,
             .factor_gradient = true,
             .gain_gradient = true,
             .bias_gradient = true,
             .sticks = true,
             .seed = 1},
            {.batch = 2,
             .length = 70,
             .heads = 2,
             .kv_heads = 2,
             .head_dim = channels - 24,
             .window = 30,
             .softcap = 2,
             .factor_gradient = true,
             .sticks = true,
             .seed = 2},
            {.length = 45,
             .heads = 3,
             .kv_heads = 1,
             .head_dim = channels / 2 + 1,
             .documents = true,
             .gain_rows = 3,
             .bias_rows = 1,
             .gain_gradient = true,
             .sticks = true,
             .seed = 3}};
}

// Of each size of head one shape under several schedules, by turns, and the others under one.
template <class T>
void check_shapes(int schedules) {
    size_t turn = 0;
    for (int64_t channels : {64, 128, 256}) {
        const std::vector<Variant> all = shapes(channels);
        for (size_t i = 0; i < all.size(); ++i) {
            CAPTURE(all[i].head_dim);
            CAPTURE(all[i].length);
            Launch<T>(all[i]).under_schedules(!simt::long_tests() && i != turn % 3 ? 1 : schedules);
        }
        ++turn;
    }
}

}  // namespace

TEST_CASE("stick-breaking in f32 against double, heads of up to 64, 128, 256 channels, under schedules") {
    check_shapes<float>(2);
}
TEST_CASE("stick-breaking in bf16 against double, heads of up to 64, 128, 256 channels, under schedules") {
    check_shapes<bf16>(3);
}

TEST_CASE("stick-breaking in blocks of a few channels, decoding over several rounds of keys") {
    const Variant c{.length = 140,
                    .heads = 1,
                    .kv_heads = 1,
                    .head_dim = 8,
                    .factor_rows = 1,
                    .gain_rows = 1,
                    .bias_rows = 1,
                    .factor_gradient = true,
                    .bias_gradient = true,
                    .sticks = true};
    Launch<bf16>(c).under_schedules(simt::usual_schedules());
    Launch<float>(c).under_schedules(2);
}

TEST_CASE("a tile of sticks that are used up is left alone") {
    Variant c{.length = 330, .heads = 1, .kv_heads = 1, .head_dim = 4, .sticks = true};
    Launch<float> launch(c);
    // All scores are 12.5: a stick is used up within 9 keys. Farther keys hold what would spoil everything.
    for (int64_t n = 0; n < c.length; ++n)
        for (int64_t m = 0; m < 4; ++m) {
            launch.p.qkv.at(n, m) = launch.p.qkv.at(n, 4 + m) = 2.5f;
            if (n < 32) launch.p.qkv.at(n, 8 + m) = std::numeric_limits<float>::quiet_NaN();
        }
    launch.qkv.set(launch.p.qkv);
    launch.clear();
    launch.forward();
    launch.o.get(launch.p.o);
    launch.lse.get(launch.p.lse);
    for (int64_t i = 96; i < c.length; ++i) {
        CHECK(std::isfinite(launch.p.o.at(i, 0)));
        CHECK(launch.p.lse[i] < -103);
    }
}

TEST_CASE("a NaN in one key reaches the queries that see it and no others") {
    Variant c{.length = 150, .heads = 1, .kv_heads = 1, .head_dim = 16, .chunk = 70, .sticks = true};
    Launch<bf16> launch(c);
    launch.p.qkv.at(40, 16 + 5) = std::numeric_limits<float>::quiet_NaN();
    launch.qkv.set(launch.p.qkv);
    launch.clear();
    launch.forward();
    launch.o.get(launch.p.o);
    launch.lse.get(launch.p.lse);
    for (int64_t i = 0; i < c.length; ++i) {
        CHECK(std::isnan(launch.p.o.at(i, 0)) == (i > 40 && i < 70));
        CHECK(std::isnan(launch.p.lse.at(0, i)) == (i > 40 && i < 70));
    }
}

TEST_CASE("what the kernels of sticks cannot do is refused before a launch") {
    Variant c{.length = 3, .heads = 2, .kv_heads = 1, .head_dim = 8, .sticks = true};
    Variant wide = c;
    wide.head_dim = 257;
    CHECK_THROWS_AS(Launch<bf16>(wide).forward(), Error);
    Launch<bf16> launch(c);
    const auto softmax = [&] {
        cuda::attention(launch.o.tensor(), launch.lse.tensor(), Tensor(), launch.part(launch.qkv, 0),
                        launch.part(launch.qkv, 1), launch.part(launch.qkv, 2), launch.spec(), nullptr);
    };
    CHECK_THROWS_AS(softmax(), Error);
    launch.p.c.row_square = true;
    CHECK_THROWS_AS(launch.forward(), Error);
}
