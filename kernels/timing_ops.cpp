#include "kernels/timing_ops.h"

#include <algorithm>

namespace longreach {

namespace {

double bytes_of(std::initializer_list<const Tensor*> tensors) {
    double n = 0;
    for (const Tensor* t : tensors) n += static_cast<double>(t->bytes());
    return n;
}

double product(int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

std::string shaped(const char* name, int64_t in, int64_t out) {
    return fmt::format("{} {}->{}", name, in, out);
}

// Visible (query, key) pairs without masks, times two products of 2 d FLOPs each.
double attention_flops(const AttentionSpec& s) {
    const double t = static_cast<double>(s.length);
    return static_cast<double>(s.batch * s.heads) * t * (t + 1) / 2 * 4.0 * static_cast<double>(s.head_dim);
}

}  // namespace

double Ops::seconds_of(const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    synchronize();
    const Clock::time_point begin = Clock::now();
    work();
    synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

void TimingOps::upload(Tensor to, const void* host) {
    timed("upload", 0, bytes_of({&to}), [&] { inner_.upload(to, host); });
}
void TimingOps::download(void* host, const Tensor& from) {
    timed("download", 0, bytes_of({&from}), [&] { inner_.download(host, from); });
}
void TimingOps::zero(Tensor to) {
    timed("zero", 0, bytes_of({&to}), [&] { inner_.zero(to); });
}
void TimingOps::copy(Tensor to, const Tensor& from) {
    timed("copy", 0, bytes_of({&to, &from}), [&] { inner_.copy(to, from); });
}
void TimingOps::add(Tensor to, const Tensor& from) {
    timed("add", 0, bytes_of({&to, &to, &from}), [&] { inner_.add(to, from); });
}

void TimingOps::linear(Tensor y, const Tensor& x, const Tensor& w, Write write) {
    timed(shaped("linear", w.cols(), w.rows()), product(x.rows(), w.rows(), w.cols()), bytes_of({&y, &x, &w}),
          [&] { inner_.linear(y, x, w, write); });
}
void TimingOps::linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) {
    timed(shaped("linear dx", w.cols(), w.rows()), product(dy.rows(), w.rows(), w.cols()),
          bytes_of({&dx, &dy, &w}), [&] { inner_.linear_backward_input(dx, dy, w, write); });
}
void TimingOps::linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x) {
    timed(shaped("linear dw", dw.cols(), dw.rows()), product(dy.rows(), dw.rows(), dw.cols()),
          bytes_of({&dw, &dw, &dy, &x}), [&] { inner_.linear_backward_weight(dw, dy, x); });
}
void TimingOps::linear_relu2(Tensor h, const Tensor& x, const Tensor& w) {
    timed(shaped("linear relu2", w.cols(), w.rows()), product(x.rows(), w.rows(), w.cols()),
          bytes_of({&h, &x, &w}), [&] { inner_.linear_relu2(h, x, w); });
}
void TimingOps::linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) {
    timed(shaped("linear relu2 dx", w.cols(), w.rows()), product(dy.rows(), w.rows(), w.cols()),
          bytes_of({&da, &dy, &w, &h}), [&] { inner_.linear_relu2_backward(da, dy, w, h); });
}

void TimingOps::embedding(Tensor x, const Tensor& table, const Tensor& tokens) {
    timed("embedding", 0, bytes_of({&x, &x, &tokens}), [&] { inner_.embedding(x, table, tokens); });
}
void TimingOps::embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) {
    timed("embedding backward", 0, bytes_of({&dx, &dx, &dx, &tokens}),
          [&] { inner_.embedding_backward(dtable, dx, tokens); });
}

void TimingOps::norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                     const Tensor& bias, const NormSpec& spec) {
    timed("norm", 0, bytes_of({&y, &x}) + (gain ? bytes_of({&normalised}) : 0),
          [&] { inner_.norm(y, normalised, inverse, x, gain, bias, spec); });
}
void TimingOps::norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy,
                              const Tensor& normalised, const Tensor& inverse, const Tensor& gain,
                              const NormSpec& spec, Write write) {
    timed("norm backward", 0, bytes_of({&dx, &dy, &normalised}) + (write == Write::add ? bytes_of({&dx}) : 0),
          [&] { inner_.norm_backward(dx, dgain, dbias, dy, normalised, inverse, gain, spec, write); });
}

void TimingOps::prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) {
    timed("heads", 0, bytes_of({&x, &x, &normalised}),
          [&] { inner_.prepare_heads(x, normalised, inverse, spec); });
}
void TimingOps::prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps,
                                       const Tensor& x, const Tensor& normalised, const Tensor& inverse,
                                       const HeadSpec& spec) {
    timed("heads backward", 0, bytes_of({&dx, &dx, spec.gain ? &normalised : &x}),
          [&] { inner_.prepare_heads_backward(dx, dgain, dbias, dlog_eps, x, normalised, inverse, spec); });
}
void TimingOps::short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                           int64_t length) {
    timed("short conv", 0, bytes_of({&y, &x}), [&] { inner_.short_conv(y, x, w, doc_start, length); });
}
void TimingOps::short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                    const Tensor& doc_start, int64_t length) {
    timed("short conv backward", 0, bytes_of({&dx, &dy, &x}),
          [&] { inner_.short_conv_backward(dx, dw, dy, x, w, doc_start, length); });
}

