// One attention layer of the reference model, from its formulas.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/gates.h"
#include "reference/key_index.h"
#include "reference/projections.h"
#include "reference/scores.h"
#include "reference/turns.h"
#include "reference/weights.h"

namespace longreach::reference {

// What the layers of one sequence have in common.
template <class T>
struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<int32_t> doc_start;  // empty: no mask
    Rows<T> first_values;            // values of layer 0, once they are known
    // By position: what the indexes of keys learn, as numbers of value 0 with the derivatives of their losses.
    Row<T> index_losses;
    double largest_scores =
        0;  // root mean square of the scores of a layer, without biases (of the delta rule:
            // delta.h); T = double only
    // States that the sequence before left, without derivatives, in the order of heads and layers; null: none is kept.
    std::vector<Rows<double>>* states = nullptr;
    size_t next_state = 0;
};

template <class T>
class Attention {
  public:
    // layout: name of the layer's layout, "" for the plain attention section.
    Attention(const model::ModelConfig& config, const model::AttentionConfig& attention,
              const std::string& layout, int64_t layer, const Weights<T>& weights, const PostHoc& change)
        : config_(config),
          a_(attention),
          layout_(layout),
          layer_(layer),
          name_(fmt::format("layers.{}.attention.", layer)),
          weights_(weights),
          change_(change),
          d_(size_t(attention.head_dim)),
          heads_(size_t(attention.heads)),
          turning_(size_t(turned_channels(attention))),
          kv_heads_(attention.kv_heads > 0 ? size_t(attention.kv_heads) : heads_) {}

