// How far back the softmax reaches where scores fall with the distance, by tables or forget sums. Include after loops.h and
// attention_tiles.h in the same region; <memory> before it.
//
// A tile of queries leaves a tile of keys out if no weight in it can matter. A score is at most gain |q| |k| + bias, plus the
// largest difference of forget sums, all of which have bounds by blocks of horizon_block positions:
//
//   forward   it lies more than no_weight below what the query has at its own key, at least bias(0) - gain(0) |q| |k|. A
//             weight below 2^-no_weight of the row's largest is 0 relative to it in f32.
//   backward  it lies more than no_weight below the lse: 2^(y - lse) is exactly 0.
//
// Of sequences that are longer than scores reach, time is then linear in the length. Bounds depend on values and shapes alone,
// and a key that comes later changes none of those that decide.

inline constexpr int64_t horizon_block = 32;
inline constexpr float no_weight = 192.0f;
// Shorter sequences are not worth the bounds.
inline constexpr int64_t least_horizon_keys = 512;

// A NaN among the numbers stays, and with a bound of NaN nothing is left out.
template <class Number>
LONGREACH_INLINE Number largest_of(Number so_far, Number x) {
    return x > so_far || x != x ? x : so_far;
}
template <class Number>
LONGREACH_INLINE Number least_of(Number so_far, Number x) {
    return x < so_far || x != x ? x : so_far;
}

// Bounds of one call.
class Horizon {
  public:
    Horizon() = default;
    // k: [B * keys, G * d].
    Horizon(const AttentionSpec& s, const Tensor& k, Pool& pool) {
        keys_ = k.rows() / s.batch;
        const bool falls = s.distance_gain || s.forget;
        if (!falls || s.row_square || s.far_keys || s.normaliser != Normaliser::softmax ||
            keys_ < least_horizon_keys)
            return;
        blocks_ = (keys_ + horizon_block - 1) / horizon_block;
        kv_heads_ = s.kv_heads;
        norms_.reset(new float[static_cast<size_t>(s.batch * kv_heads_ * blocks_)]);
        for_items(pool, s.batch * kv_heads_ * blocks_, horizon_block * s.head_dim, [&](int64_t item) {
            const int64_t of = item / blocks_, first = item % blocks_ * horizon_block;
            float most = 0;
            for (int64_t j = first; j < smaller(keys_, first + horizon_block); ++j) {
                const float* key =
                    k.f32() + (of / kv_heads_ * keys_ + j) * k.row_stride + of % kv_heads_ * s.head_dim;
                most = largest_of(most, dot(key, key, s.head_dim));
            }
            norms_[static_cast<size_t>(item)] = std::sqrt(most);
        });
        if (s.distance_gain) bound_tables(s, pool);
        if (s.forget) bound_sums(s, pool);
    }
    explicit operator bool() const { return blocks_ > 0; }

    // Of one tile of queries of one head.
    struct OfTile {
        bool knows = false;
        int64_t first = 0;              // position of the first query
        const float* norms = nullptr;   // of the keys' blocks
        const float* tables = nullptr;  // bias and gain of a head; null without any
        const double* sums = nullptr;   // least forget sum of each block; null without any
        double most_sum = 0;            // of the queries
        float product = 0;              // largest |q| times what packing multiplies it with
        float largest = 0;              // no score without gain exceeds it
        float least = 0;                // what a weight is compared with

