#include "report/sources.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "law/angle.h"
#include "law/library.h"
#include "model/registry.h"
#include "report/collect.h"

namespace longreach::report {

namespace {

// Whether a value is a choice at all, and not the default that leaves a part out.
bool chosen(const json::Value& value) {
    if (value.is_null() || value == json::Value(false) || value == json::Value("none")) return false;
    const std::optional<double> number = value.to_number();
    return !number || (*number != 0 && *number != -1);
}

void add(std::set<std::string>& out, std::string_view keys) {
    while (!keys.empty()) {
        const size_t end = std::min(keys.find(' '), keys.size());
        if (end > 0) out.emplace(keys.substr(0, end));
        keys.remove_prefix(std::min(end + 1, keys.size()));
    }
}

// What a value names: laws and angles in a text or a list of texts.
void add_names(std::set<std::string>& out, const json::Value& value) {
    if (const std::string* text = value.to_string())
        for (const std::string& key : keys_of_name(*text)) out.insert(key);
    if (const json::Array* list = value.to_array())
        for (const json::Value& entry : *list) add_names(out, entry);
}

constexpr std::string_view fields_of_names[] = {
    ".position.scaling.kind", ".score",         ".scale.kind",     ".distance.kind", ".angle",
    ".position.kind",         "eval.rope.kind", "eval.rope.scale", "eval.score",     "eval.angle"};

std::vector<Sourced> with_parts(std::vector<Sourced> choices) {
    for (const model::LayerPart* part : model::all_parts())
        if (!part->sources.empty()) choices.push_back({part->field, part->word, part->sources});
    return choices;
}

}  // namespace

const std::vector<Sourced>& choices_with_sources() {
    static const std::vector<Sourced> table = with_parts({
        {".qk.kind", "qk_rms", "nor2025"},
        {".qk.kind", "qk_rms_w", "nor2025"},
        {".qk.kind", "qk_rms_eps", "nor2025"},
        {".qk.kind", "qk_rms_full", "olmo2025"},
        {".qk.kind", "qk_ln", "dehghani2023"},
        {".qk.kind", "qk_l2", "henry2020"},
        {".qk.kind", "qna", "su9859"},
        {".qk.kind", "kna", "su9859"},
        {".qk.kind", "kna_w", "su9859"},
        {".qk.kind", "cosa", "su9859 henry2020"},
        {".qk.kind", "qkv_rms_w", "zhuo2025hybridnorm"},
        {".qk.kind", "qkv_ln", "zhuo2025hybridnorm"},
        {".gate.kind", "headwise", "qiu2025gated"},
        {".gate.kind", "elementwise", "qiu2025gated"},
        {".gate.kind", "sparse", "jordan2024"},
        {".normaliser", "stick_breaking", "tan2024stick"},
        {".forget", "head", "lin2025fox"},
        {".sink", "", "openai2025gptoss"},
        {".softcap", "", "gemma2024"},
        {".output_norm.kind", "", "nor2025"},
        {".conv.size", "", "jordan2024"},
        {"model.norm.placement", "peri", "kim2025periln"},
        {"model.norm.placement", "hybrid", "zhuo2025hybridnorm"},
        {"model.residual.x0", "", "jordan2024"},
        {"model.residual.unet", "", "jordan2024"},
        {"model.residual.values", "", "jordan2024"},
        {"model.residual.value_embeddings", "", "jordan2024"},
        {"model.residual.smear", "", "jordan2024"},
        {"optimizer.qk_clip.limit", "", "kimi2025"},
        {"optimizer.matrices", "muon", "jordan2024muon kingma2014"},
        {"optimizer.matrices", "adam", "kingma2014"},
    });
    return table;
}

std::vector<std::string> keys_of_name(std::string_view name) {
    std::set<std::string> out;
    if (const law::NamedLaw* law = law::find_law(name)) add(out, law->sources);
    if (const law::NamedAngle* angle = law::find_angle(name)) add(out, angle->sources);
    return {out.begin(), out.end()};
}

std::vector<std::string> keys_of_field(const json::Value& config, const std::string& section,
                                       std::string_view field) {
    std::set<std::string> out;
    const json::Value* value = value_at(config, section + std::string(field));
    if (value == nullptr) return {};
    for (const Sourced& row : choices_with_sources()) {
        if (row.field != field) continue;
        if (row.word.empty() ? chosen(*value) : *value == json::Value(std::string(row.word)))
            add(out, row.keys);
    }
    for (const std::string_view named : fields_of_names)
        if (field == named) add_names(out, *value);
    return {out.begin(), out.end()};
}

std::vector<std::string> keys_of(const train::Experiment& experiment, const json::Value& config) {
    std::set<std::string> out;
    const auto look = [&](const std::string& section, std::string_view field) {
        for (const std::string& key : keys_of_field(config, section, field)) out.insert(key);
    };
    for (const Sourced& row : choices_with_sources())
        if (row.field[0] != '.') look("", row.field);
    for (const char* field : {"eval.rope.kind", "eval.rope.scale", "eval.score", "eval.angle"})
        look("", field);
    for (const int64_t layer : experiment.model.distinct_layers()) {
        const std::string section = experiment.model.layout_path(layer);
        const model::AttentionConfig& attention = experiment.model.layer_attention(layer);
        for (const model::LayerPart* part : model::parts_of(attention)) look(section, part->field);
        if (!attention.attends()) continue;
        for (const Sourced& row : choices_with_sources())
            if (row.field[0] == '.') look(section, row.field);
        look(section, attention.angle.is_null() ? ".position.kind" : ".angle");
        for (const char* field : {".position.scaling.kind", ".score", ".scale.kind", ".distance.kind"})
            look(section, field);
    }
    return {out.begin(), out.end()};
}

std::string bibliography(const std::vector<std::string>& keys) {
    const std::string_view all = references();
    std::string out;
    for (size_t at = all.find("\n@"); at != all.npos;) {
        const size_t end = std::min(all.find("\n@", at + 1), all.size());
        const std::string_view entry = all.substr(at + 1, end - at - 1);
        const size_t brace = entry.find('{'), comma = entry.find(',');
        const std::string key(entry.substr(brace + 1, comma - brace - 1));
        if (std::find(keys.begin(), keys.end(), key) != keys.end())
            out += std::string(entry.substr(0, entry.rfind('}') + 1)) + "\n\n";
        at = end < all.size() ? end : all.npos;
    }
    if (!out.empty()) out.pop_back();
    return out;
}

}  // namespace longreach::report