    // x: what the layer reads, normed or not. Returns the output of the o projection.
    Rows<T> forward(const Rows<T>& x, Sequence<T>& sequence) const {
        using std::exp;
        const size_t positions = x.size();
        const std::vector<int32_t>& doc_start = sequence.doc_start;
        const Rows<T> v = values(x, sequence);
        const bool split = weights_.split();
        const Side above(*this, weights_, x, doc_start);
        const Side below(*this, weights_.denominator(), split ? x : Rows<T>(), doc_start);

        const size_t turning = turning_ > 0 ? turning_ : d_;  // channels of a head of the index
        const KeyIndex<T> key_index{weights_, name_ + "index.", size_t(a_.index_heads), turning};
        const Rows<T> index = key_index.scores(x, [&](const Row<T>& row, size_t p, double sign) {
            return above.turned(row, double(p), sign, turning);
        });
        std::vector<std::vector<double>> mean(
            positions, std::vector<double>(positions, 0));  // weights, summed over heads

        Rows<T> out(positions, Row<T>(heads_ * d_, T(0)));
        double squares = 0, pairs = 0;
        for (size_t h = 0; h < heads_; ++h) {
            const size_t g = kv_head(h);
            for (size_t i = 0; i < positions; ++i) {
                if (a_.normaliser == model::Normaliser::stick_breaking) {
                    T left = 1;  // of the stick
                    for (size_t j = i; j-- > 0;) {
                        if (!visible(doc_start, i, j)) continue;
                        const T taken = sigmoid(above.score(h, i, j));
                        const T kept = T(1) - (split ? sigmoid(below.score(h, i, j)) : taken);
                        for (size_t c = 0; c < d_; ++c) out[i][h * d_ + c] += left * taken * v[j][g * d_ + c];
                        left = left * kept;
                        if constexpr (std::is_same_v<T, double>) {
                            const double unbiased = above.score(h, i, j) - above.bias(h, i, j);
                            squares += unbiased * unbiased;
                            ++pairs;
                        }
                    }
                    continue;
                }
                Row<T> upper(positions, T(0)), lower(positions, T(0));
                double largest = a_.sink == model::SinkKind::none ? -1e300 : 0;  // softmax ignores it
                for (size_t j = 0; j < positions; ++j) {
                    if (!visible(doc_start, i, j)) continue;
                    upper[j] = above.score(h, i, j);
                    lower[j] = split ? below.score(h, i, j) : upper[j];
                    largest = std::max(largest, value_of(upper[j]));
                    if constexpr (std::is_same_v<T, double>) {
                        const double unbiased = upper[j] - above.bias(h, i, j);
                        squares += unbiased * unbiased;
                        ++pairs;
                    }
                }
                const std::vector<bool> taken =
                    largest_keys(change_.top_by_index && !index.empty() ? index[i] : upper, doc_start, i);
                if (a_.normaliser == model::Normaliser::entmax) {
                    Row<T> weights;
                    for (size_t c = 0; c < d_; ++c) {
                        if (c == 0 || a_.sink != model::SinkKind::none)
                            weights = entmax(upper, lower, taken, h, c);
                        for (size_t j = 0; j < positions; ++j)
                            if (taken[j]) out[i][h * d_ + c] += weights[j] * v[j][g * d_ + c];
                    }
                    continue;
                }
                T total = 0;
                Row<T> sum(d_, T(0));
                for (size_t j = 0; j < positions; ++j) {
                    if (!taken[j]) continue;
                    const T weight = exp(upper[j] - T(largest));
                    total += split ? exp(lower[j] - T(largest)) : weight;
                    for (size_t c = 0; c < d_; ++c) sum[c] += weight * v[j][g * d_ + c];
                }
                double all = value_of(total);
                if (a_.sink != model::SinkKind::none) all += std::exp(value_of(sink(h, 0)) - largest);
                for (size_t j = 0; j < positions; ++j)
                    if (taken[j]) mean[i][j] += std::exp(value_of(upper[j]) - largest) / all;
                for (size_t c = 0; c < d_; ++c) {
                    T denominator = total;
                    if (a_.sink != model::SinkKind::none) denominator += exp(sink(h, c) - T(largest));
                    out[i][h * d_ + c] = sum[c] / denominator;
                }
            }
        }
        KeyIndex<T>::learn(sequence.index_losses, index, mean,
                           [&](size_t i, size_t j) { return visible(doc_start, i, j); });
        const double condition = a_.differential ? subtract_heads(out, x, difference(), d_) : 1;
        if (pairs > 0)
            sequence.largest_scores =
                std::max(sequence.largest_scores, std::sqrt(std::max(1.0, squares / pairs) * condition));
        for (size_t p = 0; p < positions; ++p) output_norm(out[p], double(p), v[p]);
        for (size_t p = 0; p < positions && a_.gate.kind != model::GateKind::none; ++p)
            gate(out[p], x[p], a_.gate, weights_.param(name_ + "gate.weight"));
        if (a_.mixer == "gau") {
            const Rows<T> u = silu(weights_.linear(x, name_ + "u.weight"));
            for (size_t p = 0; p < positions; ++p)
                for (size_t c = 0; c < u[p].size(); ++c) out[p][c] = u[p][c] * out[p][c];
        }
        return weights_.linear(out, name_ + "o.weight",
                               a_.bias == model::AttentionBias::all ? name_ + "o.bias" : "");
    }

  private:
    const Row<T>& difference() const { return weights_.param(name_ + "difference.weight"); }
    size_t kv_head(size_t h) const { return h / (heads_ / kv_heads_); }  // consecutive heads share
    double l_train() const { return double(config_.train_context); }

    bool visible(const std::vector<int32_t>& doc_start, size_t i, size_t j) const {
        if (j > i) return false;
        if (a_.window > 0 && int64_t(i - j) >= a_.window) return false;
        if (a_.chunk > 0 && int64_t(i) / a_.chunk != int64_t(j) / a_.chunk) return false;
        return doc_start.empty() || int64_t(j) >= doc_start[i];
    }

