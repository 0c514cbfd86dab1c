// GFLOP/s of our matrix products and oneDNN's, shape by shape, in f32 and bf16, and the share
// of the machine's peak.
//
//     onednn_gemm [repetitions] [threads]
//
// Every repetition times a peak probe, ours and oneDNN's one after the other, so that a disturbance of
// the machine meets all three; the best of each counts. bf16: oneDNN gets matrices that are bf16 already,
// ours rounds f32 ones.
#include <dnnl.h>
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/ops.h"

using namespace longreach;

namespace {

// Seconds. One thread is timed by the processor time it got, which other processes disturb less.
double now(int threads) {
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// FLOPs of the probes below per call and thread.
constexpr int64_t probe_rounds = 20000;
constexpr int probe_chains = 12;

__attribute__((target("avx512f"))) void probe_f32(float* out) {
    __m512 sum[probe_chains], x = _mm512_set1_ps(out[0]), y = _mm512_set1_ps(out[1]);
    for (int c = 0; c < probe_chains; ++c) sum[c] = _mm512_set1_ps(static_cast<float>(c));
    for (int64_t i = 0; i < probe_rounds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < probe_chains; ++c) sum[c] = _mm512_fmadd_ps(x, y, sum[c]);
        asm volatile("" : "+v"(x));
    }
    for (int c = 0; c < probe_chains; ++c) _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum[c]));
}

__attribute__((target("avx512f,avx512bf16"))) void probe_bf16(float* out) {
    __m512 sum[probe_chains], x = _mm512_set1_ps(out[0]);
    for (int c = 0; c < probe_chains; ++c) sum[c] = _mm512_set1_ps(static_cast<float>(c));
    for (int64_t i = 0; i < probe_rounds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < probe_chains; ++c)
            sum[c] = _mm512_dpbf16_ps(sum[c], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(x));
        asm volatile("" : "+v"(x));
    }
    for (int c = 0; c < probe_chains; ++c) _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum[c]));
}

double probe_gflops(int threads, Precision precision) {
    if (!__builtin_cpu_supports("avx512f")) return 0;
    const double begin = now(threads);
#pragma omp parallel num_threads(threads)
    {
        alignas(64) float out[16] = {};
        precision == Precision::bf16 ? probe_bf16(out) : probe_f32(out);
        volatile float sink = out[0];
        (void)sink;
    }
    const double per_unit = precision == Precision::bf16 ? 4 : 2;
    return threads * probe_rounds * probe_chains * 16 * per_unit / (now(threads) - begin) / 1e9;
}

enum class Form { forward, input_gradient, weight_gradient };

// A layer in -> out on `tokens` rows. Matrices: x [tokens, in], w [out, in], y [tokens, out].
struct Layer {
    int64_t tokens, in, out;
    double flops() const { return 2.0 * static_cast<double>(tokens * in * out); }
};

using Bytes = std::unique_ptr<float, decltype(&std::free)>;
Bytes matrix(int64_t count) {
    const auto bytes = static_cast<size_t>((count * 4 + 63) / 64 * 64);
    Bytes m(static_cast<float*>(std::aligned_alloc(64, bytes)), &std::free);
    for (int64_t i = 0; i < count; ++i) m.get()[i] = static_cast<float>((i * 37) % 17 - 8) / 64;
    return m;
}

// The bf16 product of one form with whatever layout oneDNN prefers for no operand: all three are plain.
class PeerBf16 {
  public:
    PeerBf16(const dnnl::engine& engine, const Layer& l, Form form) : stream_(engine) {
        using tag = dnnl::memory::format_tag;
        const auto bf16 = dnnl::memory::data_type::bf16;
        const bool gradient = form == Form::weight_gradient;
        const int64_t m = gradient ? l.out : l.tokens, n = form == Form::forward ? l.out : l.in;
        const int64_t k = gradient ? l.tokens : form == Form::forward ? l.in : l.out;
        const dnnl::memory::desc a({m, k}, bf16, gradient ? tag::ba : tag::ab);
        const dnnl::memory::desc b({k, n}, bf16, form == Form::forward ? tag::ba : tag::ab);
        const dnnl::memory::desc c({m, n}, dnnl::memory::data_type::f32, tag::ab);
        product_ = dnnl::matmul({dnnl::matmul::desc(a, b, c), engine});
        arguments_ = {{DNNL_ARG_SRC, dnnl::memory(a, engine)},
                      {DNNL_ARG_WEIGHTS, dnnl::memory(b, engine)},
                      {DNNL_ARG_DST, dnnl::memory(c, engine)}};
    }
    void run() {
        product_.execute(stream_, arguments_);
        stream_.wait();
    }

