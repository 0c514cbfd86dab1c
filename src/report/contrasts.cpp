#include "report/contrasts.h"

#include <algorithm>

#include "base/text.h"
#include "report/sweep_results.h"
#include "table/readable.h"

namespace longreach::report {

namespace {

// One quantity of one run, and what it was measured on.
struct Reading {
    double sum = 0;
    int64_t count = 0;
    std::string measured;
    void add(double value, const std::string& on) {
        sum += value;
        ++count;
        measured += on + "\n";
    }
    double mean() const { return sum / static_cast<double>(count); }
};
using Readings = std::map<int64_t, Reading>;  // by seed

Readings losses_of(const SweepResults& results, const sweep::Contrast& c, const std::string& arm,
                   int64_t length) {
    Readings out;
    for (const SweepLoss& l : results.losses)
        if (l.variant == arm && l.evaluation == c.evaluation && l.length == length)
            out[l.seed].add(l.loss, l.measured);
    return out;
}

Readings readings_of(const SweepResults& results, const sweep::Contrast& c, const std::string& arm) {
    if (c.of == sweep::ContrastOf::loss) return losses_of(results, c, arm, c.at);
    Readings out;
    if (c.of == sweep::ContrastOf::gap) {
        Readings near = losses_of(results, c, arm, c.trained_at);
        for (const auto& [seed, far] : losses_of(results, c, arm, c.at))
            if (near.contains(seed))
                out[seed].add(far.sum - near[seed].sum, far.measured + near[seed].measured);
        return out;
    }
    for (const SweepTask& t : results.tasks)
        if (t.variant == arm && t.evaluation == c.evaluation && t.task == c.task && t.length == c.at &&
            t.margin && (c.depth < 0 || t.depth == static_cast<double>(c.depth)))
            out[t.seed].add(*t.margin, t.measured);
    return out;
}

struct Differences {
    std::map<int64_t, double> by_seed;  // where both arms were measured on the same
    bool others = false;                // there are seeds whose arms were not
};

Differences differences_of(const SweepResults& results, const sweep::Contrast& c) {
    Differences out;
    const Readings second = readings_of(results, c, c.second);
    for (const auto& [seed, first] : readings_of(results, c, c.first)) {
        const auto other = second.find(seed);
        if (other == second.end()) continue;
        if (other->second.measured == first.measured)
            out.by_seed[seed] = first.mean() - other->second.mean();
        else
            out.others = true;
    }
    return out;
}

// The differences of the seeds in their order, up to the first one that is missing.
std::vector<double> in_order(const std::map<int64_t, double>& differences,
                             const std::vector<int64_t>& seeds) {
    std::vector<double> out;
    for (const int64_t seed : seeds) {
        const auto found = differences.find(seed);
        if (found == differences.end()) break;
        out.push_back(found->second);
    }
    return out;
}

// All of them, with the plain interval.
decide::Answer description(const std::map<int64_t, double>& differences) {
    decide::Answer answer;
    std::vector<double> values;
    for (const auto& [seed, value] : differences) values.push_back(value);
    answer.seeds = values.size();
    answer.confidence = 0.95;
    answer.interval = mean_interval(values, answer.confidence);
    return answer;
}

// A mean, but no interval before the first look.
decide::Answer before_looks(const decide::Question& question) {
    decide::Answer answer;
    answer.seeds = question.differences.size();
    answer.confidence = NAN;
    answer.interval = mean_interval(question.differences);
    answer.interval.low = answer.interval.high = NAN;
    return answer;
}

std::string verdict_of(const sweep::Contrast& c, const decide::Answer& a) {
    using sweep::Expected;
    if (a.open()) return "open";
    const std::string none = fmt::format("no difference beyond {:g}", c.margin);
    const bool above = a.interval.low > 0;
    if (c.expect == Expected::none && a.within) return "holds: " + none;
    if (c.expect == Expected::none && (a.interval.low >= c.margin || a.interval.high <= -c.margin))
        return "fails";
    if (!a.differs) return none;
    std::string word = above ? "above" : "below";
    if (c.expect == Expected::negative || c.expect == Expected::positive)
        word = above == (c.expect == Expected::positive) ? "holds" : "fails";
    return word + (a.within ? fmt::format(", by less than {:g}", c.margin) : "");
}

constexpr const char* contrasts_caption = "Contrasts: the first arm minus the second, paired by seed";

std::string arms_of(const sweep::Contrast& c) {
    return fmt::format("{} \u2212 {}", c.first, c.second);
}

std::string quantity_of(const sweep::Contrast& c) {
    std::string text = c.of == sweep::ContrastOf::loss ? "loss"
                       : c.of == sweep::ContrastOf::gap
                           ? "rise from " + (c.trained_at > 0 ? grouped(c.trained_at) : "the training length")
                           : "margin of " + c.task;
    if (c.depth >= 0) text += fmt::format(" at {}%", c.depth);
    return text + (c.evaluation == "plain" ? "" : ", " + c.evaluation);
}

}  // namespace

std::vector<ContrastResult> contrast_results(const Collection& sweep) {
    const SweepResults results = sweep_results(sweep);
    std::vector<ContrastResult> out;
    std::vector<decide::Question> questions;
    std::vector<bool> others;
    for (const sweep::Contrast& c : sweep.contrasts) {
        const Differences found = differences_of(results, c);
        if (c.primary) questions.push_back({in_order(found.by_seed, sweep.seeds), c.margin});
        others.push_back(found.others);
        out.push_back({c, description(found.by_seed), "descriptive"});
    }
    const std::vector<decide::Answer> answers = decide::decide(questions);
    size_t next = 0;
    for (size_t i = 0; i < out.size(); ++i) {
        if (out[i].contrast.primary) {
            out[i].answer = answers[next].look > 0 ? answers[next] : before_looks(questions[next]);
            out[i].verdict = verdict_of(out[i].contrast, answers[next]);
            ++next;
        }
        if (others[i]) out[i].verdict += "; some seeds scored other text in the two arms";
    }
    return out;
}

table::DataTable contrast_table(const Collection& sweep) {
    table::DataTable table{.name = "contrasts",
                           .caption = contrasts_caption,
                           .header = {"contrast", "verdict", "difference", "interval from", "to", "margin",
                                      "seeds", "look", "arms", "context", "of", "confidence %"},
                           .interval = 3};
    const auto cell = [](double v) {
        return std::isnan(v) ? table::Cell("") : table::Cell(table::signed_fixed(v, 4), table::exact(v));
    };
    for (const auto& [c, answer, verdict] : contrast_results(sweep))
        table.rows.push_back({table::name_cell(c.name),
                              table::text_cell(verdict),
                              cell(answer.interval.mean),
                              cell(answer.interval.low),
                              cell(answer.interval.high),
                              c.margin > 0 ? table::Cell(c.margin) : table::Cell(""),
                              {fmt::format("{}", answer.seeds)},
                              {answer.look > 0 ? fmt::format("{}", answer.look) : ""},
                              table::text_cell(arms_of(c)),
                              table::count_cell(c.at),
                              table::text_cell(quantity_of(c)),
                              table::number_cell(100 * answer.confidence, 2)});
    return table;
}

std::string contrasts_text(const Collection& sweep, const table::Terminal& terminal) {
    if (sweep.contrasts.empty()) return "";
    std::vector<table::TextLine> lines{{"contrast", "verdict", "difference", "margin", "arms", "context",
                                        "of", "seeds", "look", "confidence %"}};
    for (const auto& [c, answer, verdict] : contrast_results(sweep)) {
        const decide::MeanInterval& m = answer.interval;
        std::string difference = std::isnan(m.mean) ? "-" : fmt::format("{:+.4f}", m.mean);
        if (m.has_interval()) difference += fmt::format(" [{:+.4f}, {:+.4f}]", m.low, m.high);
        lines.push_back(
            {c.name, verdict, difference, c.margin > 0 ? fmt::format("{:g}", c.margin) : "-", arms_of(c),
             fmt::format("{}", c.at), quantity_of(c), fmt::format("{}", answer.seeds),
             answer.look > 0 ? fmt::format("{}", answer.look) : "-",
             std::isnan(answer.confidence) ? "-" : fmt::format("{:.2f}", 100 * answer.confidence)});
    }
    std::string out = fmt::format("\n{}\n{}", contrasts_caption, table::text_table(lines, terminal));
    for (const sweep::Contrast& c : sweep.contrasts)
        if (!c.claim.empty()) out += one_line(fmt::format("  {}: {}", c.name, c.claim)) + "\n";
    return out;
}

}  // namespace longreach::report