    // u^(1/(alpha - 1)) of the taken keys, u = (alpha - 1)(upper - theta) where it is above 0. theta, at which the weights of
    // `lower` and of the sink add up to 1, is found on values; one step of Newton then has its derivatives.
    Row<T> entmax(const Row<T>& upper, const Row<T>& lower, const std::vector<bool>& taken, size_t head,
                  size_t channel) const {
        using std::exp, std::log;
        T a = a_.entmax_alpha - 1;
        if (a_.entmax_learned) a = sigmoid(weights_.of_head(name_ + "entmax.alpha_logit", head));
        if (value_of(a) < 0.01) a = 0.01;
        const double share = value_of(a);
        Row<T> all;
        for (size_t j = 0; j < lower.size(); ++j)
            if (taken[j]) all.push_back(lower[j]);
        if (a_.sink != model::SinkKind::none) all.push_back(sink(head, channel));
        double above = value_of(all[0]);
        for (const T& x : all) above = std::max(above, value_of(x));
        double below = above - 1 / share;
        const auto power = [](const T& u, const T& r) { return value_of(u) > 0 ? T(exp(r * log(u))) : T(0); };
        for (double middle = (above + below) / 2; below < middle && middle < above;
             middle = (above + below) / 2) {
            double sum = 0;
            for (const T& x : all) sum += std::pow(std::max(0.0, share * (value_of(x) - middle)), 1 / share);
            (sum > 1 ? below : above) = middle;
        }
        T sum = 0;
        double slope = 0;
        for (const T& x : all) {
            const T u = a * (x - T(below));
            sum += power(u, T(1) / a);
            slope += value_of(power(u, T(1) / a - T(1)));
        }
        const T theta = T(below) + (sum - T(1)) / T(slope);
        Row<T> weights(upper.size(), T(0));
        for (size_t j = 0; j < upper.size(); ++j)
            if (taken[j]) weights[j] = power(a * (upper[j] - theta), T(1) / a);
        return weights;
    }

    // The visible keys of query i, or of these the top_k with the largest scores, of equal ones the nearest.
    std::vector<bool> largest_keys(const Row<T>& scores, const std::vector<int32_t>& doc_start,
                                   size_t i) const {
        std::vector<bool> taken(scores.size(), false);
        if (change_.top_k_block > 0) return largest_blocks(scores, doc_start, i);
        std::vector<size_t> keys;
        for (size_t j = scores.size(); j-- > 0;)
            if (visible(doc_start, i, j)) keys.push_back(j);
        std::stable_sort(keys.begin(), keys.end(),
                         [&](size_t a, size_t b) { return value_of(scores[a]) > value_of(scores[b]); });
        const size_t count = change_.top_k > 0 ? std::min(size_t(change_.top_k), keys.size()) : keys.size();
        for (size_t n = 0; n < count; ++n) taken[keys[n]] = true;
        return taken;
    }

    // The same of blocks: that of query i, and those with the largest mean scores.
    std::vector<bool> largest_blocks(const Row<T>& scores, const std::vector<int32_t>& doc_start,
                                     size_t i) const {
        const size_t size = size_t(change_.top_k_block);
        std::vector<std::pair<double, size_t>> means;  // negated, and the block
        for (size_t block = 0; block < i / size; ++block) {
            double sum = 0, count = 0;
            for (size_t j = block * size; j < (block + 1) * size; ++j)
                if (visible(doc_start, i, j)) sum += value_of(scores[j]), ++count;
            if (count > 0) means.push_back({-sum / count, block});
        }
        std::sort(means.begin(), means.end());
        means.resize(std::min(means.size(), size_t(change_.top_k) / size - 1));
        means.push_back({0, i / size});
        std::vector<bool> taken(scores.size(), false);
        for (const auto& [mean, block] : means)
            for (size_t j = block * size; j < std::min(scores.size(), (block + 1) * size); ++j)
                taken[j] = visible(doc_start, i, j);
        return taken;
    }

    // n of query i.
    double keys_counted(const std::vector<int32_t>& doc_start, size_t i) const {
        model::ScoreCount count = a_.score_count;
        if (count == model::ScoreCount::automatic)
            count = doc_start.empty() ? model::ScoreCount::sequence : model::ScoreCount::document;
        if (count == model::ScoreCount::sequence) return double(i) + 1;
        if (count == model::ScoreCount::document) return double(i) - doc_start.at(i) + 1;
        double n = 0;
        for (size_t j = 0; j <= i; ++j) n += visible(doc_start, i, j) ? 1 : 0;
        return n;
    }

