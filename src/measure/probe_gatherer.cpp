#include "measure/probe_gatherer.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/rng.h"
#include "measure/probe_states.h"

namespace longreach::measure {

namespace {

constexpr int64_t token_pairs = 4096;   // per length, spread over its sequences
constexpr int64_t score_pairs = 16384;  // per length and head
constexpr int64_t cosine_pairs = 4096;  // per length, head and distance class
// Per length, head and bin: as many queries for the gaps of their keys as make this number of pairs, within limits.
constexpr int64_t gap_pairs = int64_t{1} << 20, fewest_gap_queries = 16, most_gap_queries = 1024;
// Below this mass of a decade, its weights have lost digits to f32 underflow.
constexpr double least_mass = 1e-20;
// Below this 1 - cos of f32 vectors, a quotient of angles is rounding error.
constexpr double least_angle = 1e-4;

// Streams of the sampling.
enum : uint32_t {
    token_stream = 0,
    score_stream = 1,
    cosine_stream = 2,
    gap_stream = 100
};  // cosines: one per class

double dot(const float* a, const float* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
    return sum;
}
double cosine(const float* a, const float* b, int64_t n) {
    return dot(a, b, n) / std::sqrt(dot(a, a, n) * dot(b, b, n));
}
// Some pairs of every query of a sequence, numbered query by query.
class NumberedPairs {
  public:
    // pairs_of(i): pairs of query i; none if negative.
    template <class PairsOf>
    NumberedPairs(int64_t length, const PairsOf& pairs_of) : before_(static_cast<size_t>(length) + 1) {
        for (size_t i = 0; i + 1 < before_.size(); ++i)
            before_[i + 1] = before_[i] + std::max<int64_t>(0, pairs_of(static_cast<int64_t>(i)));
    }
    int64_t count() const { return before_.back(); }
    struct Pair {
        int64_t query, number;  // number: among the pairs of the query
    };
    // One of them; each index has a draw of its own. There must be pairs.
    Pair draw(const Rng& rng, int64_t index) const {
        const int64_t drawn =
            static_cast<int64_t>(rng.below(static_cast<uint64_t>(index), static_cast<uint64_t>(count())));
        const int64_t query = std::upper_bound(before_.begin(), before_.end(), drawn) - before_.begin() - 1;
        return {query, drawn - before_[static_cast<size_t>(query)]};
    }

  private:
    std::vector<int64_t> before_;  // pairs of earlier queries; the last entry: of all
};

struct HostMatrix {
    std::vector<float> data;
    int64_t cols = 0;
    const float* row(int64_t r) const { return data.data() + r * cols; }
};

double cosine(const HostMatrix& x, int64_t a, int64_t b) {
    return cosine(x.row(a), x.row(b), x.cols);
}

// Positions in the batch of two tokens of one sequence.
struct TokenPair {
    int64_t early, late;
};

// The batch at hand, and what the samples of its sequences depend on.
struct BatchPass {
    const model::StepContext& run;
    const ProbeBuffers& buffers;
    uint64_t seed;
    int64_t tokens, first;  // tokens evaluated at each length; index of the batch's first sequence

    // The share of `samples` of each sequence.
    int64_t share(int64_t samples) const {
        const int64_t sequences = tokens / run.batch.length;
        return (samples + sequences - 1) / sequences;
    }
    // A matrix on the host in f32, whatever its type on the device.
    HostMatrix download(const Tensor& x) const {
        const Tensor on_device = buffers.rows.shaped({x.rows(), x.cols()});
        run.ops.copy(on_device, x);
        HostMatrix host{std::vector<float>(static_cast<size_t>(x.count())), x.cols()};
        run.ops.download(host.data.data(), on_device);
        return host;
    }
    std::vector<TokenPair> pairs() const {
        std::vector<TokenPair> all;
        const int64_t length = run.batch.length;
        if (length < 2) return all;
        const Rng rng(seed, Purpose::probe, token_stream);
        const int64_t each = share(token_pairs);
        for (int64_t s = 0; s < run.batch.sequences; ++s)
            for (int64_t p = 0; p < each; ++p) {
                const uint64_t index = 2 * static_cast<uint64_t>((first + s) * each + p);
                const int64_t a = static_cast<int64_t>(rng.below(index, static_cast<uint64_t>(length)));
                const int64_t other =
                    static_cast<int64_t>(rng.below(index + 1, static_cast<uint64_t>(length - 1)));
                const int64_t b = other < a ? other : other + 1;  // any other position
                all.push_back({s * length + std::min(a, b), s * length + std::max(a, b)});
            }
        return all;
    }
};

// Attention of a layer over the batch, with its vectors on the host.
struct AttentionPass : BatchPass {
    const model::AttentionView& view;
    LayerSums& sums;
    std::vector<int32_t> start;  // first visible key of every query
    HostMatrix q, k, v, far_q, far_k;

