#include "measure/probe_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "model/param_name.h"

namespace longreach::measure {

void Moments::add(const Moments& b) {
    if (b.count == 0) return;
    if (count == 0) {
        *this = b;
        return;
    }
    // Chan's and Pebay's formulas for the union of two samples.
    const double n = count + b.count, d = b.mean - mean, na = count, nb = b.count;
    fourth += b.fourth + d * d * d * d * na * nb * (na * na - na * nb + nb * nb) / (n * n * n) +
              6 * d * d * (na * na * b.second + nb * nb * second) / (n * n) +
              4 * d * (na * b.third - nb * third) / n;
    third += b.third + d * d * d * na * nb * (na - nb) / (n * n) + 3 * d * (na * b.second - nb * second) / n;
    second += b.second + d * d * na * nb / n;
    mean += d * nb / n;
    count = n;
}

double Moments::deviation() const {
    return std::sqrt(std::max(0.0, second / count));
}
double Moments::skew() const {
    return third / count / std::pow(deviation(), 3);
}
double Moments::kurtosis() const {
    return fourth / count / std::pow(deviation(), 4);
}

void DocumentMean::add(double sum_of_document, int64_t rows) {
    const double m = static_cast<double>(rows);
    add({sum_of_document, sum_of_document * sum_of_document, sum_of_document * m, m * m, rows, 1});
}

void DocumentMean::add(const DocumentMean& b) {
    sum += b.sum, squares += b.squares, products += b.products, sizes += b.sizes;
    count += b.count, documents += b.documents;
}

double DocumentMean::error() const {
    // From the sum of (S - m mean)^2 over documents.
    const double d = static_cast<double>(documents), off = squares + mean() * (mean() * sizes - 2 * products);
    return documents < 2 ? NAN : std::sqrt(std::max(0.0, off) * d / (d - 1)) / static_cast<double>(count);
}

void GapBin::add(const GapBin& b) {
    visible.add(b.visible);
    for (size_t g = 0; g < keys.size(); ++g) keys[g].add(b.keys[g]);
    for (size_t s = 0; s < others.size(); ++s) others[s].add(b.others[s]);
}

namespace {

constexpr std::array head_means{&HeadBin::inverse_top_weight,
                                &HeadBin::entropy,
                                &HeadBin::participation,
                                &HeadBin::mass_100,
                                &HeadBin::sink_mass,
                                &HeadBin::learned_sink_mass,
                                &HeadBin::output_norm,
                                &HeadBin::gate,
                                &HeadBin::gate_below,
                                &HeadBin::log_top_ratio,
                                &HeadBin::previous_mass,
                                &HeadBin::induction_mass,
                                &HeadBin::support};

}  // namespace

void HeadBin::add(const HeadBin& b) {
    for (Mean HeadBin::*mean : head_means) (this->*mean).add(b.*mean);
    for (size_t c = 0; c < decades; ++c) decade_entropy[c].add(b.decade_entropy[c]);
    for (size_t c = 0; c < distance_classes; ++c) decade_mass[c].add(b.decade_mass[c]);
    max_score = std::max(max_score, b.max_score);
    max_logit = std::max(max_logit, b.max_logit);
    logits.add(b.logits);
}

size_t bin_of(int64_t visible) {
    return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(visible)) - 1);
}

HeadBin& HeadSums::bin(int64_t visible) {
    return bin_at(bins, visible);
}

void KeyBin::add(const KeyBin& b) {
    key_norm.add(b.key_norm);
    value_norm.add(b.value_norm);
}

namespace {

// Adds element by element.
template <class T>
void add_all(std::vector<T>& to, const std::vector<T>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i].add(from[i]);
}

}  // namespace

void HeadSums::add(const HeadSums& b) {
    add_all(bins, b.bins);
    add_all(gaps, b.gaps);
    scores.insert(scores.end(), b.scores.begin(), b.scores.end());
    for (size_t c = 0; c < distance_classes; ++c) cosines[c].add(b.cosines[c]);
}

void StateBin::add(const StateBin& b) {
    norm.add(b.norm);
    rank.add(b.rank);
    decay.add(b.decay);
}

void StateSums::add(const StateSums& b) {
    add_all(bins, b.bins);
    add_all(channels, b.channels);
}

