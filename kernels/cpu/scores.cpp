// Inputs of scores other than queries and keys: factors by row, tables by distance, and QK-clip.
//
//   row factors      f_h(i) = r_h shape(n_i) + b_h, n_i = i - start_i + 1; dr += sum shape df, db += sum df
//   distance tables  gain and bias as functions of t and a few learned numbers (DistanceForm), computed in
//                    double and stored in f32, backwards; their gradients by the chain rule, again in double
//   QK-clip          maxima over rows, then the weights of heads above the limit are scaled down
//
// Sums run over fixed blocks and are folded in block order. Factors: 4 bytes and 2 FLOPs per row and head.
// Tables: a logarithm or power per entry, once per step and not per pair. Parallel over blocks times heads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// body(row, entry, count) for the runs of [begin, end) whose shape entries lie side by side: where a run
// starts, the row and its entry n - 1 of the shape.
template <class Body>
LONGREACH_INLINE void for_runs(const RowFactorSpec& spec, Range rows, Body body) {
    const int32_t* start = spec.start.i32();
    for (int64_t r = rows.begin; r < rows.end;) {
        const int64_t position = r % spec.length;
        const int64_t first = start ? start[r] : 0;
        int64_t end = std::min(rows.end, r + spec.length - position);
        if (start) {
            int64_t same = r + 1;
            while (same < end && start[same] == first) ++same;
            end = same;
        }
        body(r, position - first, end - r);
        r = end;
    }
}

void check_factors(const Tensor& factor, const RowFactorSpec& spec) {
    const int64_t heads = factor.rows(), rows = factor.cols();
    check(spec.length > 0 && rows % spec.length == 0 && spec.shape.count() >= spec.length,
          "factors of {} rows in sequences of {}, a shape of {}", rows, spec.length, spec.shape.count());
    check(!spec.start || (spec.start.count() == rows && spec.start.contiguous()), "{} starts of {} rows",
          spec.start.count(), rows);
    for (const Tensor& t : {spec.r, spec.b})
        check(!t || t.count() == 1 || t.count() == heads, "{} coefficients for {} heads", t.count(), heads);
}

float coefficient(const Tensor& t, float constant, int64_t head) {
    return t ? t.f32()[t.count() == 1 ? 0 : head] : constant;
}

// Blocks of entries of one row of a reduction: fixed by their number alone.
int64_t blocks_of(int64_t count) {
    return std::clamp<int64_t>(count / 1024, 1, 128);
}

// to[0 or h] += the sum of part `which` of two of every block of head h.
void fold_pairs(Tensor to, const double* partials, int64_t heads, int64_t blocks, int which) {
    if (!to) return;
    check(to.count() == 1 || to.count() == heads, "{} gradients for {} heads", to.count(), heads);
    const int64_t sharing = heads / to.count();
    for (int64_t i = 0; i < to.count(); ++i) {
        double sum = 0;
        for (int64_t p = i * sharing * blocks; p < (i + 1) * sharing * blocks; ++p)
            sum += partials[2 * p + which];
        to.f32()[i] += static_cast<float>(sum);
    }
}

constexpr float kerple_least = 0.01f, kerple_most_power = 2.0f;

// A distance form with the numbers of one head.
struct HeadForm {
    DistanceForm form;
    double tau = 1, decay = 1;
    double p = 0, a = 0;
    bool p_held = false, a_held = false;  // a clamp is active: no gradient

    HeadForm(const DistanceFormSpec& spec, int64_t head) : form(spec.form) {
        if (form == DistanceForm::kerple_log || form == DistanceForm::kerple_power) {
            const float most = form == DistanceForm::kerple_power ? kerple_most_power
                                                                  : std::numeric_limits<float>::infinity();
            const float own_p = spec.p.f32()[head], own_a = spec.a.f32()[head];
            p_held = own_p < kerple_least || own_p > most;
            a_held = own_a < kerple_least;
            p = own_p < kerple_least ? kerple_least : own_p > most ? most : own_p;
            a = a_held ? kerple_least : own_a;
        } else {
            tau = spec.log_tau ? std::exp(static_cast<double>(spec.log_tau.f32()[0])) : double{spec.tau};
            decay = spec.decay ? spec.decay.f32()[0] : spec.constant_decay;
        }
    }
};

struct Entry {
    double gain, bias;
};
Entry entry_at(const HeadForm& f, double t) {
    switch (f.form) {
        case DistanceForm::scale_invariant: {
            const double m = 2 * std::log1p(t / f.tau);
            return {std::sqrt(1 + m), -f.decay * m};
        }
        case DistanceForm::log_bias:
            return {1, -f.decay * std::log1p(t / f.tau)};
        case DistanceForm::kerple_log:
            return {1, -f.p * std::log1p(f.a * t)};
        case DistanceForm::kerple_power:
            return {1, t > 0 ? -f.a * std::pow(t, f.p) : 0.0};
    }
    return {1, 0};
}

