#include "config/document.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <unordered_map>

#include "base/nearest_path.h"
#include "base/text.h"
#include "config/field_info.h"

namespace longreach::config {
namespace {

namespace fs = std::filesystem;

constexpr size_t max_bytes = 1 << 20;
constexpr int max_files = 64;  // includes may form a lattice, in which each file is read once per way to it
constexpr size_t max_segments = 64;  // of a dotted path

// The loader's own keys at the top level of a file.
constexpr std::string_view reserved[] = {"base", "resolved", "$schema"};

std::string read_text(const std::string& name) {
    // Only a directory is refused: a config may come through a pipe.
    std::error_code ignored;
    require(!fs::is_directory(name, ignored), ExitCode::usage, "cannot read config {}: it is a directory",
            shown(name, 200));
    errno = 0;
    std::ifstream in(name, std::ios::binary);
    if (!in.good()) {
        const std::string reason = errno != 0 ? std::strerror(errno) : "cannot be opened";
        fail(ExitCode::usage, "cannot read config {}: {}{}", shown(name, 200), reason, path_suggestion(name));
    }
    std::string text(max_bytes + 1,
                     '\0');  // one more than allowed, so that the parser reports the excess
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(in.gcount()));
    require(!in.bad(), ExitCode::usage, "cannot read config {}: {}", shown(name, 200), std::strerror(errno));
    return text;
}

// The same file under any name compares equal.
std::string identity(const std::string& name) {
    std::error_code failed;
    const fs::path path = fs::weakly_canonical(name, failed);
    return failed ? name : path.string();
}

void merge(json::Value& into, json::Value overlay) {
    if (!into.is_object() || !overlay.is_object()) {
        into = std::move(overlay);
        return;
    }
    json::Object& members = into.as_object();
    std::unordered_map<std::string, size_t> index;
    for (size_t i = 0; i < members.size(); ++i) index.emplace(members[i].key, i);
    for (json::Member& member : overlay.as_object()) {
        const auto old = index.find(member.key);
        if (old == index.end()) {
            index.emplace(member.key, members.size());
            members.push_back(std::move(member));
        } else {
            members[old->second].at = member.at;
            merge(members[old->second].value, std::move(member.value));
        }
    }
    into.set_position(overlay.at());
}

void set_positions(json::Value& value, const json::Position& at) {
    value.set_position(at);
    if (value.is_array())
        for (json::Value& element : value.as_array()) set_positions(element, at);
    if (value.is_object())
        for (json::Member& member : value.as_object()) {
            member.at = at;
            set_positions(member.value, at);
        }
}

std::optional<size_t> to_index(std::string_view text) {
    size_t index = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), index);
    const bool canonical = text.size() == 1 || !text.starts_with('0');
    if (failed != std::errc() || end != text.data() + text.size() || !canonical) return std::nullopt;
    return index;
}

// Whether both are the same text of the same files.
bool same_places(const json::Value& a, const json::Value& b) {
    const json::Position &p = a.at(), &q = b.at();
    if (p.source != q.source || p.line != q.line || p.column != q.column) return false;
    const json::Object *left = a.to_object(), *right = b.to_object();
    if (left == nullptr || right == nullptr) return left == right;
    if (left->size() != right->size()) return false;
    for (size_t i = 0; i < left->size(); ++i)
        if (!same_places((*left)[i].value, (*right)[i].value)) return false;
    return true;
}

// One step of a dotted path, or null.
const json::Value* child(const json::Value& value, std::string_view part) {
    const json::Array* array = value.to_array();
    if (array == nullptr) return value.find(part);
    const auto index = to_index(part);
    return index && *index < array->size() ? &(*array)[*index] : nullptr;
}

json::Value* child(json::Value& value, std::string_view part) {
    return const_cast<json::Value*>(child(std::as_const(value), part));
}

// The value at a path, one key or index for every part of it, or null.
json::Value* value_at(json::Value& root, std::string_view path) {
    json::Value* at = &root;
    for (const std::string_view part : split_path(path))
        if (at = child(*at, part); at == nullptr) return nullptr;
    return at;
}

