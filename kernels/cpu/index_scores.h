// Scores of an index (IndexScores) of tiles of queries. Include after attention_tiles.h in the same region.

// One tile of queries of one sequence, packed for the products with keys.
struct IndexTile {
    int64_t heads, width;
    float* queries;  // [heads][query_panels][d][panel_cols]
    float* weights;  // [heads][query_tile], times the scale; 0 past the last query

    // first: the tile's first query among all N; rows: how many of its queries exist.
    IndexTile(const IndexScores& index, int64_t first, int64_t rows, float* memory)
        : heads(index.heads),
          width(index.head_dim),
          queries(memory),
          weights(memory + heads * query_tile * width) {
        const Tensor &q = index.queries, &w = index.weights;
        for (int64_t h = 0; h < heads; ++h) {
            pack_queries_transposed<PlainUnit>(queries + h * query_tile * width,
                                               q.f32() + first * q.row_stride + h * width, q.row_stride, rows,
                                               width, nullptr);
            for (int64_t i = 0; i < query_tile; ++i)
                weights[h * query_tile + i] =
                    i < rows ? index.scale * w.f32()[(first + i) * w.row_stride + h] : 0.0f;
        }
    }
    static int64_t floats(const IndexScores& index) {
        return index.heads * query_tile * (index.head_dim + 1);
    }
    const float* panel_of(int64_t head, int64_t panel) const {
        return queries + (head * query_panels + panel) * width * panel_cols;
    }
    const float* weights_of(int64_t head, int64_t panel) const {
        return weights + head * query_tile + panel * panel_cols;
    }
};

// relu that lets a NaN pass.
LONGREACH_INLINE Vec positive_part(Vec x) {
    return x < Vec{} ? Vec{} : x;
}

// to [keys of range][panel_cols] = I^T of one panel. keys: of the sequence.
__attribute__((noinline)) inline void index_scores(float* to, const IndexTile& t, int64_t panel,
                                                   const Tensor& keys, const KeyRange& range) {
    for (int64_t h = 0; h < t.heads; ++h) {
        const Vec left_weights = load(t.weights_of(h, panel)),
                  right_weights = load(t.weights_of(h, panel) + lanes);
        multiply_panel<PlainUnit>(
            keys.f32() + range.begin * keys.row_stride, keys.row_stride, 1, t.panel_of(h, panel), t.width,
            range.end - range.begin, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
                float* at = to + r * panel_cols;
                const Vec l = h > 0 ? load(at) : Vec{}, more = h > 0 ? load(at + lanes) : Vec{};
                store(at, fma(left_weights, positive_part(left), l));
                store(at + lanes, fma(right_weights, positive_part(right), more));
            });
    }
}