// Gradients at log tau and decay, or at p and a, given those at one entry.
struct Pair {
    double first, second;
};
Pair gradient_at(const HeadForm& f, double t, double dgain, double dbias) {
    switch (f.form) {
        case DistanceForm::scale_invariant: {
            const double m = 2 * std::log1p(t / f.tau), dm_dlog_tau = -2 * t / (t + f.tau);
            return {dm_dlog_tau * (dgain / (2 * std::sqrt(1 + m)) - f.decay * dbias), -m * dbias};
        }
        case DistanceForm::log_bias:
            return {f.decay * t / (t + f.tau) * dbias, -std::log1p(t / f.tau) * dbias};
        case DistanceForm::kerple_log:
            return {-std::log1p(f.a * t) * dbias, -f.p * t / (1 + f.a * t) * dbias};
        case DistanceForm::kerple_power: {
            if (t <= 0) return {0, 0};  // t^p and t^p log t both go to zero
            const double power = std::pow(t, f.p);
            return {-f.a * power * std::log(t) * dbias, -power * dbias};
        }
    }
    return {0, 0};
}

void check_tables(const Tensor& gain, const Tensor& bias, const DistanceFormSpec& spec) {
    check(spec.length >= 1 && bias.cols() >= spec.length && (!gain || gain.cols() == bias.cols()),
          "distances below {} in tables of {} and {}", spec.length, gain.cols(), bias.cols());
    if (spec.form == DistanceForm::kerple_log || spec.form == DistanceForm::kerple_power)
        check(spec.p.count() == bias.rows() && spec.a.count() == bias.rows(),
              "{} p and {} a for {} rows of biases", spec.p.count(), spec.a.count(), bias.rows());
    else
        check(spec.log_tau || spec.tau > 0, "tau is {}", spec.tau);
}

}  // namespace

void CpuOps::do_row_factors(Tensor factor, const RowFactorSpec& spec) {
    check_factors(factor, spec);
    const int64_t heads = factor.rows(), rows = factor.cols(), blocks = blocks_of(rows);
#pragma omp parallel for collapse(2) schedule(static) \
    num_threads(threads_) if (heads * rows > parallel_threshold)
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t b = 0; b < blocks; ++b) {
            const Vec r = splat(coefficient(spec.r, spec.constant_r, h));
            const Vec offset = splat(coefficient(spec.b, spec.constant_b, h));
            float* to = factor.f32() + h * factor.row_stride;
            for_runs(spec, piece(rows, blocks, b), [&](int64_t row, int64_t entry, int64_t count) {
                const float* shape = spec.shape.f32() + entry;
                for_vectors(count, [&](int64_t i, auto n) {
                    store(to + row + i, fma(r, load(shape + i, n), offset), n);
                });
            });
        }
}

void CpuOps::do_row_factors_backward(Tensor dr, Tensor db, const Tensor& dfactor, const RowFactorSpec& spec) {
    check_factors(dfactor, spec);
    const int64_t heads = dfactor.rows(), rows = dfactor.cols();
    const int64_t blocks = std::min(blocks_of(rows), partial_doubles / (2 * heads));
    check(blocks >= 1, "factors of {} heads", heads);
#pragma omp parallel for collapse(2) schedule(static) \
    num_threads(threads_) if (heads * rows > parallel_threshold)
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t b = 0; b < blocks; ++b) {
            const float* d = dfactor.f32() + h * dfactor.row_stride;
            double along = 0, total = 0;
            for_runs(spec, piece(rows, blocks, b), [&](int64_t row, int64_t entry, int64_t count) {
                const float* from = d + row;
                if (dr) along += dot_wide(spec.shape.f32() + entry, from, count);
                if (db)
                    total += sum_wide(
                        count, [&](int64_t i) { return widen(from + i); },
                        [&](int64_t i) { return double{from[i]}; });
            });
            partials_[2 * (h * blocks + b)] = along;
            partials_[2 * (h * blocks + b) + 1] = total;
        }
    fold_pairs(dr, partials_, heads, blocks, 0);
    fold_pairs(db, partials_, heads, blocks, 1);
}

void CpuOps::do_distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec) {
    check_tables(gain, bias, spec);
    const int64_t rows = std::max(gain.rows(), bias.rows()), length = spec.length, blocks = blocks_of(length);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads_) if (rows * length > 2048)
    for (int64_t h = 0; h < rows; ++h)
        for (int64_t b = 0; b < blocks; ++b) {
            const HeadForm form(spec, std::min(h, bias.rows() - 1));
            float* to_gain =
                gain && h < gain.rows() ? gain.f32() + h * gain.row_stride + gain.cols() - 1 : nullptr;
            float* to_bias = h < bias.rows() ? bias.f32() + h * bias.row_stride + bias.cols() - 1 : nullptr;
            const Range block = piece(length, blocks, b);
            for (int64_t t = block.begin; t < block.end; ++t) {
                const Entry entry = entry_at(form, static_cast<double>(t));
                if (to_gain) to_gain[-t] = static_cast<float>(entry.gain);
                if (to_bias) to_bias[-t] = static_cast<float>(entry.bias);
            }
        }
}