    AttentionPass(const BatchPass& batch, const model::AttentionView& of, LayerSums& to)
        : BatchPass(batch), view(of), sums(to), start(static_cast<size_t>(run.batch.count())) {
        if (spec().row_start) run.ops.download(start.data(), spec().row_start);
        q = download(view.q);
        k = download(view.k);
        v = download(view.v);
        if (!spec().far_keys) return;
        far_q = download(spec().far_queries);
        far_k = download(spec().far_keys);
    }
    const AttentionSpec& spec() const { return view.scores; }
    // Keys that the query at row n of the batch sees.
    int64_t visible(int64_t n) const { return n % run.batch.length - start[static_cast<size_t>(n)] + 1; }
    // Of head h: the query at row n of the batch, and the key `distance` rows before it.
    std::pair<const float*, const float*> pair(int64_t h, int64_t n, int64_t distance) const {
        const bool far = spec().far_keys && distance >= spec().far_from;
        return {(far ? far_q : q).row(n) + h * spec().head_dim,
                (far ? far_k : k).row(n - distance) + h / (spec().heads / spec().kv_heads) * spec().head_dim};
    }
};

// For every query two keys, -1 where they are not visible: the previous token, and the token after the last
// earlier occurrence of the query's token. The previous token itself is not taken for an earlier occurrence:
// the token after it would be the query's own.
std::vector<int32_t> keys_to_watch(const AttentionPass& pass) {
    static_assert(watched_keys == 2);
    const int64_t n = pass.run.batch.count(), length = pass.run.batch.length;
    std::vector<int32_t> keys(static_cast<size_t>(watched_keys * n), -1), tokens(static_cast<size_t>(n));
    if (pass.run.batch.tokens) pass.run.ops.download(tokens.data(), pass.run.batch.tokens);
    for (int64_t first = 0; first < n; first += length) {
        std::unordered_map<int32_t, int64_t> latest;  // position of a token, at most two before the query
        for (int64_t i = 0; i < length; ++i) {
            const size_t at = static_cast<size_t>(first + i);
            const int64_t start = pass.start[at];
            if (i - 1 >= start) keys[at] = static_cast<int32_t>(i - 1);
            if (!pass.run.batch.tokens) continue;
            if (i >= 2) latest[tokens[at - 2]] = i - 2;
            const auto found = latest.find(tokens[at]);
            if (found != latest.end() && found->second >= start)
                keys[static_cast<size_t>(n) + at] = static_cast<int32_t>(found->second + 1);
        }
    }
    return keys;
}

void add_rows(const AttentionPass& pass) {
    using enum RowStatistic;
    const int64_t n = pass.run.batch.count(), heads = pass.view.scores.heads;
    const Tensor statistics = pass.buffers.statistics.shaped({row_statistics, heads, n});
    const Tensor watched_on_device = pass.buffers.watched.shaped({watched_keys, n});
    const std::vector<int32_t> keys = keys_to_watch(pass);
    pass.run.ops.upload(watched_on_device, keys.data());
    pass.run.ops.attention_statistics(statistics, pass.view.lse, pass.view.q, pass.view.k, watched_on_device,
                                      pass.view.scores);
    std::vector<float> host(static_cast<size_t>(statistics.count()));
    pass.run.ops.download(host.data(), statistics);
    const bool entmax = pass.view.scores.normaliser == Normaliser::entmax;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < n; ++i) {
            const auto value = [&](RowStatistic which, int plus = 0) {
                return double{
                    host[static_cast<size_t>(((static_cast<int>(which) + plus) * heads + h) * n + i)]};
            };
            const int64_t seen = pass.visible(i);
            HeadBin& bin = pass.sums.heads[static_cast<size_t>(h)].bin(seen);
            const double sink = value(sink_mass);
            double entropy = sink > 0 ? -sink * std::log(sink) : 0, near = 0;
            for (int c = 0; c < distance_classes; ++c) {
                entropy += value(surprise, c);
                if (distance_class_begin[static_cast<size_t>(c)] < 100) near += value(mass, c);
            }
            for (size_t d = 0; d < HeadBin::decades; ++d) {
                const int c = static_cast<int>(d) + 1;
                const double whole = value(mass, c);
                if (seen >= distance_class_begin[d + 2] && whole >= least_mass)
                    bin.decade_entropy[d].add(value(surprise, c) / whole + std::log(whole));
            }
            for (size_t c = 0; c < distance_classes; ++c)
                if (seen > distance_class_begin[c]) bin.decade_mass[c].add(value(mass, static_cast<int>(c)));
            const auto watch = [&](Mean& mean, int which) {
                if (keys[static_cast<size_t>(which * n + i)] >= 0) mean.add(value(watched, which));
            };
            watch(bin.previous_mass, 0);
            watch(bin.induction_mass, 1);
            // A stick's first query gives weight to no key, its second to one.
            const double none = -std::numeric_limits<double>::infinity();
            if (value(second_weight) != none) bin.log_top_ratio.add(value(top_weight) - value(second_weight));
            if (value(top_weight) != none) bin.inverse_top_weight.add(std::exp(-value(top_weight)));
            bin.entropy.add(entropy);
            bin.participation.add(value(participation) + sink * sink);
            if (entmax) bin.support.add(value(support));
            bin.mass_100.add(near);
            bin.sink_mass.add(value(first_mass));
            bin.learned_sink_mass.add(sink);
            bin.max_score = std::max(bin.max_score, value(top_score));
            bin.max_logit = std::max(bin.max_logit, value(top_logit));
            const double count = value(pairs);
            bin.logits.add(
                {count, value(mean), count * value(second), count * value(third), count * value(fourth)});
        }
}

void add_norms(const AttentionPass& pass) {
    const int64_t n = pass.run.batch.count(), d = pass.view.scores.head_dim;
    const HostMatrix o = pass.download(pass.view.o);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t h = 0; h < pass.view.scores.heads; ++h) {
            const float* head = o.row(i) + h * d;
            pass.sums.heads[static_cast<size_t>(h)]
                .bin(pass.visible(i))
                .output_norm.add(std::sqrt(dot(head, head, d)));
        }
    const Tensor on_device = pass.buffers.projected.shaped({n, pass.view.projection.rows()});
    pass.run.ops.linear(on_device, pass.view.gathered, pass.view.projection, Write::set);
    const HostMatrix projected = pass.download(on_device);
    for (int64_t i = 0; i < n; ++i) {
        const size_t k = bin_of(pass.visible(i));
        if (pass.sums.projected_norm.size() <= k) pass.sums.projected_norm.resize(k + 1);
        pass.sums.projected_norm[k].add(std::sqrt(dot(projected.row(i), projected.row(i), projected.cols)));
    }
    const HostMatrix input = pass.download(pass.view.input);
    for (const TokenPair& pair : pass.pairs()) {
        const double before = 1 - cosine(input, pair.early, pair.late);
        const double after = 1 - cosine(projected, pair.early, pair.late);  // NaN if a vector is zero
        if (before >= least_angle && std::isfinite(after)) pass.sums.angle_ratio.add(after / before);
    }
}

