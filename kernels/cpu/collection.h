// The largest scores of each query of a tile, met from the nearest key back. Include after attention_tiles.h and loops.h in
// the same region; <bit> and <memory> before it.

// Numbers that order floats: a < b where ordered(a) < ordered(b). A NaN is the largest, so that it is taken and seen.
LONGREACH_INLINE VecInt ordered(Vec x) {
    const auto bits = reinterpret_cast<VecInt>(x);
    const VecInt order = bits ^ ((bits >> 31) & 0x7fffffff);
    return x == x ? order : VecInt{} + 0x7fffffff;
}
LONGREACH_INLINE float with_order(int32_t order) {
    return std::bit_cast<float>(order ^ ((order >> 31) & 0x7fffffff));
}

// Scores of each query that may be among its `keep` largest, with their keys or blocks, the nearer ones first.
class Collection {
  public:
    // queries: at most; all: scores that a query can have.
    Collection(int64_t queries, int64_t keep, int64_t all)
        : keep_(smaller(keep, all)),
          room_(smaller(2 * keep_ + 64, all + 1)),
          stride_(room_ + lanes),
          scores_(new float[static_cast<size_t>(queries * stride_)]),
          keys_(new int32_t[static_cast<size_t>(queries * stride_)]),
          order_(new int32_t[static_cast<size_t>(stride_)]) {}

    void reset() {
        for (int64_t i = 0; i < query_tile; ++i) least[i] = -__builtin_inff(), count_[i] = 0;
    }
    // Scores of keys farther than those before, the nearest first.
    LONGREACH_INLINE void add(int64_t query, Vec score, VecInt key) {
        const uint32_t beyond = lanes_of(~(score <= splat(least[query])));
        if (beyond == 0) return;
        const int64_t at = query * stride_ + count_[query];
        store_lanes(scores_.get() + at, score, beyond);
        store_lanes(reinterpret_cast<float*>(keys_.get() + at), reinterpret_cast<Vec>(key), beyond);
        count_[query] += std::popcount(beyond);
        if (count_[query] >= room_) cut(query);
    }
    void add(int64_t query, float score, int64_t key) {
        if (!takes_any() || score <= least[query]) return;
        const int64_t at = query * stride_ + count_[query];
        scores_[at] = score;
        keys_[at] = static_cast<int32_t>(key);
        if (++count_[query] >= room_) cut(query);
    }
    // Leaves the largest of a query, of equal ones the nearest; returns their number.
    int64_t finish(int64_t query) {
        if (count_[query] > keep_) cut(query);
        return count_[query];
    }
    float* scores(int64_t query) { return scores_.get() + query * stride_; }
    int32_t* keys(int64_t query) { return keys_.get() + query * stride_; }
    bool takes_any() const { return keep_ > 0; }

    alignas(64) float least[query_tile];  // of each query: what a score has to exceed

  private:
    __attribute__((noinline)) void cut(int64_t query);
    int32_t bound_of(int64_t count) const;
    // Scores whose order is at least a bound.
    int32_t reach(int32_t bound, int64_t count) const {
        const int32_t* order = order_.get();
        int32_t n = 0;
        for (int64_t j = 0; j < count; ++j) n += order[j] >= bound ? 1 : 0;
        return n;
    }

    int64_t keep_, room_, stride_;      // a collection of `room` scores is cut
    std::unique_ptr<float[]> scores_;   // [queries][stride]
    std::unique_ptr<int32_t[]> keys_;   // likewise
    std::unique_ptr<int32_t[]> order_;  // [stride]
    int64_t count_[query_tile];
};

// A bound that at least `keep` of the ordered scores reach and fewer exceed, found bit by bit: bits all scores share are
// left out, and the search ends at a bound that exactly `keep` reach.
int32_t Collection::bound_of(int64_t count) const {
    constexpr uint32_t sign = 0x80000000u;  // flipped, numbers are ordered as unsigned ones
    int32_t most = order_[0], fewest = order_[0];
    for (int64_t j = 0; j < count; ++j) {
        most = order_[j] > most ? order_[j] : most;
        fewest = order_[j] < fewest ? order_[j] : fewest;
    }
    uint32_t bit = std::bit_floor(static_cast<uint32_t>(most ^ fewest));
    uint32_t bound = static_cast<uint32_t>(fewest) ^ sign;
    if (bit > 0) bound &= ~(bit | (bit - 1));
    for (; bit > 0; bit >>= 1) {
        const int32_t n = reach(static_cast<int32_t>((bound | bit) ^ sign), count);
        if (n >= keep_) bound |= bit;
        if (n == keep_) break;
    }
    return static_cast<int32_t>(bound ^ sign);
}

void Collection::cut(int64_t query) {
    float* y = scores(query);
    int32_t* key = keys(query);
    int32_t* order = order_.get();
    const int64_t count = count_[query];
    const auto as_floats = [](int32_t* p) { return reinterpret_cast<float*>(p); };
    for_vectors(count, [&](int64_t j, auto n) {
        store(as_floats(order + j), reinterpret_cast<Vec>(ordered(load(y + j, n))), n);
    });
    const int32_t bound = bound_of(count);
    int64_t equal = count;  // of those equal to the bound, the ones before this index are taken
    if (reach(bound, count) > keep_) {
        int64_t left = keep_ - (bound < 0x7fffffff ? reach(bound + 1, count) : 0);
        for (equal = 0; left > 0; ++equal) left -= order[equal] == bound ? 1 : 0;
    }
    int64_t kept = 0;
    for (int64_t j = 0; j < count; j += lanes) {
        const auto own = reinterpret_cast<VecInt>(load(as_floats(order + j)));
        const VecInt index = lane_index() + static_cast<int32_t>(j);
        const VecInt exists = index < static_cast<int32_t>(count);
        const VecInt taken = (own > bound) | ((own == bound) & (index < static_cast<int32_t>(equal)));
        const uint32_t bits = lanes_of(taken & exists);
        const Vec score = load(y + j), of = load(as_floats(key + j));
        store_lanes(y + kept, score, bits);
        store_lanes(as_floats(key + kept), of, bits);
        kept += std::popcount(bits);
    }
    count_[query] = kept;
    least[query] = with_order(bound);
}
