// CudaOps: the operations of kernels/ops.h on one GPU, in order on one stream.
//
// Only download() and synchronize() wait for the device, and whoever is 256 operations ahead of it. Kernels that need memory between two launches share
// one scratch buffer, whose users follow each other on the stream.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/planner.h"
#include "kernels/cuda/relu2_hopper.h"
#include "kernels/cuda/progress.h"
#include "kernels/cuda/recordings.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda_device.h"
#include "kernels/ops.h"

namespace longreach {

namespace {

using cuda::require_success;

// Dense bf16 rates of the datasheets, FLOP/s, by a part of the device's name; the first match counts.
struct Datasheet {
    const char* name;
    double flops;
};
constexpr Datasheet datasheets[] = {
    {"H200", 989e12},     {"H100 PCIe", 756e12}, {"H100", 989e12},     {"H800", 989e12},   {"GH200", 989e12},
    {"B200", 2250e12},    {"A100", 312e12},      {"A800", 312e12},     {"A6000", 155e12},  {"L40S", 362e12},
    {"RTX 4090", 165e12}, {"RTX 4080", 97e12},   {"RTX 5090", 210e12}, {"RTX 3090", 71e12}};

CudaDevice describe_device(int index) {
    cudaDeviceProp p{};
    require_success(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    CudaDevice d;
    d.name = p.name;
    d.architecture = 10 * p.major + p.minor;
    d.multiprocessors = p.multiProcessorCount;
    d.memory = static_cast<int64_t>(p.totalGlobalMem);
    d.shared_memory = static_cast<int64_t>(p.sharedMemPerBlockOptin);
    for (const Datasheet& sheet : datasheets)
        if (d.name.find(sheet.name) != std::string::npos) {
            d.datasheet_flops = sheet.flops;
            break;
        }
    return d;
}

int64_t free_memory() {
    size_t free = 0, total = 0;
    require_success(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
}

std::string version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

DType type_of(Precision precision) {
    return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

bool breaks_sticks(const AttentionSpec& spec) {
    return spec.normaliser == Normaliser::stick_breaking;
}

using cuda::CudaPlanner;

class CudaOps final : public Ops {
  public:
    explicit CudaOps(const CudaOptions& options)
        : index_(options.device),
          device_(describe_device(options.device)),
          type_(type_of(options.precision)),
          stream_(open_stream(options.device)),
          progress_(stream_.handle, {.seconds = options.timeout, .stop_asked = options.stop_asked}),
          products_(stream_.handle),
          ring_(stream_.handle, progress_),
          recordings_(stream_.handle, progress_) {
        reserve_scratch(first_scratch);
        void* memory = nullptr;
        require_success(cudaMalloc(&memory, queue_bytes), "cudaMalloc of the queue of work");
        queue_ = static_cast<int*>(memory);
        require_success(cudaMemsetAsync(queue_, 0, queue_bytes, stream()), "the queue of work");
    }
    ~CudaOps() override {
        try {
            progress_.wait("the end");
        } catch (const Error&) {  // a destructor cannot report it
        }
        recordings_.forget();
        if (scratch_) cudaFree(scratch_.data());
        cudaFree(queue_);
        cudaGetLastError();
    }

    std::string describe() const override {
        return fmt::format("cuda {}, {} multiprocessors, {}", device_.name, device_.multiprocessors,
                           type_ == DType::bf16 ? "bf16" : "fp32");
    }
    DeviceTraits do_traits() const override {
        DeviceTraits traits = CudaPlanner(type_).do_traits();
        traits.datasheet_flops = type_ == DType::bf16 ? device_.datasheet_flops : 0;
        traits.peak_product = 64 * device_.multiprocessors;
        traits.copy_bytes = copied_bytes;
        return traits;
    }
    NativeQueue native_queue() const override { return {index_, stream()}; }
    int64_t free_bytes() const override { return free_memory(); }
    // Blocks of the kernels for Hopper: one for each multiprocessor, none on other devices or where
    // LONGREACH_HOPPER=0 asks for the kernels and products that all devices have.
    int hopper_workers() const {
        static const char* const wanted = std::getenv("LONGREACH_HOPPER");
        const bool no = wanted && std::string_view(wanted) == "0";
        return no ? 0 : cuda::hopper_workers(device_.architecture, device_.multiprocessors);
    }
    cuda::HopperWorkers attention_workers() const { return {hopper_workers(), queue_}; }

    // --- memory
    void* allocate(int64_t bytes) override {
        if (bytes == 0) return nullptr;
        void* memory = nullptr;
        const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
        if (error != cudaSuccess) cudaGetLastError();
        require(error == cudaSuccess, ExitCode::device,
                "{} bytes of device memory asked for, {} free on {}: {}", bytes, free_memory(), device_.name,
                cudaGetErrorString(error));
        require_success(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream()), "cudaMemset");
        return memory;
    }
    void release(void* memory, int64_t) override {
        if (!memory) return;
        recordings_.forget();  // they may use it
        cudaFree(memory);
    }
    void do_upload(Tensor to, const void* host) override {
        check(to.contiguous(), "upload into a slice");
        ring_.upload(to.data(), host, to.bytes());
    }
    void do_download(void* host, const Tensor& from) override {
        check(from.contiguous(), "download of a slice");
        ring_.download(host, from.data(), from.bytes());
    }
    int64_t scratch_bytes() const override { return scratch_.bytes() + products_.workspace_bytes(); }
    void do_zero(Tensor to) override { cuda::zero(to, stream()); }
    void do_copy(Tensor to, const Tensor& from) override { cuda::copy(to, from, stream()); }
    void do_add(Tensor to, const Tensor& from) override { cuda::add(to, from, stream()); }
    void synchronize() override {
        progress_.wait("wait for the device");
        require_success(cudaGetLastError(), "kernels");
    }
    // An operation whose launch failed ends the work: what follows would read what it did not write. A kernel that fails
    // later is reported by the next call that notices, unless each operation is waited for.
    void finished(const char* operation) override {
        require_success(cudaGetLastError(), operation);
        if (recordings_.capturing()) return;
        progress_.queued(operation);
        if (waits_) progress_.wait(operation);
    }
    double seconds_of(const std::function<void()>& work) override {
        const Event begin, end;
        synchronize();
        require_success(cudaEventRecord(begin.handle, stream()), "cudaEventRecord");
        work();
        require_success(cudaEventRecord(end.handle, stream()), "cudaEventRecord");
        synchronize();
        float milliseconds = 0;
        require_success(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle),
                        "cudaEventElapsedTime");
        return 1e-3 * static_cast<double>(milliseconds);
    }

    void do_replay(const std::string& key, const std::function<void()>& work) override {
        waits_ ? work() : recordings_.replay(key, work);
    }
    void host_step(const std::function<void()>& step) override { recordings_.host_step(step); }

    // --- matrix products
    void do_linear(Tensor y, const Tensor& x, const Tensor& w, Write write) override {
        products_.run({.c = y, .a = x, .b = w, .b_transposed = true, .beta = beta_of(write)});
    }
    void do_linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) override {
        products_.run({.c = dx, .a = dy, .b = w, .beta = beta_of(write)});
    }
    void do_linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x, Write write) override {
        products_.run({.c = dw, .a = dy, .b = x, .a_transposed = true, .beta = beta_of(write)});
    }
    void do_linear_relu2(Tensor h, const Tensor& x, const Tensor& w) override {
        if (const int workers = hopper_workers(); workers > 0 && cuda::relu2_sm90_serves(h, x, w, h))
            return cuda::linear_relu2_sm90(h, x, w, workers, stream());
        do_linear(h, x, w, Write::set);
        cuda::relu2(h, stream());
    }
    void do_linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) override {
        if (const int workers = hopper_workers(); workers > 0 && cuda::relu2_sm90_serves(da, dy, w, h))
            return cuda::linear_relu2_backward_sm90(da, dy, w, h, workers, stream());
        do_linear_backward_input(da, dy, w, Write::set);
        cuda::relu2_backward(da, h, stream());
    }

