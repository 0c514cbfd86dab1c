// Shared by the delta rule's forward and backward pass: one chunk of one head. Include after gemm.h in the same region.
//
// A chunk of c <= delta_chunk positions starts from the state S [d, e]. With the decays a_t = exp(g_t), a number or one
// per key channel, and F_tj = a_(j+1) ... a_t, products of numbers of at most 1:
//
//     P_tj = <q_t, F_tj k_j>, j <= t;     M_tj = <r_t, F_tj k_j>, j < t       scores
//     qs_t = a_0 ... a_t q_t;   ks_t = a_0 ... a_t r_t;   ke_t = a_(t+1) ... a_(c-1) k_t
//     (1 + diag(beta) M) U = diag(beta) (V - ks S)                             solved from the first row on
//     O = qs S + P U;     S <- a_0 ... a_(c-1) S + ke^T U
//
// r_t = k_t, or a key of its own (DeltaSpec::erase). Additive, M and ks are left out: U = diag(beta) V.
//
// Nothing is divided by a decay, so decays near 0 lose nothing: a product that underflows belongs to a term that does.
// With a decay per channel F depends on the channel. Between blocks of delta_block positions the products of decays are
// split at the beginning of the later positions, F_tj = (a_mid ... a_t)(a_(j+1) ... a_(mid-1)), which gives a matrix
// product; within a block the terms are added pair by pair.

inline constexpr int64_t delta_block = 16;

struct DeltaInputs {
    HeadRows q, k, v, decay;
    HeadRows beta, erase;  // unread where the operand is left out
    bool has_beta;
};

// Positions [begin, begin + rows) of a sequence: a chunk, or the part of one that belongs to one document.
struct DeltaPiece {
    int64_t begin, rows;
    bool fresh;  // the state is zero
};

// Whether a sequence starts from a state that is not zero.
inline bool delta_carries(const DeltaSpec& spec, int64_t sequence, const int32_t* doc_start) {
    return (spec.chained && sequence > 0) || (spec.continues && !(doc_start && doc_start[0] == 0));
}

// The piece at `begin` of a sequence of `length` positions.
inline DeltaPiece delta_piece(int64_t begin, int64_t length, const int32_t* doc_start, bool carries) {
    int64_t end = (begin / delta_chunk + 1) * delta_chunk;
    if (end > length) end = length;
    for (int64_t i = begin + 1; doc_start && i < end; ++i)
        if (doc_start[i] == i) end = i;
    return {begin, end - begin, begin == 0 ? !carries : doc_start && doc_start[begin] == begin};
}

struct DeltaProduct {
    float* c;
    int64_t c_stride;
    Factor a, b;
    int64_t m, n, k;
};

// Takes aligned pieces of a workspace; counts them where there is no memory.
struct DeltaMemory {
    float* at;
    int64_t used = 0;
    float* take(int64_t floats) {
        float* piece = at ? at + used : nullptr;
        used += (floats + 15) / 16 * 16;
        return piece;
    }
};

// Buffers of a thread, and what both passes do with a chunk. c = rows of the piece.
struct DeltaTile {
    bool additive;
    int64_t d, e, w;    // w: decays of a position, 1 or d
    int64_t rows = 0;   // c
    float* scratch;     // of matrix products
    Products products;  // of their factors; states, sums and what lies between products are f32
    float *decay, *from_start, *to_end;  // [c, w]: a_t; a_0 ... a_t; a_(t+1) ... a_(c-1)
    float *q, *k, *qs, *ks, *ke;         // [c, d]
    float* r;                            // [c, d]: k, or of their own
    float *scores, *gram, *factors;      // [c, c]: P, M, F if the decay is one number; rows delta_chunk apart
    float *rest, *u, *beta;              // [c, e]: V - ks S - M U, U = beta rest; [c]
    float* state;                        // [d, e]
    float *late_q, *late_k,
        *early_k;  // [delta_chunk / 2, d]: q, r of later positions, k of earlier ones, decayed
    float* chain;  // [delta_block, d]: k_j decayed to each later position

