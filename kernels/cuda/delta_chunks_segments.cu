// Few sequences of the gated delta rule in chunks (delta_chunks.cuh): segments of a sequence, all at once.
//
// What a segment makes of the state S before it is A S + E: every chunk takes S to a_0 ... a_(c-1) S + ke^T U, where U is
// diag(beta) (V - ks S - M U). So E [d, e] is the state that the segment leaves of zero, and A [d, d] what it leaves of the
// identity where all values are 0. Forward
//
//     walk for states    a block per segment, head and 64 columns of E or of A
//     join               S <- A S + E from segment to segment, in f32
//     walk for results   the pass of whole sequences, a block per segment, head and 64 columns, from the state before it
//
// The gradient at the state goes the other way by the transposed maps, and has the same three steps: E is what a segment
// leaves of a zero gradient, A^T what it leaves of the identity where dO is 0.
//
// The second walk has the sums of the pass along a whole sequence in their order; only the state that it begins with
// differs. A column of A errs as a column of a state does, in f32 with the same factors rounded, and the join adds sums
// of d products in f32.
#include <algorithm>

#include "kernels/cuda/delta_chunks.cuh"

namespace longreach::cuda {

using namespace delta;

namespace {

constexpr int join_columns = 8, join_threads = 128;

struct JoinLayout {
    float state[2][join_columns][join_threads];  // of a step and of the next
};
struct Join {
    DeltaChunks in;
    int first, step;  // bounds
};

// A thread per channel, with 8 columns.
KERNEL(join_threads)
void delta_join_kernel(Join j) {
    auto& m = shared<JoinLayout>();
    const DeltaChunks& c = j.in;
    const int channel = static_cast<int>(threadIdx.x);
    const int64_t item = blockIdx.x, place = int64_t{channel} * c.e + int64_t{blockIdx.y} * join_columns;
    const bool active = channel < c.d;
    Pack<join_columns> s{};
    if (active) s = load<join_columns>(c.bound(item, j.first) + place);
#pragma unroll 1
    for (int n = 0; n < c.segments - 2; ++n) {
        const int to = j.first + (n + 1) * j.step;
#pragma unroll
        for (int i = 0; i < join_columns; ++i) m.state[n % 2][i][channel] = s[i];
        __syncthreads();
        if (!active) continue;  // the barrier is everybody's
        s = load<join_columns>(c.bound(item, to) + place);
        const float* map = c.map(item, to) + channel;
#pragma unroll 8
        for (int k = 0; k < c.d; k += 4) {
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) x[e] = map[int64_t{k + e} * c.d];
#pragma unroll
            for (int i = 0; i < join_columns; ++i) {
                const float4 y = *reinterpret_cast<const float4*>(m.state[n % 2][i] + k);
                s[i] = fmaf(x[3], y.w, fmaf(x[2], y.z, fmaf(x[1], y.y, fmaf(x[0], y.x, s[i]))));
            }
        }
        store(c.bound(item, to) + place, s);
    }
}

}  // namespace

void delta::join_segments(const DeltaChunks& c, const DeltaSpec& s, bool backward, Stream stream) {
    if (c.segments < 3) return;
    const Join join{c, backward ? c.segments - 2 : 1, backward ? -1 : 1};
    launch(delta_join_kernel,
           {dim3(static_cast<unsigned>(s.batch * s.heads), static_cast<unsigned>(s.value_dim / join_columns)),
            dim3(join_threads), sizeof(JoinLayout), stream},
           join);
}

}  // namespace longreach::cuda