    // y_p = sum_m w_m x_(p-m) per channel, within the document.
    Rows<T> convolved(const Rows<T>& x, const std::string& name, const Weights<T>& weights,
                      const std::vector<int32_t>& doc_start) const {
        const Row<T>& w = weights.param(name_ + name + "_conv.weight");
        const size_t channels = x.front().size();
        Rows<T> y;
        for (size_t p = 0; p < x.size(); ++p) {
            const size_t start = doc_start.empty() ? 0 : size_t(doc_start[p]);
            y.emplace_back(channels, T(0));
            for (size_t m = 0; m < size_t(a_.conv.size) && p >= start + m; ++m)
                for (size_t c = 0; c < channels; ++c) y[p][c] += w[m * channels + c] * x[p - m][c];
        }
        return y;
    }

    Rows<T> values(const Rows<T>& x, Sequence<T>& sequence) const {
        Rows<T> v = Projections<T>(config_, a_, name_, weights_).values(x);
        if (a_.conv.size > 0 && a_.conv.values) v = convolved(v, "v", weights_, sequence.doc_start);
        if (config_.residual.values == model::ValueMix::first) {
            if (layer_ == 0) sequence.first_values = v;
            for (size_t p = 0; p < v.size() && layer_ > 0; ++p)
                for (size_t c = 0; c < v[p].size(); ++c) {
                    const T lambda = weights_.mix(name_ + "value_mix", c);
                    v[p][c] = (T(1) - lambda) * v[p][c] + lambda * sequence.first_values[p][c];
                }
        }
        // Table i of n serves layer i and layer L - n + i.
        const int64_t n = config_.residual.value_embeddings;
        const bool early = layer_ < n, late = layer_ >= config_.layers - n;
        if (early || late) {
            const Row<T>& table = weights_.param(
                fmt::format("value_embeddings.{}.weight", early ? layer_ : layer_ - (config_.layers - n)));
            for (size_t p = 0; p < v.size(); ++p)
                for (size_t c = 0; c < v[p].size(); ++c)
                    v[p][c] = weights_.mix(name_ + "own_value_mix", c) * v[p][c] +
                              weights_.mix(name_ + "value_embedding_mix", c) *
                                  table[size_t(sequence.tokens[p]) * v[p].size() + c];
        }
        const bool layer_norm = a_.qk.kind == model::QkKind::qkv_ln;
        if (layer_norm || a_.qk.kind == model::QkKind::qkv_rms_w)
            for (Row<T>& row : v)
                for (size_t g = 0; g < kv_heads_; ++g) {
                    Row<T> head = slice(row, g * d_, d_);
                    head = rms_norm(layer_norm ? centred(head) : head, T(a_.qk.eps));
                    affine(head, name_ + "v_norm", weights_, layer_norm);
                    std::copy(head.begin(), head.end(), row.begin() + int64_t(g * d_));
                }
        return v;
    }

    // Scores as one half of the softmax sees them.
    class Side {
      public:
        Side(const Attention& owner, const Weights<T>& weights, const Rows<T>& x,
             const std::vector<int32_t>& doc_start)
            : o_(owner),
              a_(owner.a_),
              weights_(weights),
              laws_(owner.config_, owner.a_, owner.layer_,
                    [&](const ScoreParameter& p, size_t h, size_t k) { return value(p, h, k); }) {
            if (x.empty()) return;
            const Projections<T> projections(o_.config_, a_, o_.name_, weights);
            Rows<T> q = projections.queries(x), k = projections.keys(x);
            if (a_.conv.size > 0 && a_.conv.queries) q = o_.convolved(q, "q", weights, doc_start);
            if (a_.conv.size > 0 && a_.conv.keys) k = o_.convolved(k, "k", weights, doc_start);
            const double length = double(x.size()), l0 = o_.l_train();
            const PostHoc& change = o_.change_;
            if (change.kind != PostHoc::Kind::none || change.clip_logn) active_ = length > l0;
            const Turns turns = turns_of(a_, active_ ? change : PostHoc(), l0, length);
            theta_ = turns.theta;
            const T magnitude = turns.magnitude;
            for (size_t p = 0; p < x.size(); ++p) {
                queries_.push_back(treated(q[p], o_.heads_, "q", magnitude));
                keys_.push_back(treated(k[p], o_.kv_heads_, "k", magnitude));
                n_.push_back(o_.keys_counted(doc_start, p));
            }
            const std::vector<TermText> steps = written_terms(a_, true);
            Row<T> sums(o_.kv_heads_, T(0));
            Rows<T> values;
            if (!steps.empty()) values = read_term(steps[0], x, o_.kv_heads_);
            for (size_t p = 0; p < x.size(); ++p) {
                if (!steps.empty()) {
                    for (size_t g = 0; g < sums.size(); ++g) sums[g] += values[p][g];
                    turned_queries_.push_back(turned_by(queries_[p], sums, steps[0].name));
                    turned_keys_.push_back(turned_by(keys_[p], sums, steps[0].name));
                    continue;
                }
                turned_queries_.push_back(turned(queries_[p], double(p)));
                turned_keys_.push_back(turned(keys_[p], double(p), -1));
            }
            read_terms(x);
            for (const TermText& term : fading_of(a_)) fading_ = read_term(term, x, o_.heads_ * o_.d_, true);
        }

