#include "report/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "base/units.h"
#include "config/loader.h"
#include "io/file.h"
#include "model/attention_angle.h"
#include "model/registry.h"
#include "model/transformer.h"
#include "report/sources.h"
#include "table/latex.h"

namespace longreach::report {

namespace {

// Sentences in both forms.
struct Passage {
    std::string text, latex;

    Passage& say(std::string_view words) {
        text += words;
        latex += table::latex_text(words);
        return *this;
    }
    Passage& code(const std::string& words) {
        text += words;
        latex += "\\texttt{" + table::latex_text(words) + "}";
        return *this;
    }
    Passage& cite(const std::vector<std::string>& keys) {
        if (keys.empty()) return *this;
        text += fmt::format(" [{}]", fmt::join(keys, ", "));
        latex += fmt::format("~\\cite{{{}}}", fmt::join(keys, ","));
        return *this;
    }
    Passage& add(const Passage& other) {
        text += other.text;
        latex += other.latex;
        return *this;
    }
    bool operator==(const Passage&) const = default;
};

Passage said(std::string_view words) {
    return Passage().say(words);
}

// "a", "a and b", "a, b and c".
Passage listed(const std::vector<Passage>& parts, const char* between = ", ", const char* last = " and ") {
    Passage out;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) out.say(i + 1 < parts.size() ? between : last);
        out.add(parts[i]);
    }
    return out;
}

std::vector<Passage> passages(const std::vector<std::string>& texts) {
    std::vector<Passage> out;
    for (const std::string& text : texts) out.push_back(said(text));
    return out;
}

std::string number(double value) {
    return fmt::format("{}", value);
}

std::string percent(double share) {
    return fmt::format("{:.3g}%", 100 * share);
}

// A variant with the config of its first run.
struct Variant {
    std::string name;
    train::Experiment experiment;
    config::FieldInfo config;
    int64_t parameters;
    size_t seeds;
};

std::optional<Variant> variant_of(const Collection& collection, const std::string& group) {
    std::optional<Variant> out;
    for (const RunRecord& run : collection.runs) {
        if (run.group != group) continue;
        if (out) {
            ++out->seeds;
            continue;
        }
        const std::string path = io::join_path(run.path, "config.json");
        if (io::kind_of(path, io::Links::follow) != io::PathKind::file) return out;
        try {
            train::Experiment e = config::load_config<train::Experiment>({.file = path}).value;
            const int64_t parameters = model::Transformer(e.model, 1).params().count();
            config::FieldInfo fields = config::describe(e);
            out = Variant{group, std::move(e), std::move(fields), parameters, 1};
        } catch (const Error&) {
            return out;  // of a version that no longer loads
        }
    }
    return out;
}

// What `describe` says of the variants: once where they agree, else with the names of those that it is said of.
Passage stated(const std::vector<Variant>& variants, const std::function<Passage(const Variant&)>& describe) {
    std::vector<std::pair<Passage, std::vector<std::string>>> found;
    for (const Variant& v : variants) {
        const Passage passage = describe(v);
        auto at = std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.first == passage; });
        if (at == found.end()) at = found.insert(found.end(), {passage, {}});
        at->second.push_back(v.name);
    }
    if (found.size() == 1) return found[0].first;
    std::vector<Passage> parts;
    for (const auto& [passage, names] : found)
        parts.push_back(Passage(passage).say(" (").add(listed(passages(names))).say(")"));
    return listed(parts, ", ", " or ");
}

const config::FieldInfo& field_of(const Variant& v, const char* path) {
    return *config::held_field(v.config, path);
}

std::string words_of(const Variant& v, const char* path) {
    return config::words_of(field_of(v, path));
}

std::vector<std::string> keys_of_choice(const Variant& v, const char* path) {
    return keys_of_field(field_of(v, path));
}

// Parts of the residual stream besides the blocks.
std::vector<Passage> residual_parts(const Variant& v) {
    std::vector<Passage> parts;
    const auto add = [&](const config::FieldInfo& field) {
        const std::string words = config::words_of(field);
        if (!words.empty()) parts.push_back(said(words).cite(keys_of_field(field)));
    };
    for (const config::FieldInfo& field : field_of(v, "model.residual").fields) add(field);
    for (const char* path : {"model.positions", "model.head.softcap.kind"}) add(field_of(v, path));
    return parts;
}

