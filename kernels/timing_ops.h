// Ops that time another Ops: calls, seconds, FLOPs and bytes per operation. Every call is waited for, so a
// timed step is for finding where time goes, not for quoting tokens per second; on a GPU each call's time
// includes the few microseconds in which its first kernel reaches the idle device.
#pragma once

#include <chrono>
#include <map>

#include "kernels/ops.h"

namespace longreach {

class TimingOps : public Ops {
  public:
    explicit TimingOps(Ops& inner) : inner_(inner) {}

    struct Total {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;  // bytes: compulsory traffic, each operand once
    };
    // By operation and, for matrix products, shape: "linear 128->384".
    const std::map<std::string, Total>& totals() const { return totals_; }
    void reset() { totals_.clear(); }

    std::string describe() const override { return inner_.describe(); }
    DeviceTraits traits() const override { return inner_.traits(); }
    NativeQueue native_queue() const override { return inner_.native_queue(); }
    int64_t free_bytes() const override { return inner_.free_bytes(); }
    void* allocate(int64_t bytes) override { return inner_.allocate(bytes); }
    void release(void* memory, int64_t bytes) override { inner_.release(memory, bytes); }
    void upload(Tensor to, const void* host) override;
    void download(void* host, const Tensor& from) override;
    int64_t scratch_bytes() const override { return inner_.scratch_bytes(); }
    void zero(Tensor to) override;
    void copy(Tensor to, const Tensor& from) override;
    void add(Tensor to, const Tensor& from) override;
    void synchronize() override { inner_.synchronize(); }
    double seconds_of(const std::function<void()>& work) override { return inner_.seconds_of(work); }
    void linear(Tensor y, const Tensor& x, const Tensor& w, Write write) override;
    void linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) override;
    void linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x) override;
    void linear_relu2(Tensor h, const Tensor& x, const Tensor& w) override;
    void linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) override;
    void embedding(Tensor x, const Tensor& table, const Tensor& tokens) override;
    void embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) override;
    void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
              const Tensor& bias, const NormSpec& spec) override;
    void norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy, const Tensor& normalised,
                       const Tensor& inverse, const Tensor& gain, const NormSpec& spec, Write write) override;
    void prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) override;
    void prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps, const Tensor& x,
                                const Tensor& normalised, const Tensor& inverse,
                                const HeadSpec& spec) override;
    void short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                    int64_t length) override;
    void short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                             const Tensor& doc_start, int64_t length) override;
    void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                    int64_t chunk) override;
    void row_factors(Tensor factor, const RowFactorSpec& spec) override;
    void row_factors_backward(Tensor dr, Tensor db, const Tensor& dfactor,
                              const RowFactorSpec& spec) override;
    void distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec) override;
    void distance_tables_backward(Tensor dlog_tau, Tensor ddecay, Tensor dp, Tensor da, const Tensor& dgain,
                                  const Tensor& dbias, const DistanceFormSpec& spec) override;
    void attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionSpec& spec) override;
    void attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                              const AttentionSpec& spec) override;
    void attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionSpec& spec, int64_t first, int64_t position) override;
    void attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                            Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                            const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionSpec& spec) override;
    int64_t attention_workspace(const AttentionSpec& spec,
                                const AttentionGradients& gradients) const override {
        return inner_.attention_workspace(spec, gradients);
    }
    void gate(Tensor y, const Tensor& u, const Tensor& o, float factor) override;
    void gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                       float factor) override;
    void activation(Tensor h, const Tensor& a, Activation kind) override;
    void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) override;
    void mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
             const Tensor& y) override;
    void mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout, const Coefficient& a,
                      const Tensor& x, const Coefficient& b, const Tensor& y) override;
    void smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
               int64_t length) override;
    void smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                        const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                        int64_t length) override;
    void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                       bool gradient) override;
    void top1(Tensor best, const Tensor& logits) override;
    void sum(Tensor out, const Tensor& x) override;
    void sum_squares(Tensor out, const Tensor& x) override;
    void head_maxima(Tensor out, const Tensor& row_maxima) override;
    void qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) override;
    void adam(std::span<const AdamSlot> slots, const AdamSpec& spec) override;
    void muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) override;
    int64_t muon_workspace(std::span<const MuonSlot> slots) const override {
        return inner_.muon_workspace(slots);
    }

  private:
    template <class Call>
    void timed(const std::string& name, double flops, double bytes, Call call) {
        const double seconds = inner_.seconds_of(call);
        Total& total = totals_[name];
        total.seconds += seconds;
        total.flops += flops;
        total.bytes += bytes;
        ++total.calls;
    }

    Ops& inner_;
    std::map<std::string, Total> totals_;
};

}  // namespace longreach
