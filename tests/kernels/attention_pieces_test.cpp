// A CPU's attention of the last queries of a sequence alone, to all its keys.
#include <algorithm>

#include "kernels/random_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Rows [at, at + count) of what a spec has of every query.
AttentionSpec piece_of(const AttentionSpec& whole, Ints& row_start, int64_t at, int64_t count) {
    AttentionSpec s = whole;
    s.length = count;
    if (s.row_start) {  // counted from the first query
        for (int64_t i = 0; i < count; ++i)
            row_start[i] = whole.row_start.i32()[at + i] - static_cast<int32_t>(at);
        s.row_start = row_start.tensor();
    }
    if (s.row_factor) s.row_factor = s.row_factor.col_range(at, count);
    if (s.row_square) s.row_square = s.row_square.range(at, count);
    if (s.far_queries) s.far_queries = s.far_queries.row_range(at, count);
    if (s.far_keys) s.far_keys = s.far_keys.first_rows(at + count);
    if (s.forget) s.forget = s.forget.col_range(0, at + count);
    return s;
}

}  // namespace

TEST_CASE("the last queries of a sequence alone have the bits that they have among all") {
    for_each_isa([](Ops& ops) {
        for (uint64_t seed = 1; seed <= 90; ++seed) {
            CAPTURE(seed);
            Variant c = random_variant(seed);
            c.batch = 1;
            c.length = 512 + static_cast<int64_t>(seed * 37 % 200);
            if (c.window > 0) c.window = 1 + static_cast<int64_t>(seed * 71 % 400);
            if (c.chunk > 0) c.chunk = 1 + static_cast<int64_t>(seed * 53 % 400);
            if (seed % 5 == 0) c.head_dim = 172;  // fewer tiles at once
            const bool plain = !c.sink && !c.row_square && !c.forget && !c.far && !c.maxima;
            if (seed % 3 == 1) c.alpha = 1.5, c.maxima = false;
            if (seed % 3 == 2) c.sticks = plain;
            Problem p(c);
            p.forward(ops);
            Floats o(c.length, p.query_cols), lse(c.heads, c.length), maxima(c.heads, c.length);
            for (int64_t at = 0; at < c.length; at += 256) {
                const int64_t count = std::min<int64_t>(256, c.length - at);
                Ints row_start(1, count);
                ops.attention(o.tensor().row_range(at, count), lse.tensor().col_range(at, count),
                              c.maxima ? maxima.tensor().col_range(at, count) : Tensor(),
                              p.part(p.qkv, 0).row_range(at, count), p.part(p.qkv, 1).first_rows(at + count),
                              p.part(p.qkv, 2).first_rows(at + count),
                              piece_of(p.spec(), row_start, at, count));
            }
            CHECK(same_bits(o, p.o));
            CHECK(same_bits(lse, p.lse));
            if (c.maxima) CHECK(same_bits(maxima, p.maxima));
        }
    });
}
