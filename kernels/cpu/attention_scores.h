// Scores of tiles of queries in the forward passes. Include after attention_tiles.h in the same region.

// What one item reads: tensors of one sequence ([T, d], of keys and values [before + T, d]; columns of the head).
struct Item {
    const AttentionSpec& spec;
    int64_t sequence, head, first_token;  // first_token: of the sequence among all N
    int64_t before, first_key;            // keys_before(); the sequence's first key among all
    Tensor q, k, v;
    Tensor far_q, far_k;  // empty without a far pair
    bool maxima;          // wanted

    Item(const AttentionSpec& s, int64_t of_sequence, int64_t of_head, const Tensor& queries,
         const Tensor& keys, const Tensor& values, bool with_maxima)
        : spec(s),
          sequence(of_sequence),
          head(of_head),
          first_token(of_sequence * s.length),
          before(keys_before(s, keys)),
          first_key(of_sequence * (before + s.length)),
          maxima(with_maxima) {
        const int64_t kv_head = head / (s.heads / s.kv_heads), all = before + s.length;
        const auto part = [&](const Tensor& t, int64_t first, int64_t rows, int64_t which) {
            return t ? t.row_range(first, rows).col_range(which * s.head_dim, s.head_dim) : Tensor();
        };
        q = part(queries, first_token, s.length, head);
        far_q = part(s.far_queries, first_token, s.length, head);
        k = part(keys, first_key, all, kv_head), v = part(values, first_key, all, kv_head);
        far_k = part(s.far_keys, first_key, all, kv_head);
    }
    int64_t earlier() const { return first_key + before - first_token; }  // as in ScoreRows
};

// Memory of one item, pieces of the thread's scratch, that its tiles of queries use by turns.
template <class Unit>
struct Buffers {
    float*
        scores;  // [key_tile][panel_cols]: S^T of one panel, then P^T, [key_tile / u][panel_cols]; u: of a unit
    float* far_scores;  // [panel_cols][panel_cols]: S^T from the far pair, where both pairs are needed
    float* packed;      // of KeyTile

    explicit Buffers(float* scratch)
        : scores(scratch),
          far_scores(scores + key_tile * panel_cols),
          packed(far_scores + panel_cols * panel_cols) {}
    static int64_t floats(int64_t head_dim) {
        return (key_tile + panel_cols) * panel_cols + KeyTile::floats<Unit>(head_dim);
    }
};

// One tile of queries of one head, packed for the products with keys.
template <class Unit>
struct ScoreTile {
    QueryTile q;
    ScoreRows rows;
    int64_t width;       // d
    float* queries;      // [query_panels][filled d / u][panel_cols], times ScoreRows::packing
    float* far_queries;  // likewise

    ScoreTile(const Item& item, int64_t first, const int32_t* row_start, float* memory)
        : q(first, item.spec.length, row_start, item.before),
          rows(item.spec, item.head, item.first_token + first, q.end - q.begin, item.earlier()),
          width(item.q.cols()),
          queries(memory),
          far_queries(queries + query_tile * filled_units<Unit>(width)) {
        const auto pack = [&](float* to, const Tensor& from) {
            pack_queries_transposed<Unit>(to, from.f32() + first * from.row_stride, from.row_stride,
                                          q.end - q.begin, width, rows.packing);
        };
        pack(queries, item.q);
        if (item.far_q) pack(far_queries, item.far_q);
    }
    static int64_t floats(int64_t head_dim) { return query_tile * 2 * filled_units<Unit>(head_dim); }
};

// to [rows, panel_cols] = S^T of `rows` keys from `first` on and one panel of packed queries. Out of line: one
// copy of the product serves all of score_panel.
template <class Unit>
__attribute__((noinline)) void multiply_scores(float* to, const LeftRows& keys, int64_t first, int64_t rows,
                                               const float* queries, int64_t width) {
    Core<Unit>::template multiply_to<false>(to, panel_cols, keys.from(first), queries, units_of<Unit>(width),
                                            rows);
}

// scores: S^T of one panel and the keys of `range`. Keys so early that they are far from every query of the
// panel take the far pair, keys near to all of them the near pair; the at most panel_cols - 1 keys between
// take both and choose by lane. Products write whole tiles of rows, so that earlier keys come first.
template <class Unit>
void score_panel(const ScoreTile<Unit>& t, const Buffers<Unit>& buffers, int64_t panel, const KeyRange& range,
                 const KeyTile& tile, int64_t far_from) {
    const int64_t at_panel = panel * filled_units<Unit>(t.width) * panel_cols;
    const auto multiply = [&](float* to, const LeftRows& keys, const float* queries, int64_t begin,
                              int64_t end) {
        multiply_scores<Unit>(to, keys, begin - tile.begin, end - begin, queries + at_panel, t.width);
    };
    if (!tile.far_keys.data) return multiply(buffers.scores, tile.keys, t.queries, range.begin, range.end);
    const int64_t first = t.q.begin + panel * panel_cols - far_from + 1;
    // Where the keys of both pairs begin, and those of the near pair alone.
    const int64_t mixed = larger(range.begin, smaller(range.end, first));
    const int64_t near = larger(range.begin, smaller(range.end, first + panel_cols - 1));
    float* scores = buffers.scores + (mixed - range.begin) * panel_cols;
    multiply(buffers.scores, tile.far_keys, t.far_queries, range.begin, mixed);
    multiply(scores, tile.keys, t.queries, mixed, range.end);
    multiply(buffers.far_scores, tile.far_keys, t.far_queries, mixed, near);
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const VecInt query = static_cast<int32_t>(t.q.begin + panel * panel_cols + lane) + lane_index();
        const VecInt last_far = query - static_cast<int32_t>(far_from);
        for (int64_t j = mixed; j < near; ++j) {
            const int64_t at = (j - mixed) * panel_cols + lane;
            const VecInt key = static_cast<int32_t>(j) - VecInt{};
            store(scores + at, key <= last_far ? load(buffers.far_scores + at) : load(scores + at));
        }
    }
}
