#include "model/attention_angle.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"

namespace longreach::model {

using law::AngleText;
using law::Definition;

Scaling scaling_of(const ModelConfig& model, const ScalingConfig& s) {
    const auto context = static_cast<double>(model.train_context);
    if (s.factor == 0 && s.original_context == 0) return {1, model.train_context};  // reported elsewhere
    if (s.original_context == 0) return {s.factor, std::max<int64_t>(1, std::llround(context / s.factor))};
    if (s.factor > 0) return {s.factor, s.original_context};
    if (s.original_context > model.train_context)
        throw ScoreError(fmt::format("{} is above the {} tokens trained on: it would shorten the range",
                                     s.original_context, model.train_context),
                         ".angle_scaling.original_context");
    return {context / static_cast<double>(s.original_context), s.original_context};
}

Ramp ramp_of(const ScalingConfig& s) {
    Ramp ramp{s.fast, s.slow};
    for (const Definition& d : law::find_angle(s.kind)->text.definitions) {
        if (d.name == "fast" && s.fast == 0) ramp.fast = std::stod(d.formula);
        if (d.name == "slow" && s.slow == 0) ramp.slow = std::stod(d.formula);
    }
    if (counts_turns(s.kind) && ramp.slow >= ramp.fast)
        throw ScoreError(fmt::format("{} is not below fast, {}", ramp.slow, ramp.fast),
                         s.slow > 0 ? ".angle_scaling.slow" : ".angle_scaling.fast");
    return ramp;
}

namespace {

// Gives a definition another formula.
void define(AngleText& text, const std::string& name, const std::string& formula) {
    for (Definition& d : text.definitions)
        if (d.name == name) d.formula = formula;
}

// A number or a formula of `params`.
std::string init_of(const json::Value& init, const std::string& key) {
    if (const std::string* text = init.to_string()) return *text;
    if (const std::optional<double> number = init.to_number()) return fmt::format("{}", *number);
    throw ScoreError("needs a number or a formula", key + ".init");
}

bool is_default(const ScoreParameterConfig& c) {
    return !c.positive && c.range.is_null() && c.size == 0 && c.lr == 1;
}

using Parts = std::vector<std::pair<const char*, std::string*>>;

// Reads an object whose members are formulas or numbers. names: "near and growth".
void read_parts(const json::Value& angle, const Parts& parts, const std::string& names,
                const std::string& path) {
    const json::Object* members = angle.to_object();
    if (members == nullptr)
        throw ScoreError("expected a formula, the name of an angle, or an object of " + names, path);
    for (const json::Member& member : *members) {
        const auto part = std::find_if(parts.begin(), parts.end(),
                                       [&](const auto& known) { return member.key == known.first; });
        const std::string key = path + "." + member.key;
        if (part == parts.end()) throw ScoreError("unknown: known are " + names, key);
        const std::string* formula = member.value.to_string();
        const std::optional<double> number = member.value.to_number();
        if (formula == nullptr && !number) throw ScoreError("expected a formula", key);
        *part->second = formula != nullptr ? *formula : fmt::format("{}", *number);
    }
}

// `angle` as an object.
AngleText object_text(const json::Value& angle) {
    AngleText text{.near = "0"};
    read_parts(angle, {{"near", &text.near}, {"growth", &text.growth}}, "near and growth", ".angle");
    return text;
}

// Pairs over which theta falls by a factor of e, which YaRN wants. Rotary positions have it from their base, so that
// no rounding moves the ends of the ramp; other angles from the first and the last pair, as if theta fell geometrically.
double fall_of(const AttentionConfig& a, const std::vector<double>& theta) {
    const double steps = static_cast<double>(theta.size()) - 1;
    if (steps == 0) return 0;
    const std::string name = a.written_angle();
    const bool linear = name == "p_rope_linspace";
    if (const std::optional<double> base = rotary_base(a))
        return (linear ? steps : static_cast<double>(a.turned_dim()) / 2) / std::log(*base);
    return steps / std::log(theta.front() / theta.back());
}

std::string named_near(const std::string& text) {
    if (!law::name_problem(text).empty()) return "";  // not a word
    std::vector<std::string> names;
    for (const law::NamedAngle& named : law::angle_library()) names.push_back(named.name);
    const std::vector<std::string> near = nearest(text, names, 3);
    return near.empty() ? ""
                        : fmt::format("no angle is named {}: did you mean {}?", text, alternatives(near));
}

// keys: of near, far_query, far_key, far_from and growth.
law::Angle bind(const AngleText& text, const law::AngleNumbers& numbers, const std::string (&keys)[5],
                const std::string& definitions) {
    int64_t blamed = 0;
    try {
        return law::bind_angle(text, numbers, blamed);
    } catch (const law::FormulaError& e) {
        if (blamed >= 0) {
            const Definition& d = text.definitions[static_cast<size_t>(blamed)];
            throw ScoreError(fmt::format("{}: {}", e.what(), law::marked(d.formula, e)),
                             definitions.empty() ? keys[0] : fmt::format("{}.{}.init", definitions, d.name));
        }
        const std::string* formulas[] = {&text.near, &text.far_query, &text.far_key, &text.far_from,
                                         &text.growth};
        const auto part = static_cast<size_t>(-1 - blamed);
        const std::string named = named_near(*formulas[part]);
        throw ScoreError(
            named.empty() ? fmt::format("{}: {}", e.what(), law::marked(*formulas[part], e)) : named,
            keys[part]);
    }
}

law::AngleNumbers numbers_of(const ModelConfig& model, int64_t layer) {
    return {.layer = layer,
            .layers = model.layers,
            .head_dim = model.layer_attention(layer).turned_dim(),
            .train_context = model.train_context};
}

// Angles of sums over tokens are these sums times a number for each pair.
void check_steps(const AttentionConfig& a, const law::Angle& angle, const std::string& key) {
    const std::string step = angle_step(a);
    if (step.empty()) return;
    if (angle.near.empty()) throw ScoreError("turns nothing", key);
    if (!law::frequencies(angle.near) || angle.far_from > 0)
        throw ScoreError(
            fmt::format("an angle of {0} is {0} times a number for each pair", law::between(step)), key);
}

// The angle as `angle` says, before it is scaled.
law::Angle original_angle(const ModelConfig& model, int64_t layer) {
    const AttentionConfig& a = model.layer_attention(layer);
    const bool object = a.angle.to_object() != nullptr;
    law::Angle angle =
        bind(angle_text(a), numbers_of(model, layer),
             {object ? ".angle.near" : ".angle", "", "", "", object ? ".angle.growth" : ".angle"}, ".params");
    check_steps(a, angle, ".angle");
    return angle;
}

// The keys of `angle_scaling`.
AngleText keyed_scaling(const ScalingConfig& s, double factor) {
    AngleText text = law::find_angle(s.kind)->text;
    const Ramp ramp = ramp_of(s);
    define(text, "k", fmt::format("{}", factor));
    define(text, "fast", fmt::format("{}", ramp.fast));
    define(text, "slow", fmt::format("{}", ramp.slow));
    if (!s.truncate) {
        define(text, "low", "max(fall*log(L/(2*pi*fast)), 0)");
        define(text, "high", "max(min(fall*log(L/(2*pi*slow)), 2*R - 1), low)");
    }
    return text;
}

// The angle as angle_scaling says, with `more` times its factor: above 1, what a longer sequence makes of it.
law::Angle scaled_angle(const ModelConfig& model, int64_t layer, double more) {
    law::Angle original = original_angle(model, layer);
    const AttentionConfig& a = model.layer_attention(layer);
    const ScalingConfig& s = a.angle_scaling;
    if (!s.active() || original.near.empty()) return original;
    const Scaling scaling = scaling_of(model, s);
    law::AngleNumbers numbers = numbers_of(model, layer);
    numbers.train_context = scaling.original;
    numbers.length = std::max<int64_t>(1, model.train_context);
    numbers.pairs = original.near.size();
    numbers.theta = law::frequencies(original.near).value_or(std::vector<double>());
    AngleText text = keyed_scaling(s, scaling.factor * more);
    if (!numbers.theta.empty()) define(text, "fall", fmt::format("{}", fall_of(a, numbers.theta)));
    law::Angle angle = bind(text, numbers, {".angle_scaling.kind", "", "", "", ""}, "");
    angle.growth = std::move(original.growth);
    return angle;
}

// eval.angle: a name, a formula, or the four formulas of an angle with far pairs.
AngleText written_change(const json::Value& angle) {
    if (const std::string* text = angle.to_string()) {
        if (const law::NamedAngle* named = law::find_angle(*text)) return named->text;
        return {.near = *text};
    }
    AngleText text{.near = "p*theta"};
    const Parts parts{{"near", &text.near},
                      {"far_query", &text.far_query},
                      {"far_key", &text.far_key},
                      {"far_from", &text.far_from}};
    read_parts(angle, parts, "near, far_query, far_key and far_from", "eval.angle");
    for (const auto& [name, formula] : parts)
        if (formula->empty())
            throw ScoreError(fmt::format("needs {}: far pairs have far_query, far_key and far_from", name),
                             "eval.angle");
    return text;
}

// The keys of eval.rope.
AngleText keyed_change(const PostHocConfig& change) {
    AngleText text = law::find_angle(change.kind)->text;
    if (change.factor > 0 && change.kind != "leaky_rerope")
        define(text, "k", fmt::format("{}", change.factor));
    if (change.window > 0) define(text, "w", fmt::format("{}", change.window));
    if (change.leak > 0 && change.kind == "leaky_rerope") define(text, "k", fmt::format("{}", change.leak));
    define(text, "exponent", fmt::format("{}", change.exponent));
    return text;
}

}  // namespace

std::string angle_step(const AttentionConfig& a) {
    std::string written = a.written_angle();
    std::erase(written, ' ');
    for (const auto& [name, unused] : a.terms)
        if (written.find(law::between(name)) != written.npos) return name;
    return "";
}

bool angle_uses(const AttentionConfig& a, const std::string& parameter) {
    const std::string written = a.written_angle();
    if (const law::NamedAngle* named = law::find_angle(written)) {
        const auto& all = named->text.definitions;
        return std::any_of(all.begin(), all.end(), [&](const Definition& d) { return d.name == parameter; });
    }
    if (const json::Object* parts = a.angle.to_object())
        return std::any_of(parts->begin(), parts->end(), [&](const json::Member& part) {
            const std::string* formula = part.value.to_string();
            return formula != nullptr && law::mentions(*formula, parameter);
        });
    return law::mentions(written, parameter);
}

void report_unused(const std::string& section, const std::string& name, const std::string& of_score,
                   config::Problems& problems) {
    const auto known = [&](const auto& parameters) {
        return std::any_of(parameters.begin(), parameters.end(),
                           [&](const auto& p) { return p.name == name; });
    };
    const auto& angles = law::angle_library();
    const auto& laws = law::library();
    const bool of_angle =
        std::any_of(angles.begin(), angles.end(),
                    [&](const auto& angle) { return angle.trains && known(angle.text.definitions); }) &&
        std::none_of(laws.begin(), laws.end(), [&](const auto& law) { return known(law.parameters); });
    problems.no_effect(section + ".params." + name, of_angle ? "the angle has no such parameter" : of_score,
                       section + (of_angle ? ".angle" : ".score"));
}

AngleText angle_text(const AttentionConfig& a) {
    AngleText text;
    const std::string written = a.written_angle();
    if (written.empty()) {
        text = object_text(a.angle);
    } else if (const law::NamedAngle* named = law::find_angle(written)) {
        if (!named->trains)
            throw ScoreError(
                fmt::format("{} changes another angle: see angle_scaling, or after training eval.angle",
                            written),
                ".angle");
        text = named->text;
    } else {
        text.near = written;
    }
    if (const std::string step = angle_step(a); !step.empty()) {
        if (law::mentions(text.near, "p"))
            throw ScoreError(fmt::format("the position p has no place next to {}", law::between(step)),
                             ".angle");
        text.definitions.push_back({law::between(step), "p"});
    }
    for (const auto& [name, c] : a.params) {
        const std::string key = ".params." + name;
        const bool known = std::any_of(text.definitions.begin(), text.definitions.end(),
                                       [&, n = &name](const Definition& d) { return d.name == *n; });
        if (!known && !angle_uses(a, name)) continue;  // the score's
        if (c.learn != Learning::by_law && c.learn != Learning::no)
            throw ScoreError("an angle does not learn", key + ".learn");
        if (!is_default(c)) throw ScoreError("an angle takes only init", key);
        if (known) {
            define(text, name, init_of(c.init, key));
        } else {
            if (const std::string problem = law::name_problem(name); !problem.empty())
                throw ScoreError(problem, key);
            for (const char* variable : {"p", "m", "R", "theta"})
                if (name == variable) throw ScoreError("this is the name of a variable of angles", key);
            text.definitions.push_back({name, init_of(c.init, key)});
        }
    }
    return text;
}

std::optional<double> rotary_base(const AttentionConfig& a) {
    const std::string name = a.written_angle();
    if (name != "rope" && name != "p_rope" && name != "p_rope_linspace") return std::nullopt;
    for (const Definition& d : angle_text(a).definitions)
        if (double base = 0; d.name == "base") {
            const char* end = d.formula.data() + d.formula.size();
            const auto [stop, error] = std::from_chars(d.formula.data(), end, base);
            if (error == std::errc() && stop == end) return base;
        }
    return std::nullopt;
}

std::vector<Definition> angle_definitions(const AttentionConfig& a) {
    std::vector<Definition> all = angle_text(a).definitions;
    const std::string step = angle_step(a);
    if (!step.empty()) all.back() = {step, a.terms.at(step).value + " by token"};
    return all;
}

std::string angle_written_out(const AttentionConfig& a) {
    const AngleText text = angle_text(a);
    std::string line = text.near;
    if (!text.growth.empty()) line += "; growth = " + text.growth;
    for (const Definition& d : angle_definitions(a)) line += fmt::format("; {} = {}", d.name, d.formula);
    return line;
}

law::Angle trained_angle(const ModelConfig& model, int64_t layer) {
    return scaled_angle(model, layer, 1);
}

double trained_stretch(const ModelConfig& model, int64_t layer) {
    const ScalingConfig& s = model.layer_attention(layer).angle_scaling;
    return s.kind == "yarn" ? scaling_of(model, s).factor : 1;
}

double trained_temperature(const ModelConfig& model, int64_t layer) {
    const ScalingConfig& s = model.layer_attention(layer).angle_scaling;
    if (s.kind != "yarn" || original_angle(model, layer).near.empty()) return 1;
    const double factor =
        s.attention_factor > 0 ? s.attention_factor : 0.1 * std::log(scaling_of(model, s).factor) + 1;
    return factor * factor;
}

law::Angle output_factor(const ModelConfig& model, int64_t layer) {
    law::AngleNumbers numbers = numbers_of(model, layer);
    numbers.head_dim = model.layer_attention(layer).head_dim;
    const std::string& formula = model.layer_attention(layer).output_norm.factor;
    const std::string key = ".output_norm.factor";
    if (law::mentions(formula, "m"))
        throw ScoreError("one factor serves all channels: it cannot depend on m", key);
    law::Angle factor = bind({.near = formula}, numbers, {key, "", "", "", ""}, "");
    if (factor.near.empty()) throw ScoreError("the factor is 0 at every position", key);
    factor.near.resize(1);
    return factor;
}

law::Angle changed_angle(const ModelConfig& model, int64_t layer, const PostHocConfig& change,
                         int64_t length) {
    law::Angle trained = trained_angle(model, layer);
    if (!change.turns() || length <= model.train_context || trained.near.empty()) return trained;
    const ScalingConfig& scaling = model.layer_attention(layer).angle_scaling;
    const std::string* named = change.angle.is_null() ? &change.kind : change.angle.to_string();
    if (scaling.active() && named != nullptr && counts_turns(*named)) {
        if (*named != scaling.kind)
            throw ScoreError(fmt::format("{} counts the turns of pairs over the context before scaling, and "
                                         "the angles are trained with {}: choose {}",
                                         *named, scaling.kind, scaling.kind),
                             change.angle_key());
        const bool given = change.factor > 0 && change.angle.is_null();
        return scaled_angle(
            model, layer,
            given ? change.factor : static_cast<double>(length) / static_cast<double>(model.train_context));
    }
    law::AngleNumbers numbers = numbers_of(model, layer);
    numbers.length = length;
    numbers.pairs = trained.near.size();
    numbers.theta = law::frequencies(trained.near).value_or(std::vector<double>());
    AngleText text = change.angle.is_null() ? keyed_change(change) : written_change(change.angle);
    if (!numbers.theta.empty())
        define(text, "fall", fmt::format("{}", fall_of(model.layer_attention(layer), numbers.theta)));
    const std::string key = change.angle_key();
    const bool parts = change.angle.to_object() != nullptr;
    law::Angle angle =
        bind(text, numbers,
             {parts ? key + ".near" : key, key + ".far_query", key + ".far_key", key + ".far_from", ""}, "");
    angle.growth = std::move(trained.growth);
    check_steps(model.layer_attention(layer), angle, key);
    if (angle.far_from >= length) {  // the largest distance is length - 1
        angle.far_queries.clear();
        angle.far_keys.clear();
        angle.far_from = 0;
    }
    return angle;
}

}  // namespace longreach::model
