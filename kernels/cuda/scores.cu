// Inputs of scores other than queries and keys: first visible keys, factors by row,
// tables by distance, QK-clip.
//
//   row starts       max(doc_start_i, i - window + 1, i / chunk * chunk, 0)
//   row factors      f_h(i) = r_h shape(n_i) + b_h, n_i = i - start_i + 1; dr += sum shape df, db += sum df
//   distance tables  gain and bias as functions of t and a few learned numbers (DistanceForm), computed in
//                    double and stored in f32, backwards; their gradients by the chain rule, again in double
//   QK-clip          maxima over rows, then weights of the heads that went too far scaled down
//
// Factors: 4 bytes and 2 FLOPs per row and head. Tables: a logarithm or power per entry, once per step and
// not per pair. One thread per entry; sums over fixed blocks of entries, in double, folded in block order.
#include <algorithm>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

KERNEL(256)
void row_starts_kernel(int32_t* row_start, const int32_t* doc_start, int64_t rows, int64_t length,
                       int64_t window, int64_t chunk) {
    const int64_t r = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (r >= rows) return;
    const int64_t position = r % length;
    int64_t first = doc_start && doc_start[r] > 0 ? doc_start[r] : 0;
    if (window > 0 && position - window + 1 > first) first = position - window + 1;
    if (chunk > 0 && position / chunk * chunk > first) first = position / chunk * chunk;
    row_start[r] = static_cast<int32_t>(first);
}

struct Factors {
    View<float> factor;  // [heads, rows]; backward the gradient
    const float *shape, *r, *b;
    const int32_t* start;
    float constant_r, constant_b;
    bool shared_r, shared_b;
    int rows, length;
    // Entry n - 1 of the shape.
    DEVICE int entry(int row) const { return row % length - (start ? start[row] : 0); }
};

KERNEL(256) void row_factors_kernel(Factors f) {
    const int row = static_cast<int>(blockIdx.x * 256 + threadIdx.x), head = static_cast<int>(blockIdx.y);
    if (row >= f.rows) return;
    const float r = f.r ? f.r[f.shared_r ? 0 : head] : f.constant_r;
    const float b = f.b ? f.b[f.shared_b ? 0 : head] : f.constant_b;
    *f.factor.at(head, row) = fmaf(r, f.shape[f.entry(row)], b);
}

// partials [2, heads, blocks]: <shape, df> | sum df.
KERNEL(256) void row_factors_backward_kernel(Factors f, double* partials) {
    auto& results = shared<WarpResults<double, 256>>();
    const Range block = piece_of(f.rows, gridDim.x, blockIdx.x);
    double along = 0.0, sum = 0.0;
    const int end = static_cast<int>(block.end);
    for (int row = static_cast<int>(block.begin + threadIdx.x); row < end; row += 256) {
        const double d = *f.factor.at(blockIdx.y, row);
        along += static_cast<double>(f.shape[f.entry(row)]) * d;
        sum += d;
    }
    along = block_sum<256>(along, results);
    sum = block_sum<256>(sum, results);
    if (threadIdx.x != 0) return;
    const int64_t at = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    partials[at] = along;
    partials[static_cast<int64_t>(gridDim.y) * gridDim.x + at] = sum;
}

constexpr float kerple_least = 0.01f, kerple_most_power = 2.0f;

struct Tables {
    DistanceForm form;
    int64_t length;
    const float *log_tau, *decay, *p, *a;
    float tau, constant_decay;
    View<float> gain, bias;  // one row or one per head; backward the gradients. gain may be null
    int64_t cols, gain_rows, bias_rows;
};

// A distance form with the numbers of one head.
struct HeadForm {
    DistanceForm form;
    double tau = 1, decay = 1;
    double p = 0, a = 0;
    bool p_held = false, a_held = false;  // a clamp is active: no gradient

    DEVICE HeadForm(const Tables& tables, int64_t head) : form(tables.form) {
        if (form == DistanceForm::kerple_log || form == DistanceForm::kerple_power) {
            const bool bounded = form == DistanceForm::kerple_power;
            const float own_p = tables.p[head], own_a = tables.a[head];
            const bool high = bounded && own_p > kerple_most_power;
            p_held = own_p < kerple_least || high;
            a_held = own_a < kerple_least;
            p = own_p < kerple_least ? kerple_least : high ? kerple_most_power : own_p;
            a = a_held ? kerple_least : own_a;
        } else {
            tau =
                tables.log_tau ? exp(static_cast<double>(*tables.log_tau)) : static_cast<double>(tables.tau);
            decay = tables.decay ? *tables.decay : tables.constant_decay;
        }
    }
};

