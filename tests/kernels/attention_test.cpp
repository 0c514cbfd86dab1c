// Attention against a naive double implementation of spec stages 6-11 and its gradients.
//
// Bounds, with u half an ulp of 1 and gamma(n) = n u / (1 - n u). A score y is off by at most
//     e_y = gamma(d + 4) gain scale sum |q||k| + 4 u (|y| + |bias|),
// a probability by the relative e_p = 2 max e_y + 4 u (|y| + |lse|) + e_exp (one for y, one for lse; the f32
// subtraction y - lse; the exponential), plus per tile of keys one rescaling of the running sums. Sums of n
// terms add gamma(n). Products of such factors follow to first order; the factor 2 in `safety` covers
// the terms of second order.
#include <numeric>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

double gamma(double k) {
    return k * unit / (1 - k * unit);
}
constexpr double safety = 2;
constexpr double e_exp = 3e-7;

// Long enough that a CPU cuts the keys into segments; the harness of the CUDA kernels is slower,
// and they know no segments.
const int64_t long_sequence = brief() ? 230 : in_harness() ? 430 : 2200;

struct Case {
    const char* name;
    int64_t batch, length, heads, kv_heads, head_dim;
    int64_t window = 0;
    std::vector<int64_t> documents = {};  // lengths; the last extends to the end of the sequence
    int tables = 0;                       // 0: none, 1: shared, 2: one per head
    int64_t tokens() const { return batch * length; }
};

const std::vector<Case> cases = {
    {"one token", 2, 1, 2, 1, 8},
    {"tiny", 2, 5, 2, 2, 12},
    {"one tile of queries", 1, 64, 1, 1, 64},
    {"odd length", 1, 97, 2, 1, 64},
    {"head size 128", 1, 200, 1, 1, 128},
    {"head size 256", 1, 70, 1, 1, 256},
    {"head size 20", 1, 130, 3, 1, 20},
    {"window smaller than a tile", 1, 300, 2, 1, 16, 7},
    {"window of one", 1, 70, 1, 1, 8, 1},
    {"window across tiles", 2, 400, 1, 1, 8, 150},
    {"window smaller than a block of keys", 1, 600, 1, 1, 128, 30},
    {"documents", 1, 333, 2, 2, 16, 0, {100, 1, 1, 60, 3}},
    {"documents and window", 2, 260, 2, 1, 12, 40, {33, 2, 110}},
    {"documents of one token", 1, 40, 1, 1, 8, 0, std::vector<int64_t>(40, 1)},
    {"shared tables", 1, 190, 2, 1, 64, 0, {}, 1},
    {"tables per head", 2, 150, 4, 2, 12, 0, {}, 2},
    {"tables, window, documents", 1, 230, 2, 2, 8, 50, {70, 20}, 2},
    {"several segments", 1, long_sequence, 2, 1, 8, 0, {}, 2},
    {"several segments and a window", 1, long_sequence - 100, 1, 1, 12, long_sequence / 3},
};

// Everything one case feeds to the operations, and their results.
struct Run {
    Case c;
    int64_t query_cols, kv_cols;
    Floats qkv, dout, gain, bias;
    Ints doc_start, row_start;
    Floats o, lse, dqkv;