Passage shape(const Variant& v) {
    const model::ModelConfig& m = v.experiment.model;
    const model::AttentionConfig& a = m.layer_attention(0);
    std::string text =
        fmt::format("{} of width {}", counted(static_cast<size_t>(m.layers), "layer"), grouped(m.width));
    if (m.loops > 1) text += fmt::format(" that are passed {} times", m.loops);
    text += fmt::format(", {} of {} channels", counted(static_cast<size_t>(a.heads), "head"), a.head_dim);
    if (a.kv() != a.heads) text += fmt::format(" that share {} of keys and values", a.kv());
    const std::vector<int64_t> layers = m.distinct_layers();
    if (std::any_of(layers.begin(), layers.end(),
                    [&](int64_t l) { return model::mixer_type(m.layer_attention(l).mixer).has_mlp; }))
        text += fmt::format(", {} MLPs with {} hidden units", words_of(v, "model.mlp.kind"),
                            grouped(m.mlp_hidden()));
    Passage out = said(
        text + fmt::format(", {} {}", words_of(v, "model.norm.kind"), words_of(v, "model.norm.placement")));
    out.cite(keys_of_choice(v, "model.norm.placement"));
    for (const Passage& part : residual_parts(v)) out.say(", ").add(part);
    return out.say(fmt::format(", and a vocabulary of {} tokens{}", grouped(m.vocab_size),
                               m.head.tied ? " with tied embeddings" : ""));
}

constexpr const char* own_key = "longreach2026";  // of this program in references.bib
constexpr size_t longest_parameter = 24;  // characters; the program prints longer ones (longreach laws)

// A formula with what its parameters are.
Passage formula(const std::string& text, std::vector<std::string> parameters) {
    std::erase_if(parameters, [](const std::string& p) { return p.size() > longest_parameter; });
    Passage out = Passage().code(text);
    return parameters.empty() ? out : out.say(" (").code(join(parameters, "; ")).say(")");
}

// The attention of one layout in words, with the sources that nobody before it has named.
class AttentionWords {
  public:
    AttentionWords(const Variant& variant, int64_t layer, std::set<std::string>& named, std::string& formulas)
        : model_(variant.experiment.model),
          attention_(model_.layer_attention(layer)),
          config_(variant.config),
          section_(*config::held_field(config_, model_.layout_path(layer))),
          named_(named),
          formulas_(formulas) {}

    Passage all() {
        for_each_read(config_, section_, attention_,
                      [&](const config::FieldInfo& field, const std::string& path) {
                          if (path == ".angle") return positions();
                          if (path == ".angle_scaling.kind") return scaling(field);
                          if (path == ".score") return score();
                          if (path == ".source") return;  // said last, of the attention as a whole
                          const std::string words = config::words_of(field);
                          if (!words.empty()) parts_.push_back(said(words).cite(fresh(field)));
                      });
        Passage out = listed(parts_);
        if (!attention_.source.empty()) out.say(fmt::format(" (after {})", one_line(attention_.source)));
        return out;
    }

  private:
    // Keys of a field, without those that were named before.
    std::vector<std::string> fresh(const config::FieldInfo& field) {
        std::vector<std::string> out;
        for (const std::string& key : keys_of_field(field))
            if (named_.insert(key).second) out.push_back(key);
        return out;
    }
    std::vector<std::string> fresh(const char* name) { return fresh(*config::held_field(section_, name)); }

    void positions() {
        const law::AngleText text = model::angle_text(attention_);
        std::vector<std::string> definitions;
        std::string base, fraction;
        for (const law::Definition& d : model::angle_definitions(attention_)) {
            definitions.push_back(fmt::format("{} = {}", d.name, d.formula));
            if (d.name == "base") base = d.formula;
            if (d.name == "fraction") fraction = d.formula;
        }
        const std::string name = attention_.written_angle();
        if (name == "nope" || name == "rope" || name.starts_with("p_rope")) {
            const std::string words =
                name == "nope" ? "no positions"
                : name == "rope"
                    ? fmt::format("rotary positions (base {})", base)
                    : fmt::format("rotary positions in {} of the channel pairs (base {})", fraction, base);
            parts_.push_back(said(words).cite(fresh("angle")));
            return;
        }
        formulas_ += text.near + " " + text.growth + " ";
        parts_.push_back(
            said("channel pairs turned by ").add(formula(text.near, definitions)).cite(fresh("angle")));
        if (!text.growth.empty()) parts_.back().say(" and growing by the exponential of ").code(text.growth);
    }

