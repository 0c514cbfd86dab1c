// Gates of the delta rule, one number at a time; kernels/cpu/delta_gates.cpp has the formulas.
//
// Forward a thread per number. Backward a block per column, 256 rows at a time: sums over the rows in f64, and of a
// head's columns, for a_log, by one thread per head. Bytes and exponentials as on the CPU; columns are read with gaps.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int gate_threads = 256;

DEVICE float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

template <class T>
struct DeltaGates {
    View<float> decay, beta;
    View<const T> u, ub;
    const float *a_log, *bias;
    float beta_max;
    int64_t rows;
    int width, heads;
};
// Columns [0, W) are decays, [W, W + H) are betas.
template <class T>
KERNEL(gate_threads)
void delta_gates_kernel(DeltaGates<T> a) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * gate_threads + threadIdx.x;
    const int columns = a.width + a.heads;
    if (at >= a.rows * columns) return;
    const int64_t row = at / columns;
    const int c = static_cast<int>(at % columns);
    if (c < a.width)
        *a.decay.at(row, c) =
            -expf(a.a_log[c / (a.width / a.heads)]) * softplus(widen(*a.u.at(row, c)) + a.bias[c]);
    else
        *a.beta.at(row, c - a.width) = a.beta_max * logistic(widen(*a.ub.at(row, c - a.width))).value;
}

template <class T>
struct DeltaGatesBackward {
    View<T> du, dub;
    float *dbias, *da_log;
    double* rates;  // [W]: sums of ddecay decay
    View<const float> ddecay, dbeta;
    View<const T> u, ub;
    const float *a_log, *bias;
    float beta_max;
    int64_t rows;
    int width, heads;
};
template <class T>
KERNEL(gate_threads)
void delta_gates_backward_kernel(DeltaGatesBackward<T> a) {
    auto& results = shared<WarpResults<double, gate_threads>>();
    const int c = static_cast<int>(blockIdx.x), beta = c - a.width;
    double slopes = 0.0, rates = 0.0;
    for (int64_t row = threadIdx.x; row < a.rows; row += gate_threads) {
        if (beta >= 0) {
            const Logistic s = logistic(widen(*a.ub.at(row, beta)));
            *a.dub.at(row, beta) = narrow<T>(a.beta_max * (*a.dbeta.at(row, beta) * s.value * s.rest));
            continue;
        }
        const float x = widen(*a.u.at(row, c)) + a.bias[c];
        const float d = -expf(a.a_log[c / (a.width / a.heads)]) * *a.ddecay.at(row, c);
        const float slope = d * logistic(x).value;
        *a.du.at(row, c) = narrow<T>(slope);
        slopes += static_cast<double>(slope);
        rates += static_cast<double>(d * softplus(x));
    }
    slopes = block_sum<gate_threads>(slopes, results);
    rates = block_sum<gate_threads>(rates, results);
    if (threadIdx.x == 0 && beta < 0) {
        a.dbias[c] += static_cast<float>(slopes);
        a.rates[c] = rates;
    }
}
inline KERNEL(gate_threads) void delta_rates_kernel(float* da_log, const double* rates, int heads,
                                                    int of_head) {
    const int head = static_cast<int>(blockIdx.x * gate_threads + threadIdx.x);
    if (head >= heads) return;
    double total = 0.0;
    for (int c = 0; c < of_head; ++c) total += rates[head * of_head + c];
    da_log[head] += static_cast<float>(total);
}

void check_gates(const Tensor& decay, const Tensor& beta, const Tensor& u, const Tensor& ub,
                 const Tensor& a_log, const Tensor& bias) {
    const int64_t heads = a_log.count();
    check(decay.rows() == u.rows() && decay.cols() == u.cols() && beta.rows() == u.rows() &&
              beta.cols() == heads && ub.rows() == u.rows() && ub.cols() == heads && heads > 0 &&
              u.cols() % heads == 0 && bias.count() == u.cols() && u.cols() < 1 << 24,
          "delta gates {}x{} and {}x{} of {}x{} and {}x{}, {} heads, {} biases", decay.rows(), decay.cols(),
          beta.rows(), beta.cols(), u.rows(), u.cols(), ub.rows(), ub.cols(), heads, bias.count());
}

}  // namespace

void delta_gates(Tensor decay, Tensor beta, const Tensor& u, const Tensor& ub, const Tensor& a_log,
                 const Tensor& bias, float beta_max, Stream stream) {
    check_gates(decay, beta, u, ub, a_log, bias);
    if (u.rows() == 0) return;
    with_element(u.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const DeltaGates<T> arguments{view<float>(decay),
                                      view<float>(beta),
                                      view<const T>(u),
                                      view<const T>(ub),
                                      a_log.f32(),
                                      bias.f32(),
                                      beta_max,
                                      u.rows(),
                                      static_cast<int>(u.cols()),
                                      static_cast<int>(a_log.count())};
        launch(delta_gates_kernel<T>,
               {dim3(blocks_for(u.rows() * (u.cols() + ub.cols()), gate_threads)), dim3(gate_threads), 0,
                stream},
               arguments);
    });
}

void delta_gates_backward(const DeltaGateGradients& d, Tensor workspace, const Tensor& u, const Tensor& ub,
                          const Tensor& a_log, const Tensor& bias, float beta_max, Stream stream) {
    check_gates(d.ddecay, d.dbeta, u, ub, a_log, bias);
    check_gates(d.u, d.ub, u, ub, d.a_log, d.bias);
    check(workspace.bytes() >= delta_gates_backward_workspace(u.cols()), "a workspace of {} bytes",
          workspace.bytes());
    double* rates = workspace.as<double>();
    const int heads = static_cast<int>(a_log.count()), of_head = static_cast<int>(u.cols()) / heads;
    with_element(u.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const DeltaGatesBackward<T> arguments{view<T>(d.u),
                                              view<T>(d.ub),
                                              d.bias.f32(),
                                              d.a_log.f32(),
                                              rates,
                                              view<const float>(d.ddecay),
                                              view<const float>(d.dbeta),
                                              view<const T>(u),
                                              view<const T>(ub),
                                              a_log.f32(),
                                              bias.f32(),
                                              beta_max,
                                              u.rows(),
                                              static_cast<int>(u.cols()),
                                              heads};
        launch(delta_gates_backward_kernel<T>,
               {dim3(static_cast<unsigned>(u.cols() + heads)), dim3(gate_threads),
                sizeof(WarpResults<double, gate_threads>), stream},
               arguments);
    });
    launch(delta_rates_kernel, {dim3(blocks_for(heads, gate_threads)), dim3(gate_threads), 0, stream},
           d.a_log.f32(), rates, heads, of_head);
}

}  // namespace longreach::cuda