    explicit Run(const Case& which, int64_t gap = 3)
        : c(which),
          query_cols(c.heads * c.head_dim),
          kv_cols(c.kv_heads * c.head_dim),
          qkv(normal(c.tokens(), query_cols + 2 * kv_cols, 1, 1, 0, query_cols + 2 * kv_cols + gap)),
          dout(normal(c.tokens(), query_cols, 2, 1, 0, query_cols + gap)),
          gain(c.tables == 2 ? c.heads : 1, c.length + 4),
          bias(c.tables == 2 ? c.heads : 1, c.length + 4),
          doc_start(c.batch, c.length),
          row_start(c.batch, c.length),
          o(c.tokens(), query_cols, query_cols + gap),
          lse(c.heads, c.tokens()),
          dqkv(c.tokens(), query_cols + 2 * kv_cols, query_cols + 2 * kv_cols + gap) {
        for (int64_t h = 0; h < gain.rows(); ++h)
            for (int64_t t = 0; t < gain.cols(); ++t) {
                gain.at(h, gain.cols() - 1 - t) =
                    static_cast<float>(1 + 0.1 * std::log1p(double(t)) + 0.2 * double(h));
                bias.at(h, gain.cols() - 1 - t) =
                    static_cast<float>(-std::log1p(double(t)) * (1 + 0.5 * double(h)));
            }
        int64_t begin = 0, document = 0;
        for (int64_t i = 0; i < c.length; ++i) {
            if (document < std::ssize(c.documents) && i - begin == c.documents[static_cast<size_t>(document)])
                begin = i, ++document;
            for (int64_t b = 0; b < c.batch; ++b) doc_start.at(b, i) = static_cast<int32_t>(begin);
        }
        // Whatever is written must not depend on what was there.
        for (int64_t i = 0; i < dqkv.count(); ++i) dqkv[i] = std::numeric_limits<float>::quiet_NaN();
        for (int64_t i = 0; i < o.count(); ++i) o[i] = std::numeric_limits<float>::quiet_NaN();
    }
    bool masked() const { return c.window > 0 || !c.documents.empty(); }
    Tensor part(Floats& fused, int which) {
        const Tensor t = fused.tensor();
        if (which == 0) return t.col_range(0, query_cols);
        return t.col_range(query_cols + (which - 1) * kv_cols, kv_cols);
    }
    AttentionSpec spec() {
        AttentionSpec s{.batch = c.batch,
                        .length = c.length,
                        .heads = c.heads,
                        .kv_heads = c.kv_heads,
                        .head_dim = c.head_dim,
                        .scale = static_cast<float>(1 / std::sqrt(double(c.head_dim)))};
        if (masked()) s.row_start = row_start.tensor();
        if (c.tables) s.distance_gain = gain.tensor(), s.distance_bias = bias.tensor();
        return s;
    }
    void execute(Ops& ops) {
        ops.row_starts(row_start.tensor(), c.documents.empty() ? Tensor{} : doc_start.tensor(), c.length,
                       c.window, 0);
        const AttentionSpec s = spec();
        ops.attention(o.tensor(), lse.tensor(), Tensor(), part(qkv, 0), part(qkv, 1), part(qkv, 2), s);
        Floats workspace(1, ops.attention_workspace(s, AttentionGradients()) / 4);
        for (int64_t i = 0; i < workspace.count(); ++i)
            workspace[i] = std::numeric_limits<float>::quiet_NaN();
        ops.attention_backward(part(dqkv, 0), part(dqkv, 1), part(dqkv, 2), AttentionGradients(),
                               workspace.vector(), dout.tensor(), o.tensor(), lse.tensor(), part(qkv, 0),
                               part(qkv, 1), part(qkv, 2), s);
        CHECK(workspace.guards_intact());
        CHECK(o.guards_intact());
        CHECK(dqkv.guards_intact());
        CHECK(lse.guards_intact());
    }
};

// Values and error bounds in double, laid out like the results.
struct Naive {
    std::vector<double> o, o_bound, lse, lse_bound, dqkv, dqkv_bound;
    const Run& run;
    int64_t columns;

