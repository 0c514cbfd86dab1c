// Attention in bf16 at the sizes of a training run, forward and backward, against float64: heads of 64 and 128 channels;
// 130 to 4096 tokens; plain, with distance tables, biases that follow from gains, forget gates, a window, grouped
// heads. Each runs twice and gives the same bits. Sequences of more than 130 tokens are compared at sampled queries, and
// at the keys that only those see. The harness runs the shortest sequences alone; tests/simt/attention_*_test.cpp show it
// all kinds of bf16 attention.
//
// Bounds: those of attention_variants.h with storage of 8 significant bits. An output errs further by the rounding of
// each probability before its product, 2^-8 sum p |v|, and by its own.
#include "cuda/device_matrix.h"
#include "kernels/attention_variants.h"
#include "kernels/cuda_device.h"

using namespace longreach;
using namespace longreach::test;

namespace {

Problem rounded(const Variant& c) {
    Problem p(c);
    for (Floats* x : {&p.qkv, &p.dout})
        for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = static_cast<float>(static_cast<bf16>((*x)[i]));
    return p;
}

// One problem on the device. gap: elements between rows; an odd number takes the kernels' scalar accesses.
struct DeviceRun {
    Ops& ops;
    Problem& p;
    DeviceMatrix<bf16> qkv, dqkv, dout, o;
    DeviceMatrix<float> lse, gain, bias;
    DeviceMemory<int32_t> row_start;
    DeviceMemory<double> forget;

    DeviceRun(Ops& operations, Problem& problem, int64_t gap)
        : ops(operations),
          p(problem),
          qkv(p.c.tokens(), p.qkv.cols(), gap),
          dqkv(p.c.tokens(), p.qkv.cols(), gap),
          dout(p.c.tokens(), p.query_cols, gap),
          o(p.c.tokens(), p.query_cols, gap),
          lse(p.c.heads, p.c.tokens(), 0),
          gain(p.gain.rows(), p.entries, 0),
          bias(p.bias.rows(), p.entries, 0),
          row_start(p.c.tokens()),
          forget(p.forget.count()) {
        qkv.set(p.qkv);
        dout.set(p.dout);
        gain.set(p.gain);
        bias.set(p.bias);
        forget.set(std::vector<double>(p.forget.data(), p.forget.data() + p.forget.count()));
    }
    Tensor part(const DeviceMatrix<bf16>& fused, int which) const {
        if (which == 0) return fused.tensor().col_range(0, p.query_cols);
        return fused.tensor().col_range(p.query_cols + (which - 1) * p.kv_cols, p.kv_cols);
    }
    // The results go into the problem.
    void execute() {
        const Variant& c = p.c;
        AttentionSpec spec = p.spec();
        if (c.tables()) spec.distance_gain = gain.tensor(), spec.distance_bias = bias.tensor();
        if (c.forget) spec.forget = Tensor(forget.data(), DType::f64, {c.heads, c.tokens()});
        if (p.restricted()) {
            spec.row_start = Tensor(row_start.data(), DType::i32, {c.batch, c.length});
            ops.row_starts(spec.row_start, Tensor(), c.length, c.window, c.chunk);
        }
        for (DeviceMatrix<bf16>* x : {&o, &dqkv}) x->erase();
        lse.erase();
        ops.attention(o.tensor(), lse.tensor(), Tensor(), part(qkv, 0), part(qkv, 1), part(qkv, 2), spec);
        const DeviceMatrix<float> workspace(1, ops.attention_workspace(spec, AttentionGradients()) / 4, 0);
        ops.attention_backward(part(dqkv, 0), part(dqkv, 1), part(dqkv, 2), AttentionGradients(),
                               Tensor(workspace.memory.data(), DType::f32, {workspace.cols}), dout.tensor(),
                               o.tensor(), lse.tensor(), part(qkv, 0), part(qkv, 1), part(qkv, 2), spec);
        p.o = o.get();
        p.lse = lse.get();
        p.dqkv = dqkv.get();
    }
};

// All queries of a short sequence; of a long one those at the edges of tiles, some between, and the last 70.
std::vector<int64_t> sampled(int64_t length) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < length; ++i) {
        const bool chosen =
            length <= 130 || i >= length - 70 || i < 2 || (i % 512 < 2) || i % 512 == 511 || i % 389 == 0;
        if (chosen) rows.push_back(i);
    }
    return rows;
}

