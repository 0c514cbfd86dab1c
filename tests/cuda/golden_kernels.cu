// One kernel per function of ptx.cuh: words in, words out; golden.h says which. Each is one block, of one
// warp where the function belongs to a warp.
#include "cuda/golden.h"
#include "cuda/golden_words.h"
#include "kernels/cuda/ptx.cuh"

namespace longreach::test {

namespace {

using namespace cuda;

constexpr int threads = 256;
// What a destination holds before a copy: bytes that are not copied have to arrive as 0.
constexpr uint32_t before = 0xdeadbeef;

struct CopyShared {
    alignas(16) uint32_t to[32][4];
};

KERNEL(32) void golden_cp_async(uint32_t* out, const uint32_t* valid, const uint32_t* from) {
    CopyShared& s = shared<CopyShared>();
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 4; ++i) s.to[lane][i] = before;
    __syncthreads();
    cp_async_16(s.to[lane], from + 4 * lane, static_cast<int>(valid[lane]));
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const int other = lane ^ 17;  // written by another thread's copy
    for (int i = 0; i < 4; ++i) out[4 * other + i] = s.to[other][i];
}

struct MatrixShared {
    alignas(16) uint32_t rows[32][4];
};

KERNEL(32) void golden_ldmatrix(uint32_t* out, const uint32_t* rows, const uint32_t* named, int transposed) {
    MatrixShared& s = shared<MatrixShared>();
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 4; ++i) s.rows[lane][i] = rows[4 * lane + i];
    __syncthreads();
    uint32_t loaded[4];
    if (transposed)
        ldmatrix_x4_trans(loaded, s.rows[named[lane]]);
    else
        ldmatrix_x4(loaded, s.rows[named[lane]]);
    for (int i = 0; i < 4; ++i) out[4 * lane + i] = loaded[i];
}

KERNEL(32) void golden_mma(uint32_t* out, const uint32_t* in) {
    const int lane = static_cast<int>(threadIdx.x);
    const uint32_t* mine = in + 10 * lane;
    uint32_t a[4], b[2];
    float c[4], d[4];
    for (int i = 0; i < 4; ++i) a[i] = mine[i];
    for (int i = 0; i < 2; ++i) b[i] = mine[4 + i];
    for (int i = 0; i < 4; ++i) c[i] = __uint_as_float(mine[6 + i]);
    mma_m16n8k16_bf16(d, a, b, c);
    for (int i = 0; i < 4; ++i) out[4 * lane + i] = __float_as_uint(d[i]);
}

KERNEL(threads) void golden_exp2(uint32_t* out, const uint32_t* in, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads)
        out[i] = __float_as_uint(exp2_approx(__uint_as_float(in[i])));
}

KERNEL(threads) void golden_anew(uint32_t* out, const uint32_t* in, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads)
        out[i] = static_cast<uint32_t>(anew(static_cast<int>(in[i])));
}

}  // namespace

Words run_golden(const std::string& op, const Words& in) {
    const int count = static_cast<int>(in.size());
    const Launch warp{1, 32, 0, nullptr};
    const auto finish = [&](const DeviceWords& out) { return finish_golden(op, out); };
    if (op == "cp_async_16") {
        require_words(op, in, 32 * 5);
        Words valid, from;
        for (size_t lane = 0; lane < 32; ++lane) {
            require(in[5 * lane] <= 16, ExitCode::data, "cp_async_16 of {} bytes", in[5 * lane]);
            valid.push_back(in[5 * lane]);
            for (size_t i = 1; i < 5; ++i) from.push_back(in[5 * lane + i]);
        }
        const DeviceWords out(128), valid_there(valid), from_there(from);
        launch(golden_cp_async, {1, 32, sizeof(CopyShared), nullptr}, out.data(), valid_there.data(),
               from_there.data());
        return finish(out);
    }
    if (op == "ldmatrix_x4" || op == "ldmatrix_x4_trans") {
        require_words(op, in, 32 * 5);
        for (size_t lane = 128; lane < in.size(); ++lane)
            require(in[lane] < 32, ExitCode::data, "{} of row {}", op, in[lane]);
        const DeviceWords out(128), there(in);
        launch(golden_ldmatrix, {1, 32, sizeof(MatrixShared), nullptr}, out.data(), there.data(),
               there.data() + 128, op == "ldmatrix_x4" ? 0 : 1);
        return finish(out);
    }
    if (op == "mma_m16n8k16_bf16") {
        require_words(op, in, 32 * 10);
        const DeviceWords out(128), there(in);
        launch(golden_mma, warp, out.data(), there.data());
        return finish(out);
    }
    if (op != "exp2_approx" && op != "anew") return run_golden_sm90(op, in);
    const DeviceWords out(in.size()), there(in);
    launch(op == "anew" ? golden_anew : golden_exp2, {1, threads, 0, nullptr}, out.data(), there.data(),
           count);
    return finish(out);
}

}  // namespace longreach::test