void LayerSums::add(const LayerSums& b) {
    add_all(heads, b.heads);
    add_all(states, b.states);
    if (keys.size() < b.keys.size()) keys.resize(b.keys.size());
    for (size_t g = 0; g < b.keys.size(); ++g) add_all(keys[g], b.keys[g]);
    add_all(projected_norm, b.projected_norm);
    pair_cosine.add(b.pair_cosine);
    angle_ratio.add(b.angle_ratio);
    gated |= b.gated;
    sink |= b.sink;
}

namespace {

// Visit the same numbers in the same order: Onto writes them to a list, Off reads them back.
struct Onto {
    std::vector<double> list{};
    void pass(const double& x) { list.push_back(x); }
    void pass(const int64_t& x) { list.push_back(static_cast<double>(x)); }  // counts: far below 2^53
    void pass(const bool& x) { list.push_back(x ? 1 : 0); }
    template <class T>
    void pass_size(const std::vector<T>& of) {
        list.push_back(static_cast<double>(of.size()));
    }
};
struct Off {
    std::span<const double> list;
    double next() {
        check(!list.empty(), "sums end too early");
        const double x = list.front();
        list = list.subspan(1);
        return x;
    }
    void pass(double& x) { x = next(); }
    void pass(int64_t& x) { x = static_cast<int64_t>(next()); }
    void pass(bool& x) { x = next() != 0; }
    template <class T>
    void pass_size(std::vector<T>& of) {
        const double size = next();
        check(size >= 0 && size <= static_cast<double>(list.size()), "{} sums among {} numbers", size,
              list.size());
        of.resize(static_cast<size_t>(size));
    }
};

// Sums is const when writing.
template <class Way, class Sums>
void pass(Way& way, Sums& sums) {
    using T = std::remove_const_t<Sums>;
    if constexpr (std::is_same_v<T, Mean>) {
        way.pass(sums.sum);
        way.pass(sums.count);
    } else if constexpr (std::is_same_v<T, Moments>) {
        for (auto* x : {&sums.count, &sums.mean, &sums.second, &sums.third, &sums.fourth}) way.pass(*x);
    } else if constexpr (std::is_same_v<T, DocumentMean>) {
        for (auto* x : {&sums.sum, &sums.squares, &sums.products, &sums.sizes}) way.pass(*x);
        way.pass(sums.count);
        way.pass(sums.documents);
    } else if constexpr (std::is_same_v<T, GapBin>) {
        pass(way, sums.visible);
        for (auto& mean : sums.keys) pass(way, mean);
        for (auto& mean : sums.others) pass(way, mean);
    } else if constexpr (std::is_same_v<T, HeadBin>) {
        for (Mean HeadBin::*mean : head_means) pass(way, sums.*mean);
        for (auto& mean : sums.decade_entropy) pass(way, mean);
        for (auto& mean : sums.decade_mass) pass(way, mean);
        way.pass(sums.max_score);
        way.pass(sums.max_logit);
        pass(way, sums.logits);
    } else if constexpr (std::is_same_v<T, HeadSums>) {
        pass(way, sums.bins);
        pass(way, sums.gaps);
        pass(way, sums.scores);
        for (auto& cosines : sums.cosines) pass(way, cosines);
    } else if constexpr (std::is_same_v<T, KeyBin>) {
        pass(way, sums.key_norm);
        pass(way, sums.value_norm);
    } else if constexpr (std::is_same_v<T, StateBin>) {
        for (auto* mean : {&sums.norm, &sums.rank, &sums.decay}) pass(way, *mean);
    } else if constexpr (std::is_same_v<T, StateSums>) {
        pass(way, sums.bins);
        pass(way, sums.channels);
    } else if constexpr (std::is_same_v<T, LayerSums>) {
        pass(way, sums.heads);
        pass(way, sums.states);
        pass(way, sums.keys);
        pass(way, sums.projected_norm);
        pass(way, sums.pair_cosine);
        pass(way, sums.angle_ratio);
        way.pass(sums.gated);
        way.pass(sums.sink);
    } else if constexpr (std::is_same_v<T, double>) {
        way.pass(sums);
    } else {  // a list
        way.pass_size(sums);
        for (auto& x : sums) pass(way, x);
    }
}

}  // namespace

std::vector<double> numbers_of(const std::vector<LayerSums>& layers) {
    Onto way;
    pass(way, layers);
    return way.list;
}