void add_gates(const AttentionPass& pass) {
    const int64_t n = pass.run.batch.count(), heads = pass.view.scores.heads;
    const HostMatrix gates = pass.download(pass.view.gates);
    // Heads that share a gate, and gates that share a head.
    const int64_t together = heads * pass.view.scores.head_dim / pass.view.gathered.cols();
    const int64_t each = gates.cols * together / heads;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t g = 0; g < gates.cols; ++g) {
            const double open = 1 / (1 + std::exp(-double{gates.row(i)[g]}));
            for (int64_t h = g / each * together; h < (g / each + 1) * together; ++h) {
                HeadBin& bin = pass.sums.heads[static_cast<size_t>(h)].bin(pass.visible(i));
                bin.gate.add(open);
                bin.gate_below.add(open < 0.1 ? 1 : 0);
            }
        }
}

void add_scores(const AttentionPass& pass) {
    const AttentionSpec& spec = pass.spec();
    const int64_t length = pass.run.batch.length, d = spec.head_dim, each = pass.share(score_pairs);
    const Rng rng(pass.seed, Purpose::probe, score_stream);
    for (int64_t s = 0; s < pass.run.batch.sequences; ++s) {
        // A query sees visible - 2 keys besides itself and the first.
        const NumberedPairs pairs(length, [&](int64_t i) { return pass.visible(s * length + i) - 2; });
        if (pairs.count() == 0) continue;
        for (int64_t h = 0; h < spec.heads; ++h)
            for (int64_t p = 0; p < each; ++p) {
                const int64_t index = ((pass.first + s) * spec.heads + h) * each + p;
                const auto [i, number] = pairs.draw(rng, index);
                const int64_t j = pass.start[static_cast<size_t>(s * length + i)] + 1 + number;
                const auto [query, key] = pass.pair(h, s * length + i, i - j);
                pass.sums.heads[static_cast<size_t>(h)].scores.push_back(double{spec.scale} *
                                                                         dot(query, key, d));
            }
    }
}

