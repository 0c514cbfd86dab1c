#include "model/score_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "model/attention_angle.h"
#include "model/changed_layers.h"
#include "model/model_config.h"

namespace longreach::model {

namespace {

// An attention section in use, and the scores of its layers, of which only different ones are kept.
struct Section {
    const AttentionConfig& attention;
    std::string path;
    std::vector<LayerScore> scores{};
    bool by_layer = false;

    std::string in_layer(const LayerScore& score) const {
        return by_layer ? fmt::format(" in layer {}", score.law.model().layer) : "";
    }
};

Section section_of(const ModelConfig& model, int64_t first, config::Problems& p) {
    Section s{model.layer_attention(first), model.layout_path(first)};
    for (int64_t l = first; l < model.layers && (l == first || s.by_layer); ++l) {
        if (model.layout_name(l) != model.layout_name(first)) continue;
        try {
            s.scores.push_back(layer_score(model, l));
        } catch (const ScoreError& e) {
            if (l > first) p.add(e.path(s.path), fmt::format("in layer {}: {}", l, e.what()));
            break;  // that of the first layer is reported elsewhere
        }
        s.by_layer = s.scores.front().law.uses_layer();
    }
    return s;
}

// What a law does at the longest length, or, if it depends on T, at the first length for which there is something to say.
template <class Check>
std::string first_problem(const law::BoundLaw& law, const std::vector<int64_t>& lengths, Check check) {
    for (size_t i = law.uses_length() ? 0 : lengths.size() - 1; i < lengths.size(); ++i)
        if (std::string problem = check(lengths[i]); !problem.empty())
            return problem + (law.uses_length() ? fmt::format(", at T = {}", lengths[i]) : "");
    return "";
}

bool finite(const LayerScore& score, const std::string& where, const std::string& path,
            const std::vector<int64_t>& lengths, config::Problems& p) {
    const std::string problem =
        first_problem(score.law, lengths, [&](int64_t length) { return score.law.first_not_finite(length); });
    if (!problem.empty())
        p.add(path,
              fmt::format("{}{}; scores and derivatives must be finite in f32 at every n and t up to {}",
                          problem, where, lengths.back()));
    return problem.empty();
}

void coarse(const LayerScore& score, const std::string& where, const std::string& path,
            const std::vector<int64_t>& lengths, config::Problems& p) {
    const std::string problem = first_problem(
        score.law, lengths, [&](int64_t length) { return score.law.first_coarse_bias(length); });
    if (!problem.empty()) p.warn(path, problem + where);
}

// What reads tokens is evaluated at lengths that nobody has named yet: up to `reach`, not finite is a warning.
void overflowing(const LayerScore& score, const std::string& where, const std::string& path, int64_t longest,
                 config::Problems& p) {
    constexpr int64_t reach = 65536;
    if (longest >= reach) return;
    const std::string problem = score.law.first_overflow_of_terms(reach);
    if (!problem.empty())
        p.warn(path, fmt::format("{}{} with the terms at their first values: an evaluation there fails",
                                 problem, where));
}

std::string text_of(const AttentionConfig& attention) {
    return json::write(attention.score, json::Style::compact);
}

// Why neither the angle nor a law has a parameter of this name; "": one does.
std::string unknown_parameter(const AttentionConfig& attention, const law::BoundLaw& law,
                              const std::string& name) {
    std::vector<std::string> known;
    for (const law::Definition& d : angle_text(attention).definitions) known.push_back(d.name);
    for (const law::Parameter& p : law.parameters()) known.push_back(p.name);
    if (std::find(known.begin(), known.end(), name) != known.end()) return "";
    if (known.empty()) return "neither angle nor score has parameters";
    const std::vector<std::string> near = nearest(name, known, 3);
    return near.empty() ? "neither angle nor score has this parameter, only " + join(known, ", ")
                        : fmt::format("neither angle nor score has this parameter: did you mean {}?",
                                      alternatives(near));
}

}  // namespace

void check_scores(const ModelConfig& model, const std::vector<int64_t>& lengths, config::Problems& p) {
    std::vector<Section> sections;
    for (const int64_t first : model.distinct_attention_layers())
        if (!model.layer_attention(first).score.is_null()) sections.push_back(section_of(model, first, p));
    // A layout has the parameters of the section that it starts from; one layer that needs them is enough.
    std::set<std::pair<std::string, std::string>> needed;  // score and parameter
    std::set<std::string> wrong;                           // scores
    for (const Section& s : sections)
        for (const LayerScore& score : s.scores) {
            if (!finite(score, s.in_layer(score), s.path + ".score", lengths, p)) {
                wrong.insert(text_of(s.attention));
                break;
            }
            coarse(score, s.in_layer(score), s.path + ".score", lengths, p);
            overflowing(score, s.in_layer(score), s.path + ".score", lengths.back(), p);
            for (size_t i = 0; i < score.law.parameters().size(); ++i)
                if (score.law.without_effect(i, lengths.back()).empty())
                    needed.emplace(text_of(s.attention), score.law.parameters()[i].name);
        }
    for (const Section& s : sections) {
        if (s.scores.empty() || wrong.count(text_of(s.attention)) > 0) continue;
        const law::BoundLaw& law = s.scores.front().law;
        for (const auto& [name, unused] : s.attention.params)
            if (const std::string reason = unknown_parameter(s.attention, law, name); !reason.empty())
                report_unused(s.path, name, reason, p);
        for (size_t i = 0; i < law.parameters().size(); ++i) {
            const law::Parameter& parameter = law.parameters()[i];
            const std::string path = s.path + ".params." + parameter.name;
            if (parameter.learn == law::Sharing::fixed)
                p.no_effect(path + ".lr", "this parameter does not learn", path + ".learn");
            if (needed.count({text_of(s.attention), parameter.name}) > 0) continue;
            const std::string reason = law.without_effect(i, lengths.back());
            if (s.attention.params.count(parameter.name) > 0)
                p.no_effect(path, reason, s.path + ".score");
            else
                p.warn(s.path + ".score",
                       fmt::format("parameter {} of the law has no effect: {}", parameter.name, reason));
        }
    }
}

void check_score_change(const ModelConfig& model, const PostHocConfig& change, int64_t layer,
                        const std::vector<int64_t>& lengths, config::Problems& p) {
    const LayerChoice choice = layer_choice(model, change, layer);
    std::vector<int64_t> changed;
    for (const int64_t length : lengths)
        if (length > model.train_context && choice.at(length)) changed.push_back(length);
    if (changed.empty()) return;
    try {
        const bool turned = !trained_angle(model, layer).near.empty();
        const LayerScore score = layer_score(model, layer, change.score_change(turned));
        if (finite(score, "", "eval.score", changed, p)) coarse(score, "", "eval.score", changed, p);
    } catch (const ScoreError& e) {
        p.add(e.path(model.layout_path(layer)), e.what());
    }
}

}  // namespace longreach::model
