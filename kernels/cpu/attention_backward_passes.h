// Attention backward around its tiles: how the work and the workspace are cut, and the sums over rows before
// and after the tiles. Include after loops.h and attention_tiles.h in the same region.

// Distances of one tile reach this far below 0 and above the longest; their sums are zeros.
inline constexpr int64_t table_margin = query_tile + key_tile;

// How the work and the workspace are cut. A function of the shape and, for the per-thread part, of the
// threads and the unit of the products. An optional gradient counts as wanted when it has a shape, whether it has memory yet or not.
struct Plan {
    int64_t segments;      // of keys, per sequence and key/value head
    int64_t segment_keys;  // a multiple of key_tile
    int64_t block_keys;    // a multiple of key_tile: keys whose dK, dV and packed K stay in L2 together
    int64_t padded;        // d rounded up to whole panels
    int64_t row_floats;    // of a key and its value as left sides: 0 where they are read in place
    int64_t gain_rows, bias_rows;  // of the tables whose gradients one item sums; 0: not wanted
    int64_t table_span;            // floats of such a row
    bool forget;                   // its gradient is wanted
    // The workspace: delta [H, N]; per thread the block of keys; partial dQ [segments][N, H*d]; partial df
    // [segments][H, N]; per item its tables; sums of dL over the rows [segments][H, N] and columns [H, N]; what an alpha gets of each row [H, N].
    int64_t delta_floats, thread_floats, partial_floats, factor_floats, table_floats, forget_floats,
        alpha_floats;

    template <class Unit>
    Plan(const AttentionSpec& s, const AttentionGradients& wanted, int threads, Unit) {
        // Enough items for many threads, but segments no shorter than 1024 keys.
        const int64_t heads = s.batch * s.kv_heads;
        const int64_t wanted_segments = smaller((32 + heads - 1) / heads, larger(1, s.length / 1024));
        segment_keys = round_up((s.length + wanted_segments - 1) / wanted_segments, key_tile);
        segments = (s.length + segment_keys - 1) / segment_keys;
        padded = round_up(s.head_dim, panel_cols);
        row_floats = 2 * LeftRows::floats<Unit>(s.head_dim);
        // 1 MiB where tiles of AMX come with an L2 of 2 MiB, half of that elsewhere.
        const int64_t channels = Core<Unit>::turned ? 1 << 16 : 1 << 15;
        block_keys = larger(1, channels / s.head_dim / key_tile) * key_tile;
        block_keys = smaller(block_keys, segment_keys);
        const auto rows_of = [&](const Tensor& table) {
            return table.rank == 0 ? 0 : table.rows() == 1 ? 1 : s.heads / s.kv_heads;
        };
        gain_rows = rows_of(wanted.distance_gain);
        bias_rows = rows_of(wanted.distance_bias);
        forget = wanted.forget.rank > 0;
        table_span = round_up(s.length + 2 * table_margin, 16);
        const int64_t tokens = s.batch * s.length;
        delta_floats = round_up(s.heads * tokens, 16);
        thread_floats = threads * block_floats();
        partial_floats = segments > 1 ? round_up(segments * tokens * s.heads * s.head_dim, 16) : 0;
        const bool factor_by_pair = s.softcap > 0 && wanted.row_factor.rank > 0;
        factor_floats = segments > 1 && factor_by_pair ? round_up(segments * s.heads * tokens, 16) : 0;
        table_floats = segments * heads * item_table_floats();
        forget_floats = forget ? (segments + 1) * s.heads * tokens : 0;
        alpha_floats = wanted.alpha_logit.rank > 0 ? s.heads * tokens : 0;
    }
    int64_t block_floats() const {
        return block_keys * (3 * padded + row_floats) + (forget ? block_keys * sum_lanes : 0);
    }
    int64_t item_table_floats() const { return (gain_rows + bias_rows) * table_span; }
    int64_t floats() const {
        return delta_floats + thread_floats + partial_floats + factor_floats + table_floats + forget_floats +
               alpha_floats;
    }
};

// delta [H, N] = rowsum(dout * o) per head.
inline void row_products(float* delta, const Tensor& dout, const Tensor& o, int64_t heads, int64_t d,
                         Pool& pool) {
    const int64_t tokens = dout.rows();
    for_items(pool, tokens, heads * d, [&](int64_t n) {
        for (int64_t h = 0; h < heads; ++h) {
            const float* a = dout.f32() + n * dout.row_stride + h * d;
            const float* b = o.f32() + n * o.row_stride + h * d;
            delta[h * tokens + n] = dot(a, b, d);
        }
    });
}

