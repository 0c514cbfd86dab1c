// Ops whose row and elementwise operations are the kernels of kernels/cuda in the harness: every call copies
// its tensors into device memory, launches, and copies them back. The kernel tests of tests/kernels run on it
// as they do on a CPU, with their bounds. Matrix products are left to the CPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops.h"
#include "simt/simt.h"

namespace longreach {

std::unique_ptr<Ops> make_row_ops(const CpuOptions& options);

namespace {

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
            p.memory = simt::device_malloc(phase(p) + p.end - p.begin);
            simt::copy_to_device(p.device(), reinterpret_cast<void*>(p.begin), p.end - p.begin);
        }
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage() {
        for (const Piece& p : pieces_) simt::device_free(p.memory);
        for (void* w : workspaces_) simt::device_free(w);
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
    Tensor workspace(int64_t bytes) {
        workspaces_.push_back(simt::device_malloc(static_cast<size_t>(bytes)));
        return Tensor(workspaces_.back(), DType::f32, {bytes / 4});
    }
    void finish() {
        cudaDeviceSynchronize();
        for (const Piece& p : pieces_)
            simt::copy_to_host(reinterpret_cast<void*>(p.begin), p.device(), p.end - p.begin);
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
    std::vector<void*> workspaces_;
};

class RowOps final : public Ops {
  public:
    explicit RowOps(std::unique_ptr<Ops> cpu) : cpu_(std::move(cpu)) {}
    std::string describe() const override { return "row kernels of kernels/cuda in the harness"; }

    void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
    void release(void* memory, int64_t bytes) override { cpu_->release(memory, bytes); }
    void upload(Tensor to, const void* host) override { cpu_->upload(to, host); }
    void download(void* host, const Tensor& from) override { cpu_->download(host, from); }
    int64_t scratch_bytes() const override { return cpu_->scratch_bytes(); }
    void synchronize() override {}
    void zero(Tensor to) override {
        Stage s{to};
        cuda::zero(s(to), nullptr);
        s.finish();
    }
    void copy(Tensor to, const Tensor& from) override {
        Stage s{to, from};
        cuda::copy(s(to), s(from), nullptr);
        s.finish();
    }
    void add(Tensor to, const Tensor& from) override {
        Stage s{to, from};
        cuda::add(s(to), s(from), nullptr);
        s.finish();
    }

    void linear(Tensor y, const Tensor& x, const Tensor& w, Write write) override {
        cpu_->linear(y, x, w, write);
    }
    void linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) override {
        cpu_->linear_backward_input(dx, dy, w, write);
    }
    void linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x) override {
        cpu_->linear_backward_weight(dw, dy, x);
    }
    void linear_relu2(Tensor h, const Tensor& x, const Tensor& w) override { cpu_->linear_relu2(h, x, w); }
    void linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) override {
        cpu_->linear_relu2_backward(da, dy, w, h);
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
        cuda::attention(s(o), s(lse), s(row_maxima), s(q), s(k), s(v), staged(s, spec), nullptr);
        s.finish();
    }
    void attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                            Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                            const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionSpec& spec) override {
        Stage s{dq,
                dk,
                dv,
                workspace,
                dout,
                o,
                lse,
                q,
                k,
                v,
                gradients.row_factor,
                gradients.distance_gain,
                gradients.distance_bias,
                gradients.sink,
                spec.row_start,
                spec.row_factor,
                spec.distance_gain,
                spec.distance_bias,
                spec.row_square,
                spec.sink,
                spec.far_queries,
                spec.far_keys};
        AttentionGradients wanted = gradients;
        for (Tensor* t : {&wanted.row_factor, &wanted.distance_gain, &wanted.distance_bias, &wanted.sink})
            *t = s(*t);
        cuda::attention_backward(s(dq), s(dk), s(dv), wanted, s(workspace), s(dout), s(o), s(lse), s(q), s(k),
                                 s(v), staged(s, spec), nullptr);
        s.finish();
    }
    int64_t attention_workspace(const AttentionSpec& spec,
                                const AttentionGradients& gradients) const override {
        return cuda::attention_backward_workspace(spec, gradients);
    }

    void embedding(Tensor x, const Tensor& table, const Tensor& tokens) override {
        check_range(tokens, 0, table.rows());
        Stage s{x, table, tokens};
        cuda::embedding(s(x), s(table), s(tokens), nullptr);
        s.finish();
    }
    void embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) override {
        check_range(tokens, 0, dtable.rows());
        Stage s{dtable, dx, tokens};
        cuda::embedding_backward(s(dtable), s(dx), s(tokens), nullptr);
        s.finish();
    }

    void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
              const Tensor& bias, const NormSpec& spec) override {
        Stage s{y, normalised, inverse, x, gain, bias};
        cuda::norm(s(y), s(normalised), s(inverse), s(x), s(gain), s(bias), spec, nullptr);
        s.finish();
    }
    void norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy, const Tensor& normalised,
                       const Tensor& inverse, const Tensor& gain, const NormSpec& spec,
                       Write write) override {
        Stage s{dx, dgain, dbias, dy, normalised, inverse, gain};
        cuda::norm_backward(s(dx), s(dgain), s(dbias),
                            s.workspace(cuda::norm_backward_workspace(dy.rows(), dy.cols())), s(dy),
                            s(normalised), s(inverse), s(gain), spec, write, nullptr);
        s.finish();
    }

    void prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) override {
        Stage s{x, normalised, inverse, spec.log_eps, spec.gain, spec.bias, spec.cosine, spec.sine};
        cuda::prepare_heads(s(x), s(normalised), s(inverse), staged(s, spec), nullptr);
        s.finish();
    }
    void prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps, const Tensor& x,
                                const Tensor& normalised, const Tensor& inverse,
                                const HeadSpec& spec) override {
        Stage s{dx,      dgain,        dbias,     dlog_eps,  x,           normalised,
                inverse, spec.log_eps, spec.gain, spec.bias, spec.cosine, spec.sine};
        cuda::prepare_heads_backward(
            s(dx), s(dgain), s(dbias), s(dlog_eps),
            s.workspace(cuda::prepare_heads_backward_workspace(dx.rows(), spec.heads, spec.head_dim)), s(x),
            s(normalised), s(inverse), staged(s, spec), nullptr);
        s.finish();
    }

    void short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                    int64_t length) override {
        Stage s{y, x, w, doc_start};
        cuda::short_conv(s(y), s(x), s(w), s(doc_start), length, nullptr);
        s.finish();
    }
    void short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                             const Tensor& doc_start, int64_t length) override {
        Stage s{dx, dw, dy, x, w, doc_start};
        cuda::short_conv_backward(
            s(dx), s(dw), s.workspace(cuda::short_conv_backward_workspace(x.rows(), w.rows(), x.cols())),
            s(dy), s(x), s(w), s(doc_start), length, nullptr);
        s.finish();
    }
    void smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
               int64_t length) override {
        Stage s{y, x, w, lambda, doc_start};
        cuda::smear(s(y), s(x), s(w), s(lambda), s(doc_start), length, nullptr);
        s.finish();
    }
    void smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                        const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                        int64_t length) override {
        Stage s{dx, dw, dlambda, dy, x, w, lambda, doc_start};
        cuda::smear_backward(s(dx), s(dw), s(dlambda),
                             s.workspace(cuda::smear_backward_workspace(x.rows(), w.count())), s(dy), s(x),
                             s(w), s(lambda), s(doc_start), length, nullptr);
        s.finish();
    }

    void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                    int64_t chunk) override {
        Stage s{row_start, doc_start};
        cuda::row_starts(s(row_start), s(doc_start), length, window, chunk, nullptr);
        s.finish();
    }
    void row_factors(Tensor factor, const RowFactorSpec& spec) override {
        Stage s{factor, spec.shape, spec.start, spec.r, spec.b};
        cuda::row_factors(s(factor), staged(s, spec), nullptr);
        s.finish();
    }
    void row_factors_backward(Tensor dr, Tensor db, const Tensor& dfactor,
                              const RowFactorSpec& spec) override {
        Stage s{dr, db, dfactor, spec.shape, spec.start, spec.r, spec.b};
        cuda::row_factors_backward(
            s(dr), s(db), s.workspace(cuda::row_factors_backward_workspace(dfactor.rows(), dfactor.cols())),
            s(dfactor), staged(s, spec), nullptr);
        s.finish();
    }
    void distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec) override {
        Stage s{gain, bias, spec.log_tau, spec.decay, spec.p, spec.a};
        cuda::distance_tables(s(gain), s(bias), staged(s, spec), nullptr);
        s.finish();
    }
    void distance_tables_backward(Tensor dlog_tau, Tensor ddecay, Tensor dp, Tensor da, const Tensor& dgain,
                                  const Tensor& dbias, const DistanceFormSpec& spec) override {
        Stage s{dlog_tau, ddecay, dp, da, dgain, dbias, spec.log_tau, spec.decay, spec.p, spec.a};
        const int64_t heads = std::max(dgain ? dgain.rows() : 0, dbias.rows());
        cuda::distance_tables_backward(
            s(dlog_tau), s(ddecay), s(dp), s(da),
            s.workspace(cuda::distance_tables_backward_workspace(heads, spec.length)), s(dgain), s(dbias),
            staged(s, spec), nullptr);
        s.finish();
    }
    void head_maxima(Tensor out, const Tensor& row_maxima) override {
        Stage s{out, row_maxima};
        cuda::head_maxima(s(out), s(row_maxima), nullptr);
        s.finish();
    }
    void qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) override {
        Stage s{wq, wk, maxima};
        cuda::qk_clip(s(wq), s(wk), s(maxima), head_dim, limit, nullptr);
        s.finish();
    }

    void gate(Tensor y, const Tensor& u, const Tensor& o, float factor) override {
        Stage s{y, u, o};
        cuda::gate(s(y), s(u), s(o), factor, nullptr);
        s.finish();
    }
    void gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                       float factor) override {
        Stage s{dout, du, dy, u, o};
        cuda::gate_backward(s(dout), s(du), s(dy), s(u), s(o), factor, nullptr);
        s.finish();
    }
    void activation(Tensor h, const Tensor& a, Activation kind) override {
        Stage s{h, a};
        cuda::activation(s(h), s(a), kind, nullptr);
        s.finish();
    }
    void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) override {
        Stage s{da, dh, a};
        cuda::activation_backward(s(da), s(dh), s(a), kind, nullptr);
        s.finish();
    }
    void mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
             const Tensor& y) override {
        Stage s{out, a.param, x, b.param, y};
        cuda::mix(s(out), staged(s, a), s(x), staged(s, b), s(y), nullptr);
        s.finish();
    }
    void mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout, const Coefficient& a,
                      const Tensor& x, const Coefficient& b, const Tensor& y) override {
        Stage s{dx, dy, da, db, dout, a.param, x, b.param, y};
        cuda::mix_backward(s(dx), s(dy), s(da), s(db),
                           s.workspace(cuda::mix_backward_workspace(dout.count())), s(dout), staged(s, a),
                           s(x), staged(s, b), s(y), nullptr);
        s.finish();
    }

    void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                       bool gradient) override {
        check_range(targets, -1, logits.cols());
        Stage s{loss, logits, targets};
        cuda::cross_entropy(s(loss), s(logits), s(targets), spec, gradient, nullptr);
        s.finish();
    }
    void sum(Tensor out, const Tensor& x) override {
        Stage s{out, x};
        cuda::sum(s(out), s.workspace(cuda::sum_workspace(x.count())), s(x), nullptr);
        s.finish();
    }
    void sum_squares(Tensor out, const Tensor& x) override {
        Stage s{out, x};
        cuda::sum_squares(s(out), s.workspace(cuda::sum_workspace(x.count())), s(x), nullptr);
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
        cuda::adam(on_device, spec, nullptr);
        for (const auto& s : stages) s->finish();
    }
    // The products on the CPU, everything else by kernels.
    void muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) override {
        check(workspace.bytes() >= muon_workspace(slots), "muon workspace of {} bytes", workspace.bytes());
        for (const MuonSlot& slot : slots) {
            const int64_t small = std::min(slot.param.rows(), slot.param.cols()), count = slot.param.count();
            std::vector<float> memory(static_cast<size_t>(3 * count + 2 * small * small));
            double squares_value = 0;
            Tensor u(memory.data(), DType::f32, {slot.param.rows(), slot.param.cols()});
            Tensor x(memory.data() + count, DType::f32, {small, count / small});
            Tensor y(memory.data() + 2 * count, DType::f32, {small, count / small});
            const Tensor a(memory.data() + 3 * count, DType::f32, {small, small});
            const Tensor b(a.f32() + small * small, DType::f32, {small, small});
            const Tensor squares(&squares_value, DType::f64, {1});
            {
                Stage s{u, x, squares, slot.gradient, slot.momentum, slot.param};
                MuonSlot on_device = slot;
                for (Tensor* t : {&on_device.param, &on_device.gradient, &on_device.momentum}) *t = s(*t);
                cuda::muon_momentum(s(u), s(squares), s.workspace(cuda::sum_workspace(count)), on_device,
                                    spec, nullptr);
                cuda::muon_scale(s(x), s(u), s(squares), nullptr);
                s.finish();
            }
            for (int i = 0; i < spec.iterations; ++i) {
                linear(a, x, x, Write::set);
                linear(b, a, a, Write::set);
                mix(b, {.offset = 2.0315f}, b, {.offset = -4.7750f}, a);
                mix(y, {.offset = 3.4445f}, x, {.offset = 0.0f}, x);
                linear_backward_input(y, b, x, Write::add);
                std::swap(x, y);
            }
            Stage s{x, slot.param, slot.gradient, slot.momentum};
            MuonSlot on_device = slot;
            for (Tensor* t : {&on_device.param, &on_device.gradient, &on_device.momentum}) *t = s(*t);
            cuda::muon_update(on_device, s(x), nullptr);
            s.finish();
        }
    }
    int64_t muon_workspace(std::span<const MuonSlot> slots) const override {
        return cpu_->muon_workspace(slots);
    }

  private:
    // Kernels cannot refuse a token; who calls them still has the numbers on the host.
    static void check_range(const Tensor& numbers, int64_t least, int64_t end) {
        for (int64_t i = 0; i < numbers.count(); ++i)
            check(numbers.i32()[i] >= least && numbers.i32()[i] < end, "{} is not in {} .. {}",
                  numbers.i32()[i], least, end - 1);
    }
    static HeadSpec staged(const Stage& s, HeadSpec spec) {
        for (Tensor* t : {&spec.log_eps, &spec.gain, &spec.bias, &spec.cosine, &spec.sine}) *t = s(*t);
        return spec;
    }
    static AttentionSpec staged(const Stage& s, AttentionSpec spec) {
        for (Tensor* t : {&spec.row_start, &spec.row_factor, &spec.distance_gain, &spec.distance_bias,
                          &spec.row_square, &spec.sink, &spec.far_queries, &spec.far_keys})
            *t = s(*t);
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

    std::unique_ptr<Ops> cpu_;
};

}  // namespace

// Instead of a number of threads the kernel tests vary the schedule of the harness.
std::unique_ptr<Ops> make_row_ops(const CpuOptions& options) {
    require(options.isa.empty() || options.isa == "generic", ExitCode::device, "one device");
    simt::options() = simt::schedule(std::max(0, options.threads - 1));
    return std::make_unique<RowOps>(make_cpu_ops({.threads = 2, .isa = ""}));
}

}  // namespace longreach