void TimingOps::row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                           int64_t chunk) {
    timed("row_starts", 0, bytes_of({&row_start, &doc_start}),
          [&] { inner_.row_starts(row_start, doc_start, length, window, chunk); });
}
void TimingOps::row_factors(Tensor factor, const RowFactorSpec& spec) {
    timed("row factors", 0, bytes_of({&factor}), [&] { inner_.row_factors(factor, spec); });
}
void TimingOps::row_factors_backward(Tensor dr, Tensor db, const Tensor& dfactor, const RowFactorSpec& spec) {
    timed("row factors backward", 0, bytes_of({&dfactor}),
          [&] { inner_.row_factors_backward(dr, db, dfactor, spec); });
}
void TimingOps::distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec) {
    const double entries = static_cast<double>((gain.rows() + bias.rows()) * spec.length);
    timed("distance tables", 0, 4 * entries, [&] { inner_.distance_tables(gain, bias, spec); });
}
void TimingOps::distance_tables_backward(Tensor dlog_tau, Tensor ddecay, Tensor dp, Tensor da,
                                         const Tensor& dgain, const Tensor& dbias,
                                         const DistanceFormSpec& spec) {
    const double entries = static_cast<double>((dgain.rows() + dbias.rows()) * spec.length);
    timed("distance tables backward", 0, 4 * entries,
          [&] { inner_.distance_tables_backward(dlog_tau, ddecay, dp, da, dgain, dbias, spec); });
}
void TimingOps::attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                          const Tensor& v, const AttentionSpec& spec) {
    timed(fmt::format("attention {}", spec.length), attention_flops(spec), bytes_of({&o, &q, &k, &v}),
          [&] { inner_.attention(o, lse, row_maxima, q, k, v, spec); });
}
void TimingOps::attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                                   Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                                   const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionSpec& spec) {
    timed(fmt::format("attention backward {}", spec.length), 2.5 * attention_flops(spec),
          bytes_of({&dq, &dk, &dv, &dout, &o, &q, &k, &v}),
          [&] { inner_.attention_backward(dq, dk, dv, gradients, workspace, dout, o, lse, q, k, v, spec); });
}
void TimingOps::gate(Tensor y, const Tensor& u, const Tensor& o, float factor) {
    timed("gate", 0, bytes_of({&y, &u, &o}), [&] { inner_.gate(y, u, o, factor); });
}
void TimingOps::gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                              float factor) {
    timed("gate backward", 0, bytes_of({&dout, &du, &dy, &u, &o}),
          [&] { inner_.gate_backward(dout, du, dy, u, o, factor); });
}

void TimingOps::activation(Tensor h, const Tensor& a, Activation kind) {
    timed("activation", 0, bytes_of({&h, &a}), [&] { inner_.activation(h, a, kind); });
}
void TimingOps::activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) {
    timed("activation backward", 0, bytes_of({&da, &dh, &a}),
          [&] { inner_.activation_backward(da, dh, a, kind); });
}
void TimingOps::mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
                    const Tensor& y) {
    timed("mix", 0, bytes_of({&out, &x, &y}), [&] { inner_.mix(out, a, x, b, y); });
}
void TimingOps::mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout,
                             const Coefficient& a, const Tensor& x, const Coefficient& b, const Tensor& y) {
    timed("mix backward", 0, bytes_of({&dx, &dy, &dy, &dout, &x, &y}),
          [&] { inner_.mix_backward(dx, dy, da, db, dout, a, x, b, y); });
}

void TimingOps::smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda,
                      const Tensor& doc_start, int64_t length) {
    timed("smear", 0, bytes_of({&y, &x}), [&] { inner_.smear(y, x, w, lambda, doc_start, length); });
}
void TimingOps::smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                               const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                               int64_t length) {
    timed("smear backward", 0, bytes_of({&dx, &dy, &x}),
          [&] { inner_.smear_backward(dx, dw, dlambda, dy, x, w, lambda, doc_start, length); });
}

void TimingOps::cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                              bool gradient) {
    timed("cross entropy", 0, bytes_of({&logits}) * (gradient ? 2 : 1),
          [&] { inner_.cross_entropy(loss, logits, targets, spec, gradient); });
}
void TimingOps::top1(Tensor best, const Tensor& logits) {
    timed("top 1", 0, bytes_of({&logits}), [&] { inner_.top1(best, logits); });
}

void TimingOps::sum(Tensor out, const Tensor& x) {
    timed("sum", 0, bytes_of({&x}), [&] { inner_.sum(out, x); });
}
void TimingOps::sum_squares(Tensor out, const Tensor& x) {
    timed("sum of squares", 0, bytes_of({&x}), [&] { inner_.sum_squares(out, x); });
}

void TimingOps::head_maxima(Tensor out, const Tensor& row_maxima) {
    timed("head maxima", 0, bytes_of({&row_maxima}), [&] { inner_.head_maxima(out, row_maxima); });
}
void TimingOps::qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) {
    timed("qk clip", 0, bytes_of({&wq, &wq, &wk, &wk}),
          [&] { inner_.qk_clip(wq, wk, maxima, head_dim, limit); });
}
void TimingOps::adam(std::span<const AdamSlot> slots, const AdamSpec& spec) {
    double bytes = 0;  // param, first, second: read and written; gradient: read
    for (const AdamSlot& s : slots) bytes += 7 * static_cast<double>(s.param.bytes());
    timed("adam", 0, bytes, [&] { inner_.adam(slots, spec); });
}
void TimingOps::muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) {
    double flops = 0, bytes = 0;
    for (const MuonSlot& s : slots) {
        // Per iteration with r the smaller side: X X^T and B X (2 r r c each), A A (2 r r r).
        const int64_t r = std::min(s.param.rows(), s.param.cols()),
                      c = std::max(s.param.rows(), s.param.cols());
        flops += spec.iterations * (2 * product(r, r, c) + product(r, r, r));
        bytes += 5 * static_cast<double>(s.param.bytes());
    }
    timed("muon", flops, bytes, [&] { inner_.muon(slots, workspace, spec); });
}

}  // namespace longreach
