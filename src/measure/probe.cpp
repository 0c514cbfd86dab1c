#include "measure/probe.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <span>
#include <tuple>

#include "measure/probe_gatherer.h"
#include "measure/probe_roles.h"
#include "model/registry.h"

namespace longreach::measure {

namespace {

struct TableColumn {
    const char *statistic, *title;
};
// At most six in a table, so that a row fits into 80 columns.
constexpr std::array<TableColumn, 6> weight_columns{{{"inverse_top_weight", "1/max P"},
                                                     {"entropy", "entropy"},
                                                     {"participation", "sum P^2"},
                                                     {"log_top_ratio", "log w1/w2"},
                                                     {"mass_100", "t < 100"},
                                                     {"sink_mass", "first key"}}};
constexpr std::array<TableColumn, 5> distance_columns{{{"decade_mass_0", "t = 0"},
                                                       {"decade_mass_1", "1 - 9"},
                                                       {"decade_mass_10", "10 - 99"},
                                                       {"decade_mass_100", "100 - 999"},
                                                       {"decade_mass_1000", "1K - 10K"}}};
constexpr std::array<TableColumn, 5> logit_columns{{{"max_logit", "max logit"},
                                                    {"logit_sd", "sd of z"},
                                                    {"logit_kurtosis", "kurtosis"},
                                                    {"previous_mass", "previous"},
                                                    {"induction_mass", "induction"}}};

}  // namespace

eval::EvalRequest ProbeRequest::evaluation() const {
    eval::EvalRequest r;
    r.lengths = lengths;
    r.tokens = std::max(tokens, lengths.back());
    r.batch_tokens = batch_tokens(lengths.back());
    r.piece = piece;
    r.pick = pick;
    r.document_mask = document_mask;
    r.seed = seed;
    r.progress = progress;
    r.pause = pause;
    return r;
}

void Probe::plan(model::Arena& arena, const model::ModelConfig& model, int64_t tokens, bool document_mask) {
    int64_t heads = 0, widest = model.width, state = 0;
    for (int64_t l = 0; l < model.layers; ++l) {
        const model::AttentionConfig& a = model.layer_attention(l);
        heads = std::max(heads, a.heads);
        widest = std::max(widest, a.heads * a.head_dim);
        const model::MixerType& type = model::mixer_type(a.mixer);
        if (type.state != nullptr) state = std::max(state, type.state(a));
    }
    arena.group("probe");
    buffers_.statistics = arena.reserve("row_statistics", DType::f32, {row_statistics * heads * tokens});
    buffers_.watched = arena.reserve("watched_keys", DType::i32, {watched_keys * tokens});
    buffers_.rows = arena.reserve("probe_rows", DType::f32, {tokens * widest});
    batch_.plan(arena, tokens, {.documents = document_mask});
    buffers_.projected = arena.activation("probe_projected", {tokens * model.width});
    if (state > 0) buffers_.state = arena.reserve("probe_state", DType::f32, {state});
}

ProbeResult Probe::run(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                       const model::FlatParams& weights, const eval::LengthEvaluator& evaluator,
                       const data::TokenStream& stream, const ProbeRequest& request) const {
    eval::EvalRequest evaluation = request.evaluation();
    const int64_t longest = request.lengths.back();
    const int64_t usable = std::min(evaluation.tokens, static_cast<int64_t>(stream.tokens()) - 1);
    Gatherer gatherer(buffers_, model.config().layers, request.seed, usable / longest * longest);
    evaluation.observer = &gatherer;
    evaluator.run(ops, comm, model, weights, stream, evaluation);
    ProbeResult result;
    if (comm.rank() != 0 || (request.pause != nullptr && request.pause->stopped)) return result;
    for (const auto& [length, layers] : gatherer.lengths())
        for (size_t l = 0; l < layers.size(); ++l) {
            append_rows(result.rows, layers[l], length, static_cast<int64_t>(l));
            if (length != longest) continue;
            std::vector<double>& scores = result.scores.emplace_back();
            for (const HeadSums& head : layers[l].heads)
                scores.insert(scores.end(), head.scores.begin(), head.scores.end());
        }
    const RoleRequest roles{request.batch_tokens(longest), request.document_mask, request.seed};
    const std::vector<ProbeRow> of_roles = probe_roles(ops, model, weights, stream, batch_, buffers_, roles);
    result.rows.insert(result.rows.end(), of_roles.begin(), of_roles.end());
    append_scalars(result.rows, ops, model.params(), weights);
    return result;
}

std::vector<std::string> probe_lines(std::vector<ProbeRow> rows, int64_t step) {
    for (ProbeRow& row : rows) row.step = step;
    return probe_file.lines(rows);
}

namespace {

// Of the delta rule: the last state of a text, and how fast states forget.
std::string state_table(const std::vector<ProbeRow>& rows) {
    using Place = std::tuple<int64_t, int64_t, int64_t>;  // length, layer, head
    struct Line {
        int64_t bin = 0;
        std::map<std::string, double> values;
    };
    std::map<Place, Line> lines;
    for (const ProbeRow& r : rows) {
        const bool state = r.statistic == "state_norm" || r.statistic == "state_rank";
        const bool life = r.statistic.ends_with("half_life") && r.bin == 0;
        if (!state && !life) continue;
        Line& line = lines[{r.length, r.layer, r.head}];
        if (state && r.bin < line.bin) continue;
        if (state) line.bin = r.bin;
        line.values[r.statistic] = r.value;
    }
    std::string out;
    int64_t shown = 0;
    for (const auto& [place, line] : lines) {
        const auto [length, layer, head] = place;
        if (length != shown)
            out += fmt::format("length {}, states\n{:>5} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}\n", length,
                               "layer", "head", "position", "norm", "rank", "half-life", "longest");
        shown = length;
        out += fmt::format("{:>5} {:>5} {:>9}", layer, head, fmt::format("{}+", line.bin));
        for (const char* name : {"state_norm", "state_rank", "half_life", "longest_half_life"})
            out += line.values.contains(name) ? fmt::format(" {:>9.4g}", line.values.at(name))
                                              : std::string(10, ' ');
        out += '\n';
    }
    return out;
}

std::string role_table(const std::vector<ProbeRow>& rows) {
    std::map<std::pair<int64_t, int64_t>, std::map<std::string, double>> heads;  // by layer and head
    for (const ProbeRow& r : rows)
        if (is_role(r.statistic)) heads[{r.layer, r.head}][r.statistic] = r.value;
    if (heads.empty()) return {};
    std::string out = fmt::format("on repeated random tokens and needles\n{:>5} {:>5}", "layer", "head");
    for (const HeadRole& role : head_roles) out += fmt::format(" {:>9}", role.column);
    out += '\n';
    for (const auto& [place, scores] : heads) {
        out += fmt::format("{:>5} {:>5}", place.first, place.second);
        for (const HeadRole& role : head_roles)
            out += scores.contains(role.statistic) ? fmt::format(" {:>9.4g}", scores.at(role.statistic))
                                                   : std::string(10, ' ');
        out += '\n';
    }
    return out;
}

}  // namespace

std::string probe_table(const std::vector<ProbeRow>& rows) {
    using Place = std::tuple<int64_t, int64_t, int64_t>;  // length, layer, head
    struct Bin {
        int64_t smallest = 0, queries = 0;
        std::map<std::string, double> values;
    };
    std::map<Place, Bin> bins;
    for (const ProbeRow& r : rows) {
        if (r.head < 0 || r.bin == 0 || r.statistic != "entropy") continue;
        Bin& bin = bins[{r.length, r.layer, r.head}];
        if (r.count >= bin.queries) bin.smallest = r.bin, bin.queries = r.count;
    }
    for (const ProbeRow& r : rows) {
        const auto bin = bins.find({r.length, r.layer, r.head});
        if (bin != bins.end() && r.bin == bin->second.smallest) bin->second.values[r.statistic] = r.value;
    }
    std::string out;
    for (const std::span<const TableColumn> columns : std::initializer_list<std::span<const TableColumn>>{
             weight_columns, distance_columns, logit_columns}) {
        int64_t shown = 0;
        for (const auto& [place, bin] : bins) {
            const auto [length, layer, head] = place;
            if (length != shown) {
                out += fmt::format("length {}\n{:>5} {:>5} {:>8}", length, "layer", "head", "keys");
                for (const TableColumn& c : columns) out += fmt::format(" {:>9}", c.title);
                out += '\n';
            }
            shown = length;
            out += fmt::format("{:>5} {:>5} {:>8}", layer, head, fmt::format("{}+", bin.smallest));
            for (const TableColumn& c : columns) {
                const auto value = bin.values.find(c.statistic);
                out += value == bin.values.end() ? fmt::format(" {:>9}", "")
                                                 : fmt::format(" {:>9.4g}", value->second);
            }
            out += '\n';
        }
    }
    return out + state_table(rows) + role_table(rows);
}

}  // namespace longreach::measure
