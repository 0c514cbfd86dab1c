// The index of keys, on a CPU: its loss and gradients, and attention to the keys it chooses, against plain loops in double.
//
// Bounds, in the letters of attention_variants.h, of a pair and a head of the index with product z, M its magnitude:
//     e_z  = roundings(d + 1) M               e_I = scale (sum of |w| e_z + roundings(H + 3) sum of |w z|)
//     e_a  = 2 max e_I + 6 u (max |I| + |lse|) + 2 e_exp + roundings(keys)     relative: its lse is a sum of exponentials
//     e_p  = the same of attention's y, for the head with the largest, + roundings(H + 4)
//     e_dI = e_a a + e_p p + 2 u |a - p|
// A z within e_z of 0 may fall on either side of the relu.
#include <algorithm>
#include <cmath>

#include "kernels/decoded_variants.h"
#include "kernels/random_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr double e_log2 = 4e-7;

struct IndexProblem {
    int64_t heads, head_dim;
    Floats all, gradients, losses, lse;  // q | k | w
    explicit IndexProblem(const Problem& p, uint64_t seed)
        : heads(1 + Draw(seed, 7).below(4)),
          head_dim(1 + Draw(seed, 8).below(70)),
          all(p.c.tokens(), width(), width() + 3),
          gradients(p.c.tokens(), width(), width() + 1),
          losses(1, p.c.tokens()),
          lse(1, p.c.tokens()) {
        Draw draw(seed, 9);
        for (int64_t i = 0; i < all.count(); ++i) all[i] = static_cast<float>(draw.normal());
        for (Floats* x : {&gradients, &losses, &lse})
            for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = std::numeric_limits<float>::quiet_NaN();
    }
    int64_t width() const { return (heads + 1) * head_dim + heads; }
    int64_t key_at() const { return heads * head_dim; }
    int64_t weight_at() const { return key_at() + head_dim; }
    float scale() const { return static_cast<float>(1 / std::sqrt(double(heads * head_dim))); }
    IndexScores of(Floats& rows) const {
        const Tensor t = rows.tensor();
        return {.queries = t.col_range(0, key_at()),
                .keys = t.col_range(key_at(), head_dim),
                .weights = t.col_range(weight_at(), heads),
                .heads = heads,
                .head_dim = head_dim,
                .scale = scale()};
    }
    void run(Ops& ops, Problem& p, float gradient_scale) {
        AttentionSpec spec = p.spec();
        spec.index = of(all);
        ops.index_loss(losses.vector(), lse.vector(), of(gradients), p.lse.tensor(), p.part(p.qkv, 0),
                       p.part(p.qkv, 1), gradient_scale, spec);
        for (const Floats* x : {&gradients, &losses, &lse}) CHECK(x->guards_intact());
    }

    // Of head h, query row n and key row m.
    struct Product {
        double z = 0, e_z = 0;
    };
    Product product(int64_t h, int64_t n, int64_t m) const {
        Product x;
        double magnitude = 0;
        for (int64_t c = 0; c < head_dim; ++c) {
            const double term = double{all.at(n, h * head_dim + c)} * double{all.at(m, key_at() + c)};
            x.z += term;
            magnitude += std::abs(term);
        }
        x.e_z = roundings(double(head_dim) + 1) * magnitude;
        return x;
    }
    double weight(int64_t h, int64_t n) const { return double{all.at(n, weight_at() + h)}; }
    struct Score {
        double value = 0, error = 0;
    };
    Score score(int64_t n, int64_t m) const {
        Score s;
        double magnitude = 0;
        for (int64_t h = 0; h < heads; ++h) {
            const Product x = product(h, n, m);
            const double w = weight(h, n);
            if (x.z <= -x.e_z) continue;  // 0, however it is rounded
            s.value += w * std::max(0.0, x.z);
            s.error += std::abs(w) * x.e_z;
            magnitude += std::abs(w * x.z);
        }
        s.value *= double{scale()};
        s.error = double{scale()} * (s.error + roundings(double(heads) + 3) * magnitude);
        return s;
    }
};

// What the gradients have to be, summed in double.
struct Expected {
    Reference::Output losses, gradients;

    Expected(const Problem& p, const IndexProblem& x, double gradient_scale)
        : losses(p.c.tokens()), gradients(x.gradients.count()) {
        const ExactInputs in(p);
        for (int64_t b = 0; b < p.c.batch; ++b)
            for (int64_t i = 0; i < p.c.length; ++i) add_row(p, in, x, gradient_scale, b, i);
    }