const json::Value* descend(const json::Value& at, std::string_view path) {
    for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
        if (const json::Value* next = child(at, path.substr(0, dot)))
            if (const json::Value* found = descend(*next, path.substr(dot + 1))) return found;
    return child(at, path);
}

}  // namespace

std::string to_string(const Origin& origin) {
    auto printable = [](char c) { return c >= 0x20 && c < 0x7F; };
    const std::string& argument = origin.argument;
    const bool plain = argument.size() <= 100 && std::all_of(argument.begin(), argument.end(), printable);
    switch (origin.kind) {
        case Origin::Kind::default_value:
            return "default";
        case Origin::Kind::derived:
            return "derived";
        case Origin::Kind::file:
            return fmt::format("{}:{}:{}", shown(origin.file, 200), origin.line, origin.column);
        case Origin::Kind::command_line:
            return "--set " + (plain ? argument : quoted(argument, 100));
    }
    return "";
}

PlacedValue parse_override(const std::string& text) {
    const size_t equals = text.find('=');
    PlacedValue out{text.substr(0, equals), {}, {.kind = Origin::Kind::command_line, .argument = text}};
    if (equals == std::string::npos) return out;
    out.unset = equals + 1 == text.size();
    if (out.unset) return out;
    try {
        out.value = json::parse(std::string_view(text).substr(equals + 1), "--set",
                                {.max_bytes = max_bytes, .keep_duplicates = true});
    } catch (const Error&) {
        out.value = text.substr(equals + 1);
    }
    return out;
}

std::vector<ProblemList::Problem> ProblemList::sorted() const {
    std::vector<Problem> out = problems_;
    auto place = [](const Problem& p) {
        return std::tuple(p.at.source == 0, p.at.source, p.at.line, p.at.column);
    };
    std::stable_sort(out.begin(), out.end(), [&](auto& a, auto& b) { return place(a) < place(b); });
    return out;
}

Document::Document(const ConfigSource& source, const FieldInfo& fields, ProblemList& problems)
    : problems_(problems),
      fields_(fields),
      defaults_(to_json(fields)),
      bases_(json::Value::object()),
      sources_(1),
      root_(json::Value::object()) {
    if (!source.file.empty() || source.text) {
        std::vector<std::string> chain;
        root_ = read_file(source.file, source.text, true, chain);
    }
    for (const PlacedValue& placed : source.values) apply(placed);
    for (const std::string& text : source.overrides) apply(parse_override(text));
}

const json::Value* Document::find(std::string_view path) const {
    return path.empty() ? &root_ : descend(root_, path);
}

Document::Giver Document::giver(const json::Value& value) const {
    Giver strongest = Giver::nobody;
    if (const json::Object* object = value.to_object(); object != nullptr && !object->empty()) {
        for (const json::Member& member : *object) strongest = std::max(strongest, giver(member.value));
        return strongest;
    }
    if (const json::Array* array = value.to_array())
        for (const json::Value& element : *array) strongest = std::max(strongest, giver(element));
    return std::max(strongest, sources_[static_cast<size_t>(value.at().source)].giver);
}

bool Document::from_command_line(const json::Position& at) const {
    return sources_[static_cast<size_t>(at.source)].kind == Origin::Kind::command_line;
}

Origin Document::origin(const json::Position& at) const {
    const Source& source = sources_[static_cast<size_t>(at.source)];
    Origin out{.kind = source.kind};
    if (source.kind == Origin::Kind::command_line) out.argument = source.name;
    if (source.kind == Origin::Kind::file) {
        out.file = source.name;
        out.line = at.line;
        out.column = at.column;
    }
    return out;
}