    explicit Naive(const Run& r) : run(r), columns(r.query_cols + 2 * r.kv_cols) {
        const Case& c = run.c;
        o.resize(static_cast<size_t>(c.tokens() * run.query_cols));
        lse.resize(static_cast<size_t>(c.heads * c.tokens()));
        dqkv.resize(static_cast<size_t>(c.tokens() * columns));
        o_bound = o, lse_bound = lse, dqkv_bound = dqkv;
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.heads; ++h)
                for (int64_t i = 0; i < c.length; ++i) add_row(b, h, i);
        // A gradient of n queries or keys is a sum of n terms, stored partly scaled and in pieces.
        for (double& bound : dqkv_bound) bound = safety * bound + 1e-37;
    }

    int64_t first_key(int64_t b, int64_t i) const {
        const Case& c = run.c;
        int64_t first = c.window > 0 ? std::max<int64_t>(0, i - c.window + 1) : 0;
        if (!c.documents.empty()) first = std::max<int64_t>(first, run.doc_start.at(b, i));
        return first;
    }

    void add_row(int64_t b, int64_t h, int64_t i) {
        const Case& c = run.c;
        const int64_t d = c.head_dim, n = b * c.length + i, g = h / (c.heads / c.kv_heads);
        const int64_t q_at = h * d, k_at = run.query_cols + g * d, v_at = k_at + run.kv_cols;
        const int64_t first = first_key(b, i), count = i - first + 1;
        const double scale = static_cast<float>(1 / std::sqrt(double(d)));
        const auto in = [&](int64_t row, int64_t col) { return double{run.qkv.at(b * c.length + row, col)}; };

        std::vector<double> y(static_cast<size_t>(count)), gain(y.size(), 1.0);
        double e_y = 0, top = -1e300, largest = 0;
        for (int64_t j = first; j <= i; ++j) {
            const auto at = static_cast<size_t>(j - first);
            double s = 0, magnitude = 0, bias = 0;
            for (int64_t x = 0; x < d; ++x) {
                s += in(i, q_at + x) * in(j, k_at + x);
                magnitude += std::abs(in(i, q_at + x) * in(j, k_at + x));
            }
            if (c.tables) {
                const int64_t row = c.tables == 2 ? h : 0, entry = run.gain.cols() - 1 - (i - j);
                gain[at] = run.gain.at(row, entry);
                bias = run.bias.at(row, entry);
            }
            y[at] = gain[at] * scale * s + bias;
            e_y = std::max(e_y, gamma(double(d) + 4) * gain[at] * scale * magnitude +
                                    4 * unit * (std::abs(y[at]) + std::abs(bias)));
            top = std::max(top, y[at]);
            largest = std::max(largest, std::abs(y[at]));
        }
        double sum = 0;
        for (double value : y) sum += std::exp(value - top);
        const double log_sum = top + std::log(sum);
        const double tiles = double(count) / 64 + 2;
        const double e_p = 2 * e_y + 4 * unit * (largest + std::abs(log_sum)) + e_exp;
        const double e_sum = e_p + tiles * (e_exp + 4 * unit * (largest + 1)) + gamma(double(count));
        lse[static_cast<size_t>(h * c.tokens() + n)] = log_sum;
        lse_bound[static_cast<size_t>(h * c.tokens() + n)] = safety * (e_sum + 4 * unit * std::abs(log_sum));

        double delta = 0, e_delta = 0;
        for (int64_t x = 0; x < d; ++x) {
            double value = 0, magnitude = 0;
            for (int64_t j = first; j <= i; ++j) {
                const double p = std::exp(y[static_cast<size_t>(j - first)] - log_sum);
                value += p * in(j, v_at + x);
                magnitude += p * std::abs(in(j, v_at + x));
            }
            const auto at = static_cast<size_t>(n * run.query_cols + q_at + x);
            const double dout = run.dout.at(n, q_at + x);
            o[at] = value;
            o_bound[at] = safety * (2 * e_sum + 4 * unit) * magnitude;
            delta += dout * value;
            e_delta += std::abs(dout) * (o_bound[at] + gamma(double(d)) * std::abs(value));
        }
        const double e_row = e_p + e_sum;  // of a probability rebuilt from the saved lse
        for (int64_t j = first; j <= i; ++j) {
            const auto at = static_cast<size_t>(j - first);
            const int64_t m = b * c.length + j;
            const double p = std::exp(y[at] - log_sum);
            double dp = 0, magnitude = 0;
            for (int64_t x = 0; x < d; ++x) {
                const double product = run.dout.at(n, q_at + x) * in(j, v_at + x);
                dp += product;
                magnitude += std::abs(product);
            }
            const double ds = gain[at] * p * (dp - delta) * scale;
            const double e_ds =
                gain[at] * p * scale *
                (e_delta + gamma(double(d)) * magnitude +
                 (e_row + 6 * unit) * (std::abs(dp - delta) + gamma(2) * (magnitude + std::abs(delta))));
            const double e_sums = gamma(double(c.length) + 4);
            const auto put = [&](int64_t row, int64_t col, double weight, double e_weight, double factor) {
                const auto where = static_cast<size_t>(row * columns + col);
                dqkv[where] += weight * factor;
                dqkv_bound[where] += (e_weight + e_sums * std::abs(weight)) * std::abs(factor);
            };
            for (int64_t x = 0; x < d; ++x) {
                put(n, q_at + x, ds, e_ds, in(j, k_at + x));
                put(m, k_at + x, ds, e_ds, in(i, q_at + x));
                put(m, v_at + x, p, e_row * p, run.dout.at(n, q_at + x));
            }
        }
    }
};

