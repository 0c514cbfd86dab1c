// Shared by stick-breaking forward, backward and decoding. Include after attention_tiles.h in the same region.
//
//   P_ij = s(y_ij) prod over j < k < i of (1 - s(y_ik)), s the logistic function
//        = 2^(a_ij - sum over j < k < i of b_ik),   a = log2 s(y), b = -log2(1 - s(y))
//
// over visible keys. A query does not see its own key. Keys are visited from near to far with the sum of b so
// far. With y in units of log 2 and r = log2(1 + 2^-|y|):  a = min(y, 0) - r,  b = max(y, 0) + r.

// One score y log2(e) of a stick.
struct Break {
    Vec taken;  // a
    Vec left;   // b
    Vec small;  // 2^-|y|
};
LONGREACH_INLINE Break break_at(Vec y) {
    const Vec small = exp2(Vec{} - abs(y));
    const Vec r = log2_1p(small);
    return {min(y, Vec{}) - r, max(y, Vec{}) + r, small};
}

// Whether the query of each lane sees the key.
LONGREACH_INLINE VecInt sees_before(int64_t key, int64_t query, const int32_t* start) {
    const VecInt j = static_cast<int32_t>(key) - VecInt{};
    const VecInt i = static_cast<int32_t>(query) + lane_index();
    return (j < i) & (j >= *reinterpret_cast<const VecInt*>(start));
}
// Some query of the panel does not see all keys of its range.
LONGREACH_INLINE bool masked_before(const QueryTile& q, int64_t panel, const KeyRange& range) {
    return range.masked || range.end > q.begin + panel * panel_cols;
}

// Beyond this sum of b every weight is 0 in f32: 2^-150 rounds to it.
inline constexpr float used_up = 150.0f;
// broken: sums of b of the panel's queries.
LONGREACH_INLINE bool all_used_up(const float* broken) {
    return reduce_max(max(Vec{} - load(broken), Vec{} - load(broken + lanes))) < -used_up;
}

inline void check_sticks(const AttentionSpec& s) {
    check(!s.sink && !s.row_square && !s.forget && !s.far_queries && !s.far_keys,
          "stick-breaking attention has no sinks, row squares, forget sums or far pairs");
}
