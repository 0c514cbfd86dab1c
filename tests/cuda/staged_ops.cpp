// CudaOps for tests that were written for a CPU: every call copies its tensors from host memory into device
// memory, runs the operation there, and copies them back. The kernel tests of tests/kernels run on it with
// their bounds, in the harness or on a GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/runtime.h"
#include "cuda/cuda_test_ops.h"

namespace longreach {

namespace {

void* device_memory(size_t bytes) {
    void* memory = nullptr;
    cuda::require_success(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

// The tensors of one call in device memory. Those that share host memory share device memory too, at the same
// distance and the same place within 64 bytes; what lies between the rows travels along, so that a write
// there is seen by whoever looks for it on the host.
class Stage {
  public:
    Stage(std::initializer_list<Tensor> tensors) {
        for (const Tensor& t : tensors)
            if (t.data && t.count() > 0) pieces_.push_back({begin_of(t), end_of(t), nullptr});
        std::sort(pieces_.begin(), pieces_.end(),
                  [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
        std::vector<Piece> merged;
        for (const Piece& p : pieces_) {
            if (!merged.empty() && p.begin < merged.back().end)
                merged.back().end = std::max(merged.back().end, p.end);
            else
                merged.push_back(p);
        }
        pieces_ = merged;
        for (Piece& p : pieces_) {
            p.memory = device_memory(phase(p) + p.end - p.begin);
            cuda::require_success(cudaMemcpy(p.device(), reinterpret_cast<void*>(p.begin), p.end - p.begin,
                                             cudaMemcpyHostToDevice),
                                  "copy");
        }
        // A copy from pageable memory may return before its bytes have arrived, and the stream of CudaOps
        // waits for no other stream.
        cuda::require_success(cudaDeviceSynchronize(), "copies");
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage() {
        for (const Piece& p : pieces_) cudaFree(p.memory);
    }

    Tensor operator()(Tensor t) const {
        if (!t.data || t.count() == 0) return t;
        for (const Piece& p : pieces_)
            if (p.begin <= begin_of(t) && begin_of(t) < p.end) {
                t.data = static_cast<std::byte*>(p.device()) + (begin_of(t) - p.begin);
                return t;
            }
        check(false, "a tensor that was not staged");
        return t;
    }
    void finish() {
        cuda::require_success(cudaDeviceSynchronize(), "kernels");
        for (const Piece& p : pieces_)
            cuda::require_success(cudaMemcpy(reinterpret_cast<void*>(p.begin), p.device(), p.end - p.begin,
                                             cudaMemcpyDeviceToHost),
                                  "copy");
    }

  private:
    struct Piece {
        uintptr_t begin, end;
        void* memory;
        void* device() const { return static_cast<std::byte*>(memory) + phase(*this); }
    };
    static size_t phase(const Piece& p) { return p.begin % 64; }
    static uintptr_t begin_of(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data); }
    static uintptr_t end_of(const Tensor& t) {
        return begin_of(t) +
               static_cast<uintptr_t>(((t.rows() - 1) * t.row_stride + t.cols()) * size_of(t.dtype));
    }
    std::vector<Piece> pieces_;
};

class StagedOps final : public Ops {
  public:
    StagedOps(std::unique_ptr<Ops> inner, std::unique_ptr<Ops> cpu)
        : inner_(std::move(inner)), cpu_(std::move(cpu)) {}
    std::string describe() const override { return inner_->describe(); }

    void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
    void release(void* memory, int64_t bytes) override { cpu_->release(memory, bytes); }
    void upload(Tensor to, const void* host) override { cpu_->upload(to, host); }
    void download(void* host, const Tensor& from) override { cpu_->download(host, from); }
    int64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
    void synchronize() override {}
    void zero(Tensor to) override {
        Stage s{to};
        inner_->zero(s(to));
        s.finish();
    }
    void copy(Tensor to, const Tensor& from) override {
        Stage s{to, from};
        inner_->copy(s(to), s(from));
        s.finish();
    }
    void add(Tensor to, const Tensor& from) override {
        Stage s{to, from};
        inner_->add(s(to), s(from));
        s.finish();
    }

    void linear(Tensor y, const Tensor& x, const Tensor& w, Write write) override {
        Stage s{y, x, w};
        inner_->linear(s(y), s(x), s(w), write);
        s.finish();
    }
    void linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) override {
        Stage s{dx, dy, w};
        inner_->linear_backward_input(s(dx), s(dy), s(w), write);
        s.finish();
    }
    void linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x) override {
        Stage s{dw, dy, x};
        inner_->linear_backward_weight(s(dw), s(dy), s(x));
        s.finish();
    }
    void linear_relu2(Tensor h, const Tensor& x, const Tensor& w) override {
        Stage s{h, x, w};
        inner_->linear_relu2(s(h), s(x), s(w));
        s.finish();
    }
    void linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) override {
        Stage s{da, dy, w, h};
        inner_->linear_relu2_backward(s(da), s(dy), s(w), s(h));
        s.finish();
    }

    void attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionSpec& spec) override {
        Stage s{o,
                lse,
                row_maxima,
                q,
                k,
                v,
                spec.row_start,
                spec.row_factor,
                spec.distance_gain,
                spec.distance_bias,
                spec.row_square,
                spec.sink,
                spec.far_queries,
                spec.far_keys};
        inner_->attention(s(o), s(lse), s(row_maxima), s(q), s(k), s(v), staged(s, spec));
        s.finish();
    }
    void attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                              const AttentionSpec& spec) override {
        Stage s{statistics,
                lse,
                q,
                k,
                spec.row_start,
                spec.row_factor,
                spec.distance_gain,
                spec.distance_bias,
                spec.row_square,
                spec.sink,
                spec.far_queries,
                spec.far_keys};
        inner_->attention_statistics(s(statistics), s(lse), s(q), s(k), staged(s, spec));
        s.finish();
    }
    void attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionSpec& spec, int64_t first, int64_t position) override {
        Stage s{o,
                q,
                k,
                v,
                spec.row_factor,
                spec.distance_gain,
                spec.distance_bias,
                spec.row_square,
                spec.sink,
                spec.far_queries,
                spec.far_keys};
        inner_->attention_decode(s(o), s(q), s(k), s(v), staged(s, spec), first, position);
        s.finish();
    }
    void attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                            Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                            const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionSpec& spec) override {
        AttentionGradients g = gradients;
        Stage s{dq,
                dk,
                dv,
                g.row_factor,
                g.distance_gain,
                g.distance_bias,
                g.sink,
                workspace,
                dout,
                o,
                lse,
                q,
                k,
                v,
                spec.row_start,
                spec.row_factor,
                spec.distance_gain,
                spec.distance_bias,
                spec.row_square,
                spec.sink};
        for (Tensor* t : {&g.row_factor, &g.distance_gain, &g.distance_bias, &g.sink}) *t = s(*t);
        inner_->attention_backward(s(dq), s(dk), s(dv), g, s(workspace), s(dout), s(o), s(lse), s(q), s(k),
                                   s(v), staged(s, spec));
        s.finish();
    }
    int64_t attention_workspace(const AttentionSpec& spec,
                                const AttentionGradients& gradients) const override {
        return inner_->attention_workspace(spec, gradients);
    }

    void embedding(Tensor x, const Tensor& table, const Tensor& tokens) override {
        check_range(tokens, 0, table.rows());
        Stage s{x, table, tokens};
        inner_->embedding(s(x), s(table), s(tokens));
        s.finish();
    }
    void embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) override {
        check_range(tokens, 0, dtable.rows());
        Stage s{dtable, dx, tokens};
        inner_->embedding_backward(s(dtable), s(dx), s(tokens));
        s.finish();
    }

    void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
              const Tensor& bias, const NormSpec& spec) override {
        Stage s{y, normalised, inverse, x, gain, bias};
        inner_->norm(s(y), s(normalised), s(inverse), s(x), s(gain), s(bias), spec);
        s.finish();
    }
    void norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy, const Tensor& normalised,
                       const Tensor& inverse, const Tensor& gain, const NormSpec& spec,
                       Write write) override {
        Stage s{dx, dgain, dbias, dy, normalised, inverse, gain};
        inner_->norm_backward(s(dx), s(dgain), s(dbias), s(dy), s(normalised), s(inverse), s(gain), spec,
                              write);
        s.finish();
    }

    void prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) override {
        Stage s{x, normalised, inverse, spec.log_eps, spec.gain, spec.bias, spec.cosine, spec.sine};
        inner_->prepare_heads(s(x), s(normalised), s(inverse), staged(s, spec));
        s.finish();
    }
    void prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps, const Tensor& x,
                                const Tensor& normalised, const Tensor& inverse,
                                const HeadSpec& spec) override {
        Stage s{dx,      dgain,        dbias,     dlog_eps,  x,           normalised,
                inverse, spec.log_eps, spec.gain, spec.bias, spec.cosine, spec.sine};
        inner_->prepare_heads_backward(s(dx), s(dgain), s(dbias), s(dlog_eps), s(x), s(normalised),
                                       s(inverse), staged(s, spec));
        s.finish();
    }

    void short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                    int64_t length) override {
        Stage s{y, x, w, doc_start};
        inner_->short_conv(s(y), s(x), s(w), s(doc_start), length);
        s.finish();
    }
    void short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                             const Tensor& doc_start, int64_t length) override {
        Stage s{dx, dw, dy, x, w, doc_start};
        inner_->short_conv_backward(s(dx), s(dw), s(dy), s(x), s(w), s(doc_start), length);
        s.finish();
    }
    void smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
               int64_t length) override {
        Stage s{y, x, w, lambda, doc_start};
        inner_->smear(s(y), s(x), s(w), s(lambda), s(doc_start), length);
        s.finish();
    }
    void smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                        const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                        int64_t length) override {
        Stage s{dx, dw, dlambda, dy, x, w, lambda, doc_start};
        inner_->smear_backward(s(dx), s(dw), s(dlambda), s(dy), s(x), s(w), s(lambda), s(doc_start), length);
        s.finish();
    }

    void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                    int64_t chunk) override {
        Stage s{row_start, doc_start};
        inner_->row_starts(s(row_start), s(doc_start), length, window, chunk);
        s.finish();
    }
    void row_factors(Tensor factor, const RowFactorSpec& spec) override {
        Stage s{factor, spec.shape, spec.start, spec.r, spec.b};
        inner_->row_factors(s(factor), staged(s, spec));
        s.finish();
    }
    void row_factors_backward(Tensor dr, Tensor db, const Tensor& dfactor,
                              const RowFactorSpec& spec) override {
        Stage s{dr, db, dfactor, spec.shape, spec.start, spec.r, spec.b};
        inner_->row_factors_backward(s(dr), s(db), s(dfactor), staged(s, spec));
        s.finish();
    }
    void distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec) override {
        Stage s{gain, bias, spec.log_tau, spec.decay, spec.p, spec.a};
        inner_->distance_tables(s(gain), s(bias), staged(s, spec));
        s.finish();
    }
    void distance_tables_backward(Tensor dlog_tau, Tensor ddecay, Tensor dp, Tensor da, const Tensor& dgain,
                                  const Tensor& dbias, const DistanceFormSpec& spec) override {
        Stage s{dlog_tau, ddecay, dp, da, dgain, dbias, spec.log_tau, spec.decay, spec.p, spec.a};
        inner_->distance_tables_backward(s(dlog_tau), s(ddecay), s(dp), s(da), s(dgain), s(dbias),
                                         staged(s, spec));
        s.finish();
    }
    void head_maxima(Tensor out, const Tensor& row_maxima) override {
        Stage s{out, row_maxima};
        inner_->head_maxima(s(out), s(row_maxima));
        s.finish();
    }
    void qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) override {
        Stage s{wq, wk, maxima};
        inner_->qk_clip(s(wq), s(wk), s(maxima), head_dim, limit);
        s.finish();
    }

    void gate(Tensor y, const Tensor& u, const Tensor& o, float factor) override {
        Stage s{y, u, o};
        inner_->gate(s(y), s(u), s(o), factor);
        s.finish();
    }
    void gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                       float factor) override {
        Stage s{dout, du, dy, u, o};
        inner_->gate_backward(s(dout), s(du), s(dy), s(u), s(o), factor);
        s.finish();
    }
    void activation(Tensor h, const Tensor& a, Activation kind) override {
        Stage s{h, a};
        inner_->activation(s(h), s(a), kind);
        s.finish();
    }
    void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) override {
        Stage s{da, dh, a};
        inner_->activation_backward(s(da), s(dh), s(a), kind);
        s.finish();
    }
    void mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
             const Tensor& y) override {
        Stage s{out, a.param, x, b.param, y};
        inner_->mix(s(out), staged(s, a), s(x), staged(s, b), s(y));
        s.finish();
    }
    void mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout, const Coefficient& a,
                      const Tensor& x, const Coefficient& b, const Tensor& y) override {
        Stage s{dx, dy, da, db, dout, a.param, x, b.param, y};
        inner_->mix_backward(s(dx), s(dy), s(da), s(db), s(dout), staged(s, a), s(x), staged(s, b), s(y));
        s.finish();
    }

    void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                       bool gradient) override {
        check_range(targets, -1, logits.cols());
        Stage s{loss, logits, targets};
        inner_->cross_entropy(s(loss), s(logits), s(targets), spec, gradient);
        s.finish();
    }
    void top1(Tensor best, const Tensor& logits) override {
        Stage s{best, logits};
        inner_->top1(s(best), s(logits));
        s.finish();
    }
    void sum(Tensor out, const Tensor& x) override {
        Stage s{out, x};
        inner_->sum(s(out), s(x));
        s.finish();
    }
    void sum_squares(Tensor out, const Tensor& x) override {
        Stage s{out, x};
        inner_->sum_squares(s(out), s(x));
        s.finish();
    }

    void adam(std::span<const AdamSlot> slots, const AdamSpec& spec) override {
        std::vector<std::unique_ptr<Stage>> stages;
        std::vector<AdamSlot> on_device;
        for (AdamSlot slot : slots) {
            stages.push_back(
                std::unique_ptr<Stage>(new Stage{slot.param, slot.gradient, slot.first, slot.second}));
            const Stage& s = *stages.back();
            for (Tensor* t : {&slot.param, &slot.gradient, &slot.first, &slot.second}) *t = s(*t);
            on_device.push_back(slot);
        }
        inner_->adam(on_device, spec);
        for (const auto& s : stages) s->finish();
    }
    void muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) override {
        std::vector<std::unique_ptr<Stage>> stages;
        std::vector<MuonSlot> on_device;
        for (MuonSlot slot : slots) {
            stages.push_back(std::unique_ptr<Stage>(new Stage{slot.param, slot.gradient, slot.momentum}));
            const Stage& s = *stages.back();
            for (Tensor* t : {&slot.param, &slot.gradient, &slot.momentum}) *t = s(*t);
            on_device.push_back(slot);
        }
        Stage s{workspace};
        inner_->muon(on_device, s(workspace), spec);
        for (const auto& stage : stages) stage->finish();
    }
    int64_t muon_workspace(std::span<const MuonSlot> slots) const override {
        return inner_->muon_workspace(slots);
    }

  private:
    // Kernels cannot refuse a token; who calls them still has the numbers on the host.
    static void check_range(const Tensor& numbers, int64_t least, int64_t end) {
        for (int64_t i = 0; i < numbers.count(); ++i)
            check(numbers.i32()[i] >= least && numbers.i32()[i] < end, "{} is not in {} .. {}",
                  numbers.i32()[i], least, end - 1);
    }
    static AttentionSpec staged(const Stage& s, AttentionSpec spec) {
        for (Tensor* t : {&spec.row_start, &spec.row_factor, &spec.distance_gain, &spec.distance_bias,
                          &spec.row_square, &spec.sink, &spec.far_queries, &spec.far_keys})
            *t = s(*t);
        return spec;
    }
    static HeadSpec staged(const Stage& s, HeadSpec spec) {
        for (Tensor* t : {&spec.log_eps, &spec.gain, &spec.bias, &spec.cosine, &spec.sine}) *t = s(*t);
        return spec;
    }
    static RowFactorSpec staged(const Stage& s, RowFactorSpec spec) {
        for (Tensor* t : {&spec.shape, &spec.start, &spec.r, &spec.b}) *t = s(*t);
        return spec;
    }
    static DistanceFormSpec staged(const Stage& s, DistanceFormSpec spec) {
        for (Tensor* t : {&spec.log_tau, &spec.decay, &spec.p, &spec.a}) *t = s(*t);
        return spec;
    }
    static Coefficient staged(const Stage& s, Coefficient c) {
        c.param = s(c.param);
        return c;
    }

    std::unique_ptr<Ops> inner_, cpu_;
};

}  // namespace

// The CUDA backend for host memory. Instead of a number of threads the kernel tests vary the
// schedule of the harness.
std::unique_ptr<Ops> make_staged_ops(const CpuOptions& options) {
    require(options.precision == Precision::fp32, ExitCode::device, "tensors of the host are f32");
    set_schedule(std::max(0, options.threads - 1));
    return std::make_unique<StagedOps>(make_plain_ops(options), make_cpu_ops({.threads = 2, .isa = ""}));
}

std::unique_ptr<Ops> make_plain_ops(const CpuOptions& options) {
    require(options.isa.empty() || options.isa == "generic", ExitCode::device, "one device");
    return make_cuda_ops({.precision = options.precision});
}

}  // namespace longreach