void CpuOps::do_distance_tables_backward(Tensor dlog_tau, Tensor ddecay, Tensor dp, Tensor da,
                                         const Tensor& dgain, const Tensor& dbias,
                                         const DistanceFormSpec& spec) {
    check_tables(dgain, dbias, spec);
    const bool kerple = spec.form == DistanceForm::kerple_log || spec.form == DistanceForm::kerple_power;
    check(kerple ? !dlog_tau && !ddecay : !dp && !da, "a gradient of something the form does not have");
    const int64_t rows = std::max(dgain.rows(), dbias.rows()), length = spec.length;
    const int64_t blocks = std::min(blocks_of(length), partial_doubles / (2 * rows));
    check(blocks >= 1, "distance tables of {} heads", rows);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads_) if (rows * length > 2048)
    for (int64_t h = 0; h < rows; ++h)
        for (int64_t b = 0; b < blocks; ++b) {
            const HeadForm form(spec, std::min(h, dbias.rows() - 1));
            const float* of_gain =
                dgain && h < dgain.rows() ? dgain.f32() + h * dgain.row_stride + dgain.cols() - 1 : nullptr;
            const float* of_bias =
                h < dbias.rows() ? dbias.f32() + h * dbias.row_stride + dbias.cols() - 1 : nullptr;
            Pair total{0, 0};
            const Range block = piece(length, blocks, b);
            for (int64_t t = block.begin; t < block.end; ++t) {
                const Pair g = gradient_at(form, static_cast<double>(t), of_gain ? of_gain[-t] : 0.0f,
                                           of_bias ? of_bias[-t] : 0.0f);
                total.first += g.first;
                total.second += g.second;
            }
            partials_[2 * (h * blocks + b)] = form.p_held ? 0.0 : total.first;
            partials_[2 * (h * blocks + b) + 1] = form.a_held ? 0.0 : total.second;
        }
    fold_pairs(kerple ? dp : dlog_tau, partials_, rows, blocks, 0);
    fold_pairs(kerple ? da : ddecay, partials_, rows, blocks, 1);
}

void CpuOps::do_head_maxima(Tensor out, const Tensor& row_maxima) {
    const int64_t heads = row_maxima.rows(), rows = row_maxima.cols();
    check(out.count() == heads, "maxima of {} heads into {}", heads, out.count());
    // A maximum does not depend on the order: one thread per head is enough.
#pragma omp parallel for schedule(static) num_threads(threads_) if (heads * rows > parallel_threshold)
    for (int64_t h = 0; h < heads; ++h) {
        const float* from = row_maxima.f32() + h * row_maxima.row_stride;
        float& to = out.f32()[h];
        Vec a = splat(to), b = a;
        const float first = to;
        int64_t i = 0;
        for (; i + 2 * lanes <= rows; i += 2 * lanes) {
            a = max(a, load(from + i));
            b = max(b, load(from + i + lanes));
        }
        for_vectors(rows - i, [&](int64_t k, auto n) { a = max(a, load(from + i + k, n, first)); });
        to = reduce_max(max(a, b));
    }
}

void CpuOps::do_qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) {
    const int64_t heads = maxima.count();
    check(limit > 0, "QK-clip at {}", limit);
    check(wq.rows() == heads * head_dim && wk.rows() % head_dim == 0 && wk.rows() <= wq.rows() &&
              wq.cols() == wk.cols(),
          "QK-clip of {} heads of {} in {}x{} and {}x{}", heads, head_dim, wq.rows(), wq.cols(), wk.rows(),
          wk.cols());
    const bool shared = wk.rows() < wq.rows();
    const int64_t width = wq.cols();
#pragma omp parallel for schedule(static) num_threads(threads_) if (2 * wq.count() > parallel_threshold)
    for (int64_t h = 0; h < heads; ++h) {
        const double most = maxima.f32()[h];
        // An infinite maximum gives no scale; its loss is not finite and stops the run.
        if (!(most > double{limit}) || std::isinf(most)) continue;
        const double g = double{limit} / most;
        const Vec scale = splat(static_cast<float>(shared ? g : std::sqrt(g)));
        const auto scale_rows = [&](const Tensor& w) {
            for (int64_t r = h * head_dim; r < (h + 1) * head_dim; ++r) {
                float* row = w.f32() + r * w.row_stride;
                for_vectors(width, [&](int64_t i, auto n) { store(row + i, scale * load(row + i, n), n); });
            }
        };
        scale_rows(wq);
        if (!shared) scale_rows(wk);
    }
}

#include "kernels/cpu/isa_end.h"