    DeltaTile(DeltaMemory& memory, const DeltaSpec& spec, bool by_channel, float* gemm, Products of_factors)
        : additive(spec.additive),
          d(spec.key_dim),
          e(spec.value_dim),
          w(by_channel ? d : 1),
          scratch(gemm),
          products(of_factors) {
        const int64_t c = delta_chunk, half = c / 2;
        for (float** p : {&decay, &from_start, &to_end}) *p = memory.take(c * w);
        for (float** p : {&q, &k, &qs, &ks, &ke}) *p = memory.take(c * d);
        r = spec.erase ? memory.take(c * d) : k;
        for (float** p : {&scores, &gram, &factors}) *p = memory.take(c * c);
        for (float** p : {&rest, &u}) *p = memory.take(c * e);
        beta = memory.take(c);
        state = memory.take(d * e);
        for (float** p : {&late_q, &late_k, &early_k}) *p = memory.take(by_channel ? half * d : 0);
        chain = memory.take(by_channel ? delta_block * d : 0);
    }
    bool by_channel() const { return w > 1; }
    Factor of(const float* data, int64_t stride) const { return {data, stride, false}; }
    Factor transposed(const float* data, int64_t stride) const { return {data, stride, true}; }
    // c [m, n] = alpha a b + kept c
    void multiply(const DeltaProduct& p, float alpha, float kept) const {
        gemm_serial({.c = p.c,
                     .c_stride = p.c_stride,
                     .a = p.a,
                     .b = p.b,
                     .m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .alpha = alpha,
                     .beta = kept},
                    scratch, products);
    }

    void read(const DeltaInputs& in, const DeltaPiece& piece, const DeltaSpec& spec);
    void score();
    void solve(const DeltaInputs& in, const DeltaPiece& piece);
    void read_out(const HeadRows& o, const DeltaPiece& piece) const;
    void advance();

    // Products of decays on both sides of `mid`: late = q, r of [mid, end) decayed from mid on, early = k of
    // [begin, mid) decayed up to mid.
    void split(int64_t begin, int64_t mid, int64_t end) const;
    // body(begin, mid, end) for the pairs of blocks that split() serves: with the blocks themselves they cover
    // the triangle of a chunk.
    template <class Body>
    LONGREACH_INLINE void for_splits(Body body) const {
        for (int64_t half = delta_chunk / 2; half >= delta_block; half /= 2)
            for (int64_t begin = 0; begin + half < rows; begin += 2 * half)
                body(begin, begin + half, smaller(begin + 2 * half, rows));
    }

  private:
    void score_split(int64_t begin, int64_t mid, int64_t end);
    void score_block(int64_t begin, int64_t end);
};

// to = factor * from, [rows, d]; a factor is one number or one per channel.
LONGREACH_INLINE void scale_rows(float* to, const float* from, const float* factor, int64_t rows, int64_t d,
                                 int64_t w) {
    for (int64_t t = 0; t < rows; ++t, to += d, from += d, factor += w) {
        const Vec one = splat(factor[0]);
        for_vectors(d, [&](int64_t i, auto n) {
            store(to + i, load(from + i, n) * (w > 1 ? load(factor + i, n) : one), n);
        });
    }
}

inline void DeltaTile::read(const DeltaInputs& in, const DeltaPiece& piece, const DeltaSpec& spec) {
    rows = piece.rows;
    const Vec of_q = splat(spec.query_scale), of_k = splat(spec.key_scale);
    for (int64_t t = 0; t < rows; ++t) {
        const float *from_q = in.q[piece.begin + t], *from_k = in.k[piece.begin + t];
        for_vectors(d, [&](int64_t i, auto n) {
            store(q + t * d + i, of_q * load(from_q + i, n), n);
            store(k + t * d + i, of_k * load(from_k + i, n), n);
        });
        if (r != k) {
            const float* from_r = in.erase[piece.begin + t];
            for_vectors(d, [&](int64_t i, auto n) { store(r + t * d + i, of_k * load(from_r + i, n), n); });
        }
        const float* g = in.decay[piece.begin + t];
        for_vectors(w, [&](int64_t i, auto n) { store(decay + t * w + i, exp(load(g + i, n)), n); });
        beta[t] = in.has_beta ? in.beta[piece.begin + t][0] : 1.0f;
    }
    for_vectors(w, [&](int64_t i, auto n) {
        Vec product = splat(1.0f);
        for (int64_t t = 0; t < rows; ++t) {
            product = product * load(decay + t * w + i, n);
            store(from_start + t * w + i, product, n);
        }
        product = splat(1.0f);
        for (int64_t t = rows - 1; t >= 0; --t) {
            store(to_end + t * w + i, product, n);
            product = product * load(decay + t * w + i, n);
        }
    });
    scale_rows(qs, q, from_start, rows, d, w);
    scale_rows(ks, r, from_start, rows, d, w);
    scale_rows(ke, k, to_end, rows, d, w);
}

