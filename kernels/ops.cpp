// The table of operations: name, and FLOPs and bytes unless a call just moves every tensor it is given once.
#include "kernels/ops.h"

#include <algorithm>
#include <chrono>

namespace longreach {

namespace {

double product_flops(int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// Of n rows with the matrix w [out, in].
Cost product(int64_t n, const Tensor& w, Cost cost) {
    cost.flops = product_flops(n, w.rows(), w.cols());
    cost.shape = fmt::format(" {}->{}", w.cols(), w.rows());
    return cost;
}

// `share` of the two products of attention's forward pass, over the visible (query, key) pairs without masks.
Cost scores(double share, const AttentionSpec& s, Cost cost) {
    const double t = static_cast<double>(s.length);
    cost.flops = share * (static_cast<double>(s.batch * s.heads) * t * (t + 1) / 2 * 4.0 *
                          static_cast<double>(s.head_dim));
    cost.shape = fmt::format(" {}", s.length);
    return cost;
}

Cost decode_cost(const Tensor&, const Tensor& q, const Tensor& k, const Tensor&, const AttentionSpec& spec,
                 const int64_t& first, const int64_t& position) {
    const double keys = static_cast<double>(position - first + 1), queries = static_cast<double>(spec.batch);
    return {.flops = 4.0 * keys * static_cast<double>(q.count()),
            .bytes = 2.0 * keys * queries * static_cast<double>(k.cols() * size_of(k.dtype))};
}

// Attention's scores twice; those of the index five times, and two gradients.
Cost index_cost(const Tensor& losses, const Tensor&, const IndexScores& d, const Tensor& lse, const Tensor& q,
                const Tensor& k, const float&, const AttentionSpec& spec) {
    const IndexScores& index = spec.index;
    Cost cost = scores(
        1, spec,
        moved(losses, d.queries, d.keys, d.weights, lse, q, k, index.queries, index.keys, index.weights));
    cost.flops *= 1 + 3.5 * static_cast<double>(index.heads * index.head_dim) /
                          static_cast<double>(spec.heads * spec.head_dim);
    return cost;
}

// The backward pass does the products of the forward pass again, and two for each of them.
Cost delta_cost(double share, const DeltaSpec& s, Cost cost) {
    cost.flops = share * static_cast<double>(s.batch * s.length) *
                 delta_flops_per_token(s.heads, s.key_dim, s.value_dim, s.additive);
    cost.shape = fmt::format(" {}", s.length);
    return cost;
}

// Two products forward, six backward.
Cost simplicial_cost(double products, const SimplicialSpec& s, Cost cost) {
    const double pairs = s.room > 0 ? static_cast<double>(std::min(s.position + 1, s.window)) *
                                          static_cast<double>(std::min(s.position + 1, s.second_window))
                                    : simplicial_pairs(s.length, s.window, s.second_window);
    cost.flops = products * 2 * static_cast<double>(s.batch * s.length * s.heads * s.head_dim) * pairs;
    cost.shape = fmt::format(" {}", s.length);
    return cost;
}

template <class Parts>
Cost moved_all(const Parts& parts) {
    Cost cost;
    for (const Tensor& x : parts) cost.bytes += moved(x).bytes;
    return cost;
}

// param, first and second are read and written, gradient is read.
Cost adam_cost(const std::span<const AdamSlot>& slots, const AdamSpec&) {
    Cost cost;
    for (const AdamSlot& s : slots) cost.bytes += 7 * static_cast<double>(s.param.bytes());
    return cost;
}

// Per iteration with r the smaller side: X X^T and B X (2 r r c each), A A (2 r r r).
// The fewest products that are known to do: of symmetric ones half; on the short side alone where it is fewer (optimizer.cpp).
Cost muon_cost(const std::span<const MuonSlot>& slots, const Tensor&, const MuonSpec& spec) {
    const double n = spec.iterations;
    Cost cost;
    for (const MuonSlot& s : slots) {
        const auto [r, c] = std::minmax({s.param.rows(), s.param.cols()});
        const double whole = product_flops(r, r, c), square = product_flops(r, r, r);
        cost.flops +=
            std::min(n * (1.5 * whole + 0.5 * square), 1.5 * whole + std::max(0.0, 2 * n - 1.5) * square);
        cost.bytes += 5 * static_cast<double>(s.param.bytes());
    }
    return cost;
}

}  // namespace

Ops::Ops()
    : upload{*this, "upload"},
      download{*this, "download"},
      zero{*this, "zero"},
      copy{*this, "copy"},
      add{*this, "add", [](auto& to, auto& from) { return moved(to, to, from); }},
      linear{*this, "linear",
             [](auto& y, auto& x, auto& w, auto&) { return product(x.rows(), w, moved(y, x, w)); }},
      linear_backward_input{
          *this, "linear dx",
          [](auto& dx, auto& dy, auto& w, auto&) { return product(dy.rows(), w, moved(dx, dy, w)); }},
      linear_backward_weight{
          *this, "linear dw",
          [](auto& dw, auto& dy, auto& x, auto& write) {
              return product(dy.rows(), dw, write == Write::add ? moved(dw, dw, dy, x) : moved(dw, dy, x));
          }},
      add_bias{*this, "bias", [](auto& y, auto&) { return moved(y, y); }},
      add_bias_backward{*this, "bias backward", [](auto&, auto& dy) { return moved(dy); }},
      linear_relu2{*this, "linear relu2",
                   [](auto& h, auto& x, auto& w) { return product(x.rows(), w, moved(h, x, w)); }},
      linear_relu2_backward{
          *this, "linear relu2 dx",
          [](auto& da, auto& dy, auto& w, auto& h) { return product(dy.rows(), w, moved(da, dy, w, h)); }},
      embedding{*this, "embedding", [](auto& x, auto&, auto& tokens) { return moved(x, x, tokens); }},
      embedding_backward{*this, "embedding backward",
                         [](auto&, auto& dx, auto& tokens) { return moved(dx, dx, dx, tokens); }},
      norm{*this, "norm",
           [](auto& y, auto& normalised, auto&, auto& x, auto&...) {
               return normalised.data() == y.data() ? moved(y, x) : moved(y, x, normalised);
           }},
      norm_backward{*this, "norm backward",
                    [](auto& dx, auto&, auto&, auto& dy, auto& normalised, auto&, auto&, auto&, auto& write) {
                        return write == Write::add ? moved(dx, dx, dy, normalised)
                                                   : moved(dx, dy, normalised);
                    }},
      prepare_heads{*this, "heads",
                    [](auto& x, auto& normalised, auto&...) { return moved(x, x, normalised); }},
      prepare_heads_backward{*this, "heads backward",
                             [](auto& dx, auto&, auto&, auto&, auto& x, auto& normalised, auto&, auto& spec) {
                                 return moved(dx, dx, spec.gain ? normalised : x);
                             }},
      short_conv{*this, "short conv", [](auto& y, auto& x, auto&...) { return moved(y, x); }},
      short_conv_backward{*this, "short conv backward",
                          [](auto& dx, auto&, auto& dy, auto& x, auto&...) { return moved(dx, dy, x); }},
      row_starts{*this, "row_starts"},
      evaluate_law{*this, "evaluate law"},
      law_rows{*this, "law rows", [](auto& factor, auto&, auto&) { return moved(factor); }},
      law_gradient{
          *this, "law gradient",
          [](auto&, auto& derivative, auto& gradient, auto&, auto&) { return moved(derivative, gradient); }},
      running_sums{*this, "running sums"},
      running_sums_backward{*this, "running sums backward"},
      term_gradient{*this, "term gradient"},
      token_angles{*this, "token angles"},
      token_angles_backward{*this, "token angles backward"},
      attention{*this, "attention",
                [](auto& o, auto&, auto&, auto& q, auto& k, auto& v, auto& spec) {
                    return scores(1, spec, moved(o, q, k, v));
                }},
      attention_statistics{*this, "attention statistics",
                           [](auto& statistics, auto& lse, auto& q, auto& k, auto& watched, auto& spec) {
                               return scores(0.5, spec, moved(statistics, lse, q, k, watched));
                           }},
      attention_decode{*this, "attention, one query", decode_cost},
      attention_backward{
          *this, "attention backward",
          [](auto& dq, auto& dk, auto& dv, auto&, auto&, auto& dout, auto& o, auto&, auto& q, auto& k,
             auto& v, auto& spec) { return scores(2.5, spec, moved(dq, dk, dv, dout, o, q, k, v)); }},
      index_loss{*this, "index loss", index_cost},
      gate{*this, "gate"},
      gate_backward{*this, "gate backward"},
      exclude_own_value{*this, "own value"},
      exclude_own_value_backward{*this, "own value backward"},
      delta_gates{*this, "delta gates"},
      delta_gates_backward{*this, "delta gates backward"},
      delta_rule{
          *this, "delta rule",
          [](auto& o, auto& states, auto& state, auto&, auto& q, auto& k, auto& v, auto& decay, auto& beta,
             auto& spec) { return delta_cost(1, spec, moved(o, states, state, q, k, v, decay, beta)); }},
      delta_rule_backward{*this, "delta rule backward",
                          [](auto& dq, auto& dk, auto& dv, auto& ddecay, auto& dbeta, auto&, auto& dout,
                             auto& states, auto& q, auto& k, auto& v, auto&, auto&, auto& spec) {
                              return delta_cost(
                                  3, spec,
                                  moved(dq, dk, dv, ddecay, ddecay, dbeta, dbeta, dout, states, q, k, v));
                          }},
      simplicial{*this, "2-simplicial attention",
                 [](auto& o, auto&, auto& q, auto& keys, auto& spec) {
                     return simplicial_cost(2, spec, moved(o, q, keys.k, keys.v, keys.k2, keys.v2));
                 }},
      simplicial_backward{
          *this, "2-simplicial attention backward",
          [](auto& dq, auto& d, auto& dout, auto& o, auto&, auto& q, auto& keys, auto& spec) {
              return simplicial_cost(
                  6, spec, moved(dq, d.k, d.v, d.k2, d.v2, dout, o, q, keys.k, keys.v, keys.k2, keys.v2));
          }},
      activation{*this, "activation"},
      activation_backward{*this, "activation backward"},
      mix{*this, "mix"},
      mix_backward{*this, "mix backward",
                   [](auto& dx, auto& dy, auto&, auto&, auto& dout, auto&, auto& x, auto&, auto& y) {
                       return moved(dx, dy, dy, dout, x, y);
                   }},
      smear{*this, "smear", [](auto& y, auto& x, auto&...) { return moved(y, x); }},
      smear_backward{*this, "smear backward",
                     [](auto& dx, auto&, auto&, auto& dy, auto& x, auto&...) { return moved(dx, dy, x); }},
      cross_entropy{*this, "cross entropy",
                    [](auto&, auto& logits, auto&, auto&, auto& gradient) {
                        return gradient ? moved(logits, logits) : moved(logits);
                    }},
      top1{*this, "top 1", [](auto&, auto& logits) { return moved(logits); }},
      sum{*this, "sum", [](auto&, auto& x) { return moved(x); }},
      sum_squares{*this, "sum of squares", [](auto&, auto& parts) { return moved_all(parts); }},
      head_maxima{*this, "head maxima", [](auto&, auto& row_maxima) { return moved(row_maxima); }},
      qk_clip{*this, "qk clip", [](auto& wq, auto& wk, auto&...) { return moved(wq, wq, wk, wk); }},
      adam{*this, "adam", adam_cost},
      muon{*this, "muon", muon_cost} {}

Ops::~Ops() = default;

double Ops::seconds_of(const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    synchronize();
    const Clock::time_point begin = Clock::now();
    work();
    synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace longreach