double worst_of(const Floats& actual, const std::vector<double>& value, const std::vector<double>& bound) {
    return worst(
        actual, [&](int64_t i) { return value[static_cast<size_t>(i)]; },
        [&](int64_t i) { return bound[static_cast<size_t>(i)]; });
}

}  // namespace

TEST_CASE("attention and its gradients against double") {
    for (const Case& c : cases) {
        CAPTURE(c.name);
        const Naive naive{Run(c)};
        for_each_isa([&](Ops& ops) {
            Run run(c);
            run.execute(ops);
            CHECK(worst_of(run.o, naive.o, naive.o_bound) <= 1);
            CHECK(worst_of(run.lse, naive.lse, naive.lse_bound) <= 1);
            CHECK(worst_of(run.dqkv, naive.dqkv, naive.dqkv_bound) <= 1);
        });
    }
}

TEST_CASE("attention: the same bits at any number of threads") {
    for (const Case& c : {cases[3], cases[9], cases[14], cases[16]}) {
        CAPTURE(c.name);
        check_thread_independence([&](Ops& ops) {
            Run run(c);
            run.execute(ops);
            Floats all(c.tokens(), run.query_cols + run.dqkv.cols());
            for (int64_t n = 0; n < c.tokens(); ++n) {
                for (int64_t x = 0; x < run.query_cols; ++x) all.at(n, x) = run.o.at(n, x);
                for (int64_t x = 0; x < run.dqkv.cols(); ++x)
                    all.at(n, run.query_cols + x) = run.dqkv.at(n, x);
            }
            return all;
        });
    }
}

TEST_CASE("attention: the same bits whether or not rows are aligned") {
    // Only a CPU promises it, which writes large gradients in two ways: aligned ones past its caches.
    if (!on_cpu()) return;
    const Case c{"large", 17, 500, 2, 1, 64};
    for_each_isa([&](Ops& ops) {
        Run aligned(c, 0), other(c, 3);
        aligned.execute(ops);
        other.execute(ops);
        CHECK(same_bits(aligned.o, other.o));
        CHECK(same_bits(aligned.dqkv, other.dqkv));
    });
}

TEST_CASE("a window of at least the length is full attention, bit for bit") {
    for_each_isa([](Ops& ops) {
        for (int64_t window : {300, 301, 100000}) {
            Run full({"full", 2, 300, 2, 1, 16}), windowed({"windowed", 2, 300, 2, 1, 16, window});
            full.execute(ops);
            windowed.execute(ops);
            CHECK(same_bits(full.o, windowed.o));
            CHECK(same_bits(full.lse, windowed.lse));
            CHECK(same_bits(full.dqkv, windowed.dqkv));
        }
    });
}

TEST_CASE("gain 1 and bias 0 is plain attention") {
    for_each_isa([](Ops& ops) {
        Run plain({"plain", 1, 200, 2, 2, 16}), tables({"tables", 1, 200, 2, 2, 16, 0, {}, 1});
        for (int64_t i = 0; i < tables.gain.count(); ++i) tables.gain[i] = 1, tables.bias[i] = 0;
        plain.execute(ops);
        tables.execute(ops);
        CHECK(same_bits(plain.o, tables.o));
        CHECK(same_bits(plain.dqkv, tables.dqkv));
    });
}