inline void DeltaTile::split(int64_t begin, int64_t mid, int64_t end) const {
    for_vectors(d, [&](int64_t i, auto n) {
        Vec product = splat(1.0f);
        for (int64_t t = mid; t < end; ++t) {
            product = product * load(decay + t * d + i, n);
            store(late_q + (t - mid) * d + i, product * load(q + t * d + i, n), n);
            store(late_k + (t - mid) * d + i, product * load(r + t * d + i, n), n);
        }
        product = splat(1.0f);
        for (int64_t j = mid - 1; j >= begin; --j) {
            store(early_k + (j - begin) * d + i, product * load(k + j * d + i, n), n);
            product = product * load(decay + j * d + i, n);
        }
    });
}

inline void DeltaTile::score_split(int64_t begin, int64_t mid, int64_t end) {
    split(begin, mid, end);
    const int64_t at = mid * delta_chunk + begin, late = end - mid, early = mid - begin;
    multiply({scores + at, delta_chunk, of(late_q, d), transposed(early_k, d), late, early, d}, 1, 0);
    if (!additive)
        multiply({gram + at, delta_chunk, of(late_k, d), transposed(early_k, d), late, early, d}, 1, 0);
}

inline void DeltaTile::score_block(int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
        float* key = chain;
        for_vectors(d, [&](int64_t i, auto n) { store(key + i, load(k + j * d + i, n), n); });
        for (int64_t t = j; t < end; ++t) {
            const float *query = q + t * d, *other = r + t * d, *a = decay + t * d;
            if (t > j)
                for_vectors(d,
                            [&](int64_t i, auto n) { store(key + i, load(key + i, n) * load(a + i, n), n); });
            scores[t * delta_chunk + j] = dot(query, key, d);
            if (t > j && !additive) gram[t * delta_chunk + j] = dot(other, key, d);
        }
    }
}

// Fills P and M; zeros above their triangles. Additive, M is 0.
inline void DeltaTile::score() {
    if (additive) std::fill_n(gram, rows * delta_chunk, 0.0f);
    if (by_channel()) {
        for (int64_t t = 0; t < rows; ++t)
            for (int64_t j = t; j < rows; ++j) scores[t * delta_chunk + j] = gram[t * delta_chunk + j] = 0.0f;
        for_splits([&](int64_t begin, int64_t mid, int64_t end) { score_split(begin, mid, end); });
        for (int64_t begin = 0; begin < rows; begin += delta_block)
            score_block(begin, smaller(begin + delta_block, rows));
        return;
    }
    multiply({scores, delta_chunk, of(q, d), transposed(k, d), rows, rows, d}, 1, 0);
    if (!additive) multiply({gram, delta_chunk, of(r, d), transposed(k, d), rows, rows, d}, 1, 0);
    for (int64_t t = 0; t < rows; ++t) {
        float *p = scores + t * delta_chunk, *m = gram + t * delta_chunk, *f = factors + t * delta_chunk;
        const Vec a = splat(decay[t]);
        for_vectors(t, [&](int64_t j, auto n) {
            const Vec here = a * load(f - delta_chunk + j, n);
            store(f + j, here, n);
            store(p + j, here * load(p + j, n), n);
            store(m + j, here * load(m + j, n), n);
        });
        f[t] = 1.0f;
        m[t] = 0.0f;
        for (int64_t j = t + 1; j < rows; ++j) f[j] = p[j] = m[j] = 0.0f;
    }
}