        T score(size_t h, size_t i, size_t j) const { return changed(product(h, i, j), h, i, j); }
        // What a score of zero becomes.
        T bias(size_t h, size_t i, size_t j) const { return law(T(0), h, i, j); }

        // Pairs (m, m + d/2) of the turning channels of every head, the last of its `head` ones, rotated by position * theta_m, or as a formula
        // of `angle` says; sign -1: keys.
        Row<T> turned(Row<T> row, double position, double sign = 1, size_t head = 0) const {
            if (head == 0) head = o_.d_;
            const size_t half = o_.turning_ / 2;
            const bool written = !has_frequencies(a_);
            for (size_t m = 0; m < (written ? half : theta_.size()); ++m) {
                const double angle = written ? of_angle("near", m, position) : position * theta_[m];
                const double grown = written ? std::exp(sign * of_angle("growth", m, position)) : 1;
                const T cosine = grown * std::cos(angle), sine = grown * std::sin(angle);
                for (size_t begin = head - o_.turning_; begin < row.size(); begin += head) {
                    const T first = row[begin + m], second = row[begin + m + half];
                    row[begin + m] = first * cosine - second * sine;
                    row[begin + m + half] = first * sine + second * cosine;
                }
            }
            return row;
        }

      private:
        // Heads of a row rotated by the sums of their key heads.
        Row<T> turned_by(Row<T> row, const Row<T>& sums, const std::string& step) const {
            using std::cos, std::sin;
            const size_t d = o_.d_, half = d / 2, heads = row.size() / d;
            for (size_t m = 0; m < half; ++m) {
                const double theta = FormulaWalker<double>(a_.written_angle(),
                                                           {{"between(" + step + ")", 1},
                                                            {"m", double(m)},
                                                            {"d", double(d)},
                                                            {"l", double(o_.layer_)},
                                                            {"layers", double(o_.config_.layers)},
                                                            {"L", o_.l_train()}},
                                                           {})
                                         .value();
                for (size_t h = 0; h < heads; ++h) {
                    const T angle = theta * sums[h / (heads / sums.size())];
                    const T first = row[h * d + m], second = row[h * d + m + half];
                    row[h * d + m] = first * cos(angle) - second * sin(angle);
                    row[h * d + m + half] = first * sin(angle) + second * cos(angle);
                }
            }
            return row;
        }