json::Value Document::read_file(const std::string& name, const std::optional<std::string>& text,
                                bool main_file, std::vector<std::string>& chain) {
    require(++files_read_ <= max_files, ExitCode::usage, "{}: the base files come to more than {}",
            shown(name, 200), max_files);
    const size_t number = sources_.size();
    sources_.push_back({Origin::Kind::file, name, main_file ? Giver::file : Giver::base});
    json::Value file = json::parse(text ? *text : read_text(name), shown(name, 200),
                                   {.relaxed = true,
                                    .max_bytes = max_bytes,
                                    .keep_duplicates = true,
                                    .source = static_cast<int>(number)});
    if (!file.is_object()) {
        problems_.add({"config", file.at(), "expected an object: a file begins with {"});
        return json::Value::object();
    }
    report_duplicates(file, "");
    if (const json::Value* mark = file.find("resolved")) {
        if (mark->to_bool() == true) {
            sources_[number].giver = Giver::nobody;
        } else {
            problems_.add(
                {"resolved", mark->at(), "expected true: it marks a config written by this program"});
        }
    }
    chain.push_back(name);
    json::Value merged = json::Value::object();
    if (const json::Value* base = file.find("base")) include(*base, name, merged, chain);
    chain.pop_back();
    std::erase_if(file.as_object(), [](const json::Member& member) {
        return std::find(std::begin(reserved), std::end(reserved), member.key) != std::end(reserved);
    });
    if (main_file) bases_ = merged;
    merge(merged, std::move(file));
    return merged;
}

void Document::include(const json::Value& base, const std::string& including, json::Value& into,
                       std::vector<std::string>& chain) {
    if (const json::Array* list = base.to_array()) {
        for (const json::Value& element : *list) {
            if (element.is_array()) {
                problems_.add({"base", element.at(), "expected a file name"});
            } else {
                include(element, including, into, chain);
            }
        }
        return;
    }
    const std::string* written = base.to_string();
    if (written == nullptr || written->empty() || written->find('\0') != std::string::npos) {
        problems_.add({"base", base.at(), "expected a file name or a list of file names"});
        return;
    }
    const std::string name = (fs::path(including).parent_path() / *written).lexically_normal().string();
    std::string ways;
    bool cycle = false;
    for (const std::string& file : chain) {
        cycle = cycle || identity(file) == identity(name);
        if (cycle) ways += shown(file, 200) + " -> ";
    }
    if (cycle) {
        problems_.add(
            {"base", base.at(), fmt::format("the file includes itself: {}{}", ways, shown(name, 200))});
        return;
    }
    std::error_code ignored;
    if (!fs::exists(name, ignored)) {
        problems_.add({"base", base.at(),
                       fmt::format("there is no file {}{}", shown(name, 200), path_suggestion(name))});
        return;
    }
    merge(into, read_file(name, std::nullopt, false, chain));
}

void Document::report_duplicates(const json::Value& value, const std::string& path) {
    if (const json::Array* array = value.to_array())
        for (size_t i = 0; i < array->size(); ++i)
            report_duplicates((*array)[i], field_path(path, std::to_string(i)));
    const json::Object* object = value.to_object();
    if (object == nullptr) return;
    for (const auto& [first, later] : json::duplicates(*object)) {
        const json::Member& member = (*object)[later];
        const std::string full = field_path(path, member.key);
        problems_.add({full, member.at, "the key is given twice", full, (*object)[first].at});
    }
    for (const json::Member& member : *object) report_duplicates(member.value, field_path(path, member.key));
}

void Document::apply(const PlacedValue& placed) {
    const Origin& origin = placed.origin;
    const json::Position place{origin.line, origin.column, static_cast<int>(sources_.size())};
    switch (origin.kind) {
        case Origin::Kind::file:
            sources_.push_back({origin.kind, origin.file, Giver::file});
            break;
        case Origin::Kind::command_line:
            sources_.push_back({origin.kind, origin.argument, Giver::command_line});
            if (!is_utf8(origin.argument)) return problems_.add({"config", place, "not UTF-8"});
            if (placed.path.empty() || origin.argument.find('=') == std::string::npos)
                return problems_.add({"config", place, "expected path=value, such as model.width=256"});
            break;
        default:
            sources_.push_back({origin.kind, "", Giver::nobody});
    }
    placed.unset ? unset(placed.path, place) : lay(placed.path, placed.value, place);
}