void add_cosines(const AttentionPass& pass) {
    const AttentionSpec& spec = pass.spec();
    const int64_t length = pass.run.batch.length, d = spec.head_dim, each = pass.share(cosine_pairs);
    for (int64_t s = 0; s < pass.run.batch.sequences; ++s)
        for (size_t c = 0; c < distance_classes; ++c) {
            const int64_t nearest = distance_class_begin[c], behind = distance_class_begin[c + 1];
            const NumberedPairs pairs(
                length, [&](int64_t i) { return std::min(pass.visible(s * length + i), behind) - nearest; });
            if (pairs.count() == 0) continue;
            const Rng rng(pass.seed, Purpose::probe, cosine_stream + static_cast<uint32_t>(c));
            for (int64_t h = 0; h < spec.heads; ++h)
                for (int64_t p = 0; p < each; ++p) {
                    const int64_t index = ((pass.first + s) * spec.heads + h) * each + p;
                    const auto [i, number] = pairs.draw(rng, index);
                    const auto [query, key] = pass.pair(h, s * length + i, nearest + number);
                    const double x = cosine(query, key, d);  // NaN if a vector is zero
                    if (std::isfinite(x)) pass.sums.heads[static_cast<size_t>(h)].cosines[c].add(x);
                }
        }
}

// The sum of a_c b_c exp(C_c - C'_c), sums of a channel `step` apart.
float faded_product(const float* a, const float* b, int64_t n, const double* query, const double* key,
                    int64_t step) {
    float sum = 0;
    for (int64_t c = 0; c < n; ++c)
        sum += a[c] * b[c] * static_cast<float>(std::exp(query[c * step] - key[c * step]));
    return sum;
}

float product(const float* a, const float* b, int64_t n) {
    constexpr int64_t lanes = 8;
    float sums[lanes] = {};
    int64_t c = 0;
    for (; c + lanes <= n; c += lanes)
        for (int64_t i = 0; i < lanes; ++i) sums[i] += a[c + i] * b[c + i];
    for (; c < n; ++c) sums[0] += a[c] * b[c];
    float sum = 0;
    for (const float x : sums) sum += x;
    return sum;
}