        // Every head of a row normed as qk.kind says.
        Row<T> treated(const Row<T>& row, size_t heads, const std::string& name, const T& magnitude) const {
            using std::exp;
            const bool query = name == "q";
            Row<T> result, whole = row;
            if (a_.qk.kind == model::QkKind::qk_rms_full) {
                whole = rms_norm(row, T(a_.qk.eps));
                affine(whole, o_.name_ + name + "_norm", weights_, false);
            }
            for (size_t h = 0; h < heads; ++h) {
                Row<T> x = slice(whole, h * o_.d_, o_.d_);
                switch (a_.qk.kind) {
                    case model::QkKind::none:
                    case model::QkKind::qk_rms_full:  // above
                        break;
                    case model::QkKind::qk_rms:
                        x = rms_norm(x, T(a_.qk.eps));
                        break;
                    case model::QkKind::qk_rms_w:
                    case model::QkKind::qkv_rms_w:
                        x = rms_norm(x, T(a_.qk.eps));
                        affine(x, o_.name_ + name + "_norm", weights_, false);
                        break;
                    case model::QkKind::qk_ln:
                    case model::QkKind::qkv_ln:
                        x = rms_norm(centred(x), T(a_.qk.eps));
                        affine(x, o_.name_ + name + "_norm", weights_, true);
                        break;
                    case model::QkKind::qk_rms_eps:
                        x = rms_norm(x, exp(weights_.of_head(o_.name_ + name + "_norm.log_eps", h)));
                        break;
                    case model::QkKind::qk_l2:
                    case model::QkKind::cosa:
                        x = unit_vector(x);
                        break;
                    case model::QkKind::qna:
                        if (query) x = unit_vector(x);
                        break;
                    case model::QkKind::kna:
                        if (!query) x = unit_vector(x);
                        break;
                    case model::QkKind::kna_w:
                        if (query) break;
                        x = unit_vector(x);
                        affine(x, o_.name_ + name + "_norm", weights_, false);
                        break;
                }
                for (const T& v : x) result.push_back(magnitude * v);
            }
            return result;
        }

        // A formula of `angle`; 0 if the object has none of this name. The names of other angles are unknown here.
        double of_angle(const char* part, size_t m, double position) const {
            const std::string* formula = a_.angle.to_string();
            if (formula == nullptr) {
                const json::Value* of_object = a_.angle.find(part);
                if (of_object == nullptr) return 0;
                formula = of_object->to_string();
            } else if (part != std::string("near")) {
                return 0;
            }
            return o_.at_position(*formula, position, double(m), o_.turning_);
        }
        // <q_i, k_j>, rotated
        T product(size_t h, size_t i, size_t j) const {
            const size_t g = o_.kv_head(h), d = o_.d_;
            const PostHoc& change = o_.change_;
            const double t = double(i - j);
            const auto dot = [&](const Row<T>& q, const Row<T>& k) {
                using std::exp;
                T sum = 0;
                for (size_t c = 0; c < d; ++c) {
                    T fallen = 0;
                    for (size_t p = j + 1; p <= i && !fading_.empty(); ++p) fallen += fading_[p][h * d + c];
                    sum += q[h * d + c] * k[g * d + c] * exp(fallen);
                }
                return sum;
            };
            const bool re =
                change.kind == PostHoc::Kind::rerope || change.kind == PostHoc::Kind::leaky_rerope;
            if (!active_ || !re || t < change.window) return dot(turned_queries_[i], turned_keys_[j]);
            const double beyond =
                change.kind == PostHoc::Kind::rerope ? 0 : (t - change.window) / change.leak;
            return dot(turned(queries_[i], change.window + beyond), keys_[j]);
        }

        // A parameter of the score as it acts.
        T value(const ScoreParameter& p, size_t h, size_t k) const {
            using std::exp;
            if (!p.learned()) return first_value(o_.config_, a_, o_.layer_, p, h);
            const size_t first =
                p.learn == model::Learning::head ? h * size_t(std::max<int64_t>(1, p.size)) : 0;
            const T& stored = weights_.param(score_tensor(o_.name_, o_.layout_, p))[first + k];
            return p.positive ? exp(stored) : stored;
        }

        T law(const T& dot, size_t h, size_t i, size_t j) const {
            Values<T> tokens;
            for (size_t k = 0; k < terms_.size(); ++k) {
                const std::string& name = terms_[k].name;
                tokens[name + "_q"] = values_[k][i][h];
                tokens[name + "_k"] = values_[k][j][h];
                T sum = 0;
                for (size_t p = j + 1; p <= i; ++p) sum += values_[k][p][h];
                tokens["between(" + name + ")"] = sum;
            }
            return laws_.score(dot, h, n_[i], double(i - j), double(n_.size()), tokens);
        }
        // As an evaluation changes it: what the laws make of the product, without what they add.
        T changed(const T& dot, size_t h, size_t i, size_t j) const {
            const T score = law(dot, h, i, j);
            if (!active_ || !o_.change_.clip_logn) return score;
            const T added = law(T(0), h, i, j);
            return T(std::max(1.0, std::log(n_[i]) / std::log(o_.l_train()))) * (score - added) + added;
        }