struct Entry {
    double gain, bias;
};
DEVICE Entry entry_at(const HeadForm& f, double t) {
    switch (f.form) {
        case DistanceForm::scale_invariant: {
            const double m = 2 * log1p(t / f.tau);
            return {sqrt(1 + m), -f.decay * m};
        }
        case DistanceForm::log_bias:
            return {1, -f.decay * log1p(t / f.tau)};
        case DistanceForm::kerple_log:
            return {1, -f.p * log1p(f.a * t)};
        case DistanceForm::kerple_power:
            return {1, t > 0 ? -f.a * pow(t, f.p) : 0.0};
    }
    return {1, 0};
}

// Gradients at log tau and decay, or at p and a, given those at one entry.
struct Pair {
    double first, second;
};
DEVICE Pair gradient_at(const HeadForm& f, double t, double dgain, double dbias) {
    switch (f.form) {
        case DistanceForm::scale_invariant: {
            const double m = 2 * log1p(t / f.tau), dm_dlog_tau = -2 * t / (t + f.tau);
            return {dm_dlog_tau * (dgain / (2 * sqrt(1 + m)) - f.decay * dbias), -m * dbias};
        }
        case DistanceForm::log_bias:
            return {f.decay * t / (t + f.tau) * dbias, -log1p(t / f.tau) * dbias};
        case DistanceForm::kerple_log:
            return {-log1p(f.a * t) * dbias, -f.p * t / (1 + f.a * t) * dbias};
        case DistanceForm::kerple_power: {
            if (t <= 0) return {0, 0};  // t^p and t^p log t both go to zero
            const double power = pow(t, f.p);
            return {-f.a * power * log(t) * dbias, -power * dbias};
        }
    }
    return {0, 0};
}

DEVICE HeadForm form_of(const Tables& tables, int64_t head) {
    return HeadForm(tables, head < tables.bias_rows ? head : tables.bias_rows - 1);
}

KERNEL(256) void distance_tables_kernel(Tables tables) {
    const int64_t t = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, head = blockIdx.y;
    if (t >= tables.length) return;
    const Entry entry = entry_at(form_of(tables, head), static_cast<double>(t));
    const int64_t column = tables.cols - 1 - t;
    if (tables.gain.data && head < tables.gain_rows)
        *tables.gain.at(head, column) = static_cast<float>(entry.gain);
    if (head < tables.bias_rows) *tables.bias.at(head, column) = static_cast<float>(entry.bias);
}

// partials [2, heads, blocks].
KERNEL(256) void distance_tables_backward_kernel(Tables tables, double* partials) {
    auto& results = shared<WarpResults<double, 256>>();
    const int64_t head = blockIdx.y;
    const HeadForm form = form_of(tables, head);
    const Range block = piece_of(tables.length, gridDim.x, blockIdx.x);
    double first = 0.0, second = 0.0;
    for (int64_t t = block.begin + threadIdx.x; t < block.end; t += 256) {
        const int64_t column = tables.cols - 1 - t;
        const double dgain =
            tables.gain.data && head < tables.gain_rows ? *tables.gain.at(head, column) : 0.0f;
        const double dbias = head < tables.bias_rows ? *tables.bias.at(head, column) : 0.0f;
        const Pair g = gradient_at(form, static_cast<double>(t), dgain, dbias);
        first += g.first;
        second += g.second;
    }
    first = block_sum<256>(first, results);
    second = block_sum<256>(second, results);
    if (threadIdx.x != 0) return;
    const int64_t at = head * gridDim.x + blockIdx.x;
    partials[at] = form.p_held ? 0.0 : first;
    partials[static_cast<int64_t>(gridDim.y) * gridDim.x + at] = form.a_held ? 0.0 : second;
}