        // Whether keys [key, key_end) can be left out.
        bool skips(int64_t key, int64_t key_end) const {
            if (!knows || key_end > first) return false;
            const int64_t block = key / horizon_block, end = (key_end - 1) / horizon_block + 1;
            float norm = 0;
            for (int64_t b = block; b < end; ++b) norm = largest_of(norm, norms[b]);
            float bound = product * norm;
            bound = bound > largest ? largest : bound;
            if (tables) {
                const float* at = tables + 2 * ((first - key_end + 1) / horizon_block);
                bound = at[0] + at[1] * bound;
            }
            if (sums) {
                double sum = sums[block];
                for (int64_t b = block + 1; b < end; ++b) sum = least_of(sum, sums[b]);
                bound += static_cast<float>((most_sum - sum) * 1.4426950408889634);
            }
            return bound < least - no_weight;
        }
    };
    // rows: of the tile, whose queries [q.begin, q.end) of d channels lie `stride` apart. lse: of each query, in base 2, in
    // the backward pass; null: the score of a query's own key takes its place.
    OfTile of(const AttentionSpec& s, int64_t sequence, int64_t head, const QueryTile& q,
              const ScoreRows& rows, const float* queries, int64_t stride, const float* lse) const {
        OfTile t;
        if (!*this) return t;
        t.knows = true, t.first = q.begin;
        t.norms = norms_.get() + (sequence * kv_heads_ + head / (s.heads / kv_heads_)) * blocks_;
        t.tables = tables_ ? tables_.get() + (s.distance_gain.rows() == 1 ? 0 : head) * 2 * blocks_ : nullptr;
        t.sums = sums_ ? sums_.get() + (sequence * s.heads + head) * blocks_ : nullptr;
        t.largest = rows.capped ? 0 : __builtin_inff();
        t.least = lse ? lse[0] : 0;
        const double* own_sums = sums_ ? sums_of_head(s, head, sequence * keys_) : nullptr;
        for (int64_t i = 0; i < q.end - q.begin; ++i) {
            const float* query = queries + i * stride;
            const float norm = std::sqrt(dot(query, query, s.head_dim)) * std::abs(rows.packing[i]);
            t.product = largest_of(t.product, norm);
            if (rows.capped) t.largest = largest_of(t.largest, std::abs(rows.cap[i]));
            if (lse) t.least = least_of(t.least, lse[i]);
            if (own_sums) {
                const double sum = own_sums[q.begin + i];
                t.most_sum = i > 0 ? largest_of(t.most_sum, sum) : sum;
            }
        }
        if (rows.capped) t.product = __builtin_inff();
        if (!lse) {
            float own = 0;
            for (int64_t b = q.begin / horizon_block; b * horizon_block < q.end; ++b)
                own = largest_of(own, t.norms[b]);
            own = t.product * own;
            own = own > t.largest ? t.largest : own;
            t.least = -own;
            const int64_t at_zero = s.distance_gain.cols() - 1;
            if (t.tables)
                t.least = row_of_head(s.distance_bias, head)[at_zero] * log2_e -
                          std::abs(row_of_head(s.distance_gain, head)[at_zero]) * own;
        }
        return t;
    }

  private:
    // Entry b: the largest bias, times log2(e), and the largest |gain| at distances from b * horizon_block on.
    void bound_tables(const AttentionSpec& s, Pool& pool) {
        const int64_t rows = s.distance_gain.rows(), entries = s.distance_gain.cols();
        tables_.reset(new float[static_cast<size_t>(rows * 2 * blocks_)]);
        for_items(pool, rows, 2 * entries, [&](int64_t row) {
            const float* gain = row_of_head(s.distance_gain, row) + entries - 1;
            const float* bias = row_of_head(s.distance_bias, row) + entries - 1;
            float* to = tables_.get() + row * 2 * blocks_;
            float most_bias = -__builtin_inff(), most_gain = 0;
            for (int64_t b = blocks_; b-- > 0;) {
                for (int64_t t = b * horizon_block; t < smaller(entries, (b + 1) * horizon_block); ++t) {
                    most_bias = largest_of(most_bias, bias[-t] * log2_e);
                    most_gain = largest_of(most_gain, std::abs(gain[-t]));
                }
                to[2 * b] = most_bias, to[2 * b + 1] = most_gain;
            }
        });
    }
    void bound_sums(const AttentionSpec& s, Pool& pool) {
        sums_.reset(new double[static_cast<size_t>(s.batch * s.heads * blocks_)]);
        for_items(pool, s.batch * s.heads, keys_, [&](int64_t item) {
            const double* from = sums_of_head(s, item % s.heads, item / s.heads * keys_);
            for (int64_t b = 0; b < blocks_; ++b) {
                double least = from[b * horizon_block];
                for (int64_t j = b * horizon_block + 1; j < smaller(keys_, (b + 1) * horizon_block); ++j)
                    least = least_of(least, from[j]);
                sums_[static_cast<size_t>(item * blocks_ + b)] = least;
            }
        });
    }

    int64_t keys_ = 0, blocks_ = 0, kv_heads_ = 0;
    std::unique_ptr<float[]> norms_;   // [B * G][blocks]: largest |k|
    std::unique_ptr<float[]> tables_;  // [rows][blocks][2]
    std::unique_ptr<double[]> sums_;   // [B * H][blocks]
};
