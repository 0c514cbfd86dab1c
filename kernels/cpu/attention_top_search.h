// How the queries of a tile collect keys, or blocks as keys, by their scores. Include after collection.h and
// attention_scores.h in the same region.

// Keys or blocks [first, end) of each query of a tile; none of queries that do not exist.
struct VisibleKeys {
    alignas(64) int32_t first[query_tile];
    alignas(64) int32_t end[query_tile];
    int64_t rows;

    // size: keys of a block; a query's own and one of which it does not see all are left out. 0: all keys.
    VisibleKeys(const QueryTile& q, int64_t size) : rows(q.end - q.begin) {
        for (int64_t i = 0; i < query_tile; ++i) {
            const int64_t start = q.start[i], position = q.begin + i;
            first[i] = static_cast<int32_t>(size > 0 ? (start + size - 1) / size : start);
            end[i] = i >= rows ? 0 : static_cast<int32_t>(size > 0 ? position / size : position + 1);
        }
    }
    // Those within [begin, end) that some query of a panel has.
    KeyRange of_panel(int64_t panel, int64_t begin, int64_t until) const {
        const int64_t at = panel * panel_cols, last = smaller(at + panel_cols, rows) - 1;
        if (last < at) return {begin, begin, false};
        const int64_t from = larger(begin, first[at]), to = smaller(until, end[last]);
        return {from, to, first[last] > from || end[at] < to || last < at + panel_cols - 1};
    }
    LONGREACH_INLINE VecInt has(int64_t key, int64_t at) const {
        const VecInt j = static_cast<int32_t>(key) - VecInt{};
        return (j >= *reinterpret_cast<const VecInt*>(first + at)) &
               (j < *reinterpret_cast<const VecInt*>(end + at));
    }
};

// What the queries of one tile read and collect.
struct TopSearch {
    const QueryTile& q;
    const ScoreRows& rows;
    const VisibleKeys& visible;
    Collection& collection;
    float* means;  // [query_tile]: sums of scores of the block at work
    int64_t block;
};

// Collects keys, or blocks as keys, from the nearest back. scores: S^T of one panel and the keys of `range`.
template <Form form, bool masked>
void collect_panel(const TopSearch& s, const float* scores, int64_t panel, const KeyRange& range,
                   const TableSlice& slice) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t distance = s.q.begin + at - range.begin - slice.lowest;
        for (int64_t end = range.end - range.begin; end > 0; end -= lanes) {
            const Vec least = load(s.collection.least + at);
            VecInt beyond{};
            Vec y[lanes];
            for (int64_t r = 0; r < lanes; ++r) {
                const int64_t j = end - 1 - r, key = range.begin + j;
                y[r] = splat(-__builtin_inff());
                if (j < 0) continue;
                const Vec product = load(scores + j * panel_cols + lane);
                const Vec score = score_of<form>(product, s.rows, at, slice, distance - j, key).y;
                y[r] = masked ? (s.visible.has(key, at) ? score : y[r]) : score;
                beyond |= ~(y[r] <= least);
            }
            uint32_t queries = lanes_of(beyond);
            if (queries == 0) continue;
            transpose(y);
            const VecInt keys = static_cast<int32_t>(range.begin + end - 1) - lane_index();
            for (; queries != 0; queries &= queries - 1) {
                const int i = std::countr_zero(queries);
                s.collection.add(at + i, y[i], keys);
            }
        }
    }
}