constexpr float largest_float = 3.402823466e38f;
constexpr int maxima_threads = 512;
KERNEL(maxima_threads) void head_maxima_kernel(float* out, View<const float> row_maxima, int64_t rows) {
    auto& results = shared<WarpResults<float, maxima_threads>>();
    float most = out[blockIdx.x];
    for (int64_t r = threadIdx.x; r < rows; r += maxima_threads)
        most = fmaxf(most, *row_maxima.at(blockIdx.x, r));
    most = block_reduce<maxima_threads>(most, results, Max{});
    if (threadIdx.x == 0) out[blockIdx.x] = most;
}

// Rows of wq or of wk.
struct Clip {
    View<float> w;
    const float* maxima;
    int head_dim;
    float limit;
    bool shared;  // the keys' heads serve several queries': wq takes all of it
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const float most = maxima[static_cast<int>(r) / head_dim];
        // An infinite maximum gives no scale; its loss is not finite and stops the run.
        if (!(most > limit) || most > largest_float) return;
        const float scale = shared ? limit / most : sqrtf(limit / most);
        Pack<n> v = load<n>(w.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) v[k] *= scale;
        store(w.at(r, c), v);
    }
};

Factors factors_of(const Tensor& factor, const RowFactorSpec& spec) {
    const int64_t heads = factor.rows(), rows = factor.cols();
    check(spec.length > 0 && rows % spec.length == 0 && spec.shape.count() >= spec.length,
          "factors of {} rows in sequences of {}, a shape of {}", rows, spec.length, spec.shape.count());
    check(!spec.start || (spec.start.count() == rows && spec.start.contiguous()), "{} starts of {} rows",
          spec.start.count(), rows);
    check(rows < int64_t{1} << 31, "factors of {} rows", rows);
    for (const Tensor& t : {spec.r, spec.b})
        check(!t || t.count() == 1 || t.count() == heads, "{} coefficients for {} heads", t.count(), heads);
    return {.factor = view<float>(factor),
            .shape = spec.shape.f32(),
            .r = spec.r.f32(),
            .b = spec.b.f32(),
            .start = spec.start.i32(),
            .constant_r = spec.constant_r,
            .constant_b = spec.constant_b,
            .shared_r = spec.r.count() == 1,
            .shared_b = spec.b.count() == 1,
            .rows = static_cast<int>(rows),
            .length = static_cast<int>(spec.length)};
}

Tables tables_of(const Tensor& gain, const Tensor& bias, const DistanceFormSpec& spec) {
    check(spec.length >= 1 && bias.cols() >= spec.length && (!gain || gain.cols() == bias.cols()),
          "distances below {} in tables of {} and {}", spec.length, gain.cols(), bias.cols());
    if (spec.form == DistanceForm::kerple_log || spec.form == DistanceForm::kerple_power)
        check(spec.p.count() == bias.rows() && spec.a.count() == bias.rows(),
              "{} p and {} a for {} rows of biases", spec.p.count(), spec.a.count(), bias.rows());
    else
        check(spec.log_tau || spec.tau > 0, "tau is {}", spec.tau);
    return {.form = spec.form,
            .length = spec.length,
            .log_tau = spec.log_tau.f32(),
            .decay = spec.decay.f32(),
            .p = spec.p.f32(),
            .a = spec.a.f32(),
            .tau = spec.tau,
            .constant_decay = spec.constant_decay,
            .gain = view<float>(gain),
            .bias = view<float>(bias),
            .cols = bias.cols(),
            .gain_rows = gain ? gain.rows() : 0,
            .bias_rows = bias.rows()};
}

// to[0 or h] += the sum of the blocks' partials of all heads, or of head h.
void fold_heads(const Tensor& to, const double* partials, int64_t heads, int64_t blocks, Stream stream) {
    if (!to) return;
    check(to.count() == 1 || to.count() == heads, "{} gradients for {} heads", to.count(), heads);
    const int64_t each = heads / to.count() * blocks;
    fold_totals({.partials = partials, .count = each, .step = each, .add_to = to.f32()}, to.count(), stream);
}

constexpr unsigned launch_rows(int64_t n) {
    return static_cast<unsigned>(n);
}

}  // namespace

void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window, int64_t chunk,
                Stream stream) {
    const int64_t rows = row_start.count();
    check(length > 0 && rows % length == 0 && (!doc_start || doc_start.count() == rows),
          "row starts of {} rows in sequences of {}, {} document starts", rows, length, doc_start.count());
    launch(row_starts_kernel, {dim3(blocks_for(rows, 256)), dim3(256), 0, stream}, row_start.i32(),
           doc_start.i32(), rows, length, window, chunk);
}