// The last pass over dQ: sums of partial dQ, df and the multiplication by f.
struct QueryFinish {
    const AttentionSpec& spec;
    const Plan& plan;
    Tensor dq, q;           // [N, H*d]
    Tensor dfactor;         // [H, N] or empty
    float* partial;         // with several segments: [segments][N, H*d]
    float* partial_factor;  // with several segments and a softcap: [segments][H, N]

    bool capped() const { return spec.softcap > 0; }
    bool factors() const { return spec.row_factor && !capped(); }  // folded into the queries
    bool needed() const { return plan.segments > 1 || factors() || (dfactor && !capped()); }

    // Token n of one head; a segment reaches only positions from its first key on.
    void operator()(int64_t n, int64_t head) const {
        const int64_t d = spec.head_dim, tokens = dq.rows(), piece = tokens * dq.cols();
        const bool whole = plan.segments == 1;
        const int64_t reached = whole ? 1 : n % spec.length / plan.segment_keys + 1;
        float* to = dq.f32() + n * dq.row_stride + head * d;
        const float* from = whole ? to : partial + n * dq.cols() + head * d;
        const float* query = q.f32() + n * q.row_stride + head * d;
        const Vec f = splat(factors() ? row_of_head(spec.row_factor, head)[n] : 1.0f);
        const bool product_wanted = dfactor && !capped();
        Sums product;
        for_parts(d, [&](int p, int64_t c, auto width) {
            Vec sum{};
            for (int64_t s = 0; s < reached; ++s) sum += load(from + s * piece + c, width);
            if (product_wanted) product.part[p] = fma(sum, load(query + c, width), product.part[p]);
            store(to + c, sum * f, width);
        });
        if (!dfactor || (capped() && whole)) return;
        float total = reduce_add(product);
        if (capped())
            for (int64_t s = 0; s < reached; ++s)
                total += partial_factor[(s * spec.heads + head) * tokens + n];
        dfactor.f32()[head * dfactor.row_stride + n] = total;
    }
};

// to [1 or H, R], entry R-1-t of distance t < T, = factor times the sums of all items in their order. Item i
// holds `rows` rows from `first` on for key/value head i % G.
inline void add_tables(const Tensor& to, const float* tables, int64_t first, int64_t rows, float factor,
                       const AttentionSpec& spec, const Plan& plan, Pool& pool) {
    const int64_t items = plan.segments * spec.batch * spec.kv_heads;
    for_items(pool, (spec.length + lanes - 1) / lanes, to.rows() * items * lanes, [&](int64_t item) {
        const int64_t t = item * lanes;
        for (int64_t row = 0; row < to.rows(); ++row) {
            // A shared table sums every item, a head's those of its key/value head.
            const bool shared = to.rows() == 1;
            const int64_t member = shared ? 0 : row % rows;
            Vec sum{};
            for (int64_t i = shared ? 0 : row / rows; i < items; i += shared ? 1 : spec.kv_heads)
                sum += load(tables + i * plan.item_table_floats() + (first + member) * plan.table_span +
                            table_margin + t);
            sum *= splat(factor);
            float* entry = to.f32() + row * to.row_stride + to.cols() - 1 - t;
            for (int64_t x = 0; x < smaller(lanes, spec.length - t); ++x) entry[-x] = sum[x];
        }
    });
}

// to [H, N] = the sums over rows, of all segments, less those over columns: sums [segments + 1][H, N].
inline void subtract_sums(const Tensor& to, const float* sums, int64_t length, const Plan& plan, Pool& pool) {
    const int64_t heads = to.rows(), tokens = to.cols();
    const float* columns = sums + plan.segments * heads * tokens;
    for_items(pool, heads, tokens, [&](int64_t h) {
        for (int64_t n = 0; n < tokens; ++n) {
            float sum = 0;
            for (int64_t s = 0; s <= n % length / plan.segment_keys; ++s)
                sum += sums[(s * heads + h) * tokens + n];
            to.f32()[h * to.row_stride + n] = sum - columns[h * tokens + n];
        }
    });
}

// to [H] += -sum over the rows of share(head, lse) * delta, in f64 from blocks of 256 rows.
template <class Share>
inline void add_sinks(const Tensor& to, const Tensor& lse, const float* delta, Pool& pool, Share share) {
    const int64_t tokens = lse.cols(), block = 256;
    for_items(pool, to.count(), tokens, [&](int64_t h) {
        const float* at_lse = lse.f32() + h * lse.row_stride;
        const float* at_delta = delta + h * tokens;
        double total = 0;
        for (int64_t begin = 0; begin < tokens; begin += block) {
            total += sum_products(
                smaller(block, tokens - begin),
                [&](int64_t i, auto n) { return share(h, load(at_lse + begin + i, n)); },
                [&](int64_t i, auto n) { return load(at_delta + begin + i, n); });
        }
        to.f32()[h] -= static_cast<float>(total);
    });
}