    void scaling(const config::FieldInfo& kind) {
        const model::ScalingConfig& s = attention_.angle_scaling;
        if (!s.active() || attention_.written_angle() == "nope") return;
        const model::Scaling numbers = model::scaling_of(model_, s);
        parts_.push_back(said(fmt::format("made for {} tokens and scaled by a factor of {} ({})",
                                          grouped(numbers.original), number(numbers.factor), s.kind))
                             .cite(fresh(kind)));
    }

    void score() {
        const model::ScoreText text = model::score_text(attention_);
        std::vector<std::string> stages, parameters;
        for (const law::Stage& stage : text.stages) stages.push_back(stage.formula);
        const std::string score = join(stages, ", then ");
        if (score == "z") return;
        for (const law::Parameter& p : text.parameters) parameters.push_back(p.name + " = " + p.init);
        Passage words = said("scores ").add(formula(score, parameters));
        if (std::any_of(parameters.begin(), parameters.end(),
                        [](const std::string& p) { return p.size() > longest_parameter; }))
            for (const law::NamedLaw& named : law::library())
                if (score == named.formula) words.say(fmt::format(", {}", named.what));
        std::set<std::string> learned;
        for (const law::Parameter& p : text.parameters)
            if (p.learn != law::Sharing::fixed) learned.insert(p.name + law::learned(p.learn));
        for (const std::string& one : learned)
            words.say(", " + one.substr(0, one.find(','))).say(one.substr(one.find(',') + 1));
        words.cite(fresh("score"));
        formulas_ += score + " " + join(parameters, " ");
        parts_.push_back(words);
    }

    const model::ModelConfig& model_;
    const model::AttentionConfig& attention_;
    const config::FieldInfo& config_;
    const config::FieldInfo& section_;
    std::set<std::string>& named_;
    std::string& formulas_;
    std::vector<Passage> parts_;
};

// Of every layout that is in use, with the number of its layers.
Passage variant_words(const Variant& v, std::set<std::string>& named, std::string& formulas) {
    const model::ModelConfig& m = v.experiment.model;
    Passage out;
    const std::vector<int64_t> distinct = m.distinct_layers();
    for (const int64_t first : distinct) {
        int64_t layers = 0;
        for (int64_t l = 0; l < m.layers; ++l) layers += m.layout_name(l) == m.layout_name(first);
        if (first != distinct[0]) out.say(", ");
        if (distinct.size() > 1) out.say(fmt::format("in {} of {} layers ", layers, m.layers));
        out.add(AttentionWords(v, first, named, formulas).all());
    }
    return out;
}

// What the letters of formulas mean, as far as they occur.
std::string legend(const std::string& formulas) {
    static constexpr std::pair<const char*, const char*> meanings[] = {
        {"z", "the scaled product of a query and a key"},
        {"dot", "the product of a query and a key"},
        {"t", "the distance of the key"},
        {"n", "the number of keys that the query sees"},
        {"h", "the head"},
        {"H", "the number of heads"},
        {"l", "the layer"},
        {"d", "the channels of a head"},
        {"L", "the training length"},
        {"p", "the position"},
        {"m", "the channel pair"}};
    std::vector<std::string> words;
    for (const auto& [name, meaning] : meanings)
        if (law::mentions(formulas, name))
            words.push_back(fmt::format("{} {}{}", name, words.empty() ? "is " : "", meaning));
    if (words.empty()) return {};
    std::string out = " In the formulas " + join(words, ", ");
    if (formulas.find("parity") != std::string::npos)
        out += "; a parameter at parity makes the law equal the unscaled model at n = L/2";
    return out + ".";
}

// A run of a sweep by the name of its variant; a checkpoint by that of its run.
std::string started_from(const std::string& init_from) {
    if (init_from.empty()) return {};
    std::string run = init_from;
    while (run.size() > 1 && run.back() == '/') run.pop_back();
    if (io::base_name(io::parent_path(run)) == "checkpoints") run = io::parent_path(io::parent_path(run));
    const std::string name = io::base_name(run);
    return ", starting from the weights of " + name.substr(0, name.rfind(".seed"));
}

