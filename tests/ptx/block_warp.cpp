#include "ptx/block.h"

#include <bit>
#include <cstring>

namespace longreach::ptx {

bool Block::met(const Step& s, uint32_t mask, uint32_t lanes) {
    const uint32_t missing = mask & ~lanes;
    if ((missing & ~warp_->alive) != 0)
        fault(s, std::countr_zero(lanes), "the mask names lanes that have ended");
    if ((mask & lanes) == 0) fault(s, std::countr_zero(lanes), "a mask without the lane itself");
    return missing == 0;
}

uint32_t Block::mask_of(const Step& s, const Operand& o, uint32_t lanes) const {
    const auto mask = static_cast<uint32_t>(used(s, o, std::countr_zero(lanes)));
    for (uint32_t l = lanes; l != 0; l &= l - 1)
        if (static_cast<uint32_t>(used(s, o, std::countr_zero(l))) != mask)
            fault(s, std::countr_zero(l), "lanes with different masks");
    return mask;
}

bool Block::shuffle(const Step& s, uint32_t lanes) {
    const bool with_predicate = s.in->groups.size() == 6;
    const size_t shift = with_predicate ? 1 : 0;
    const auto at = [&](size_t group) -> const Operand& { return s.in->at(static_cast<int>(group)); };
    if (!met(s, mask_of(s, at(4 + shift), lanes), lanes)) return false;
    uint64_t results[32] = {};
    bool within[32] = {};
    for (uint32_t l = lanes; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        const auto b = static_cast<int>(used(s, at(2 + shift), lane) & 31);
        const auto c = static_cast<int>(used(s, at(3 + shift), lane));
        const int segment = c >> 8 & 31, clamp = c & 31;
        const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        int j = lane;
        if (s.in->has("up")) {
            j = lane - b;
            within[lane] = j >= last;
        } else {
            j = s.in->has("down") ? lane + b : s.in->has("bfly") ? lane ^ b : first | (b & ~segment);
            within[lane] = j <= last;
        }
        if (!within[lane]) j = lane;
        if (!(lanes >> j & 1)) fault(s, lane, "a value of lane " + std::to_string(j) + ", which is not here");
        results[lane] = low_bits(used(s, at(1 + shift), j), 32);
    }
    for (uint32_t l = lanes; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        set(at(0), lane, results[lane]);
        if (with_predicate) set(at(1), lane, within[lane] ? 1 : 0);
    }
    return true;
}

bool Block::vote(const Step& s, uint32_t lanes) {
    const uint32_t mask = mask_of(s, *s.c, lanes);
    if (!met(s, mask, lanes)) return false;
    uint32_t yes = 0;
    for (uint32_t l = lanes & mask; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        if (used(s, *s.b, lane) != 0) yes |= 1u << lane;
    }
    const uint64_t result = s.in->has("ballot") ? yes
                            : s.in->has("all")  ? (yes == mask ? 1 : 0)
                            : s.in->has("any")  ? (yes != 0 ? 1 : 0)
                                                : (yes == mask || yes == 0 ? 1 : 0);
    for (uint32_t l = lanes; l != 0; l &= l - 1) set(*s.a, std::countr_zero(l), result);
    return true;
}

bool Block::ldmatrix(const Step& s, uint32_t lanes) {
    const int matrices = s.in->has("x4") ? 4 : s.in->has("x2") ? 2 : 1;
    if (!met(s, ~0u, lanes)) return false;
    if (matrices != s.count_a) fault(s, -1, "as many registers as matrices expected");
    uint16_t element[4][8][8];
    for (int j = 0; j < matrices; ++j)
        for (int r = 0; r < 8; ++r) {
            const int lane = 8 * j + r;
            std::memcpy(element[j][r], place(s, Space::shared, address(s, *s.b, lane), 16, lane, 'r'), 16);
        }
    for (int lane = 0; lane < 32; ++lane)
        for (int j = 0; j < matrices; ++j) {
            const int row = lane / 4, column = lane % 4 * 2;
            const bool trans = s.in->has("trans");
            const uint64_t low = trans ? element[j][column][row] : element[j][row][column];
            const uint64_t high = trans ? element[j][column + 1][row] : element[j][row][column + 1];
            set(s.a[j], lane, low | high << 16);
        }
    return true;
}

bool Block::mma(const Step& s, uint32_t lanes) {
    if (!s.in->has("m16n8k16") || !s.in->has("row") || !s.in->has("col") || s.in->words.back() != "f32" ||
        !s.in->has("bf16"))
        unknown(module_, *s.in);
    if (!met(s, ~0u, lanes)) return false;
    double a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 8; ++i) {  // the i-th element of A's fragment: half i % 2 of register i / 2
            const int row = (i / 2) % 2 == 0 ? group : group + 8, column = pair + i % 2 + (i < 4 ? 0 : 8);
            a[row][column] = double{bf16_value(used(s, s.b[i / 2], lane) >> (16 * (i % 2)))};
        }
        for (int i = 0; i < 4; ++i)
            b[pair + i % 2 + (i < 2 ? 0 : 8)][group] =
                double{bf16_value(used(s, s.c[i / 2], lane) >> (16 * (i % 2)))};
        for (int i = 0; i < 4; ++i)
            c[i < 2 ? group : group + 8][pair + i % 2] = double{f32_value(used(s, s.d[i], lane))};
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + i % 2;
            double sum = c[row][column];
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            set(s.a[i], lane, f32_bits(static_cast<float>(sum)));
        }
    return true;
}

}  // namespace longreach::ptx
