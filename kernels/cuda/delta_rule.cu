// The gated delta rule, position by position. The columns of a state never meet: a thread has one column of one head,
// 32 threads read the same keys. kernels/ops.h has the recurrence.
//
// Backward, a block goes through the chunks of a sequence from the last to the first: it computes the states of a
// chunk again from the saved one, keeps them in its part of the workspace, and goes back through them. Gradients of
// queries, keys and decays are sums over the columns: over a warp at once, over the warps' columns by a second kernel.
//
// Right and deterministic, not fast: per position a chain of 3 d (backward 9 d) multiply-adds on the f32 units, sums of
// 32 lanes for every channel. What delta_in_chunks() takes goes to tensor cores in chunks; here are f32, rows on any
// byte and heads of other sizes.
#include <algorithm>
#include <utility>

#include "kernels/cuda/delta_chunks.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/workspaces.h"

namespace longreach::cuda {
namespace {

constexpr int columns = rule_columns;  // of a block, one per thread

template <int most>
struct DeltaLayout {
    float keys[most], queries[most], keeps[most];
    float state[most * columns];  // [d][columns]
};
template <int most>
struct DeltaBackwardLayout : DeltaLayout<most> {
    float dstate[most * columns];
    float rest[delta_chunk * columns];  // what fade() returns, of every position of the chunk
};

template <class T>
struct DeltaArguments {
    View<const T> q, k, v;
    View<const float> decay, beta;
    const int32_t* doc_start;
    int64_t length;
    int heads, d, e;
    bool by_channel, continues, additive;
    float query_scale, key_scale;
};
template <class T>
struct DeltaForward {
    DeltaArguments<T> in;
    View<T> o;
    View<float> states, state;
};
template <class T>
struct DeltaBackward {
    DeltaArguments<T> in;
    View<T> dv;
    View<const T> dout;
    View<const float> states;
    float *dq, *dk, *ddecay, *dbeta;  // [groups][N, H d], the same, [N, H d or H], [N, H]
    float* steps;                     // [blocks][delta_chunk][d][columns]: states before k u^T is added
    int64_t items, rows;              // B H groups, N
    int groups;
};

// One head of one sequence, and the thread's column of its values.
struct DeltaPlace {
    int64_t first;  // row of position 0
    int head, column;
    bool active;
};

// Query, key and decays of a row, for all columns.
template <class T, class Layout>
DEVICE void read_row(Layout& m, const DeltaArguments<T>& a, int64_t row, int head) {
    __syncwarp(all_lanes);
    for (int i = static_cast<int>(threadIdx.x); i < a.d; i += columns) {
        m.queries[i] = a.query_scale * widen(*a.q.at(row, head * a.d + i));
        m.keys[i] = a.key_scale * widen(*a.k.at(row, head * a.d + i));
        m.keeps[i] = expf(*a.decay.at(row, a.by_channel ? head * a.d + i : head));
    }
    __syncwarp(all_lanes);
}
// Fades the column and returns what is to be written of the value: v - S^T k; additive v.
template <class Layout>
DEVICE float fade(Layout& m, int d, float value, bool additive) {
    float seen = 0.0f;
    for (int i = 0; i < d; ++i) {
        float& s = m.state[i * columns + static_cast<int>(threadIdx.x)];
        s *= m.keeps[i];
        seen = fmaf(s, m.keys[i], seen);
    }
    return additive ? value : value - seen;
}
template <class T>
DEVICE bool starts_document(const DeltaArguments<T>& a, int64_t first, int64_t t) {
    return a.doc_start ? a.doc_start[first + t] == t : t == 0 && !a.continues;
}
template <class Layout>
DEVICE void set_column(Layout& m, int d, const float* from, int step) {
    for (int i = 0; i < d; ++i)
        m.state[i * columns + static_cast<int>(threadIdx.x)] = from ? from[i * step] : 0.0f;
}
template <class Layout>
DEVICE void keep_column(const Layout& m, int d, float* to, int step) {
    for (int i = 0; i < d; ++i) to[i * step] = m.state[i * columns + static_cast<int>(threadIdx.x)];
}
DEVICE int64_t chunk_row(int64_t sequence, int64_t t, int64_t length, int heads, int head) {
    const int64_t chunks = (length + delta_chunk - 1) / delta_chunk;
    return (sequence * chunks + t / delta_chunk) * heads + head;
}

template <class T, int most>
KERNEL(columns)
void delta_rule_kernel(DeltaForward<T> f) {
    auto& m = shared<DeltaLayout<most>>();
    const DeltaArguments<T>& a = f.in;
    const int64_t item = blockIdx.x, sequence = item / a.heads;
    const int head = static_cast<int>(item % a.heads);
    const int column = static_cast<int>(blockIdx.y) * columns + static_cast<int>(threadIdx.x);
    const bool active = column < a.e;
    const int64_t first = sequence * a.length;
    set_column(m, a.d, a.continues && active ? f.state.at(item, column) : nullptr, a.e);
    for (int64_t t = 0; t < a.length; ++t) {
        const int64_t row = first + t;
        if (starts_document(a, first, t)) set_column(m, a.d, nullptr, 0);
        if (f.states.data && t % delta_chunk == 0 && active)
            keep_column(m, a.d, f.states.at(chunk_row(sequence, t, a.length, a.heads, head), column), a.e);
        read_row(m, a, row, head);
        const float value = active ? widen(*a.v.at(row, head * a.e + column)) : 0.0f;
        const float u = *a.beta.at(row, head) * fade(m, a.d, value, a.additive);
        float out = 0.0f;
        for (int i = 0; i < a.d; ++i) {
            float& s = m.state[i * columns + static_cast<int>(threadIdx.x)];
            s = fmaf(m.keys[i], u, s);
            out = fmaf(s, m.queries[i], out);
        }
        if (active) *f.o.at(row, head * a.e + column) = narrow<T>(out);
    }
    if (f.state.data && active) keep_column(m, a.d, f.state.at(item, column), a.e);
}

// Computes the states of the chunk at `begin` again; rest and steps are filled.
template <class T, class Layout>
DEVICE void forward_again(Layout& m, const DeltaBackward<T>& b, const DeltaPlace& at, int64_t begin,
                          int64_t end, int64_t saved, float* steps) {
    const DeltaArguments<T>& a = b.in;
    const int lane = static_cast<int>(threadIdx.x);
    set_column(m, a.d, at.active ? b.states.at(saved, at.column) : nullptr, a.e);
    for (int64_t t = begin; t < end; ++t) {
        const int64_t row = at.first + t;
        if (starts_document(a, at.first, t)) set_column(m, a.d, nullptr, 0);
        read_row(m, a, row, at.head);
        const float value = at.active ? widen(*a.v.at(row, at.head * a.e + at.column)) : 0.0f;
        const float rest = fade(m, a.d, value, a.additive), u = *a.beta.at(row, at.head) * rest;
        float* step = steps + (t - begin) * a.d * columns + lane;
        m.rest[(t - begin) * columns + lane] = rest;
        for (int i = 0; i < a.d; ++i) {
            float& s = m.state[i * columns + lane];
            step[i * columns] = s;
            s = fmaf(m.keys[i], u, s);
        }
    }
}

// The gradients of one position; sums over the block's columns go to row `to` of the group's partial sums.
template <class T, class Layout>
DEVICE void step_back(Layout& m, const DeltaBackward<T>& b, const DeltaPlace& at, int64_t t, float rest,
                      const float* step, int64_t to) {
    const DeltaArguments<T>& a = b.in;
    const int64_t row = at.first + t;
    const int lane = static_cast<int>(threadIdx.x);
    read_row(m, a, row, at.head);
    const float beta = *a.beta.at(row, at.head), u = beta * rest;
    const float out = at.active ? widen(*b.dout.at(row, at.head * a.e + at.column)) : 0.0f;
    const int64_t width = static_cast<int64_t>(a.heads) * a.d;
    float du = 0.0f;
    for (int i = 0; i < a.d; ++i) {
        float& ds = m.dstate[i * columns + lane];
        const float after = fmaf(m.keys[i], u, step[i * columns + lane]);
        const float dq = warp_sum(after * out);
        if (lane == 0) b.dq[to * width + at.head * a.d + i] = dq;
        ds = fmaf(m.queries[i], out, ds);
        du = fmaf(ds, m.keys[i], du);
    }
    const float dbeta = warp_sum(du * rest);
    float dv = beta * du;
    if (lane == 0) b.dbeta[to * a.heads + at.head] = dbeta;
    if (at.active) *b.dv.at(row, at.head * a.e + at.column) = narrow<T>(dv);
    if (a.additive) dv = 0.0f;  // from here on: what reaches the state
    const bool fresh = starts_document(a, at.first, t);
    float along = 0.0f;
    for (int i = 0; i < a.d; ++i) {
        float& ds = m.dstate[i * columns + lane];
        const float faded = step[i * columns + lane];
        const float dk = warp_sum(ds * u - faded * dv);
        if (lane == 0) b.dk[to * width + at.head * a.d + i] = dk;
        ds = fmaf(-m.keys[i], dv, ds);
        const float here = ds * faded;
        if (a.by_channel) {
            const float decay = warp_sum(here);
            if (lane == 0) b.ddecay[to * width + at.head * a.d + i] = decay;
        } else {
            along += here;
        }
        ds = fresh ? 0.0f : ds * m.keeps[i];
    }
    if (a.by_channel) return;
    along = warp_sum(along);
    if (lane == 0) b.ddecay[to * a.heads + at.head] = along;
}

template <class T, int most>
KERNEL(columns, 4)  // shared memory holds few blocks: no need to save registers
void delta_rule_backward_kernel(DeltaBackward<T> b) {
    auto& m = shared<DeltaBackwardLayout<most>>();
    const DeltaArguments<T>& a = b.in;
    const int lane = static_cast<int>(threadIdx.x);
    float* steps = b.steps + static_cast<int64_t>(blockIdx.x) * delta_chunk * a.d * columns;
    for (int64_t item = blockIdx.x; item < b.items; item += gridDim.x) {
        const int64_t group = item % b.groups, sequence = item / b.groups / a.heads;
        const int head = static_cast<int>(item / b.groups % a.heads);
        const int column = static_cast<int>(group) * columns + lane;
        const DeltaPlace at{sequence * a.length, head, column, column < a.e};
        for (int i = 0; i < a.d; ++i) m.dstate[i * columns + lane] = 0.0f;
        for (int64_t begin = (a.length - 1) / delta_chunk * delta_chunk; begin >= 0; begin -= delta_chunk) {
            const int64_t end = begin + delta_chunk < a.length ? begin + delta_chunk : a.length;
            forward_again(m, b, at, begin, end, chunk_row(sequence, begin, a.length, a.heads, head), steps);
            for (int64_t t = end - 1; t >= begin; --t)
                step_back(m, b, at, t, m.rest[(t - begin) * columns + lane],
                          steps + (t - begin) * a.d * columns, group * b.rows + at.first + t);
        }
    }
}

// to = scale times the sum over the groups.
template <class T>
struct DeltaFold {
    View<T> to;
    const float* partial;  // [groups][rows, width]
    int64_t rows, width;
    int groups;
    float scale;
};
template <class T>
KERNEL(256)
void delta_fold_kernel(DeltaFold<T> f) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (at >= f.rows * f.width) return;
    float sum = f.partial[at];
    for (int g = 1; g < f.groups; ++g) sum += f.partial[g * f.rows * f.width + at];
    *f.to.at(at / f.width, at % f.width) = narrow<T>(f.scale * sum);
}
template <class T>
void fold_groups(const Tensor& to, const float* partial, int groups, float scale, Stream stream) {
    const DeltaFold<T> fold{view<T>(to), partial, to.rows(), to.cols(), groups, scale};
    launch(delta_fold_kernel<T>, {dim3(blocks_for(to.count(), 256)), dim3(256), 0, stream}, fold);
}

// body(std::integral_constant<int, most>) with room for d channels.
template <class Body>
void with_channels(int64_t d, Body body) {
    if (d <= 128)
        body(std::integral_constant<int, 128>{});
    else
        body(std::integral_constant<int, 256>{});
}

template <class T>
DeltaArguments<T> arguments_of(const DeltaInputs& in, const DeltaSpec& s) {
    const int64_t n = s.batch * s.length, keys = s.heads * s.key_dim;
    check(s.length > 0 && s.heads > 0 && s.key_dim > 0 && s.value_dim > 0 && s.key_dim <= 256,
          "delta rule of {} heads with {} and {} channels, length {}: a GPU takes up to 256 key channels",
          s.heads, s.key_dim, s.value_dim, s.length);
    const auto sized = [&](const Tensor& t, int64_t width, const char* what) {
        check(t.rows() == n && t.cols() == width, "delta rule: {} is {}x{}, not {}x{}", what, t.rows(),
              t.cols(), n, width);
    };
    sized(in.q, keys, "q");
    sized(in.k, keys, "k");
    sized(in.v, s.heads * s.value_dim, "v");
    sized(in.beta, s.heads, "beta");
    if (in.decay.cols() != keys) sized(in.decay, s.heads, "decay");
    check(!s.doc_start || (s.doc_start.count() == n && s.doc_start.contiguous() && !s.continues),
          "delta rule: {} document starts of {} positions", s.doc_start.count(), n);
    return {view<const T>(in.q),
            view<const T>(in.k),
            view<const T>(in.v),
            view<const float>(in.decay),
            view<const float>(in.beta),
            s.doc_start ? s.doc_start.i32() : nullptr,
            s.length,
            static_cast<int>(s.heads),
            static_cast<int>(s.key_dim),
            static_cast<int>(s.value_dim),
            in.decay.cols() > s.heads,
            s.continues,
            s.additive,
            s.query_scale,
            s.key_scale};
}
View<float> floats_of(const Tensor& t) {
    return t ? view<float>(t) : View<float>{nullptr, 0};
}

}  // namespace

