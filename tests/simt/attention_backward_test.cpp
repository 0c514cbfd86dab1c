// The backward kernels of attention alone, fed with the o and lse of the reference: every instance in f32 and
// bf16, under the schedules of the harness and within the shared memory of every architecture. The bounds are
// those of attention_variants.h; bf16 has 8 significant bits, so a rounding is off by the relative 2^-8.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention_variants.h"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/kernels.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using bf16 = __nv_bfloat16;

template <class T>
constexpr bool is_float = std::is_same_v<T, float>;
template <class T>
T narrowed(double x) {
    if constexpr (is_float<T>)
        return static_cast<float>(x);
    else
        return __float2bfloat16(static_cast<float>(x));
}
template <class T>
float widened_to_float(T x) {
    if constexpr (is_float<T>)
        return x;
    else
        return __bfloat162float(x);
}

// A matrix in device memory whose rows end in `gap` elements nobody may touch.
template <class T>
class Matrix {
  public:
    Matrix(int64_t rows, int64_t cols, int64_t gap)
        : rows_(rows), cols_(cols), stride_(cols + gap), memory_(static_cast<size_t>(rows * stride_)) {}
    template <class Value>  // of an index without gaps
    void fill(Value value) {
        std::vector<T> all(memory_.size(), narrowed<T>(untouched));
        for (int64_t i = 0; i < rows_ * cols_; ++i) all[at(i)] = narrowed<T>(value(i));
        memory_.set(all);
    }
    Floats get() const {
        const std::vector<T> all = memory_.get();
        Floats to(rows_, cols_);
        for (int64_t i = 0; i < to.count(); ++i) to[i] = widened_to_float(all[at(i)]);
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = cols_; c < stride_; ++c)
                CHECK(widened_to_float(all[static_cast<size_t>(r * stride_ + c)]) == untouched);
        return to;
    }
    Tensor tensor() const {
        Tensor t(memory_.data(), is_float<T> ? DType::f32 : DType::bf16, {rows_, cols_});
        t.row_stride = stride_;
        return t;
    }
    Tensor vector() const { return Tensor(memory_.data(), DType::f32, {rows_ * cols_}); }
    simt::Output output() const { return memory_.output(); }
    static constexpr float untouched = -3.0f;

  private:
    size_t at(int64_t i) const { return static_cast<size_t>(i / cols_ * stride_ + i % cols_); }
    int64_t rows_, cols_, stride_;
    simt::DeviceArray<T> memory_;
};

// One variant: inputs, outputs and the reference. gap: elements between rows; odd ones take
// the kernels' scalar accesses.
template <class T>
struct Run {
    Problem p;
    ExactInputs inputs;
    Reference exact;
    Matrix<T> qkv, dqkv, dout, o;
    Matrix<float> lse, factor, gain, bias, square, sink, dfactor, dgain, dbias, dsink, dforget;
    simt::DeviceArray<int32_t> row_start;
    simt::DeviceArray<double> forget;
    simt::DeviceArray<float> workspace;
    int hopper_workers = 0;
    simt::DeviceArray<int> queue{std::vector<int>(2)};

