// Decays per key channel in the delta rule in chunks (delta_chunks.cuh): pairs of positions by levels, decayed factors.
//
// F_tj depends on the channel, so no product of q and k can be multiplied by it; but parted at a position between j and t
// it is a factor of k on one side and of q on the other. The pairs of a chunk fall into levels: the highest bit in which t
// and j differ, 32, 16, 8, 4, 2 or 1. It parts aligned runs of 2 level positions into earlier ones, without the bit, and
// later ones; `middle` is the last of the earlier ones. Then
//
//     F_tj = (a_(middle+1) ... a_t) (a_(j+1) ... a_middle),    middle = (t & ~level) | (level - 1), the same for t and j,
//
// and the scores of a level are a product of decayed q and k of later positions with decayed k of earlier ones. Either
// parenthesis is 2 to the power of a difference of sums of logarithms, which is at most 0: nothing overflows. Logarithms
// below `least`, documents' first positions among them, enter the sums as `least`, whose power is 0 in f32: what lies
// across such a decay is 0, and sums stay below 2^14, where f32 has steps of 2^-10 and a power errs by no more than its
// rounding to bf16. Level 0 is t = j, without a decay.
//
// At levels 32 and 16 whole blocks of 16 positions meet. Below, a block meets itself, and of the product only the pairs of
// the level are taken.
#pragma once

#include "kernels/cuda/delta_chunks.cuh"

namespace longreach::cuda::delta {

inline constexpr float least = -160.0f;  // of log2; f32 ends at -149

DEVICE bool at_level(int t, int j, int level) {
    return level == 0 ? t == j : t > j && (t ^ j) >= level && (t ^ j) < 2 * level;
}
// The same of blocks, which have all their pairs at the level, or each with itself those of the levels below.
DEVICE bool blocks_at_level(int later, int earlier, int level) {
    return level < block ? later == earlier : at_level(later, earlier, level / block);
}

// log2 of a_0 ... a_t by position and channel. Four rows of pairs of channels lie in different banks.
template <int D>
struct DecaySums {
    float data[chunk * D];
    DEVICE float* at(int t, int channel) { return data + t * D + (channel ^ (t % 4 * 8)); }
    DEVICE float2 pair(int t, int channel) const {
        return *reinterpret_cast<const float2*>(data + t * D + (channel ^ (t % 4 * 8)));
    }
    // Products of decays of a channel and the next: a_0 ... a_t; from the level's middle to t, or from t to there.
    DEVICE float2 from_start(int t, int channel) const { return power(pair(t, channel), {0.0f, 0.0f}); }
    DEVICE float2 to_middle(int t, int channel, int level) const {
        return power(pair(t, channel), pair((t & ~level) | (level - 1), channel));
    }
    DEVICE float2 to_end(int t, int channel) const { return to_middle(t, channel, chunk); }

  private:
    DEVICE static float2 power(float2 x, float2 y) {
        return {exp2_approx(-fabsf(x.x - y.x)), exp2_approx(-fabsf(x.y - y.y))};
    }
};

// All threads of the block; a barrier is the caller's, but for the sums of channel threadIdx.x.
template <int threads, int D>
DEVICE void fill_sums(DecaySums<D>& m, const DeltaChunks& c, int64_t first, int begin, int head) {
    const int thread = static_cast<int>(threadIdx.x), channel = thread % D;
#pragma unroll 8
    for (int i = thread / D; i < chunk; i += threads / D) {
        const int t = begin + i;
        float x = 0.0f;
        if (t < c.length && channel < c.d) {
            x = log2_e * *c.decay.at(first + t, int64_t{head} * c.d + channel);
            if (x < least || c.starts(first, t)) x = least;
        }
        *m.at(i, channel) = x;
    }
    __syncthreads();
    if (thread >= D) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < chunk; ++i) *m.at(i, channel) = sum += *m.at(i, channel);
}

// Of a first factor of rows row0 .. row0 + 16 and channels 16 k .. 16 k + 16: row and first channel of word i.
DEVICE int row_of_word(int row0, int i) {
    return row0 + lane_of() / 4 + i % 2 * 8;
}
DEVICE int channel_of_word(int k, int i) {
    return 16 * k + lane_of() % 4 * 2 + i / 2 * 8;
}
DEVICE uint32_t fade_word(uint32_t word, float2 by) {
    const float2 x = unpack_bf16(word);
    return pack_bf16(by.x * x.x, by.y * x.y);
}
// Decays the words to or from the level's middle; at level 0 they stay.
template <int D>
DEVICE void fade(uint32_t (&x)[4], uint32_t (&y)[4], const DecaySums<D>& decays, int row0, int k, int level) {
    if (level == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 by = decays.to_middle(row_of_word(row0, i), channel_of_word(k, i), level);
        x[i] = fade_word(x[i], by);
        y[i] = fade_word(y[i], by);
    }
}