Passage training(const Variant& v) {
    const train::Experiment& e = v.experiment;
    std::vector<std::string> contexts;
    std::set<int64_t> batches;
    int64_t tokens = 0;
    for (const train::Stage& stage : e.resolved_stages()) {
        const std::string context = grouped(stage.context);
        if (contexts.empty() || contexts.back() != context) contexts.push_back(context);
        batches.insert(stage.tokens_per_step);
        tokens += stage.steps * stage.tokens_per_step;
    }
    const std::string batch =
        batches.size() == 1 ? grouped(*batches.begin())
                            : fmt::format("{} to {}", grouped(*batches.begin()), grouped(*batches.rbegin()));
    return said(fmt::format("{} tokens in {} steps of {}{}, at a context of {} tokens{}", grouped(tokens),
                            grouped(e.total_steps()), batch, started_from(e.run.init_from),
                            fmt::join(contexts, ", then "),
                            e.data.document_mask ? " in which no token attends to another document"
                                                 : " in which attention crosses the ends of documents"));
}

Passage optimiser(const Variant& v) {
    const optim::OptimizerConfig& o = v.experiment.optimizer;
    const auto decay = [](double value) {
        return value > 0 ? fmt::format(", weight decay {}", number(value)) : std::string();
    };
    const std::string adam = fmt::format("betas {} and {}, epsilon {}", number(o.adam.beta1),
                                         number(o.adam.beta2), number(o.adam.eps));
    const std::string rates =
        fmt::format("learning rates {} of the embedding, {} of the head and {} of scalars",
                    number(o.adam.embedding_lr), number(o.adam.head_lr), number(o.adam.scalar_lr));
    Passage out;
    if (o.matrices == optim::MatrixOptimizer::muon)
        out.say("Muon")
            .cite({"jordan2024muon"})
            .say(fmt::format(" updates the matrices (learning rate {}, momentum {}{}) and Adam",
                             number(o.muon.lr), number(o.muon.momentum), decay(o.muon.weight_decay)));
    else
        out.say(fmt::format("AdamW updates the matrices (learning rate {}{}) and Adam",
                            number(o.adam.matrix_lr), decay(o.adam.weight_decay)));
    out.cite({"kingma2014"}).say(fmt::format(" all else ({}; {})", adam, rates));
    const optim::ScheduleConfig& s = o.schedule;
    const std::string end = s.final == 0 ? "0" : percent(s.final) + " of their value";
    std::string schedule = "; the learning rates ";
    if (s.warmup_steps > 0) schedule += fmt::format("rise over {} steps, then ", grouped(s.warmup_steps));
    if (s.kind == optim::ScheduleKind::constant)
        schedule += "stay constant";
    else if (s.kind == optim::ScheduleKind::linear)
        schedule +=
            fmt::format("fall linearly to {} over the last {} of the steps", end, percent(s.decay_fraction));
    else
        schedule += fmt::format("fall along half a cosine to {}", end);
    out.say(schedule);
    if (o.clip_norm > 0) out.say(fmt::format("; gradients are clipped at norm {}", number(o.clip_norm)));
    if (o.qk_clip.limit > 0)
        out.say("; QK-clip")
            .cite(keys_of_choice(v, "optimizer.qk_clip.limit"))
            .say(fmt::format(" scales down heads whose scores pass {}", number(o.qk_clip.limit)));
    return out;
}

// The evaluations that change a model, by the names of what they change.
Passage evaluations(const Summary& summary) {
    std::set<std::string> labels;
    for (const Series& series : summary.series)
        if (!series.label.empty() && !series.loss.empty()) labels.insert(series.label);
    if (labels.empty()) return {};
    std::vector<Passage> parts;
    for (const std::string& label : labels) parts.push_back(said(label).cite(keys_of_name(label)));
    return said(" Models are also scored under these changes after training: ").add(listed(parts)).say(".");
}

