// The gated delta rule in chunks of 64 positions: delta_rule.h has the form.
//
//   q, k [N, H*d], v, o [N, H*e]; per position and head 6 d e FLOPs with the state and 128 (d + e) within the chunk.
//
// Sums have the order of matrix products over d, then over the positions of a chunk; states are f32. A chunk is cut at
// the starts of documents. Parallel over (sequence, head), each of which is one chain of chunks; over heads where sequences are chained.
#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::do_delta_rule(Tensor o, Tensor states, Tensor state, Tensor workspace, const Tensor& q,
                           const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta,
                           const DeltaSpec& spec) {
    check_delta(o, q, k, v, decay, beta, spec);
    const int64_t d = spec.key_dim, e = spec.value_dim, length = spec.length, heads = spec.heads;
    const int64_t chunks = delta_chunks(length), size = d * e;
    const bool by_channel = decay.cols() > heads;
    check(!states || (states.rows() == spec.batch * chunks * heads && states.cols() == size),
          "delta rule: states {}x{}", states.rows(), states.cols());
    check(state ? state.rows() == spec.batch * heads && state.cols() == size : !spec.continues,
          "delta rule: a state {}x{}", state.rows(), state.cols());
    check(!spec.chained || !spec.continues, "delta rule: sequences that are chained and continue");
    const int64_t floats = delta_forward_floats(spec);
    check(workspace.bytes() >= threads_ * floats * 4, "delta rule: a workspace of {} bytes",
          workspace.bytes());
    const auto read = [&](DeltaTile& tile, int64_t sequence, int64_t head) {
        const int64_t first = sequence * length, item = sequence * heads + head;
        const DeltaInputs in{{q, first, head * d},
                             {k, first, head * d},
                             {v, first, head * e},
                             {decay, first, head * tile.w},
                             {beta ? beta : decay, first, head},
                             {spec.erase ? spec.erase : k, first, head * d},
                             static_cast<bool>(beta)};
        const HeadRows to(o, first, head * e);
        const int32_t* doc_start = spec.doc_start ? spec.doc_start.i32() + first : nullptr;
        float* kept = state ? state.f32() + item * state.row_stride : nullptr;
        if (spec.continues) std::copy_n(kept, size, tile.state);
        const bool carries = delta_carries(spec, sequence, doc_start);
        for (int64_t begin = 0; begin < length; begin += tile.rows) {
            const DeltaPiece piece = delta_piece(begin, length, doc_start, carries);
            if (piece.fresh) std::fill_n(tile.state, size, 0.0f);
            if (states && begin % delta_chunk == 0)
                std::copy_n(tile.state, size,
                            states.f32() + ((sequence * chunks + begin / delta_chunk) * heads + head) *
                                               states.row_stride);
            tile.read(in, piece, spec);
            tile.score();
            tile.solve(in, piece);
            tile.read_out(to, piece);
            tile.advance();
        }
        if (kept) std::copy_n(tile.state, size, kept);
    };
    pool_.run(spec.chained ? heads : spec.batch * heads, [&](int64_t item, int thread) {
        DeltaMemory memory{workspace.f32() + thread * floats};
        DeltaTile tile(memory, spec, by_channel, scratch_of(thread), products_);
        const int64_t first = spec.chained ? 0 : item / heads, end = spec.chained ? spec.batch : first + 1;
        for (int64_t sequence = first; sequence < end; ++sequence) read(tile, sequence, item % heads);
    });
}

#include "kernels/cpu/isa_end.h"