// Rows 16 band .. 16 band + 16 of <q_t, F_tj k_j> and <k_t, F_tj k_j>, 0 above the diagonal.
template <int D>
DEVICE void multiply_levels(Fragments<1, 8>& of_q, Fragments<1, 8>& of_k, const Rows<D>& q, const Rows<D>& k,
                            const DecaySums<D>& decays, int band, bool additive) {
    const int lane = lane_of();
#pragma unroll 1
    for (int level = chunk / 2, last = 0; !last; last = level == 0, level /= 2)
#pragma unroll
        for (int b = 0; b < blocks; ++b) {
            if (!blocks_at_level(band, b, level)) continue;
            Fragments<1, 2> at_q, at_k;
            at_q.clear();
            at_k.clear();
#pragma unroll 1
            for (int i = 0; i < D / 16; ++i) {
                uint32_t query[4], key[4], other[4], unused[4]{};
                load_operand(query, q, 16 * band, i);
                load_operand(key, k, 16 * band, i);
                fade(query, key, decays, 16 * band, i, level);
                if (level >= block) {
                    load_operand(other, k, 16 * b, i);
                    fade(other, unused, decays, 16 * b, i, level);
                } else {
#pragma unroll
                    for (int w = 0; w < 4; ++w) other[w] = key[w];
                }
                const uint32_t by_rows[4] = {other[0], other[2], other[1], other[3]};
                multiply(at_q.of[0][0], at_q.of[0][1], query, by_rows);
                if (!additive) multiply(at_k.of[0][0], at_k.of[0][1], key, by_rows);
            }
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int t = 16 * band + lane / 4 + e / 2 * 8, j = 16 * b + 8 * n + lane % 4 * 2 + e % 2;
                    if (!at_level(t, j, level)) continue;
                    of_q.of[0][2 * b + n][e] = at_q.of[0][n][e];
                    of_k.of[0][2 * b + n][e] = at_k.of[0][n][e];
                }
        }
}

// The rows of qs, ks and ke of a band.
template <int D>
DEVICE void write_faded(const DeltaChunks& c, int64_t entry, const Rows<D>& q, const Rows<D>& k,
                        const DecaySums<D>& decays, int band) {
    bf16* to = c.faded + 3 * entry * chunk * c.d;
    const auto write = [&](DeltaChunks::Faded which, int t, int channel, uint32_t word) {
        *reinterpret_cast<uint32_t*>(to + (which * chunk + t) * c.d + channel) = word;
    };
#pragma unroll 1
    for (int i = 0; i < D / 16; ++i) {
        uint32_t query[4], key[4];
        load_operand(query, q, 16 * band, i);
        load_operand(key, k, 16 * band, i);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const int t = row_of_word(16 * band, w), channel = channel_of_word(i, w);
            if (channel >= c.d) continue;
            const float2 from_start = decays.from_start(t, channel), to_end = decays.to_end(t, channel);
            write(c.qs, t, channel, fade_word(query[w], from_start));
            write(c.ks, t, channel, fade_word(key[w], from_start));
            write(c.ke, t, channel, fade_word(key[w], to_end));
        }
    }
}

// --- gradients

// Takes the pairs of a level out of a block of dP or dM, its rows later positions, or the transposed one.
DEVICE void keep_level(uint32_t (&a)[4], int level, bool transposed) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = row_of_word(0, i), s = channel_of_word(0, i);
        const bool low = transposed ? at_level(s, r, level) : at_level(r, s, level),
                   high = transposed ? at_level(s + 1, r, level) : at_level(r, s + 1, level);
        a[i] &= (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
    }
}

// ddecay [16 positions, half the channels] += of each position s the products of those t, in the blocks first .. last, for
// which reaches(s, t): a product with a matrix of zeros and ones.
template <int D, class Reaches>
DEVICE void add_products(float (&ddecay)[D / 16][4], const Rows<D>& products, int band, int half, int first,
                         int last, Reaches reaches) {
#pragma unroll 1
    for (int b = first; b <= last; ++b) {
        uint32_t a[4], of_b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int s = row_of_word(16 * band, i), t = channel_of_word(b, i);
            a[i] = (reaches(s, t) ? 0x3f80u : 0u) | (reaches(s, t + 1) ? 0x3f800000u : 0u);  // 1 in bf16
        }
#pragma unroll
        for (int p = 0; p < D / 32; ++p) {
            load_columns(of_b, products, b, half * D / 32 + p);
            multiply(ddecay[2 * p], ddecay[2 * p + 1], a, of_b);
        }
    }
}

}  // namespace longreach::cuda::delta