  private:
    // p of a row's keys, and the relative error of each.
    static std::pair<std::vector<double>, double> mean_weights(const Problem& p, const ExactInputs& in,
                                                               int64_t b, int64_t i) {
        const Variant& c = p.c;
        const int64_t first = first_visible(p, b, i), count = i - first + 1;
        std::vector<double> mean(static_cast<size_t>(count));
        double e_p = 0, mass = 0, most_lost = 1;
        for (int64_t h = 0; h < c.heads; ++h) {
            const double sink =
                c.sink ? in.sink[static_cast<size_t>(h)] : -std::numeric_limits<double>::infinity();
            double top = sink, e_y = 0, largest = std::isinf(sink) ? 0 : std::abs(sink);
            std::vector<double> y;
            for (int64_t j = first; j <= i; ++j) {
                const ScoredPair pair = pair_of(p, in, b, h, i, j);
                y.push_back(pair.y);
                e_y = std::max(e_y, pair.e_y);
                top = std::max(top, pair.y);
                largest = std::max(largest, std::abs(pair.y));
            }
            double sum = std::exp(sink - top);
            for (const double value : y) sum += std::exp(value - top);
            const double lse = top + std::log(sum);
            for (size_t j = 0; j < y.size(); ++j) mean[j] += std::exp(y[j] - lse);
            mass += 1 - std::exp(sink - lse);
            most_lost = std::min(most_lost, 1 - std::exp(sink - lse));
            // Of the weight and, once more, of the lse that both it and the sink's share are made of.
            const double tiles = double(count) / 64 + 3;
            e_p =
                std::max(e_p, 4 * e_y + 12 * unit * (largest + std::abs(lse)) + 2 * e_exp +
                                  tiles * (e_exp + 4 * unit * (largest + 1)) + roundings(double(count) + 1));
        }
        for (double& value : mean) value /= mass;
        // An error of the lse moves 1 - exp(sink - lse), a small number where the sink has most.
        return {mean, e_p * (1 + (c.sink ? double(c.heads) / mass : 0)) + roundings(double(c.heads) + 4)};
    }

    void add_row(const Problem& p, const ExactInputs& in, const IndexProblem& x, double gradient_scale,
                 int64_t b, int64_t i) {
        const int64_t first = first_visible(p, b, i), row = b * p.c.length, n = row + i;
        const auto count = static_cast<size_t>(i - first + 1);
        const auto [mean, e_p] = mean_weights(p, in, b, i);
        std::vector<IndexProblem::Score> scores;
        double top = -1e300, largest = 0, e_score = 0;
        for (size_t j = 0; j < count; ++j) {
            scores.push_back(x.score(n, row + first + int64_t(j)));
            top = std::max(top, scores[j].value);
            largest = std::max(largest, std::abs(scores[j].value));
            e_score = std::max(e_score, scores[j].error);
        }
        double sum = 0;
        for (const auto& s : scores) sum += std::exp(s.value - top);
        const double lse = top + std::log(sum);
        const double e_log =
            2 * e_score + 6 * unit * (largest + std::abs(lse)) + e_exp + roundings(double(count));
        double loss = 0, e_loss = 0;
        for (size_t j = 0; j < count; ++j) {
            const int64_t m = row + first + int64_t(j);
            const double log_a = scores[j].value - lse, a = std::exp(log_a), w = mean[j];
            if (w > 0) {
                const double term = w * (std::log(w) - log_a);
                loss += term;
                e_loss += w * (e_p + e_log + e_log2 + 6 * unit * (std::abs(std::log(w)) + std::abs(log_a))) +
                          (e_p + roundings(double(count))) * std::abs(term);
            }
            const double di = gradient_scale * (a - w);
            const double e_di = gradient_scale * ((e_log + e_exp) * a + e_p * w + 2 * unit * std::abs(a - w) +
                                                  floor_of_bounds);
            const double sums = roundings(double(p.c.length) + 4), s = double{x.scale()};
            for (int64_t h = 0; h < x.heads; ++h) {
                const IndexProblem::Product z = x.product(h, n, m);
                const double weight = x.weight(h, n), dz = z.z > 0 ? s * weight * di : 0;
                const double doubt = std::abs(z.z) <= z.e_z ? s * std::abs(weight * di) : 0;
                const double e_dz =
                    s * std::abs(weight) * (z.z > -z.e_z ? e_di : 0) + doubt + sums * std::abs(dz);
                const double positive = std::max(0.0, z.z);
                add(n, x.weight_at() + h, s * di * positive,
                    s * (e_di * positive + std::abs(di) * z.e_z + sums * std::abs(di) * positive), x);
                for (int64_t c = 0; c < x.head_dim; ++c) {
                    const double key = double{x.all.at(m, x.key_at() + c)};
                    const double query = double{x.all.at(n, h * x.head_dim + c)};
                    add(n, h * x.head_dim + c, dz * key, e_dz * std::abs(key), x);
                    add(m, x.key_at() + c, dz * query, e_dz * std::abs(query), x);
                }
            }
        }
        losses.add(n, loss, e_loss);
    }
    void add(int64_t row, int64_t column, double value, double error, const IndexProblem& x) {
        gradients.add(row * x.width() + column, value, error);
    }
};

}  // namespace

