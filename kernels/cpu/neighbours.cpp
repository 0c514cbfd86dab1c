// Sums over neighbouring positions: short convolutions and the smeared embedding.
//
//   conv   y_n = sum over m < K of w_m * x_(n-m), channel by channel, over positions of the same sequence and
//          document;  dx_n = sum over m of w_m * dy_(n+m);  dw_m += sum over n of dy_n * x_(n-m)
//   smear  y_n = x_n + lambda s_n x_(n-1), s_n = sigmoid(<w, first channels of x_n>); a_n = <dy_n, x_(n-1)>:
//          dx_n = dy_n + lambda s_(n+1) dy_(n+1) + lambda s_n (1 - s_n) a_n w (first channels);
//          dlambda += sum s_n a_n;  dw += sum lambda s_n (1 - s_n) a_n x_n
//
// Per element 8 bytes forward and 12 backward from memory: the rows next door are still in L1. 2K FLOPs
// forward and 4K backward, smear 2 and 4. Parallel over rows, backward over at most 128 fixed blocks of rows
// whose sums are folded in block order.
#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Which rows of [B*T, .] belong to the same sequence and document.
struct Neighbourhood {
    const int32_t* doc_start;  // [B*T] or null
    int64_t rows, length;

    Neighbourhood(const Tensor& starts, int64_t row_count, int64_t sequence)
        : doc_start(starts.i32()), rows(row_count), length(sequence) {
        check(length > 0 && rows % length == 0, "{} rows in sequences of {}", rows, length);
        check(!starts || (starts.count() == rows && starts.contiguous()), "{} document starts of {} rows",
              starts.count(), rows);
    }
    // Positions up to and including `row` that it may read, at most `most`.
    int64_t before(int64_t row, int64_t most) const {
        const int64_t seen = row % length - (doc_start ? doc_start[row] : 0) + 1;
        return std::clamp<int64_t>(seen, 1, most);
    }
    // Positions from `row` on that read it, at most `most`. (A document is one run of positions.)
    int64_t after(int64_t row, int64_t most) const {
        const int64_t position = row % length;
        const int64_t end = std::min(most, length - position);
        int64_t n = 1;
        while (n < end && (!doc_start || doc_start[row + n] <= position)) ++n;
        return n;
    }
    bool follows(int64_t row) const { return before(row, 2) == 2; }
};

// body(taps), with a constant where a loop over so few taps is worth unrolling.
template <class Body>
LONGREACH_INLINE void with_taps(int64_t taps, Body body) {
    switch (taps) {
        case 1:
            return body(std::integral_constant<int64_t, 1>{});
        case 2:
            return body(std::integral_constant<int64_t, 2>{});
        case 3:
            return body(std::integral_constant<int64_t, 3>{});
        case 4:
            return body(std::integral_constant<int64_t, 4>{});
        default:
            return body(taps);
    }
}

// to = sum over m < taps of w_m * the row m `step` elements away.
template <class Taps>
LONGREACH_INLINE void weigh_rows(float* to, const float* from, int64_t step, const float* w, int64_t w_step,
                                 int64_t width, Taps taps) {
    for_vectors(width, [&](int64_t i, auto n) {
        Vec sum = load(w + i, n) * load(from + i, n);
        for (int64_t m = 1; m < taps; ++m)
            sum = fma(load(w + m * w_step + i, n), load(from + m * step + i, n), sum);
        store(to + i, sum, n);
    });
}

template <class T>
struct Rows {
    T* data;
    int64_t step;
    T* operator[](int64_t row) const { return data + row * step; }
};
// dw_m += sum over `count` rows of dy_n * x_(n-m), all of which have `taps` rows to read. The sums stay in
// registers: adding row by row in memory took three times as long.
template <class Taps, class Count>
LONGREACH_INLINE void gather_weights(Rows<float> dw, Rows<const float> dy, Rows<const float> x, int64_t width,
                                     Taps taps, Count count) {
    for_vectors(width, [&](int64_t i, auto n) {
        for (int64_t first = 0; first < taps; first += 4) {
            const int64_t some = std::min<int64_t>(4, taps - first);
            Vec sums[4];
            for (int64_t m = 0; m < some; ++m) sums[m] = load(dw[first + m] + i, n);
            for (int64_t k = 0; k < count; ++k) {
                const Vec d = load(dy[k] + i, n);
                for (int64_t m = 0; m < some; ++m) sums[m] = fma(d, load(x[k - first - m] + i, n), sums[m]);
            }
            for (int64_t m = 0; m < some; ++m) store(dw[first + m] + i, sums[m], n);
        }
    });
}
constexpr std::integral_constant<int64_t, 1> one_row{};
constexpr std::integral_constant<int64_t, 8> row_group{};

