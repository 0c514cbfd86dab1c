// Keys chosen by an index: a tile collects once for all heads, by the scores of the index; each head then computes the scores of
// the kept keys, 4 d FLOPs per kept pair with P v. Include after attention_top_kept.h in the same region.

// Queries [first, first + query_tile) of one sequence, all heads, to the keys that the index chooses.
inline void attend_tile_by_index(const TopCall& call, int64_t sequence, int64_t first, TopWorkspace& work,
                                 float* scratch) {
    const AttentionSpec& spec = call.spec;
    const int64_t first_token = sequence * spec.length;
    const QueryTile q(first, spec.length, spec.row_start ? spec.row_start.i32() + first_token : nullptr);
    const VisibleKeys visible(q, 0);
    const IndexTile index(spec.index, first_token + first, visible.rows, work.index.get());
    const ScoreRows rows(spec, 0, first_token + first, visible.rows);  // the plain form reads none of them
    const TopSearch search{q, rows, visible, work.collection, nullptr, 0};
    const Tensor keys = spec.index.keys.row_range(first_token, spec.length);
    work.collection.reset();
    const int64_t begin = visible.first[0];
    for (int64_t tiles = (q.end - begin + key_tile - 1) / key_tile; tiles-- > 0;) {
        const int64_t key = begin + tiles * key_tile, key_end = smaller(key + key_tile, q.end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range = visible.of_panel(panel, key, key_end);
            if (range.empty()) continue;
            index_scores(scratch, index, panel, keys, range);
            const TopPasses& plain = top_passes_of<Form::plain>;
            (range.masked ? plain.masked : plain.whole)(search, scratch, panel, range, TableSlice());
        }
    }
    for (int64_t i = 0; i < visible.rows; ++i) {
        const int64_t row = first_token + first + i;
        for (int64_t h = 0; h < spec.heads; ++h) {
            const Query at{spec, sequence, h, q.start[i], first + i, row};
            call.lse.f32()[h * call.lse.row_stride + row] =
                attend_collected(call.o.f32() + row * call.o.row_stride + h * spec.head_dim, at, work, i,
                                 call.q, call.k, call.v);
        }
    }
}

// Collects the keys of one query by the scores of the index.
inline void collect_by_index(const Query& at, Collection& collection) {
    const IndexScores& s = at.spec.index;
    const float* query = s.queries.f32() + at.row * s.queries.row_stride;
    const float* weights = s.weights.f32() + at.row * s.weights.row_stride;
    for (int64_t j = at.position; j >= at.first; --j) {
        const float* key = s.keys.f32() + (at.sequence * at.spec.length + j) * s.keys.row_stride;
        float sum = 0;
        for (int64_t h = 0; h < s.heads; ++h) {
            const float product = dot(query + h * s.head_dim, key, s.head_dim);
            sum += s.scale * weights[h] * (product < 0 ? 0.0f : product);
        }
        collection.add(0, sum, j);
    }
}