    // --- embedding, normalisation, heads
    void do_embedding(Tensor x, const Tensor& table, const Tensor& tokens) override {
        cuda::embedding(x, table, tokens, stream());
    }
    void do_embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) override {
        cuda::embedding_backward(dtable, scratch(cuda::embedding_backward_workspace(dx.rows(), dx.cols())),
                                 dx, tokens, stream());
    }
    void do_norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                 const Tensor& bias, const NormSpec& spec) override {
        cuda::norm(y, normalised, inverse, x, gain, bias, spec, stream());
    }
    void do_norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy, const Tensor& normalised,
                          const Tensor& inverse, const Tensor& gain, const NormSpec& spec,
                          Write write) override {
        cuda::norm_backward({.x = dx, .write = write, .gain = dgain, .bias = dbias},
                            scratch(cuda::norm_backward_workspace(dy.rows(), dy.cols())), dy, normalised,
                            inverse, gain, spec, stream());
    }
    void do_add_bias(Tensor y, const Tensor& bias) override { cuda::add_bias(y, bias, stream()); }
    void do_add_bias_backward(Tensor dbias, const Tensor& dy) override {
        cuda::add_bias_backward(dbias, scratch(cuda::add_bias_backward_workspace(dy.rows(), dy.cols())), dy,
                                stream());
    }
    void do_prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) override {
        cuda::prepare_heads(x, normalised, inverse, spec, stream());
    }
    void do_prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps, const Tensor& x,
                                   const Tensor& normalised, const Tensor& inverse,
                                   const HeadSpec& spec) override {
        cuda::prepare_heads_backward(
            {.x = dx, .gain = dgain, .bias = dbias, .log_eps = dlog_eps},
            scratch(cuda::prepare_heads_backward_workspace(dx.rows(), spec.heads, spec.head_dim)), x,
            normalised, inverse, spec, stream());
    }

    // --- neighbouring positions
    void do_short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                       int64_t length) override {
        cuda::short_conv(y, x, w, doc_start, length, stream());
    }
    void do_short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                const Tensor& doc_start, int64_t length) override {
        cuda::short_conv_backward({.x = dx, .w = dw},
                                  scratch(cuda::short_conv_backward_workspace(x.rows(), w.rows(), x.cols())),
                                  dy, {.x = x, .w = w}, doc_start, length, stream());
    }
    void do_smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                  int64_t length) override {
        cuda::smear(y, x, w, lambda, doc_start, length, stream());
    }
    void do_smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                           int64_t length) override {
        cuda::smear_backward({.x = dx, .w = dw, .lambda = dlambda},
                             scratch(cuda::smear_backward_workspace(x.rows(), w.count())), dy,
                             {.x = x, .w = w, .lambda = lambda}, doc_start, length, stream());
    }

    // --- attention
    void do_row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                       int64_t chunk) override {
        cuda::row_starts(row_start, doc_start, length, window, chunk, stream());
    }
    void do_evaluate_law(Tensor table, const LawSpec& spec) override {
        cuda::evaluate_law(table, spec, stream());
    }
    void do_law_rows(Tensor factor, const Tensor& table, const LawEntries& entries) override {
        cuda::law_rows(factor, table, entries, stream());
    }
    void do_law_gradient(Tensor dparameter, const Tensor& derivative, const Tensor& gradient,
                         const LawEntries& entries, const Tensor& elements) override {
        const int64_t size = elements ? dparameter.cols() : 1;
        cuda::law_gradient(
            {.dparameter = dparameter, .derivative = derivative, .gradient = gradient, .elements = elements},
            entries, scratch(cuda::law_gradient_workspace(gradient.rows(), gradient.cols(), size)), stream());
    }
    void do_running_sums(Tensor sums, Tensor total, const Tensor& values, const Tensor& keys, int64_t length,
                         int64_t first) override {
        cuda::running_sums(sums, total, values, keys, length, first, stream());
    }
    void do_running_sums_backward(Tensor dvalues, const Tensor& dsums, int64_t length) override {
        cuda::running_sums_backward(dvalues, dsums, length, stream());
    }
    void do_term_gradient(Tensor dx, const Tensor& derivative, const Tensor& gradient, Write write) override {
        cuda::term_gradient(dx, derivative, gradient, write, stream());
    }
    void do_token_angles(Tensor cosine, Tensor sine, const Tensor& sums, const Tensor& theta, int64_t length,
                         int64_t first) override {
        cuda::token_angles(cosine, sine, sums, theta, length, first, stream());
    }
    void do_token_angles_backward(Tensor dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                                  int64_t head_dim, Write write) override {
        cuda::token_angles_backward(dsums, dx, x, theta, head_dim, write, stream());
    }
    void do_attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                      const Tensor& v, const AttentionSpec& spec) override {
        check(spec.top_k == 0, "attention to {} keys on a GPU", spec.top_k);
        if (!breaks_sticks(spec))
            return cuda::attention(o, lse, row_maxima, q, k, v, spec, stream(), attention_workers());
        check(!row_maxima, "stick-breaking attention has no row maxima");
        cuda::break_sticks(o, lse, q, k, v, spec, stream());
    }
    void do_attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                                 const Tensor& watched, const AttentionSpec& spec) override {
        (breaks_sticks(spec) ? cuda::stick_statistics : cuda::attention_statistics)(statistics, lse, q, k,
                                                                                    watched, spec, stream());
    }
    void do_attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionSpec& spec, int64_t first, int64_t position) override {
        check(spec.top_k == 0, "attention to {} keys on a GPU", spec.top_k);
        (breaks_sticks(spec) ? cuda::stick_decode : cuda::attention_decode)(o, q, k, v, spec, first, position,
                                                                            stream());
    }
    void do_attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                               Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                               const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionSpec& spec) override {
        const cuda::QueryKeyValue d{.q = dq, .k = dk, .v = dv};
        const cuda::AttentionSaved saved{.in = {.q = q, .k = k, .v = v}, .o = o, .lse = lse};
        if (breaks_sticks(spec))
            return cuda::break_sticks_backward(d, gradients, workspace, dout, saved, spec, stream());
        cuda::attention_backward(d, gradients, workspace, dout, saved, spec, stream(), attention_workers());
    }
    int64_t do_attention_workspace(const AttentionSpec& spec,
                                   const AttentionGradients& gradients) const override {
        return CudaPlanner(type_).do_attention_workspace(spec, gradients);
    }
    void do_gate(Tensor y, const Tensor& u, const Tensor& o, const GateSpec& spec) override {
        cuda::gate(y, u, o, spec, stream());
    }
    void do_gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                          const GateSpec& spec) override {
        cuda::gate_backward(dout, du, dy, u, o, spec, stream());
    }
    void do_exclude_own_value(Tensor y, const Tensor& o, const Tensor& v, int64_t head_dim) override {
        cuda::exclude_own_value(y, o, v, head_dim, stream());
    }
    void do_exclude_own_value_backward(Tensor dout, Tensor dv, const Tensor& dy, const Tensor& o,
                                       const Tensor& v, int64_t head_dim) override {
        cuda::exclude_own_value_backward(dout, dv, dy, o, v, head_dim, stream());
    }

    // --- gated delta rule
    void do_delta_gates(Tensor decay, Tensor beta, const Tensor& u, const Tensor& ub,
                        const DeltaGateSpec& spec) override {
        cuda::delta_gates(decay, beta, u, ub, spec.a_log, spec.bias, spec.beta_max, stream());
    }
    void do_delta_gates_backward(Tensor du, Tensor dub, Tensor da_log, Tensor dbias, const Tensor& ddecay,
                                 const Tensor& dbeta, const Tensor& u, const Tensor& ub,
                                 const DeltaGateSpec& spec) override {
        cuda::delta_gates_backward(
            {.u = du, .ub = dub, .a_log = da_log, .bias = dbias, .ddecay = ddecay, .dbeta = dbeta},
            scratch(cuda::delta_gates_backward_workspace(u.cols())), u, ub, spec.a_log, spec.bias,
            spec.beta_max, stream());
    }
    void do_delta_rule(Tensor o, Tensor states, Tensor state, Tensor workspace, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta,
                       const DeltaSpec& spec) override {
        check(!spec.erase && !spec.chained, "keys that erase or chained sequences on a GPU");
        cuda::delta_rule(o, {.of_chunks = states, .last = state}, workspace,
                         {.q = q, .k = k, .v = v, .decay = decay, .beta = beta}, spec, stream());
    }
    void do_delta_rule_backward(Tensor dq, Tensor dk, Tensor dv, Tensor ddecay, Tensor dbeta,
                                Tensor workspace, const Tensor& dout, const Tensor& states, const Tensor& q,
                                const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta,
                                const DeltaSpec& spec) override {
        check(!spec.erase && !spec.chained, "keys that erase or chained sequences on a GPU");
        cuda::delta_rule_backward({.q = dq, .k = dk, .v = dv, .decay = ddecay, .beta = dbeta}, workspace,
                                  dout, states, {.q = q, .k = k, .v = v, .decay = decay, .beta = beta}, spec,
                                  stream());
    }
    int64_t do_delta_workspace(const DeltaSpec& spec, bool backward) const override {
        return CudaPlanner(type_).do_delta_workspace(spec, backward);
    }

    // --- an index of keys: for CPUs; the config refuses it on a GPU
    void do_index_loss(Tensor, Tensor, IndexScores, const Tensor&, const Tensor&, const Tensor&, float,
                       const AttentionSpec&) override {
        check(false, "an index of keys on a GPU");
    }
    // --- 2-simplicial attention: a reference for CPUs; the config refuses it on a GPU
    void do_simplicial(Tensor, Tensor, const Tensor&, const SimplicialKeys&, const SimplicialSpec&) override {
        check(false, "2-simplicial attention on a GPU");
    }
    void do_simplicial_backward(Tensor, SimplicialKeys, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&, const SimplicialKeys&, const SimplicialSpec&) override {
        check(false, "2-simplicial attention on a GPU");
    }

    // --- activations and mixing
    void do_activation(Tensor h, const Tensor& a, Activation kind) override {
        cuda::activation(h, a, kind, stream());
    }
    void do_activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) override {
        cuda::activation_backward(da, dh, a, kind, stream());
    }
    void do_mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
                const Tensor& y) override {
        cuda::mix(out, a, x, b, y, stream());
    }
    void do_mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout, const Coefficient& a,
                         const Tensor& x, const Coefficient& b, const Tensor& y) override {
        cuda::mix_backward({.x = dx, .y = dy, .a = da, .b = db},
                           scratch(cuda::mix_backward_workspace(dout.count())), dout, a, x, b, y, stream());
    }

    // --- loss, reductions, optimisers
    void do_cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                          bool gradient) override {
        cuda::cross_entropy(loss, logits, targets, spec, gradient, stream());
    }
    void do_top1(Tensor best, const Tensor& logits) override { cuda::top1(best, logits, stream()); }
    void do_sum(Tensor out, const Tensor& x) override {
        cuda::sum(out, scratch(cuda::sum_workspace(x.count())), x, stream());
    }
    void do_sum_squares(Tensor out, std::span<const Tensor> parts) override {
        cuda::sum_squares(out, scratch(cuda::sum_squares_workspace(parts)), parts, stream());
    }
    void do_head_maxima(Tensor out, const Tensor& row_maxima) override {
        cuda::head_maxima(out, row_maxima, stream());
    }
    void do_qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) override {
        cuda::qk_clip(wq, wk, maxima, head_dim, limit, stream());
    }
    void do_adam(std::span<const AdamSlot> slots, const AdamSpec& spec) override {
        cuda::adam(slots, spec, stream());
    }
    void do_muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) override {
        cuda::muon(products_, slots, workspace, spec, type_, stream());
    }
    int64_t do_muon_workspace(std::span<const MuonSlot> slots) const override {
        return cuda::muon_workspace(slots, type_);
    }

  private:
    struct OwnedStream {
        cudaStream_t handle = nullptr;
        OwnedStream() = default;
        OwnedStream(OwnedStream&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
        ~OwnedStream() {
            if (handle) cudaStreamDestroy(handle);
        }
    };
    struct Event {
        cudaEvent_t handle = nullptr;
        Event() { require_success(cudaEventCreate(&handle), "cudaEventCreate"); }
        Event(const Event&) = delete;
        Event& operator=(const Event&) = delete;
        ~Event() { cudaEventDestroy(handle); }
    };
    static OwnedStream open_stream(int device) {
        cudaGetLastError();  // an error left by an earlier user of the device
        require_success(cudaSetDevice(device), "cudaSetDevice");
        OwnedStream stream;
        require_success(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking), "cudaStreamCreate");
        return stream;
    }
    cudaStream_t stream() const { return stream_.handle; }
    static float beta_of(Write write) { return write == Write::add ? 1.0f : 0.0f; }

    Tensor scratch(int64_t bytes) {
        if (bytes > scratch_.bytes()) {
            check(!recordings_.capturing(),
                  "scratch memory of {} bytes is not enough for {} within a recording", scratch_.bytes(),
                  bytes);
            synchronize();
            recordings_.forget();
            reserve_scratch(bytes);
        }
        return scratch_;
    }
    void reserve_scratch(int64_t bytes) {
        if (scratch_) cudaFree(scratch_.data());
        scratch_ = Tensor();
        void* memory = nullptr;
        require_success(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc of scratch memory");
        scratch_ = Tensor(memory, DType::f32, {bytes / 4});
    }

    // Enough for every reduction at common sizes: the largest is a short convolution's, 512 blocks times its
    // weights. The harness pays for every byte at every launch.
#if defined(LONGREACH_SIMT)
    static constexpr int64_t first_scratch = int64_t{64} << 10;
    static constexpr int64_t copied_bytes = int64_t{64} << 10;
#else
    static constexpr int64_t first_scratch = int64_t{32} << 20;
    static constexpr int64_t copied_bytes = int64_t{4} << 30;
#endif

    int index_;  // of the device
    CudaDevice device_;
    DType type_;
    OwnedStream stream_;
    cuda::Progress progress_;
    cuda::MatrixProducts products_;
    cuda::PinnedRing ring_;
    Tensor scratch_;
    static constexpr size_t queue_bytes = 2 * sizeof(int);
    int* queue_ = nullptr;
    cuda::Recordings recordings_;
    const bool waits_ =
        std::getenv("LONGREACH_CUDA_SYNC") != nullptr;  // for the device, after each operation
};

}  // namespace