    static Problem problem_of(const Variant& c) {
        Problem p(c);
        for (Floats* x : {&p.qkv, &p.dout})
            for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = widened_to_float(narrowed<T>(double{(*x)[i]}));
        return p;
    }
    Run(const Variant& c, int64_t gap)
        : p(problem_of(c)),
          inputs(p),
          exact(p, inputs, is_float<T> ? 0 : 0x1p-8),
          qkv(c.tokens(), p.dqkv.cols(), gap),
          dqkv(c.tokens(), p.dqkv.cols(), gap),
          dout(c.tokens(), p.query_cols, gap),
          o(c.tokens(), p.query_cols, gap),
          lse(c.heads, c.tokens(), 1),
          factor(p.factor.rows(), c.tokens(), 2),
          gain(p.gain.rows(), p.entries, 0),
          bias(p.bias.rows(), p.entries, 3),
          square(1, c.tokens(), 0),
          sink(1, c.heads, 0),
          dfactor(c.heads, c.tokens(), 3),
          dgain(p.gain.rows(), p.entries, 1),
          dbias(p.bias.rows(), p.entries, 2),
          dsink(1, c.heads, 0),
          dforget(c.heads, c.tokens(), 2),
          row_start(static_cast<size_t>(c.tokens())),
          forget(std::vector<double>(p.forget.data(), p.forget.data() + p.forget.count())),
          workspace(static_cast<size_t>(cuda::attention_backward_workspace(spec(), gradients()) / 4)) {
        const auto from = [](const Floats& x) { return [&x](int64_t i) { return double{x[i]}; }; };
        const auto of = [](const Reference::Output& x) {
            return [&x](int64_t i) { return x.value[static_cast<size_t>(i)]; };
        };
        qkv.fill(from(p.qkv));
        dout.fill(from(p.dout));
        o.fill(of(exact.o));
        lse.fill(of(exact.lse));
        factor.fill(from(p.factor));
        gain.fill(from(p.gain));
        if (c.bias_of_gain != 0)  // computed, not read
            bias.fill([](int64_t) { return NAN; });
        else
            bias.fill(from(p.bias));
        square.fill(from(p.square));
        sink.fill(from(p.sink));
        std::vector<int32_t> first;
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t i = 0; i < c.length; ++i)
                first.push_back(static_cast<int32_t>(exact.first_key(b, i)));
        row_start.set(first);
    }
    Tensor part(const Matrix<T>& fused, int which) const {
        const Tensor t = fused.tensor();
        if (which == 0) return t.col_range(0, p.query_cols);
        return t.col_range(p.query_cols + (which - 1) * p.kv_cols, p.kv_cols);
    }
    AttentionSpec spec() {
        AttentionSpec s = p.spec();
        if (s.row_start) s.row_start = Tensor(row_start.data(), DType::i32, {p.c.batch, p.c.length});
        if (s.row_factor) s.row_factor = factor.tensor();
        if (s.distance_gain) s.distance_gain = gain.tensor(), s.distance_bias = bias.tensor();
        if (s.row_square) s.row_square = square.vector();
        if (s.sink) s.sink = sink.vector();
        if (s.forget) s.forget = Tensor(forget.data(), DType::f64, {p.c.heads, p.c.tokens()});
        return s;
    }
    AttentionGradients gradients() {
        AttentionGradients g = p.gradients();
        if (g.row_factor) g.row_factor = dfactor.tensor();
        if (g.distance_gain) g.distance_gain = dgain.tensor();
        if (g.distance_bias) g.distance_bias = dbias.tensor();
        if (g.sink) g.sink = dsink.vector();
        if (g.forget) g.forget = dforget.tensor();
        return g;
    }
    void prepare() {
        dqkv.fill([](int64_t) { return 5; });
        for (Matrix<float>* x : {&dfactor, &dforget}) x->fill([](int64_t) { return 5; });
        for (Matrix<float>* x : {&dgain, &dbias}) x->fill([](int64_t) { return double{Problem::untouched}; });
        dsink.fill([](int64_t) { return double{Problem::sink_before}; });
    }
    void launch() {
        const Tensor memory(workspace.data(), DType::f32, {static_cast<int64_t>(workspace.size())});
        cuda::attention_backward(results(), gradients(), memory, dout.tensor(), saved(), spec(), nullptr,
                                 {hopper_workers, queue.data()});
        cudaDeviceSynchronize();
    }
    cuda::QueryKeyValue results() const { return {part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)}; }
    cuda::AttentionSaved saved() const {
        return {{part(qkv, 0), part(qkv, 1), part(qkv, 2)}, o.tensor(), lse.tensor()};
    }
    // Every result within its bounds.
    void check() {
        const Variant& c = p.c;
        CHECK(exact.dqkv.worst(dqkv.get()) <= 1);
        if (c.factor_gradient) CHECK(exact.dfactor.worst(dfactor.get()) <= 1);
        if (c.gain_gradient) CHECK(exact.dgain.worst(dgain.get()) <= 1);
        if (c.bias_gradient) CHECK(exact.dbias.worst(dbias.get()) <= 1);
        if (c.sink_gradient) CHECK(exact.dsink.worst(dsink.get()) <= 1);
        if (c.forget_gradient) CHECK(exact.dforget.worst(dforget.get()) <= 1);
    }
    void under_schedules(int count) {
        const int ran = simt::run_schedules(
            count, [&] { prepare(); }, [&] { launch(); },
            {dqkv.output(), dfactor.output(), dgain.output(), dbias.output(), dsink.output(),
             dforget.output()});
        CHECK(ran == count);
        check();
    }
};