// Channels the gradient of a convolution works on at a time: a block's rows of x and dy of this width stay in
// L2 between the two passes, a group's in L1.
constexpr int64_t strip = 256;

void check_conv(const Tensor& y, const Tensor& x, const Tensor& w) {
    check(y.rows() == x.rows() && y.cols() == x.cols() && w.cols() == x.cols() && w.rows() >= 1,
          "convolution {}x{} of {}x{} into {}x{}", w.rows(), w.cols(), x.rows(), x.cols(), y.rows(),
          y.cols());
    check(y.data() != x.data(), "a convolution cannot work in place");
}

// The gate of position n; zeros where it takes no neighbour.
struct Smear {
    float value = 0.0f, rest = 0.0f;  // s_n, 1 - s_n
};
Smear smear_at(const float* x, const Tensor& w) {
    const float logit = dot(x, w.f32(), w.count());
    const Logistic s = logistic(splat(logit));
    return {s.value[0], s.rest[0]};
}

void check_smear(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& lambda) {
    check(y.rows() == x.rows() && y.cols() == x.cols() && w.count() <= x.cols() && lambda.count() == 1,
          "smear by {} channels of {}x{} into {}x{}", w.count(), x.rows(), x.cols(), y.rows(), y.cols());
    check(y.data() != x.data(), "smear cannot work in place");
}

}  // namespace

void CpuOps::do_short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                           int64_t length) {
    check_conv(y, x, w);
    const int64_t rows = x.rows(), width = x.cols();
    const Neighbourhood near(doc_start, rows, length);
    for_items(pool_, rows, width, [&](int64_t r) {
        const float* from = x.f32() + r * x.row_stride;
        float* to = y.f32() + r * y.row_stride;
        if (r + 1 < rows) prefetch(from + x.row_stride, width);
        with_taps(near.before(r, w.rows()), [&](auto taps) {
            weigh_rows(to, from, -x.row_stride, w.f32(), w.row_stride, width, taps);
        });
    });
}

void CpuOps::do_short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                    const Tensor& doc_start, int64_t length) {
    check_conv(dx, dy, w);
    check_conv(dx, x, w);
    check(dw.rows() == w.rows() && dw.cols() == w.cols(), "gradient {}x{} of taps {}x{}", dw.rows(),
          dw.cols(), w.rows(), w.cols());
    const int64_t rows = x.rows(), width = x.cols(), taps_all = w.rows();
    const Neighbourhood near(doc_start, rows, length);
    const int64_t each = taps_all * width;
    const int64_t blocks = fixed_blocks(rows, 2 * partial_doubles, each);
    float* partials = reinterpret_cast<float*>(partials_);
    for_items(pool_, blocks, width * piece(rows, blocks, 0).end, [&](int64_t b) {
        float* partial = partials + b * each;
        std::fill_n(partial, each, 0.0f);
        const Range block = piece(rows, blocks, b);
        for (int64_t begin = 0; begin < width; begin += strip) {
            const int64_t part = std::min(strip, width - begin);
            const auto gradient = [&](int64_t r) { return dy.f32() + r * dy.row_stride + begin; };
            const auto from = [&](int64_t r) { return x.f32() + r * x.row_stride + begin; };
            for (int64_t r = block.begin; r < block.end; ++r) {
                if (r + 1 < rows) prefetch(from(r + 1), part);
                if (r + taps_all < rows) prefetch(gradient(r + taps_all), part);
                with_taps(near.after(r, taps_all), [&](auto taps) {
                    weigh_rows(dx.f32() + r * dx.row_stride + begin, gradient(r), dy.row_stride,
                               w.f32() + begin, w.row_stride, part, taps);
                });
            }
            const auto gather = [&](int64_t r, int64_t looked_at, auto count) {
                with_taps(looked_at, [&](auto taps) {
                    gather_weights({partial + begin, width}, {gradient(r), dy.row_stride},
                                   {from(r), x.row_stride}, part, taps, count);
                });
            };
            for (int64_t r = block.begin; r < block.end;) {
                int64_t alike = 0;  // rows from here on that read as many positions as there are taps
                while (alike < row_group && r + alike < block.end &&
                       near.before(r + alike, taps_all) == taps_all)
                    ++alike;
                if (alike == row_group) {
                    gather(r, taps_all, row_group);
                    r += row_group;
                } else {
                    gather(r, near.before(r, taps_all), one_row);
                    ++r;
                }
            }
        }
    });
    const int64_t strips = (width + lanes - 1) / lanes;
    for_items(pool_, strips, lanes * blocks * taps_all, [&](int64_t s) {
        const Range columns{s * lanes, std::min<int64_t>(width, (s + 1) * lanes)};
        for (int64_t m = 0; m < taps_all; ++m)
            fold(dw.f32() + m * dw.row_stride, partials + m * width, blocks, each, columns);
    });
}