CudaStatus cuda_status() {
    CudaStatus status;
    status.built = true;
    int version = 0, count = 0;
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) status.runtime = version_text(version);
    if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) status.driver = version_text(version);
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        status.unusable = status.driver.empty() ? "no NVIDIA driver answers" : cudaGetErrorString(error);
        return status;
    }
    try {
        // Opens no device: of several ranks on a machine each asks, and a context
        // costs hundreds of megabytes.
        for (int i = 0; i < count; ++i) status.devices.push_back(describe_device(i));
        if (count == 0) {
            status.unusable = "the driver knows no device";
        } else {
            status.blas = cuda::MatrixProducts::version();
            if (status.devices[0].architecture < 80)
                status.unusable =
                    fmt::format("{} is older than compute capability 8.0", status.devices[0].name);
        }
    } catch (const Error& e) {
        cudaGetLastError();
        status.unusable = e.what();
    }
    return status;
}

std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options) {
    const CudaStatus status = cuda_status();
    require(status.unusable.empty(), ExitCode::device, "no GPU can be used: {}", status.unusable);
    require(options.device < std::ssize(status.devices), ExitCode::device, "there is no GPU {}, only {}",
            options.device, status.devices.size());
    return std::make_unique<CudaOps>(options);
}

}  // namespace longreach