// Three shapes for heads of `d` channels, none a multiple of a tile: everything visible with two heads of
// queries per head of keys; a window and several sequences; documents. `form` adds what the scores have.
// only: of the shapes the one of this number, all for -1.
template <class T, class Form>
void check_form(int64_t d, Form form, int schedules = simt::usual_schedules(), int only = -1) {
    // One more than the rows a block owns, 128, 64, or 32 of wide f32 rows: the last tiles hold one row.
    const int64_t length = d * int64_t{sizeof(T)} > 512 ? 33 : d == 64 && !is_float<T> ? 129 : 65;
    struct Shape {
        Variant c;
        int64_t gap;
    };
    const Shape shapes[] = {
        {{.length = length, .heads = 2, .kv_heads = 1, .head_dim = d, .seed = 3}, 8},
        {{.batch = 2, .length = 45, .heads = 2, .kv_heads = 2, .head_dim = d - 3, .window = 20, .seed = 4},
         5},
        {{.length = 37, .heads = 4, .kv_heads = 2, .head_dim = d - 16, .documents = true, .seed = 5}, 8},
    };
    for (const Shape& shape : shapes) {
        if (only >= 0 && &shape != &shapes[only]) continue;
        Variant c = shape.c;
        form(c);
        CAPTURE(c.head_dim);
        CAPTURE(c.length);
        Run<T>(c, shape.gap).under_schedules(schedules);
    }
}

void plain(Variant& c) {
    // The second shape with factors and their gradients, the third with a sink.
    if (c.seed == 4) {
        c.factor_rows = c.heads;
        c.factor_gradient = true;
    }
    if (c.seed == 5) c.sink = c.sink_gradient = true;
}
void with_forget(Variant& c) {
    plain(c);
    c.forget = true;
    c.forget_gradient = c.seed != 5;
}
void with_tables(Variant& c) {
    c.gain_rows = c.seed == 3 ? 1 : c.heads;
    c.bias_rows = c.seed == 5 ? c.heads : 1;
    c.gain_gradient = c.seed != 4;
    c.bias_gradient = true;
    c.factor_rows = c.seed == 3 ? 0 : 1;
    c.factor_gradient = true;
    c.forget = c.forget_gradient = c.seed == 5;  // in bf16 another mode, and the distance pass with sums
}
// Biases that follow from gains: with_tables without gradients of the tables.
void with_gains(Variant& c) {
    with_tables(c);
    c.bias_rows = c.gain_rows;
    c.bias_of_gain = -0.75;
    c.gain_gradient = c.bias_gradient = false;
}
void general(Variant& c) {
    if (c.seed != 5) {
        c.gain_rows = c.bias_rows = c.seed == 3 ? 1 : c.heads;
        c.row_square = true;
    }
    if (c.seed != 3) c.softcap = 2;
    c.factor_rows = c.heads;
    c.factor_gradient = true;
    c.sink = c.sink_gradient = c.seed == 4;
    c.forget = c.forget_gradient = c.seed != 4;
}

}  // namespace

// Instances: key and query pass of bf16 with 64, 128 and 256 channels in the modes plain, forget, table and general,
// of f32 with 64, 128 and 256 channels; the distance pass of both with 64, 128 and 256; delta of both with
// wide and single accesses. The first four cases launch those of bf16, the fifth those of f32.

TEST_CASE("backward kernels, bf16, plain scores, against double") {
    for (int64_t d : {64, 128, 256}) check_form<bf16>(d, plain);
}

TEST_CASE("backward kernels, bf16, forget sums and their gradients, against double") {
    for (int64_t d : {64, 128, 256}) check_form<bf16>(d, with_forget);
}

TEST_CASE("backward kernels, bf16, distance tables and their gradients, against double") {
    for (int64_t d : {64, 128, 256}) check_form<bf16>(d, with_tables);
}

