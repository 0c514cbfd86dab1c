// Random combinations of what AttentionSpec can ask for.
#pragma once

#include "kernels/attention_variants.h"

namespace longreach::test {

inline const uint64_t random_variants = brief() ? 60 : in_harness() ? 120 : 360;

// A random combination whose pairs times channels stay below a budget that keeps the reference fast.
inline Variant random_variant(uint64_t seed) {
    Draw draw(seed);
    const auto rows = [&](int64_t heads) { return draw.chance(0.5) ? heads : 1; };
    Variant c{.seed = seed};
    do {
        const int64_t sizes[] = {4, 4, 5, 8, 12, 16, 20, 31, 32, 48, 64, 96, 128};
        c.head_dim = sizes[draw.below(std::size(sizes))];
        c.batch = 1 + draw.below(3);
        c.kv_heads = 1 + draw.below(3);
        c.heads = c.kv_heads * (1 + draw.below(3));
        c.length = draw.chance(0.1) ? 1 + draw.below(4) : 1 + draw.below(200);
    } while (c.tokens() * c.heads * c.length / 2 * c.head_dim > 800'000);
    if (draw.chance(0.4)) c.window = 1 + draw.below(c.length + 10);
    if (draw.chance(0.3)) c.chunk = 1 + draw.below(c.length + 10);
    c.documents = draw.chance(0.3);
    if (draw.chance(0.3)) c.softcap = std::vector{0.5, 2.0, 30.0}[static_cast<size_t>(draw.below(3))];
    if (draw.chance(0.5)) c.factor_rows = rows(c.heads);
    c.sink = draw.chance(0.4);
    c.maxima = draw.chance(0.5);
    c.absolute = draw.chance(0.5);
    if (draw.chance(0.6)) {
        c.gain_rows = rows(c.heads);
        c.bias_rows = rows(c.heads);
        c.row_square = draw.chance(0.3);
    }
    c.far = draw.chance(0.2);
    c.far_from = draw.below(c.length + 5);
    c.factor_gradient = draw.chance(c.factor_rows ? 0.8 : 0.1);
    c.gain_gradient = c.tables() && !c.row_square && draw.chance(0.6);
    c.bias_gradient = c.tables() && !c.row_square && draw.chance(0.6);
    c.sink_gradient = c.sink && draw.chance(0.8);
    c.forget = draw.chance(0.4);
    c.forget_gradient = c.forget && draw.chance(0.8);
    return c;
}

}  // namespace longreach::test