void CpuOps::do_smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda,
                      const Tensor& doc_start, int64_t length) {
    check_smear(y, x, w, lambda);
    const int64_t rows = x.rows(), width = x.cols();
    const Neighbourhood near(doc_start, rows, length);
    const float share = lambda.f32()[0];
    for_items(pool_, rows, width, [&](int64_t r) {
        const float* from = x.f32() + r * x.row_stride;
        float* to = y.f32() + r * y.row_stride;
        if (near.follows(r)) {
            const Vec take = splat(share * smear_at(from, w).value);
            const float* previous = from - x.row_stride;
            for_vectors(width, [&](int64_t i, auto n) {
                store(to + i, fma(take, load(previous + i, n), load(from + i, n)), n);
            });
        } else {
            for_vectors(width, [&](int64_t i, auto n) { store(to + i, load(from + i, n), n); });
        }
    });
}

void CpuOps::do_smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                               const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                               int64_t length) {
    check_smear(dx, dy, w, lambda);
    check_smear(dx, x, w, lambda);
    check(dw.count() == w.count() && dlambda.count() == 1, "gradient of {} channels for {}", dw.count(),
          w.count());
    const int64_t rows = x.rows(), width = x.cols(), channels = w.count();
    const Neighbourhood near(doc_start, rows, length);
    const float share = lambda.f32()[0];
    const int64_t each = channels + 1;  // dw, then dlambda
    const int64_t blocks = fixed_blocks(rows, partial_doubles, each);
    for_items(pool_, blocks, width * piece(rows, blocks, 0).end, [&](int64_t b) {
        double* partial = partials_ + b * each;
        std::fill_n(partial, each, 0.0);
        const Range block = piece(rows, blocks, b);
        const auto at = [&](int64_t r) {
            return r < rows && near.follows(r) ? smear_at(x.f32() + r * x.row_stride, w) : Smear{};
        };
        Smear here = at(block.begin);
        for (int64_t r = block.begin; r < block.end; ++r) {
            const Smear next = at(r + 1);
            const float *from = x.f32() + r * x.row_stride, *gradient = dy.f32() + r * dy.row_stride;
            float* to = dx.f32() + r * dx.row_stride;
            const float given = share * next.value;
            if (given != 0.0f) {
                const Vec give = splat(given);
                const float* after = gradient + dy.row_stride;
                for_vectors(width, [&](int64_t i, auto n) {
                    store(to + i, fma(give, load(after + i, n), load(gradient + i, n)), n);
                });
            } else {
                for_vectors(width, [&](int64_t i, auto n) { store(to + i, load(gradient + i, n), n); });
            }
            if (near.follows(r)) {
                const float* previous = from - x.row_stride;
                const float along = dot(gradient, previous, width);
                const float at_logit = share * here.value * here.rest * along;
                for (int64_t c = 0; c < channels; ++c) {
                    to[c] += at_logit * w.f32()[c];
                    partial[c] += double{at_logit} * from[c];
                }
                partial[channels] += double{here.value} * along;
            }
            here = next;
        }
    });
    for (int64_t c = 0; c < each; ++c) {
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b) total += partials_[b * each + c];
        float* to = c < channels ? dw.f32() + c : dlambda.f32();
        *to += static_cast<float>(total);
    }
}

#include "kernels/cpu/isa_end.h"