  private:
    dnnl::stream stream_;
    dnnl::matmul product_;
    std::unordered_map<int, dnnl::memory> arguments_;
};

void run_ours(Ops& ops, Form form, const Tensor& x, const Tensor& w, const Tensor& y) {
    if (form == Form::forward) ops.linear(y, x, w, Write::set);
    if (form == Form::input_gradient) ops.linear_backward_input(x, y, w, Write::set);
    if (form == Form::weight_gradient) ops.linear_backward_weight(w, y, x, Write::add);
}

void run_peer(Form form, const Layer& l, float* x, float* w, float* y) {
    const int64_t n = l.tokens, i = l.in, o = l.out;
    if (form == Form::forward) dnnl_sgemm('N', 'T', n, o, i, 1, x, i, w, i, 0, y, o);
    if (form == Form::input_gradient) dnnl_sgemm('N', 'N', n, i, o, 1, y, o, w, i, 0, x, i);
    if (form == Form::weight_gradient) dnnl_sgemm('T', 'N', o, i, n, 1, y, o, x, i, 1, w, i);
}

void measure(Ops& ops, const Layer& l, Form form, Precision precision, int repetitions, int threads) {
    const Bytes x = matrix(l.tokens * l.in), w = matrix(l.out * l.in), y = matrix(l.tokens * l.out);
    const Tensor tx(x.get(), DType::f32, {l.tokens, l.in}), tw(w.get(), DType::f32, {l.out, l.in});
    const Tensor ty(y.get(), DType::f32, {l.tokens, l.out});
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    std::unique_ptr<PeerBf16> bf16;
    if (precision == Precision::bf16) bf16 = std::make_unique<PeerBf16>(engine, l, form);

    double peak = 0, ours = 1e9, peer = 1e9;
    const auto timed = [&](double& best, auto&& body) {
        const double begin = now(threads);
        body();
        best = std::min(best, now(threads) - begin);
    };
    for (int r = 0; r < repetitions; ++r) {
        peak = std::max(peak, probe_gflops(threads, precision));
        timed(ours, [&] { run_ours(ops, form, tx, tw, ty); });
        timed(peer, [&] { bf16 ? bf16->run() : run_peer(form, l, x.get(), w.get(), y.get()); });
    }
    const char* names[] = {"NT forward", "NN dx", "TN dw"};
    std::printf("%6ld x %5ld -> %5ld  %-10s  %-4s  ours %7.1f  oneDNN %7.1f  ratio %5.2f  of peak %5.1f%%\n",
                static_cast<long>(l.tokens), static_cast<long>(l.in), static_cast<long>(l.out),
                names[static_cast<int>(form)], bf16 ? "bf16" : "f32", l.flops() / ours / 1e9,
                l.flops() / peer / 1e9, peer / ours, peak > 0 ? 100 * l.flops() / ours / 1e9 / peak : 0.0);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const int repetitions = argc > 1 ? std::atoi(argv[1]) : 20;
    const int threads = argc > 2 ? std::atoi(argv[2]) : omp_get_max_threads();
    omp_set_num_threads(threads);
    const std::vector<Layer> layers = {
        {512, 512, 512},   {1024, 1024, 1024}, {2048, 2048, 2048}, {8192, 128, 384},  {8192, 128, 128},
        {8192, 128, 512},  {8192, 512, 128},   {4096, 384, 1152},  {4096, 384, 1536}, {4096, 1536, 384},
        {4096, 768, 2304}, {4096, 768, 3072},  {4096, 3072, 768}};
    for (Precision precision : {Precision::fp32, Precision::bf16}) {
        if (precision == Precision::bf16 && !__builtin_cpu_supports("avx512bf16")) continue;
        const auto ops = make_cpu_ops({.threads = threads, .precision = precision, .isa = ""});
        for (const Layer& l : layers)
            for (Form form : {Form::forward, Form::input_gradient, Form::weight_gradient})
                measure(*ops, l, form, precision, repetitions, threads);
    }
}