// Fills rest and U.
inline void DeltaTile::solve(const DeltaInputs& in, const DeltaPiece& piece) {
    for (int64_t t = 0; t < rows; ++t) {
        const float* v = in.v[piece.begin + t];
        for_vectors(e, [&](int64_t i, auto n) { store(rest + t * e + i, load(v + i, n), n); });
    }
    if (additive) return scale_rows(u, rest, beta, rows, e, 1);
    multiply({rest, e, of(ks, d), of(state, e), rows, e, d}, -1, 1);
    for (int64_t begin = 0; begin < rows; begin += delta_block) {
        const int64_t end = smaller(begin + delta_block, rows);
        if (begin > 0)
            multiply({rest + begin * e, e, of(gram + begin * delta_chunk, delta_chunk), of(u, e), end - begin,
                      e, begin},
                     -1, 1);
        for (int64_t t = begin; t < end; ++t) {
            const float* m = gram + t * delta_chunk;
            for_vectors(e, [&](int64_t i, auto n) {
                Vec sum = load(rest + t * e + i, n);
                for (int64_t j = begin; j < t; ++j) sum = fma(splat(-m[j]), load(u + j * e + i, n), sum);
                store(rest + t * e + i, sum, n);
                store(u + t * e + i, splat(beta[t]) * sum, n);
            });
        }
    }
}

inline void DeltaTile::read_out(const HeadRows& o, const DeltaPiece& piece) const {
    float* to = o[piece.begin];
    multiply({to, o.stride, of(qs, d), of(state, e), rows, e, d}, 1, 0);
    multiply({to, o.stride, of(scores, delta_chunk), of(u, e), rows, e, rows}, 1, 1);
}

// to = a_0 ... a_(c-1) * from, [d, e]; both may be the same.
inline void decay_state(const DeltaTile& t, float* to, const float* from) {
    const float* all = t.from_start + (t.rows - 1) * t.w;
    for (int64_t i = 0; i < t.d; ++i) {
        const Vec keep = splat(all[t.w > 1 ? i : 0]);
        for_vectors(
            t.e, [&](int64_t j, auto n) { store(to + i * t.e + j, keep * load(from + i * t.e + j, n), n); });
    }
}

// The state after the piece.
inline void DeltaTile::advance() {
    decay_state(*this, state, state);
    multiply({state, e, transposed(ke, d), of(u, e), d, e, rows}, 1, 1);
}

// Floats of a thread's workspace: of decays by channel, which need more.
inline int64_t delta_forward_floats(const DeltaSpec& s) {
    DeltaMemory memory{nullptr};
    DeltaTile(memory, s, true, nullptr, Products::f32);
    return memory.used;
}

inline void check_delta(const Tensor& o, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& decay, const Tensor& beta, const DeltaSpec& s) {
    const int64_t n = s.batch * s.length, keys = s.heads * s.key_dim;
    check(s.length > 0 && s.heads > 0 && s.key_dim > 0 && s.value_dim > 0 && s.key_dim <= 512 &&
              s.value_dim <= 512,
          "delta rule of {} heads with {} and {} channels, length {}", s.heads, s.key_dim, s.value_dim,
          s.length);
    const auto sized = [&](const Tensor& t, int64_t width, const char* what) {
        check(t.rows() == n && t.cols() == width, "delta rule: {} is {}x{}, not {}x{}", what, t.rows(),
              t.cols(), n, width);
    };
    sized(q, keys, "q");
    sized(k, keys, "k");
    sized(v, s.heads * s.value_dim, "v");
    sized(o, s.heads * s.value_dim, "o");
    if (beta || !s.erase) sized(beta, s.heads, "beta");
    if (s.erase) sized(s.erase, keys, "erase");
    if (decay.cols() != keys) sized(decay, s.heads, "decay");
    check(!s.doc_start || (s.doc_start.count() == n && s.doc_start.contiguous()),
          "delta rule: {} document starts of {} positions", s.doc_start.count(), n);
}