TEST_CASE("backward kernels, bf16, softcap and row squares, against double") {
    for (int64_t d : {64, 128, 256}) check_form<bf16>(d, general);
}

// One instance serves all forms: of the simpler ones each size of head has one shape, by turns, under one schedule.
TEST_CASE("backward kernels, f32, every form, against double") {
    const bool all = simt::long_tests();
    const int schedules = all ? simt::usual_schedules() : 1;
    int turn = 0;
    for (int64_t d : {64, 128, 256}) {
        check_form<float>(d, plain, schedules, all ? -1 : turn % 3);
        check_form<float>(d, with_forget, schedules, all ? -1 : (turn + 1) % 3);
        check_form<float>(d, with_tables, schedules, all ? -1 : (turn + 2) % 3);
        check_form<float>(d, general, all ? schedules : 2);
        ++turn;
    }
}

// The kernels for Hopper: tiles of 128 rows that meet 64, 96 or 128.
TEST_CASE("Hopper's backward kernels against double: workers, shared keys, windows, documents, factors") {
    for (int64_t d : {64, 128})
        for (const auto form : {plain, with_forget, with_tables, with_gains})
            for (Variant c : {Variant{.length = 200, .heads = 2, .kv_heads = 1, .head_dim = d, .seed = 3},
                              Variant{.batch = 2,
                              .length = 150,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = d,
                              .window = 70,
                              .seed = 4},
                              Variant{.length = 140,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = d,
                              .documents = true,
                              .seed = 5}}) {
                form(c);
                if (form != with_forget) c.forget = c.forget_gradient = false;
                for (int workers : {1, 3}) {
                    CAPTURE(d);
                    CAPTURE(c.seed);
                    CAPTURE(workers);
                    Run<bf16> run(c, 8);
                    run.hopper_workers = workers;
                    REQUIRE(cuda::attention_backward_sm90_serves(run.results(), run.dout.tensor(),
                                                                 run.saved(), run.spec()));
                    run.under_schedules(workers == 1 ? 1 : simt::usual_schedules());
                }
            }
}

TEST_CASE("backward kernels fit the shared memory of every architecture") {
    const simt::Options before = simt::options();
    for (int architecture : {80, 86, 89, 90, 100, 120}) {
        simt::options().architecture = architecture;
        for (int64_t d : {64, 128, 256}) {
            Variant c{.length = 9, .heads = 1, .kv_heads = 1, .head_dim = d, .seed = 3};
            const auto once = [](auto&& run) {
                run.prepare();
                run.launch();
                run.check();
            };
            once(Run<bf16>(c, 0));
            with_forget(c);
            once(Run<bf16>(c, 0));
            with_tables(c);
            once(Run<bf16>(c, 0));
            once(Run<float>(c, 0));
        }
    }
    simt::options() = before;
}

TEST_CASE("the backward kernels refuse a short workspace and gradients of what is not there") {
    const Variant c{.length = 9, .heads = 1, .kv_heads = 1, .head_dim = 8};
    Run<bf16> run(c, 0);
    run.prepare();
    const auto launch = [&](const AttentionGradients& gradients, int64_t floats) {
        cuda::attention_backward({run.part(run.dqkv, 0), run.part(run.dqkv, 1), run.part(run.dqkv, 2)},
                                 gradients, Tensor(run.workspace.data(), DType::f32, {floats}),
                                 run.dout.tensor(),
                                 {{run.part(run.qkv, 0), run.part(run.qkv, 1), run.part(run.qkv, 2)},
                                  run.o.tensor(),
                                  run.lse.tensor()},
                                 run.spec(), nullptr);
    };
    const auto floats = static_cast<int64_t>(run.workspace.size());
    launch({}, floats);
    CHECK_THROWS_AS(launch({}, floats - 1), Error);
    CHECK_THROWS_AS(launch({.sink = run.dsink.vector()}, 1 << 20), Error);
    CHECK_THROWS_AS(launch({.forget = run.dforget.tensor()}, 1 << 20), Error);
    CHECK_THROWS_AS(launch({.distance_bias = run.dbias.tensor()}, 1 << 20), Error);
}