// The largest error in units of its bound, of the results that the sampled queries determine.
double largest_error(const Problem& p, const std::vector<int64_t>& rows) {
    const Variant& c = p.c;
    const ExactInputs inputs(p);
    const Reference exact(p, inputs, bf16_unit, rows);
    ExactInputs sizes = inputs;  // with |v| for v: the reference gives sum p |v|
    const int64_t columns = p.qkv.cols();
    for (size_t i = 0; i < sizes.qkv.size(); ++i)
        if (static_cast<int64_t>(i) % columns >= p.query_cols + p.kv_cols)
            sizes.qkv[i] = std::abs(sizes.qkv[i]);
    const Reference magnitude(p, sizes, 0, rows);

    double most = 0;
    const auto compare = [&](float actual, double value, double bound) {
        const double error = std::abs(double{actual} - value);
        most = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(most, error / bound);
    };
    const auto compare_gradient = [&](int64_t row, int64_t begin, int64_t end) {
        for (int64_t x = begin; x < end; ++x) {
            const auto at = static_cast<size_t>(row * columns + x);
            compare(p.dqkv.at(row, x), exact.dqkv.value[at], safety * exact.dqkv.bound[at] + floor_of_bounds);
        }
    };
    std::vector<bool> chosen(static_cast<size_t>(c.length));
    for (int64_t i : rows) chosen[static_cast<size_t>(i)] = true;
    for (int64_t i = 0; i < c.length; ++i) {
        if (!chosen[static_cast<size_t>(i)]) continue;
        for (int64_t x = 0; x < p.query_cols; ++x) {
            const auto at = static_cast<size_t>(i * p.query_cols + x);
            const double before = bf16_unit * magnitude.o.value[at] + safety * exact.o.bound[at];
            compare(p.o.at(i, x), exact.o.value[at],
                    before + bf16_unit * (std::abs(exact.o.value[at]) + before) + floor_of_bounds);
        }
        for (int64_t h = 0; h < c.heads; ++h) {
            const auto at = static_cast<size_t>(h * c.tokens() + i);
            compare(p.lse.at(h, i), exact.lse.value[at], safety * exact.lse.bound[at]);
        }
        compare_gradient(i, 0, p.query_cols);
    }
    for (int64_t j = 0; j < c.length; ++j) {
        bool complete = true;  // every query that sees the key was sampled
        for (int64_t i = j; complete && i < c.length; ++i)
            complete = chosen[static_cast<size_t>(i)] || first_visible(p, 0, i) > j;
        if (complete) compare_gradient(j, p.query_cols, columns);
    }
    return most;
}

struct Kind {
    const char* name;
    int64_t heads = 2, kv_heads = 2, window = 0, gain_rows = 0, gap = 0;
    double bias_of_gain = 0;
    bool forget = false;
};
const std::vector<Kind> kinds = {
    {"plain"},
    {.name = "tables", .gain_rows = 2},
    {.name = "biases from gains", .gain_rows = 2, .bias_of_gain = -0.75},
    {.name = "forget gates", .forget = true},
    {.name = "a window across the edge of a tile", .window = 100},
    {.name = "grouped heads", .heads = 4, .kv_heads = 2},
    {.name = "rows on any byte", .gap = 3},
};

// Each kind is a case of its own (-sc=NAME): one that never ends is known by its name.
void check_length(int64_t length, int64_t channels) {
    for (const Kind& kind : kinds) {
        SUBCASE(kind.name) {
            CAPTURE(channels);
            const auto ops = make_cuda_ops({.precision = Precision::bf16});
            Problem p = rounded({.batch = 1,
                                 .length = length,
                                 .heads = kind.heads,
                                 .kv_heads = kind.kv_heads,
                                 .head_dim = channels,
                                 .window = kind.window,
                                 .gain_rows = kind.gain_rows,
                                 .bias_rows = kind.gain_rows,
                                 .bias_of_gain = kind.bias_of_gain,
                                 .forget = kind.forget});
            DeviceRun run(*ops, p, kind.gap);
            run.execute();
            const Floats first = joined({&p.o, &p.lse, &p.dqkv});
            run.execute();
            CHECK(same_bits(first, joined({&p.o, &p.lse, &p.dqkv})));
            const double error = largest_error(p, sampled(length));
            CHECK(error <= 1);
            MESSAGE(length, " tokens, ", channels, " channels, ", std::string(kind.name), ": ", error,
                    " of the bound");
        }
    }
}

}  // namespace

TEST_CASE("bf16 attention of 130 tokens, 64 channels, against float64, twice with the same bits") {
    check_length(130, 64);
}
TEST_CASE("bf16 attention of 130 tokens, 128 channels, against float64, twice with the same bits") {
    check_length(130, 128);
}
TEST_CASE("bf16 attention of 300 tokens, 64 channels, against float64, twice with the same bits") {
    if (!in_harness()) check_length(300, 64);
}
TEST_CASE("bf16 attention of 300 tokens, 128 channels, against float64, twice with the same bits") {
    if (!in_harness()) check_length(300, 128);
}
TEST_CASE("bf16 attention of 1000 tokens, 64 channels, against float64, twice with the same bits") {
    if (!in_harness()) check_length(1000, 64);
}
TEST_CASE("bf16 attention of 1000 tokens, 128 channels, against float64, twice with the same bits") {
    if (!in_harness()) check_length(1000, 128);
}
TEST_CASE("bf16 attention of 4096 tokens, 64 channels, against float64, twice with the same bits") {
    if (!in_harness()) check_length(4096, 64);
}
TEST_CASE("bf16 attention of 4096 tokens, 128 channels, against float64, twice with the same bits") {
    if (!in_harness()) check_length(4096, 128);
}