void delta_rule(Tensor o, const DeltaStates& states, Tensor workspace, const DeltaInputs& in,
                const DeltaSpec& spec, Stream stream) {
    const int64_t size = spec.key_dim * spec.value_dim, items = spec.batch * spec.heads;
    check(o.rows() == in.v.rows() && o.cols() == in.v.cols(), "delta rule: o is {}x{}", o.rows(), o.cols());
    check(!states.of_chunks || (states.of_chunks.rows() == items * delta_chunks(spec.length) &&
                                states.of_chunks.cols() == size),
          "delta rule: states {}x{}", states.of_chunks.rows(), states.of_chunks.cols());
    check(states.last ? states.last.rows() == items && states.last.cols() == size : !spec.continues,
          "delta rule: a state {}x{}", states.last.rows(), states.last.cols());
    if (delta_in_chunks(in, spec) && aligned(o)) {
        arguments_of<bf16>(in, spec);  // checks them
        return delta_rule_in_chunks(o, states, workspace, in, spec, stream);
    }
    with_element(o.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const DeltaForward<T> arguments{arguments_of<T>(in, spec), view<T>(o), floats_of(states.of_chunks),
                                        floats_of(states.last)};
        with_channels(spec.key_dim, [&](auto most) {
            constexpr int room = decltype(most)::value;
            launch(delta_rule_kernel<T, room>,
                   {dim3(static_cast<unsigned>(items), static_cast<unsigned>(rule_groups(spec))),
                    dim3(columns), sizeof(DeltaLayout<room>), stream},
                   arguments);
        });
    });
}

