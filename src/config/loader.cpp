#include "config/loader.h"

#include <algorithm>

#include "base/text.h"
#include "base/units.h"
#include "config/reader.h"

namespace longreach::config {
namespace {

// Calls visit(leaf) for every value held; an empty list or object of variations counts as one.
template <class Visit>
void for_each_leaf(const FieldInfo& info, const Visit& visit) {
    if (info.kind == FieldInfo::Kind::section) {
        for (const FieldInfo& field : info.fields) for_each_leaf(field, visit);
    } else if (holds_value(info) || info.elements.empty()) {
        visit(info);
    } else {
        for (const FieldInfo& element : info.elements) for_each_leaf(element, visit);
    }
}

// A number may have been written as an integer, a count of tokens as "2K", a list on the
// command line as "2K,4K" and a list of one string as the string.
bool same_value(const json::Value& written, const json::Value& held) {
    const auto a = written.to_number(), b = held.to_number();
    if (written == held || (a && b && *a == *b)) return true;
    if (const std::string* text = written.to_string(); text != nullptr && held.to_int64())
        return parse_token_count(*text) == held.to_int64();
    const json::Array* list = held.to_array();
    if (list == nullptr || written.is_object()) return false;
    if (list->size() == 1 && written == list->front()) return true;
    const std::vector<json::Value> parts = written.is_array() ? written.as_array() : split_list(written);
    return std::equal(parts.begin(), parts.end(), list->begin(), list->end(), same_value);
}

}  // namespace

ConfigLoad::ConfigLoad(const ConfigSource& source, const FieldInfo& defaults)
    : defaults_(defaults), document_(source, defaults_, problems_) {}

void ConfigLoad::read(const Fields::Body& body) {
    Reader(document_, defaults_, problems_).read(body);
}

bool ConfigLoad::is_set(std::string_view path) const {
    const json::Value* value = document_.find(path);
    return value != nullptr && document_.is_chosen(*value);
}

bool ConfigLoad::is_inherited(std::string_view path) const {
    const json::Value* value = document_.find(path);
    return value != nullptr && value->at().source != 0 && !document_.is_chosen(*value);
}

ProblemList::Problem ConfigLoad::placed(std::string_view path, std::string_view message,
                                        std::string_view other) const {
    const auto at = [&](std::string_view p) {
        const json::Value* value = p.empty() ? nullptr : document_.find(p);
        return value != nullptr ? value->at() : json::Position{};
    };
    return {one_line(path), at(path), one_line(message), one_line(other), at(other)};
}

void ConfigLoad::add(std::string_view path, std::string message, std::string_view other) {
    problems_.add(placed(path, message, other));
}

void ConfigLoad::no_effect(std::string_view path, const std::string& reason, std::string_view other) {
    using Giver = Document::Giver;
    const json::Value *value = document_.find(path), *reason_value = document_.find(other);
    const Giver giver = value != nullptr ? document_.giver(*value) : Giver::nobody;
    if (giver == Giver::nobody) return;
    const bool other_set = reason_value != nullptr && document_.giver(*reason_value) == Giver::command_line;
    const bool wrong = giver == Giver::file && !other_set;
    (wrong ? problems_ : warnings_).add(placed(path, "has no effect: " + reason, other));
}

void ConfigLoad::warn(std::string_view path, const std::string& message) {
    const json::Value* value = document_.find(path);
    if (value != nullptr && document_.giver(*value) != Document::Giver::nobody)
        warnings_.add(placed(path, message, {}));
}

Origin ConfigLoad::origin(std::string_view path) const {
    const json::Value* value = document_.find(path);
    return value != nullptr ? document_.origin(value->at()) : Origin{};
}

std::vector<std::string> ConfigLoad::lines(const ProblemList& problems) const {
    std::vector<std::string> lines;
    for (const auto& problem : problems.sorted()) {
        std::string line = fmt::format("{} ({}): {}", problem.path, to_string(document_.origin(problem.at)),
                                       problem.message);
        if (!problem.other.empty() && problem.other != problem.path) {
            line +=
                fmt::format("; see {} ({})", problem.other, to_string(document_.origin(problem.other_at)));
        } else if (!problem.other.empty()) {
            line += fmt::format("; first {}", to_string(document_.origin(problem.other_at)));
        }
        lines.push_back(std::move(line));
    }
    return lines;
}

void ConfigLoad::finish(bool checked) const {
    if (problems_.empty()) return;
    std::vector<std::string> lines = this->lines(problems_);
    std::string message = join(lines, "\n") + "\n";
    if (problems_.count() > lines.size())
        message += fmt::format("... and {} more\n", problems_.count() - lines.size());
    message += counted(problems_.count(), "problem");
    if (!checked) message += "; the rules between fields are checked once these are solved";
    const std::string about = hint(problems_.sorted().front().path);
    throw ConfigError(message, about, std::move(lines), checked);
}

// Explains the field itself, or the section that contains the unknown key.
std::string ConfigLoad::hint(const std::string& path) const {
    std::string known = path;
    while (!known.empty() && find_field(defaults_, known) == nullptr) {
        const size_t dot = known.rfind('.');
        known.resize(dot == std::string::npos ? 0 : dot);
    }
    return known.empty() ? "longreach config explain" : "longreach config explain " + known;
}

std::vector<FieldOrigin> ConfigLoad::origins(const FieldInfo& config) const {
    std::vector<FieldOrigin> out;
    for_each_leaf(config, [&](const FieldInfo& leaf) {
        FieldOrigin entry{leaf.path, to_json(leaf), {}};
        const json::Value* written = document_.find(leaf.path);
        // An entry of a list starts either from the default list or from the defaults of one entry.
        const FieldInfo* held = held_field(defaults_, leaf.path);
        const FieldInfo* known = find_field(defaults_, leaf.path);
        const bool as_written = written != nullptr && same_value(*written, entry.value);
        const bool as_default = written == nullptr && ((held != nullptr && entry.value == to_json(*held)) ||
                                                       (known != nullptr && entry.value == to_json(*known)));
        if (as_written) {
            entry.origin = document_.origin(written->at());
        } else if (!as_default) {
            entry.origin.kind = Origin::Kind::derived;
        }
        out.push_back(std::move(entry));
    });
    return out;
}

std::string write_resolved(const FieldInfo& config) {
    json::Object object{{"resolved", true}};
    json::Value fields = to_json(config);
    for (json::Member& member : fields.as_object()) object.push_back(std::move(member));
    return json::write(object, json::Style::pretty);
}

std::string origins_table(const std::vector<FieldOrigin>& origins) {
    size_t path_width = 0, value_width = 0;
    std::vector<std::string> values;
    for (const FieldOrigin& entry : origins) {
        values.push_back(json::write(entry.value, json::Style::compact));
        path_width = std::max(path_width, entry.path.size());
        value_width = std::max(value_width, std::min<size_t>(values.back().size(), 40));
    }
    std::string out;
    for (size_t i = 0; i < origins.size(); ++i)
        out += fmt::format("{:<{}}  {:<{}}  {}\n", origins[i].path, path_width, values[i], value_width,
                           to_string(origins[i].origin));
    return out;
}

}  // namespace longreach::config