        // Of every position and head, or channel.
        Rows<T> read_term(const TermText& term, const Rows<T>& x, size_t heads, bool fades = false) const {
            const std::string name = o_.name_ + "terms." + term.name;
            const Row<T>& bias = weights_.param(name + ".bias");
            Rows<T> values;
            for (const Row<T>& u : weights_.linear(x, name + ".weight")) {
                values.emplace_back();
                for (size_t h = 0; h < heads; ++h)
                    values.back().push_back(fades ? laws_.fading(term, h, heads, u[h] + bias[h])
                                                  : laws_.term(term, h, u[h] + bias[h]));
            }
            return values;
        }
        void read_terms(const Rows<T>& x) {
            for (const TermText& term : terms_) values_.push_back(read_term(term, x, o_.heads_));
        }

        const Attention& o_;
        const model::AttentionConfig& a_;
        Weights<T> weights_;
        ScoreLaws<T> laws_;
        bool active_ = false;
        std::vector<double> theta_, n_;
        Rows<T> queries_, keys_, turned_queries_, turned_keys_;  // [position][heads * d]
        std::vector<TermText> terms_ = terms_of(a_);
        std::vector<Rows<T>> values_;  // of each term: [position][head]
        Rows<T> fading_;               // [position][channel]; empty: no channel fades
    };

    // One sink per head; given as one per channel, each channel divides by its own (see Weights::mix).
    T sink(size_t h, size_t c) const {
        if (a_.sink == model::SinkKind::zero) return T(0);
        const Row<T>& s = weights_.param(name_ + "sink");
        return s.size() == heads_ ? s[h] : s.at(h * d_ + c);
    }

    double at_position(const std::string& formula, double p, double m, size_t channels) const {
        return FormulaWalker<double>(formula,
                                     {{"p", p},
                                      {"m", m},
                                      {"d", double(channels)},
                                      {"l", double(layer_)},
                                      {"layers", double(config_.layers)},
                                      {"L", l_train()}},
                                     {})
            .value();
    }

    void output_norm(Row<T>& row, double position, const Row<T>& values) const {
        const model::OutputNormConfig& n = a_.output_norm;
        if (n.kind == model::OutputNorm::none) return;
        if (n.kind == model::OutputNorm::exclusive) {
            for (size_t begin = 0; begin < row.size(); begin += d_) {
                const size_t own = begin / d_ / (row.size() / values.size()) * d_;
                T along = 0, square = 0;
                for (size_t c = 0; c < d_; ++c) along += row[begin + c] * values[own + c];
                for (size_t c = 0; c < d_; ++c) square += values[own + c] * values[own + c];
                for (size_t c = 0; c < d_; ++c)
                    row[begin + c] = row[begin + c] - along / square * values[own + c];
            }
            return;
        }
        if (n.kind == model::OutputNorm::position) {
            for (T& o : row) o = T(at_position(n.factor, position, 0, d_)) * o;
            return;
        }
        const size_t width = n.kind == model::OutputNorm::head ? d_ : row.size();
        for (size_t begin = 0; begin < row.size(); begin += width) {
            const Row<T> part = rms_norm(slice(row, begin, width), T(config_.norm.eps));
            for (size_t c = 0; c < width; ++c)
                row[begin + c] = n.gain ? weights_.param(name_ + "output_norm.gain")[c] * part[c] : part[c];
        }
    }

    const model::ModelConfig& config_;
    const model::AttentionConfig& a_;
    std::string layout_;
    int64_t layer_;
    std::string name_;
    const Weights<T>& weights_;
    const PostHoc& change_;
    // turning_: channels of a head that may turn, the last ones.
    size_t d_, heads_, turning_, kv_heads_;
};

}  // namespace longreach::reference