void delta_rule_backward(const DeltaGradients& d, Tensor workspace, const Tensor& dout, const Tensor& states,
                         const DeltaInputs& in, const DeltaSpec& spec, Stream stream) {
    const int64_t n = spec.batch * spec.length, keys = spec.heads * spec.key_dim;
    const int64_t groups = rule_groups(spec), blocks = rule_backward_blocks(spec),
                  size = spec.key_dim * spec.value_dim;
    check(workspace.bytes() >= delta_workspace(spec, true, dout.dtype),
          "delta rule backward: a workspace of {} bytes", workspace.bytes());
    check(states.rows() == spec.batch * spec.heads * delta_chunks(spec.length) && states.cols() == size &&
              !spec.continues && d.decay.cols() == in.decay.cols() && dout.rows() == n &&
              dout.cols() == in.v.cols(),
          "delta rule backward: states {}x{}", states.rows(), states.cols());
    if (delta_in_chunks(in, spec) && aligned(d.q, d.k, d.v, dout, states)) {
        arguments_of<bf16>(in, spec);  // checks them
        return delta_rule_in_chunks_backward(d, workspace, dout, states, in, spec, stream);
    }
    float* at = workspace.f32();
    const auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
    float *dq = take(groups * n * keys), *dk = take(groups * n * keys), *ddecay = take(groups * n * keys);
    float *dbeta = take(groups * n * spec.heads),
          *steps = take(blocks * delta_chunk * spec.key_dim * columns);
    const int parts = static_cast<int>(groups);
    with_element(dout.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const DeltaBackward<T> arguments{arguments_of<T>(in, spec),
                                         view<T>(d.v),
                                         view<const T>(dout),
                                         view<const float>(states),
                                         dq,
                                         dk,
                                         ddecay,
                                         dbeta,
                                         steps,
                                         spec.batch * spec.heads * groups,
                                         n,
                                         parts};
        with_channels(spec.key_dim, [&](auto most) {
            constexpr int room = decltype(most)::value;
            launch(delta_rule_backward_kernel<T, room>,
                   {dim3(static_cast<unsigned>(blocks)), dim3(columns), sizeof(DeltaBackwardLayout<room>),
                    stream},
                   arguments);
        });
        fold_groups<T>(d.q, dq, parts, spec.query_scale, stream);
        fold_groups<T>(d.k, dk, parts, spec.key_scale, stream);
    });
    fold_groups<float>(d.decay, ddecay, parts, 1.0f, stream);
    fold_groups<float>(d.beta, dbeta, parts, 1.0f, stream);
}

}  // namespace longreach::cuda
