#include "model/post_hoc.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "law/angle.h"

namespace longreach::model {

namespace {

// Splits "a,b", the form that a command line may give instead of a list.
std::vector<std::string> split_names(const std::string& text) {
    std::vector<std::string> names;
    for (size_t at = 0, comma = 0; comma != std::string::npos; at = comma + 1) {
        comma = text.find(',', at);
        names.push_back(text.substr(at, comma == std::string::npos ? comma : comma - at));
    }
    return names;
}

}  // namespace

void PostHocConfig::fields(config::Fields& f) {
    f.word(
        "kind", kind,
        {{"none", "angles as trained"},
         {"pi", "positions divided by k"},
         {"ntk", "base * k^(d/(d-2)): the slowest rotation is divided by k"},
         {"ntk_old", "base * k"},
         {"ntk_su", "theta_m / k^(2m/d), m from 1"},
         {"ntk_mixed", "theta_m / k^((2m/d)^exponent), m from 1"},
         {"ntk_dynamic", "base * (k L / L_train - (k - 1))^(d/(d-2))"},
         {"yarn", "fast rotations as trained, slow ones divided by k, a ramp between; and yarn_temp"},
         {"llama3", "as yarn with a ramp in turns, and without yarn_temp"},
         {"rerope", "distances beyond a window count as the window"},
         {"leaky_rerope", "distances beyond a window grow slower"}},
        {.help = "change of the rotary embedding at lengths beyond the trained one: an angle of the library; "
                 "a formula of your own: eval.angle",
         .resumable = true,
         .of_library = true});
    f.number("factor", factor, {.min = 0, .max = 1e6},
             {"pi, ntk*, yarn, llama3, yarn_temp: k; 0: length / L_train (ntk_dynamic: 1)", true});
    f.integer("window", window, {.min = 0, .max = int64_t{1} << 40, .tokens = true},
              {.help = "distance w, in tokens; 0: L_train / 4",
               .resumable = true,
               .acts = config::only("kind", "rerope leaky_rerope")});
    f.number("leak", leak, {.min = 0, .max = 1e9},
             {.help = "distance beyond the window is divided by this; 0: so that the largest one was trained",
              .resumable = true,
              .acts = config::only("kind", "leaky_rerope")});
    f.number("exponent", exponent, {.min = 0, .max = 10, .open_min = true},
             {.help = "of m in ntk_mixed", .resumable = true, .acts = config::only("kind", "ntk_mixed")});
    f.word(
        "scale", scale,
        {{"none"},
         {"clip_logn", "log n / log L_train where n is beyond L_train"},
         {"yarn_temp", "(0.1 log k + 1)^2, layers with rotary only"}},
        {.help = "factor of all scores at lengths beyond the trained one: a law of the library; a formula of "
                 "your own: eval.score",
         .resumable = true,
         .of_library = true});
    f.any(
        "layers", layers,
        {"layers that are changed: full, those that attend to the whole sequence (no window or chunks below "
         "the length); all; or layout names, [\"global\"] (attention: layers that no layout changes)",
         true});
}

void PostHocConfig::check(const std::string& path, config::Problems& p) const {
    if (!layers_readable()) p.add(path + ".layers", "expected \"full\", \"all\" or a list of layout names");
    if (!active())
        p.no_effect(path + ".layers",
                    "kind and scale are none, eval.angle and eval.score null, so nothing is changed",
                    path + ".kind");
    const bool windowed = kind == "rerope" || kind == "leaky_rerope";
    if (kind != "none" && !angle.is_null())
        p.add("eval.angle", "the angles are changed twice: leave one of them out", path + ".kind");
    if ((kind == "none" || windowed) && scale != "yarn_temp")
        p.no_effect(path + ".factor", kind == "none" ? "kind is none" : "the window takes its place",
                    path + ".kind");
    if (kind == "yarn" && scale == "yarn_temp")
        p.no_effect(path + ".scale", "yarn already carries yarn_temp", path + ".kind");
    if (factor > 0 && factor < 1)
        p.add(path + ".factor", fmt::format("{} is below 1: it would shorten the range", factor));
    if (leak > 0 && leak < 1)
        p.add(path + ".leak", fmt::format("{} is below 1: it would lengthen distances", leak));
}

bool PostHocConfig::layers_readable() const {
    const json::Array* list = layers.to_array();
    if (list == nullptr) return layers.is_string();
    return std::all_of(list->begin(), list->end(), [](const json::Value& name) { return name.is_string(); });
}

std::vector<std::string> PostHocConfig::layer_names() const {
    if (const std::string* text = layers.to_string()) return split_names(*text);
    std::vector<std::string> names;
    for (const json::Value& name : layers_readable() ? layers.as_array() : json::Array())
        names.push_back(name.as_string());
    return names;
}

ScoreChange PostHocConfig::score_change(bool turned) const {
    ScoreChange change;
    if (scale == "clip_logn") change.factor = scale;
    if (turned && (kind == "yarn" || scale == "yarn_temp")) {
        // The k of ntk_dynamic is not a ratio of lengths.
        const bool ratio = factor > 0 && kind != "ntk_dynamic";
        change.stretch = ratio ? fmt::format("{}", factor) : "T/L";
    }
    change.laws = score;
    return change;
}

bool PostHocConfig::far_pairs() const {
    if (const json::Value* from = angle.find("far_from")) return !from->is_null();
    const std::string* name = angle.to_string();
    const law::NamedAngle* named = law::find_angle(name != nullptr ? *name : kind);
    return named != nullptr && !named->text.far_from.empty();
}

}  // namespace longreach::model
