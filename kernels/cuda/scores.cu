// What decides scores besides queries, keys and laws: first visible keys, QK-clip.
//
//   row starts       max(doc_start_i, i - window + 1, i / chunk * chunk, 0)
//   QK-clip          maxima over rows, then the weights of heads above the limit are scaled down
//
// 4 bytes per row; 4 bytes per row and head; 8 bytes per weight of a clipped head. One thread per row or weight, one
// block per head for maxima.
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
    check(wq.rows() == heads * head_dim && wk.rows() % head_dim == 0 && wk.rows() <= wq.rows(),
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