Passage evaluation(const Collection& collection, const Summary& summary,
                   const std::vector<Variant>& variants) {
    Passage out;
    if (summary.lengths.empty()) return out;
    std::vector<std::string> lengths;
    for (const int64_t length : summary.lengths) lengths.push_back(grouped(length));
    out.say(" The loss is the mean cross-entropy in nats per token at ")
        .say(lengths.size() == 1 ? "a context of " : "contexts of ")
        .add(listed(passages(lengths)))
        .say(" tokens, over ")
        .say(measured_on(collection))
        .say("; ");
    out.add(stated(variants, [](const Variant& v) {
        const eval::EvalConfig& e = v.experiment.eval;
        const char* spread = e.pick == eval::EvalPick::spread ? "spread evenly over the validation text"
                                                              : "from the beginning of the validation text";
        return said(
            e.align == eval::EvalAlign::chunk
                ? fmt::format("the windows are {}, and every token of a window is scored", spread)
                : fmt::format("the ends of documents {} are scored after prefixes of each length", spread));
    }));
    return out.say(".").add(evaluations(summary));
}

Passage seeds(const std::vector<Variant>& variants, const Collection& collection) {
    size_t least = variants[0].seeds, most = least;
    for (const Variant& v : variants) least = std::min(least, v.seeds), most = std::max(most, v.seeds);
    if (most == 1)
        return said(fmt::format(" {} was trained with one seed, so that there is no interval over seeds.",
                                variants.size() == 1 ? "The model" : "Every variant"));
    const std::string count =
        least == most ? counted(most, "seed") : fmt::format("{} to {} seeds", least, most);
    return said(fmt::format(
        " {} was trained with {}; a seed sets the initial weights and the order of the data. Losses are "
        "means over seeds with the standard error of the mean{}.",
        variants.size() == 1 ? "The model" : "Every variant", count,
        variants.size() == 1 ? ""
                             : fmt::format("; differences between variants are paired by seed, with {}95% "
                                           "intervals of Student's t",
                                           collection.descriptive())));
}

// The versions and commits that made the runs; runs without a build.json do not say.
Passage software(const Collection& collection) {
    std::map<std::string, std::set<std::string>> commits;  // by version
    for (const RunRecord& run : collection.runs)
        if (const std::string version = text_at(run.build, "version"); !version.empty())
            if (commits[version]; !text_at(run.build, "commit").empty())
                commits[version].insert(text_at(run.build, "commit"));
    std::vector<Passage> versions;
    for (const auto& [version, of] : commits)
        versions.push_back(
            said(version + (of.empty() ? "" : fmt::format(" (commit {})", fmt::join(of, ", ")))));
    Passage out = said(" Models were trained and scored with longreach");
    if (!versions.empty()) out.say(" ").add(listed(versions));
    return out.cite({own_key}).say(".");
}

}  // namespace

Methods methods_of(const Collection& collection, const Summary& summary) {
    std::vector<Variant> variants;
    for (const std::string& group : collection.groups)
        if (std::optional<Variant> v = variant_of(collection, group)) variants.push_back(std::move(*v));
    if (variants.empty()) return {};
    Passage out = said("The models are decoder-only transformers of ").add(stated(variants, shape));
    int64_t least = variants[0].parameters, most = least;
    for (const Variant& v : variants)
        least = std::min(least, v.parameters), most = std::max(most, v.parameters);
    out.say(least == most ? fmt::format(" ({} parameters).", grouped(least))
                          : fmt::format(" ({} to {} parameters).", grouped(least), grouped(most)));
    std::vector<Passage> words;
    std::set<std::string> keys, named;
    std::string formulas;
    for (const Variant& v : variants) {
        words.push_back(variants.size() == 1 ? Passage() : said(v.name + ": "));
        words.back().add(variant_words(v, named, formulas));
        for (const std::string& key : keys_of(v.experiment, v.config)) keys.insert(key);
    }
    out.say(variants.size() == 1 ? " Attention: " : " They differ as follows: ");
    out.add(listed(words, "; ", "; ")).say(".").say(legend(formulas));
    out.say(" Training takes ").add(stated(variants, training)).say(".");
    out.say(" ").add(stated(variants, optimiser)).say(".");
    out.add(evaluation(collection, summary, variants)).add(seeds(variants, collection));
    out.add(software(collection));
    keys.insert(own_key);
    for (const Series& series : summary.series)
        for (const std::string& key : keys_of_name(series.label)) keys.insert(key);
    return {out.text, out.latex + "\n", {keys.begin(), keys.end()}};
}

}  // namespace longreach::report