TEST_CASE("packed documents equal separate ones") {
    const int64_t first = 90, second = 111;
    for_each_isa([&](Ops& ops) {
        Run packed({"packed", 1, first + second, 2, 1, 16, 0, {first}});
        packed.execute(ops);
        for (auto [begin, length] : {std::pair{int64_t{0}, first}, std::pair{first, second}}) {
            Run alone({"alone", 1, length, 2, 1, 16});
            for (int64_t n = 0; n < length; ++n) {
                for (int64_t x = 0; x < packed.qkv.cols(); ++x)
                    alone.qkv.at(n, x) = packed.qkv.at(begin + n, x);
                for (int64_t x = 0; x < packed.dout.cols(); ++x)
                    alone.dout.at(n, x) = packed.dout.at(begin + n, x);
            }
            alone.execute(ops);
            // Both lie within the bounds around the same exact values.
            const Naive naive(alone);
            for (int64_t n = 0; n < length; ++n) {
                for (int64_t x = 0; x < packed.o.cols(); ++x)
                    CHECK(std::abs(packed.o.at(begin + n, x) - alone.o.at(n, x)) <=
                          2 * naive.o_bound[static_cast<size_t>(n * packed.o.cols() + x)]);
                for (int64_t x = 0; x < packed.dqkv.cols(); ++x)
                    CHECK(std::abs(packed.dqkv.at(begin + n, x) - alone.dqkv.at(n, x)) <=
                          2 * naive.dqkv_bound[static_cast<size_t>(n * packed.dqkv.cols() + x)]);
            }
        }
    });
}

TEST_CASE("large scores neither overflow nor lose the maximum") {
    for_each_isa([](Ops& ops) {
        Run run({"large", 1, 130, 1, 1, 16});
        for (int64_t i = 0; i < run.qkv.count(); ++i) run.qkv[i] *= 60;
        run.execute(ops);
        for (int64_t i = 0; i < run.o.count(); ++i) CHECK(std::isfinite(run.o[i]));
        for (int64_t i = 0; i < run.dqkv.count(); ++i) CHECK(std::isfinite(run.dqkv[i]));
    });
}

TEST_CASE("a NaN in one key reaches the queries that see it and no others") {
    for_each_isa([](Ops& ops) {
        Run run({"nan", 1, 150, 1, 1, 16, 0, {70}});
        run.part(run.qkv, 1).row_range(40, 1).f32()[5] = std::numeric_limits<float>::quiet_NaN();
        run.execute(ops);
        for (int64_t i = 0; i < run.c.length; ++i) CHECK(std::isnan(run.o.at(i, 0)) == (i >= 40 && i < 70));
    });
}

TEST_CASE("a weight below the smallest normal number is zero, the next larger ones are not") {
    if (in_harness()) return;  // a GPU computes with subnormal numbers at full speed
    for_each_isa([](Ops& ops) {
        for (const double exponent : {-160.0, -149.5, -130.0, -127.0, -125.0, -100.0}) {
            CAPTURE(exponent);
            Run run({"faint", 1, 2, 1, 1, 16});
            for (int64_t i = 0; i < run.qkv.count(); ++i) run.qkv[i] = 0;
            run.part(run.qkv, 0).row_range(1, 1).f32()[0] = 1;
            run.part(run.qkv, 1).f32()[0] = static_cast<float>(exponent * std::log(2.0) / 0.25);
            run.part(run.qkv, 2).f32()[0] = 0x1p100f;
            run.execute(ops);
            const double expected = exponent < -126 ? 0 : std::exp2(exponent + 100);
            // The score is off by a few half ulps of up to 128.
            CHECK(std::abs(run.o.at(1, 0) - expected) <= expected * 128 * 8 * unit);
            for (int64_t i = 0; i < run.dqkv.count(); ++i) CHECK(std::isfinite(run.dqkv[i]));
        }
    });
}
