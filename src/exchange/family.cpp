#include "exchange/family.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace longreach::exchange {

namespace {

// "layers.3.mlp.up.weight" becomes "layers.*.mlp.up.weight" and "3"; "" if the name has no number.
std::string layer_of(const std::string& name, std::string& pattern) {
    constexpr std::string_view layers = "layers.";
    pattern = name;
    if (!name.starts_with(layers)) return {};
    const size_t end = name.find('.', layers.size());
    if (end == std::string::npos) return {};
    pattern = "layers.*" + name.substr(end);
    return name.substr(layers.size(), end - layers.size());
}

}  // namespace

Place Foreign::place(const std::string& ours) const {
    if (!prefix.empty()) return {.name = prefix + ours};
    std::string pattern;
    const std::string layer = layer_of(ours, pattern);
    const auto at = places.find(pattern);
    check(at != places.end(), "{} has no place in a model of the form {}", ours, family);
    Place place = at->second;
    if (const size_t star = place.name.find('*'); star != std::string::npos)
        place.name.replace(star, 1, layer);
    return place;
}

bool Foreign::ignores(const std::string& theirs) const {
    return std::any_of(ignored.begin(), ignored.end(),
                       [&](const std::string& end) { return theirs.ends_with(end); });
}

const std::vector<Form>& forms() {
    static const std::vector<Form> all{
        {"llama", "Llama", read_llama},    {"mistral", "Mistral", read_mistral},
        {"qwen2", "Qwen2", read_qwen2},    {"qwen3", "Qwen3", read_qwen3},
        {"olmo2", "OLMo2", read_olmo2},    {"gemma", "Gemma", read_gemma},
        {"gemma2", "Gemma2", read_gemma2}, {"gemma3_text", "Gemma3", read_gemma3},
        {"gpt2", "GPT-2", read_gpt2},      {"longreach", "longreach", read_own},
    };
    return all;
}

Foreign read_form(const Settings& settings) {
    const std::string type = settings.text("model_type", "");
    std::vector<std::string> known;
    for (const Form& form : forms()) {
        known.emplace_back(form.model_type);
        if (type != form.model_type) continue;
        Foreign foreign;
        foreign.family = form.family;
        form.read(settings, foreign);
        return foreign;
    }
    settings.refuse("model_type", type.empty() ? "is missing: the form of the model is unknown"
                                               : fmt::format("{} is not supported; known are {}", shown(type),
                                                             join(known, ", ")));
}

int64_t window_of(const Settings& settings) {
    return settings.value().find("sliding_window") == nullptr ? 4096 : settings.integer("sliding_window", 0);
}

void set_layers(json::Value& model, const json::Value& plain, const std::vector<std::string>& kinds,
                const std::map<std::string, json::Value>& changes) {
    const auto changed = [&](json::Value attention, const std::string& kind) {
        const auto at = changes.find(kind);
        if (at == changes.end()) return attention;
        for (const json::Member& member : at->second.as_object()) attention.set(member.key, member.value);
        return attention;
    };
    const bool alike =
        std::all_of(kinds.begin(), kinds.end(), [&](const std::string& k) { return k == kinds[0]; });
    if (kinds.empty() || alike) {
        model.set("attention", kinds.empty() ? plain : changed(plain, kinds[0]));
        return;
    }
    model.set("attention", plain);
    json::Value layouts = json::Value::object(), pattern = json::Value::array();
    // The shortest pattern that repeats, so that a config shows what it is.
    size_t period = 1;
    const auto repeats = [&] {
        for (size_t l = period; l < kinds.size(); ++l)
            if (kinds[l] != kinds[l - period]) return false;
        return true;
    };
    while (!repeats()) ++period;
    for (size_t l = 0; l < period; ++l) {
        pattern.push(kinds[l]);
        if (layouts.find(kinds[l]) == nullptr) layouts.set(kinds[l], changed(plain, kinds[l]));
    }
    model.set("layouts", layouts).set("pattern", pattern);
}

}  // namespace longreach::exchange