// Logits y of whole queries, attention_spec.h, up to a constant of each query.
class Logits {
  public:
    explicit Logits(const AttentionPass& pass) : pass_(pass) {
        const AttentionSpec& spec = pass.spec();
        // Tables by head may be parts of longer rows.
        const auto take = [&](auto& to, const Tensor& from) {
            to.resize(static_cast<size_t>(from.count()));
            for (int64_t r = 0; from && r < from.rows(); ++r)
                pass.run.ops.download(to.data() + r * from.cols(), from.row_range(r, 1));
        };
        take(factor_, spec.row_factor);
        take(square_, spec.row_square);
        take(gain_, spec.distance_gain);
        take(bias_, spec.distance_bias);
        take(forget_, spec.forget);
        take(channels_, spec.channel_sums);
    }
    // Of head h and the query at row n of the batch, for the keys it sees.
    std::span<const float> row(int64_t h, int64_t n) {
        const AttentionSpec& spec = pass_.spec();
        const auto of_head = [&](const auto& table, const Tensor& shape) {
            return table.empty() ? nullptr : table.data() + (shape.rows() == 1 ? 0 : h) * shape.cols();
        };
        const float *factors = of_head(factor_, spec.row_factor), *gain = of_head(gain_, spec.distance_gain),
                    *bias = of_head(bias_, spec.distance_bias);
        const double* forget = of_head(forget_, spec.forget);
        const float factor = factors != nullptr ? factors[n] : 1;
        const int64_t keys = pass_.visible(n), last = spec.distance_gain.cols() - 1;
        row_.resize(static_cast<size_t>(keys));
        for (int64_t t = 0; t < keys; ++t) {
            const auto [query, key] = pass_.pair(h, n, t);
            const int64_t tokens = spec.channel_sums.cols();
            const double* sums =
                channels_.empty() ? nullptr : channels_.data() + h * spec.head_dim * tokens + n;
            float y = spec.scale * (sums != nullptr
                                        ? faded_product(query, key, spec.head_dim, sums, sums - t, tokens)
                                        : product(query, key, spec.head_dim));
            if (spec.softcap > 0) y = spec.softcap * std::tanh(y / spec.softcap);
            y *= factor;
            if (gain != nullptr) {
                const float of_distance = gain[last - t];
                y = y * (square_.empty()
                             ? of_distance
                             : std::sqrt(std::max(0.0f, of_distance + square_[static_cast<size_t>(n)]))) +
                    bias[last - t];
            }
            if (forget != nullptr) y += static_cast<float>(forget[n] - forget[n - t]);
            row_[static_cast<size_t>(t)] = y;
        }
        return row_;
    }

  private:
    const AttentionPass& pass_;
    std::vector<float> factor_, square_, gain_, bias_, row_;
    std::vector<double> forget_, channels_;
};

// Rows of the batch whose queries see 2^k keys or more but fewer than twice as many, in one sequence: a sample of them.
std::vector<int64_t> gap_queries(const AttentionPass& pass, int64_t sequence, size_t k) {
    std::vector<int64_t> all, some;
    const int64_t first = sequence * pass.run.batch.length;
    for (int64_t n = first; n < first + pass.run.batch.length; ++n)
        if (bin_of(pass.visible(n)) == k) all.push_back(n);
    const int64_t count = static_cast<int64_t>(all.size());
    const int64_t each = pass.share(std::clamp(gap_pairs >> k, fewest_gap_queries, most_gap_queries));
    if (count <= each) return all;
    // One of every stretch of count / each queries.
    const Rng rng(pass.seed, Purpose::probe, gap_stream + static_cast<uint32_t>(k));
    for (int64_t p = 0; p < each; ++p) {
        const double place =
            static_cast<double>(p) + rng.uniform(static_cast<uint64_t>((pass.first + sequence) * each + p));
        some.push_back(
            all[static_cast<size_t>(place * static_cast<double>(count) / static_cast<double>(each))]);
    }
    return some;
}