TEST_CASE("the loss of an index and its gradients, random variants of attention, against double") {
    for (uint64_t seed = 1; seed <= random_variants / 3; ++seed) {
        CAPTURE(seed);
        Variant c = random_variant(seed);
        c.maxima = c.far = false;
        Problem problem(c);
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            IndexProblem index(p, seed);
            p.forward(ops);
            index.run(ops, p, 0.25f);
            const Expected expected(p, index, 0.25);
            CHECK(expected.losses.worst(index.losses) <= 1);
            CHECK(expected.gradients.worst(index.gradients) <= 1);
        });
    }
    Variant c{.batch = 2, .length = 333, .heads = 4, .kv_heads = 2, .head_dim = 16};
    check_thread_independence([&](Ops& ops) {
        Problem p(c);
        IndexProblem index(p, 5);
        p.forward(ops);
        index.run(ops, p, 1.0f);
        return index.gradients;
    });
}

namespace {

// o of every query over the top_k keys with the largest I, of equal ones the nearest.
struct Chosen {
    Reference::Output o;
    int64_t undecided = 0;  // rows of which rounding decides what the largest are

    Chosen(const Problem& p, const IndexProblem& x) : o(p.o.count()) {
        const ExactInputs in(p);
        for (int64_t b = 0; b < p.c.batch; ++b)
            for (int64_t i = 0; i < p.c.length; ++i) {
                const std::vector<int64_t> keys = keys_of(p, x, b, i);
                for (int64_t h = 0; h < p.c.heads; ++h) add_row(p, in, b, h, i, keys);
            }
    }

  private:
    bool decided_ = true;
    std::vector<int64_t> keys_of(const Problem& p, const IndexProblem& x, int64_t b, int64_t i) {
        struct Choice {
            int64_t key;
            IndexProblem::Score score;
        };
        std::vector<Choice> all;
        for (int64_t j = i; j >= first_visible(p, b, i); --j)
            all.push_back({j, x.score(b * p.c.length + i, b * p.c.length + j)});
        std::stable_sort(all.begin(), all.end(),
                         [](const Choice& l, const Choice& r) { return l.score.value > r.score.value; });
        const size_t kept = std::min(all.size(), static_cast<size_t>(p.c.top_k));
        decided_ = true;
        for (size_t n = kept; n < all.size(); ++n)
            for (size_t m = 0; m < kept; ++m)
                decided_ = decided_ && (all[m].score.error + all[n].score.error == 0 ||  // both are 0
                                        all[m].score.value - all[n].score.value >
                                            safety * (all[m].score.error + all[n].score.error));
        undecided += decided_ ? 0 : 1;
        std::vector<int64_t> keys;
        for (size_t n = 0; n < kept; ++n) keys.push_back(all[n].key);
        return keys;
    }
    void add_row(const Problem& p, const ExactInputs& in, int64_t b, int64_t h, int64_t i,
                 const std::vector<int64_t>& keys) {
        const Variant& c = p.c;
        const double sink =
            c.sink ? in.sink[static_cast<size_t>(h)] : -std::numeric_limits<double>::infinity();
        double top = sink, e_y = 0, largest = std::isinf(sink) ? 0 : std::abs(sink);
        std::vector<double> y;
        for (const int64_t j : keys) {
            const ScoredPair pair = pair_of(p, in, b, h, i, j);
            y.push_back(pair.y);
            e_y = std::max(e_y, pair.e_y);
            top = std::max(top, pair.y);
            largest = std::max(largest, std::abs(pair.y));
        }
        double sum = std::exp(sink - top);
        for (const double value : y) sum += std::exp(value - top);
        const double e_sum = 2 * e_y + 4 * unit * (2 * largest + std::abs(top)) + 2 * e_exp +
                             roundings(double(keys.size()) + 1);
        for (int64_t m = 0; m < c.head_dim; ++m) {
            double value = 0, magnitude = 0;
            for (size_t k = 0; k < keys.size(); ++k) {
                const int64_t column = p.query_cols + p.kv_cols + h / (c.heads / c.kv_heads) * c.head_dim + m;
                const double term =
                    std::exp(y[k] - top) / sum * double{p.qkv.at(b * c.length + keys[k], column)};
                value += term;
                magnitude += std::abs(term);
            }
            o.add((b * c.length + i) * p.query_cols + h * c.head_dim + m, value,
                  decided_ ? (2 * e_sum + 4 * unit) * magnitude : 1e300);
        }
    }
};

}  // namespace

TEST_CASE(
    "attention to the keys that an index chooses, of all queries and of one at a time, against double") {
    int64_t rows = 0, undecided = 0;
    for (uint64_t seed = 1; seed <= random_variants / 3; ++seed) {
        CAPTURE(seed);
        Variant c = random_variant(seed);
        c.maxima = false;
        c.top_k = 1 + Draw(seed, 2).below(40);
        CAPTURE(c.top_k);
        Problem problem(c);
        const IndexProblem index(problem, seed);
        Floats inputs = index.all;
        const Chosen exact(problem, index);
        rows += c.tokens();
        undecided += exact.undecided;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            p.index = index.of(inputs);
            p.forward(ops);
            CHECK(exact.o.worst(p.o) <= 1);
            CHECK((p.o.guards_intact() && p.lse.guards_intact()));
            if (!c.documents) CHECK(exact.o.worst(decoded(p, ops)) <= 1);
        });
    }
    CHECK(undecided < rows / 100);
}