void row_factors(Tensor factor, const RowFactorSpec& spec, Stream stream) {
    const Factors arguments = factors_of(factor, spec);
    launch(row_factors_kernel,
           {dim3(blocks_for(arguments.rows, 256), launch_rows(factor.rows())), dim3(256), 0, stream},
           arguments);
}

void row_factors_backward(Tensor dr, Tensor db, Tensor workspace, const Tensor& dfactor,
                          const RowFactorSpec& spec, Stream stream) {
    const Factors arguments = factors_of(dfactor, spec);
    const int64_t heads = dfactor.rows(), blocks = flat_blocks(arguments.rows);
    check(workspace.bytes() >= row_factors_backward_workspace(heads, arguments.rows),
          "row_factors_backward workspace of {} bytes", workspace.bytes());
    double* partials = workspace.as<double>();
    launch(
        row_factors_backward_kernel,
        {dim3(launch_rows(blocks), launch_rows(heads)), dim3(256), sizeof(WarpResults<double, 256>), stream},
        arguments, partials);
    fold_heads(dr, partials, heads, blocks, stream);
    fold_heads(db, partials + heads * blocks, heads, blocks, stream);
}

void distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec, Stream stream) {
    const Tables arguments = tables_of(gain, bias, spec);
    const int64_t rows = std::max(arguments.gain_rows, arguments.bias_rows);
    launch(distance_tables_kernel,
           {dim3(blocks_for(spec.length, 256), launch_rows(rows)), dim3(256), 0, stream}, arguments);
}

void distance_tables_backward(const DistanceFormGradients& d, Tensor workspace, const Tensor& dgain,
                              const Tensor& dbias, const DistanceFormSpec& spec, Stream stream) {
    const Tables arguments = tables_of(dgain, dbias, spec);
    const bool kerple = spec.form == DistanceForm::kerple_log || spec.form == DistanceForm::kerple_power;
    check(kerple ? !d.log_tau && !d.decay : !d.p && !d.a, "a gradient of something the form does not have");
    const int64_t rows = std::max(arguments.gain_rows, arguments.bias_rows),
                  blocks = flat_blocks(spec.length);
    check(workspace.bytes() >= distance_tables_backward_workspace(rows, spec.length),
          "distance_tables_backward workspace of {} bytes", workspace.bytes());
    double* partials = workspace.as<double>();
    launch(
        distance_tables_backward_kernel,
        {dim3(launch_rows(blocks), launch_rows(rows)), dim3(256), sizeof(WarpResults<double, 256>), stream},
        arguments, partials);
    fold_heads(kerple ? d.p : d.log_tau, partials, rows, blocks, stream);
    fold_heads(kerple ? d.a : d.decay, partials + rows * blocks, rows, blocks, stream);
}

void head_maxima(Tensor out, const Tensor& row_maxima, Stream stream) {
    const int64_t heads = row_maxima.rows();
    check(out.count() == heads, "maxima of {} heads into {}", heads, out.count());
    launch(
        head_maxima_kernel,
        {dim3(launch_rows(heads)), dim3(maxima_threads), sizeof(WarpResults<float, maxima_threads>), stream},
        out.f32(), view<const float>(row_maxima), row_maxima.cols());
}

void qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit, Stream stream) {
    const int64_t heads = maxima.count();
    check(limit > 0, "QK-clip at {}", limit);
    check(wq.rows() == heads * head_dim && wk.rows() % head_dim == 0 && wk.rows() <= wq.rows() &&
              wq.cols() == wk.cols(),
          "QK-clip of {} heads of {} in {}x{} and {}x{}", heads, head_dim, wq.rows(), wq.cols(), wk.rows(),
          wk.cols());
    const bool shared = wk.rows() < wq.rows();
    map<float>(Clip{view<float>(wq), maxima.f32(), static_cast<int>(head_dim), limit, shared}, wq.rows(),
               wq.cols(), aligned(wq), stream);
    if (!shared)
        map<float>(Clip{view<float>(wk), maxima.f32(), static_cast<int>(head_dim), limit, false}, wk.rows(),
                   wk.cols(), aligned(wk), stream);
}

}  // namespace longreach::cuda
