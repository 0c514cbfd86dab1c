// Queries of a problem one at a time, as a generation meets them.
#pragma once

#include "kernels/attention_variants.h"

namespace longreach::test {

// The keys and values that queries meet one at a time.
struct KeptRows {
    Tensor keys, values, far_keys;
};

// Every query of a problem alone, against the keys and values up to its own.
inline Floats decoded(Problem& p, Ops& ops, const KeptRows& kept) {
    const Variant& c = p.c;
    const auto rows_at = [&](Tensor t, int64_t i) {  // position i of every sequence
        t = t.moved(i * t.row_stride);
        t.shape = {c.batch, t.cols(), 0, 0};
        t.row_stride *= c.length;
        return t;
    };
    for (int64_t i = 0; i < c.length; ++i) {
        AttentionSpec s = p.spec();
        Floats factor(std::max<int64_t>(1, c.factor_rows), c.batch), square(1, c.batch);
        for (int64_t b = 0; b < c.batch; ++b) {
            for (int64_t h = 0; h < factor.rows(); ++h) factor.at(h, b) = p.factor.at(h, b * c.length + i);
            square[b] = p.square[b * c.length + i];
        }
        if (s.row_factor) s.row_factor = factor.tensor();
        if (s.row_square) s.row_square = square.vector();
        if (s.far_queries) s.far_queries = rows_at(s.far_queries, i), s.far_keys = kept.far_keys;
        s.row_start = Tensor();
        if (s.index)
            s.index.queries = rows_at(s.index.queries, i), s.index.weights = rows_at(s.index.weights, i);
        int64_t first = 0;
        if (c.window > 0) first = std::max(first, i - c.window + 1);
        if (c.chunk > 0) first = std::max(first, i / c.chunk * c.chunk);
        ops.attention_decode(rows_at(p.o.tensor(), i), rows_at(p.part(p.qkv, 0), i), kept.keys, kept.values,
                             s, first, i);
    }
    CHECK(p.o.guards_intact());
    return p.o;
}
inline Floats decoded(Problem& p, Ops& ops) {
    return decoded(p, ops, {p.part(p.qkv, 1), p.part(p.qkv, 2), p.part(p.far, 1)});
}

// The same with keys and values kept in bf16; also that f32 memory with the same numbers gives the same bits.
inline Floats decoded_in_bf16(Problem& p, Ops& ops) {
    Bf16s keys(p.c.tokens(), p.kv_cols, p.kv_cols + 3), values(p.c.tokens(), p.kv_cols, p.kv_cols + 1),
        far_keys(p.c.tokens(), p.kv_cols);
    Problem rounded = p;
    const auto keep = [&](Bf16s& to, const Tensor& from, const Tensor& copy) {
        ops.copy(to.tensor(), from);
        CHECK(to.guards_intact());
        int64_t wrong = 0;
        for (int64_t r = 0; r < to.rows(); ++r)
            for (int64_t c = 0; c < to.cols(); ++c) {
                float& x = copy.f32()[r * copy.row_stride + c];
                x = bf16_rounded(x);
                const uint32_t bits = uint32_t{to.at(r, c)} << 16;
                wrong += std::memcmp(&bits, &x, 4) != 0 ? 1 : 0;
            }
        CHECK(wrong == 0);
    };
    keep(keys, p.part(p.qkv, 1), rounded.part(rounded.qkv, 1));
    keep(values, p.part(p.qkv, 2), rounded.part(rounded.qkv, 2));
    keep(far_keys, p.part(p.far, 1), rounded.part(rounded.far, 1));
    const Floats o = decoded(p, ops, {keys.tensor(), values.tensor(), far_keys.tensor()});
    CHECK(same_bits(decoded(rounded, ops), o));
    return o;
}

}  // namespace longreach::test