std::vector<LayerSums> layers_of(std::span<const double> numbers) {
    Off way{numbers};
    std::vector<LayerSums> layers;
    pass(way, layers);
    check(way.list.empty(), "{} extra numbers after the sums", way.list.size());
    return layers;
}

namespace {

// Rows of one layer at one length.
struct Writer {
    std::vector<ProbeRow>& rows;
    int64_t length, layer;

    // Omits undefined values, such as means of no numbers or the skew of equal scores.
    void put(int64_t head, int64_t bin, const std::string& name, double value, int64_t count) const {
        if (count > 0 && std::isfinite(value)) rows.push_back({length, layer, head, bin, name, value, count});
    }
    void put(int64_t head, int64_t bin, const std::string& name, const Mean& mean) const {
        put(head, bin, name, mean.sum / static_cast<double>(mean.count), mean.count);
    }
    void put(int64_t head, int64_t bin, const std::string& name, const Moments& of,
             const std::string& suffix = "") const {
        const int64_t count = std::llround(of.count);
        put(head, bin, name + "_mean" + suffix, of.mean, count);
        put(head, bin, name + "_sd" + suffix, of.deviation(), count);
    }
    void put(int64_t head, int64_t bin, const KeyBin& b) const {
        put(head, bin, "key_norm", b.key_norm);
        put(head, bin, "value_norm", b.value_norm);
    }
    void put(int64_t head, int64_t bin, const GapBin& b) const {
        put(head, bin, "gap_visible", b.visible);
        for (size_t g = 0; g < b.keys.size(); ++g)
            put(head, bin, fmt::format("gap_keys_{}", law::gap_values[g]), b.keys[g]);
        for (size_t s = 0; s < b.others.size(); ++s) {
            const DocumentMean& others = b.others[s];
            put(head, bin, fmt::format("gap_others_{}", law::gap_scales[s]), others.mean(), others.count);
            put(head, bin, fmt::format("gap_error_{}", law::gap_scales[s]), others.error(), others.documents);
        }
    }
    void put(int64_t head, int64_t bin, const HeadBin& b, bool sink, bool gated) const {
        put(head, bin, "inverse_top_weight", b.inverse_top_weight);
        put(head, bin, "entropy", b.entropy);
        for (size_t c = 0; c < HeadBin::decades; ++c)
            put(head, bin, fmt::format("entropy_{}", distance_class_begin[c + 1]), b.decade_entropy[c]);
        // Over all queries: those that see nothing at a distance give it nothing.
        for (size_t c = 0; c < distance_classes; ++c)
            if (const Mean& m = b.decade_mass[c]; m.count > 0)
                put(head, bin, fmt::format("decade_mass_{}", distance_class_begin[c]),
                    m.sum / static_cast<double>(b.entropy.count), b.entropy.count);
        put(head, bin, "log_top_ratio", b.log_top_ratio);
        put(head, bin, "previous_mass", b.previous_mass);
        put(head, bin, "induction_mass", b.induction_mass);
        put(head, bin, "participation", b.participation);
        put(head, bin, "support", b.support);
        put(head, bin, "mass_100", b.mass_100);
        put(head, bin, "sink_mass", b.sink_mass);
        if (sink) put(head, bin, "learned_sink_mass", b.learned_sink_mass);
        put(head, bin, "output_norm", b.output_norm);
        put(head, bin, "max_score", b.max_score, b.entropy.count);
        put(head, bin, "max_logit", b.max_logit, b.entropy.count);
        const int64_t pairs = std::llround(b.logits.count);
        put(head, bin, "logit", b.logits);
        put(head, bin, "logit_skew", b.logits.skew(), pairs);
        put(head, bin, "logit_kurtosis", b.logits.kurtosis(), pairs);
        if (!gated) return;
        put(head, bin, "gate_mean", b.gate);
        put(head, bin, "gate_below_0.1", b.gate_below);
    }
};

// Positions in which a state keeps half of what it holds, if it loses -g at each.
double half_life(const Mean& lost) {
    return std::log(2) * static_cast<double>(lost.count) / lost.sum;
}

void append_states(const Writer& out, const StateSums& head, int64_t index) {
    const auto put = [&](int64_t at, const StateBin& bin) {
        out.put(index, at, "state_norm", bin.norm);
        out.put(index, at, "state_rank", bin.rank);
        out.put(index, at, "half_life", half_life(bin.decay), bin.decay.count);
    };
    StateBin all;
    for (const StateBin& bin : head.bins) all.add(bin);
    put(0, all);
    for (size_t k = 0; k < head.bins.size(); ++k) put(int64_t{1} << k, head.bins[k]);
    if (head.channels.size() < 2) return;
    const auto slowest =
        std::max_element(head.channels.begin(), head.channels.end(),
                         [](const Mean& a, const Mean& b) { return half_life(a) < half_life(b); });
    out.put(index, 0, "longest_half_life", half_life(*slowest), slowest->count);
}

// The p-quantile of the sorted sample, with linear interpolation.
double quantile(const std::vector<double>& sorted, double p) {
    const double at = p * static_cast<double>(sorted.size() - 1);
    const size_t low = static_cast<size_t>(at), high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

void append_rows(std::vector<ProbeRow>& rows, const LayerSums& sums, int64_t length, int64_t layer) {
    const Writer out{rows, length, layer};
    for (size_t h = 0; h < sums.heads.size(); ++h) {
        const HeadSums& head = sums.heads[h];
        const int64_t index = static_cast<int64_t>(h);
        HeadBin all;
        for (const HeadBin& bin : head.bins) all.add(bin);
        out.put(index, 0, all, sums.sink, sums.gated);
        for (size_t k = 0; k < head.bins.size(); ++k)
            out.put(index, int64_t{1} << k, head.bins[k], sums.sink, sums.gated);
        for (size_t k = 0; k < head.gaps.size(); ++k) out.put(index, int64_t{1} << k, head.gaps[k]);
        for (size_t c = 0; c < distance_classes; ++c)
            out.put(index, 0, "cosine", head.cosines[c], fmt::format("_{}", distance_class_begin[c]));
        if (head.scores.empty()) continue;
        std::vector<double> sorted = head.scores;
        std::sort(sorted.begin(), sorted.end());
        for (const int percent : {1, 5, 25, 50, 75, 95, 99})
            out.put(index, 0, fmt::format("logit_q{:02}", percent),
                    (quantile(sorted, percent / 100.0) - all.logits.mean) / all.logits.deviation(),
                    static_cast<int64_t>(sorted.size()));
    }
    for (size_t h = 0; h < sums.states.size(); ++h)
        append_states(out, sums.states[h], static_cast<int64_t>(h));
    for (size_t g = 0; g < sums.keys.size(); ++g) {
        const int64_t index = static_cast<int64_t>(g);
        KeyBin all;
        for (const KeyBin& bin : sums.keys[g]) all.add(bin);
        out.put(index, 0, all);
        for (size_t k = 0; k < sums.keys[g].size(); ++k) out.put(index, int64_t{1} << k, sums.keys[g][k]);
    }
    Mean all;
    for (const Mean& bin : sums.projected_norm) all.add(bin);
    out.put(-1, 0, "projected_norm", all);
    for (size_t k = 0; k < sums.projected_norm.size(); ++k)
        out.put(-1, int64_t{1} << k, "projected_norm", sums.projected_norm[k]);
    out.put(-1, 0, "pair_cosine", sums.pair_cosine);
    out.put(-1, 0, "angle_ratio", sums.angle_ratio);
}

void append_scalars(std::vector<ProbeRow>& rows, Ops& ops, const model::ParamTable& table,
                    const model::FlatParams& weights) {
    std::vector<float> host;
    for (const model::Param& p : table.params()) {
        const auto ends = [&](const char* with) { return p.name.ends_with(with); };
        if (p.group != model::ParamGroup::scalar || ends("gain") || ends(".bias") || ends("weight")) continue;
        // layers.3.attention.score.r is r of layer 3; a scalar shared by several layers keeps its name.
        const model::ParamName parts(p.name);
        std::string name(parts.rest);
        for (const std::string_view section : {"attention.", "score."})
            if (name.starts_with(section)) name = name.substr(section.size());
        const size_t last = name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1;
        const bool logarithm = name.substr(last).starts_with("log_");
        if (logarithm) name.erase(last, 4);
        host.resize(static_cast<size_t>(p.count()));
        ops.download(host.data(), weights.view(p));
        const Writer out{rows, 0, parts.layer};
        for (int64_t h = 0; h < p.count(); ++h) {
            const double value = double{host[static_cast<size_t>(h)]};
            out.put(p.count() == 1 ? -1 : h, 0, "scalar." + name, logarithm ? std::exp(value) : value, 1);
        }
    }
}

}  // namespace longreach::measure
