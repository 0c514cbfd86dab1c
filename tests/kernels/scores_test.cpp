// Maxima of scores and QK-clip against double precision.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("maxima of heads grow to the largest row and never shrink") {
    for_each_isa([](Ops& ops) {
        for (int64_t rows : {1, 5, 33, 9000}) {
            CAPTURE(rows);
            Floats maxima = normal(4, rows, 1, 3.0, -10.0, rows + 3), out(1, 4);
            const float infinity = std::numeric_limits<float>::infinity();
            for (int64_t i = 0; i < rows; ++i) maxima.at(2, i) = -infinity;
            maxima.at(1, rows - 1) = 50;
            out[0] = -infinity;
            out[1] = 3;
            out[2] = -infinity;
            out[3] = 1000;
            ops.head_maxima(out.vector(), maxima.tensor());
            float largest = -infinity;
            for (int64_t i = 0; i < rows; ++i) largest = std::max(largest, maxima.at(0, i));
            CHECK(out[0] == largest);
            CHECK(out[1] == 50);
            CHECK(out[2] == -infinity);
            CHECK(out[3] == 1000);
            CHECK(out.guards_intact());
        }
    });
}

namespace {

struct Clip {
    int64_t heads, kv, d = 6, width = 37;
    Floats wq, wk, maxima;
    Clip(int64_t query_heads, int64_t kv_heads)
        : heads(query_heads),
          kv(kv_heads),
          wq(normal(heads * d, width, 1, 1.0, 0.0, width + 3)),
          wk(normal(kv * d, width, 2, 1.0, 0.0, width + 1)),
          maxima(1, heads) {}
    void run(Ops& ops, float limit) { ops.qk_clip(wq.tensor(), wk.tensor(), maxima.vector(), d, limit); }
};

}  // namespace

TEST_CASE("QK-clip brings heads above the limit back to it and leaves the others alone") {
    for_each_isa([](Ops& ops) {
        for (int64_t kv : {4, 2}) {
            CAPTURE(kv);
            Clip p(4, kv);
            const Floats wq = p.wq, wk = p.wk;
            p.maxima[0] = 25;
            p.maxima[1] = 10;
            p.maxima[2] = 11;
            p.maxima[3] = -200;
            p.run(ops, 10.0f);
            const auto factor = [&](int64_t row, bool query) {
                const double g = std::min(1.0, 10.0 / std::max(double{p.maxima[row / p.d]}, 1.0));
                return kv == 4 ? std::sqrt(g) : query ? g : 1.0;
            };
            // The factor is rounded once and so is the product.
            CHECK(worst(
                      p.wq, [&](int64_t i) { return factor(i / p.width, true) * wq[i]; },
                      [&](int64_t i) { return 2.001 * unit * std::abs(wq[i]); }) <= 1);
            CHECK(worst(
                      p.wk, [&](int64_t i) { return factor(i / p.width, false) * wk[i]; },
                      [&](int64_t i) { return 2.001 * unit * std::abs(wk[i]); }) <= 1);
            for (int64_t r = 0; r < 4 * p.d; ++r)
                for (int64_t i = 0; i < p.width; ++i)
                    if (r / p.d == 1 || r / p.d == 3) REQUIRE(p.wq.at(r, i) == wq.at(r, i));
            CHECK(p.wq.guards_intact());
            CHECK(p.wk.guards_intact());
        }
    });
}

TEST_CASE("QK-clip does nothing at or below the limit, nor where no maximum is known") {
    for_each_isa([](Ops& ops) {
        Clip p(4, 4);
        const Floats wq = p.wq, wk = p.wk;
        p.maxima[0] = 10;
        p.maxima[1] = 0;
        p.maxima[2] = -std::numeric_limits<float>::infinity();
        p.maxima[3] = std::numeric_limits<float>::quiet_NaN();
        p.run(ops, 10.0f);
        CHECK(same_bits(p.wq, wq));
        CHECK(same_bits(p.wk, wk));
    });
}

TEST_CASE("maxima and clipping do not depend on the number of threads") {
    check_thread_independence([&](Ops& ops) {
        Floats maxima = normal(5, 9001, 1), out(1, 5);
        ops.head_maxima(out.vector(), maxima.tensor());
        Clip p(5, 5);
        for (int64_t h = 0; h < 5; ++h) p.maxima[h] = out[h];
        p.run(ops, 1.0f);
        return joined({&out, &p.wq, &p.wk});
    });
}