// Keys near the largest logit. Queries that see one key have no other, and those of other normalisers and of chosen keys
// no softmax over the keys that they see.
void add_gaps(const AttentionPass& pass) {
    const int64_t length = pass.run.batch.length;
    if (pass.spec().normaliser != Normaliser::softmax || pass.spec().top_k > 0) return;
    std::vector<int32_t> document(static_cast<size_t>(pass.run.batch.count()));
    if (pass.run.batch.doc_start) pass.run.ops.download(document.data(), pass.run.batch.doc_start);
    Logits logits(pass);
    for (int64_t s = 0; s < pass.run.batch.sequences; ++s)
        for (size_t k = 1; k <= bin_of(length); ++k) {
            const std::vector<int64_t> queries = gap_queries(pass, s, k);
            for (int64_t h = 0; h < pass.spec().heads && !queries.empty(); ++h) {
                GapBin& bin = bin_at(pass.sums.heads[static_cast<size_t>(h)].gaps, int64_t{1} << k);
                for (size_t begin = 0, end = 0; begin < queries.size(); begin = end) {
                    law::ScaleList sums{};  // of the queries of one document
                    const auto document_of = [&](size_t i) {
                        return document[static_cast<size_t>(queries[i])];
                    };
                    for (; end < queries.size() && document_of(end) == document_of(begin); ++end) {
                        const law::RowGaps gaps = law::row_gaps(logits.row(h, queries[end]));
                        bin.visible.add(static_cast<double>(pass.visible(queries[end])));
                        for (size_t g = 0; g < gaps.keys.size(); ++g) bin.keys[g].add(gaps.keys[g]);
                        for (size_t i = 0; i < sums.size(); ++i) sums[i] += gaps.others[i];
                    }
                    for (size_t i = 0; i < sums.size(); ++i)
                        bin.others[i].add(sums[i], static_cast<int64_t>(end - begin));
                }
            }
        }
}

void add_key_norms(const AttentionPass& pass) {
    const int64_t n = pass.run.batch.count(), d = pass.spec().head_dim;
    pass.sums.keys.resize(static_cast<size_t>(pass.spec().kv_heads));
    for (int64_t i = 0; i < n; ++i)
        for (int64_t g = 0; g < pass.spec().kv_heads; ++g) {
            const float *key = pass.k.row(i) + g * d, *value = pass.v.row(i) + g * d;
            KeyBin& bin = bin_at(pass.sums.keys[static_cast<size_t>(g)], pass.visible(i));
            bin.key_norm.add(std::sqrt(dot(key, key, d)));
            bin.value_norm.add(std::sqrt(dot(value, value, d)));
        }
}

}  // namespace

void Gatherer::begin(int64_t first_sequence) {
    first_ = first_sequence;
    batch_.assign(layers_, {});
}

std::vector<double> Gatherer::take() {
    return numbers_of(batch_);
}

void Gatherer::add(int64_t length, std::span<const double> seen) {
    const std::vector<LayerSums> batch = layers_of(seen);
    std::vector<LayerSums>& all = sums_[length];
    all.resize(layers_);
    check(batch.size() == layers_, "sums of {} layers for {}", batch.size(), layers_);
    for (size_t l = 0; l < layers_; ++l) all[l].add(batch[l]);
}

void Gatherer::attention(const model::StepContext& run, const model::AttentionView& view) {
    if (run.in_pieces()) return;
    LayerSums& sums = batch_[static_cast<size_t>(view.layer)];
    sums.heads.resize(static_cast<size_t>(view.scores.heads));
    sums.sink = bool(view.scores.sink);
    sums.gated = bool(view.gates);
    const AttentionPass pass({run, buffers_, seed_, tokens_, first_}, view, sums);
    add_rows(pass);
    add_norms(pass);
    if (view.gates) add_gates(pass);
    add_scores(pass);
    add_cosines(pass);
    add_gaps(pass);
    add_key_norms(pass);
}

void Gatherer::delta(const model::StepContext& run, const model::DeltaView& view) {
    const HostMatrix decay = BatchPass{run, buffers_, seed_, tokens_, first_}.download(view.decay);
    add_states(run, view, buffers_.state, decay.data, batch_[static_cast<size_t>(view.layer)].states);
}

void Gatherer::block(const model::StepContext& run, int64_t layer, const Tensor& x) {
    if (run.in_pieces()) return;
    LayerSums& sums = batch_[static_cast<size_t>(layer)];
    const BatchPass pass{run, buffers_, seed_, tokens_, first_};
    const HostMatrix host = pass.download(x);
    for (const TokenPair& pair : pass.pairs()) {
        const double c = cosine(host, pair.early, pair.late);
        if (std::isfinite(c)) sums.pair_cosine.add(c);
    }
}

}  // namespace longreach::measure