void Document::lay(const std::string& key, json::Value value, const json::Position& place) {
    const auto parts = split_path(key);
    if (parts.size() > max_segments || std::find(parts.begin(), parts.end(), "") != parts.end())
        return problems_.add({shown(key), place, "expected names or indices with single dots between them"});
    if (std::find(std::begin(reserved), std::end(reserved), parts[0]) != std::end(reserved))
        return problems_.add({shown(key), place, "can only be given in a file"});
    std::string path;
    for (const std::string_view part : parts) path = field_path(path, part);

    for (const auto& [earlier, at] : unset_)
        if (earlier == key) return problems_.add({path, place, "the key is given twice", path, at});
    set_positions(value, place);
    report_duplicates(value, path);

    json::Value* at = &root_;
    const json::Value* shadow = &defaults_;  // what the defaults hold at the same path
    std::string walked;
    for (const std::string_view part : parts) {
        shadow = shadow != nullptr ? child(*shadow, part) : nullptr;
        if (at->is_object()) {
            json::Value* next = at->find(part);
            if (next == nullptr) {
                at->as_object().push_back({std::string(part), {}, place});
                next = &at->as_object().back().value;
                next->set_position(place);
                // An index into a list that no file gives starts from the default list,
                // everything else from nothing.
                const bool last = part.data() + part.size() == key.data() + key.size();
                if (!last) *next = shadow != nullptr && shadow->is_array() ? *shadow : json::Value::object();
                if (!last && next->is_object()) next->set_position(place);
            }
            at = next;
        } else if (at->is_array()) {
            const size_t size = at->as_array().size();
            const auto index = to_index(part);
            if (!index || *index >= size) {
                const std::string range =
                    size == 0 ? "it is empty" : fmt::format("its indices are 0 to {}", size - 1);
                return problems_.add(
                    {path, place,
                     fmt::format("{} is a list and has no element {}: {}", walked, shown(part), range)});
            }
            at = &at->as_array()[*index];
        } else {
            return problems_.add({path, place, fmt::format("{} is not a section", walked), walked, at->at()});
        }
        walked = field_path(walked, part);
    }
    assign(*at, std::move(value), path, place);
}

void Document::unset(const std::string& key, const json::Position& place) {
    const size_t dot = key.rfind('.');
    const std::string name = key.substr(dot == std::string::npos ? 0 : dot + 1);
    json::Value* parent = dot == std::string::npos ? &root_ : value_at(root_, key.substr(0, dot));
    json::Value* value = parent != nullptr ? child(*parent, name) : nullptr;
    // Not given: nothing to do, or an unknown key, which the reader reports.
    if (value == nullptr && find_field(fields_, key) == nullptr) return lay(key, "", place);
    if (value == nullptr) {
        unset_.emplace_back(key, place);
        return;
    }
    if (parent->is_array())
        return problems_.add({key, place, "one entry of a list cannot be unset; unset the list"});
    if (const json::Value* given = already_given(*value, place.source))
        return problems_.add({key, place, "the key is given twice", key, given->at()});
    unset_.emplace_back(key, place);
    const json::Value* below = descend(bases_, key);
    if (below != nullptr && !same_places(*below, *value)) {
        *value = *below;
    } else {
        std::erase_if(parent->as_object(), [&](const json::Member& member) { return member.key == name; });
    }
}

// A key given twice on the command line is an error; sections given in parts are merged.
void Document::assign(json::Value& target, json::Value value, const std::string& path,
                      const json::Position& place) {
    if (target.is_object() && value.is_object()) {
        for (json::Member& member : value.as_object()) {
            if (json::Value* old = target.find(member.key)) {
                assign(*old, std::move(member.value), field_path(path, member.key), place);
            } else {
                target.as_object().push_back(std::move(member));
            }
        }
        return;
    }
    const json::Value* given = already_given(target, place.source);
    if (given != nullptr) return problems_.add({path, place, "the key is given twice", path, given->at()});
    target = std::move(value);
}

const json::Value* Document::already_given(const json::Value& value, int now) const {
    if (const json::Array* array = value.to_array())
        for (const json::Value& element : *array)
            if (const json::Value* given = already_given(element, now)) return given;
    if (const json::Object* object = value.to_object(); object != nullptr && !object->empty()) {
        for (const json::Member& member : *object)
            if (const json::Value* given = already_given(member.value, now)) return given;
        return nullptr;
    }
    return from_command_line(value.at()) && value.at().source != now ? &value : nullptr;
}

}  // namespace longreach::config
