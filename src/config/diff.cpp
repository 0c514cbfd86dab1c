#include "config/diff.h"

#include <algorithm>

#include "base/text.h"

namespace longreach::config {
namespace {

// A config that a run holds was written by this program: 10.0 of the user's file is 10 there.
bool equal_values(const json::Value& a, const json::Value& b) {
    const json::Array *array = a.to_array(), *other_array = b.to_array();
    if (array != nullptr && other_array != nullptr)
        return std::ranges::equal(*array, *other_array, equal_values);
    const json::Object *object = a.to_object(), *other_object = b.to_object();
    if (object != nullptr && other_object != nullptr)
        return std::ranges::equal(*object, *other_object, [](const json::Member& m, const json::Member& n) {
            return m.key == n.key && equal_values(m.value, n.value);
        });
    if (a.kind() != b.kind() && a.to_number() && b.to_number()) return *a.to_number() == *b.to_number();
    return a == b;
}

const FieldInfo* element_named(const FieldInfo& container, std::string_view name) {
    for (const FieldInfo& element : container.elements)
        if (element.name == name) return &element;
    return nullptr;
}

// The leaves of a list entry or variation that one side lacks, if they differ from the initial values of such
// an entry; the empty entry itself if none does.
void add_leaves(const FieldInfo& held, const FieldInfo& start, bool on_left, bool resumable,
                std::vector<Difference>& out) {
    const auto add = [&](const FieldInfo& at) {
        Difference d{at.path, std::nullopt, std::nullopt, resumable};
        (on_left ? d.left : d.right) = to_json(at);
        out.push_back(std::move(d));
    };
    if (held.kind != FieldInfo::Kind::section) {
        if (!equal_values(to_json(held), to_json(start))) add(held);
        return;
    }
    for (size_t i = 0; i < held.fields.size(); ++i)
        add_leaves(held.fields[i], start.fields[i], on_left, resumable, out);
}

void add_entry(const FieldInfo& container, const FieldInfo& entry, bool on_left,
               std::vector<Difference>& out) {
    const size_t before = out.size();
    FieldInfo start;
    start.fields = container.fields;
    add_leaves(entry, start, on_left, entry.resumable, out);
    if (out.size() > before) return;
    const json::Value empty = json::Value::object();
    out.push_back({entry.path, on_left ? std::optional(empty) : std::nullopt,
                   on_left ? std::nullopt : std::optional(empty), entry.resumable});
}

void compare(const FieldInfo& left, const FieldInfo& right, std::vector<Difference>& out) {
    check(left.kind == right.kind && left.fields.size() == right.fields.size(),
          "configs of two structs compared at {}", left.path);
    if (holds_value(left)) {
        if (!equal_values(left.value, right.value))
            out.push_back({left.path, left.value, right.value, left.resumable});
        return;
    }
    if (left.kind == FieldInfo::Kind::section) {
        for (size_t i = 0; i < left.fields.size(); ++i) compare(left.fields[i], right.fields[i], out);
        return;
    }
    for (const FieldInfo& element : left.elements) {
        if (const FieldInfo* other = element_named(right, element.name)) {
            compare(element, *other, out);
        } else {
            add_entry(left, element, true, out);
        }
    }
    for (const FieldInfo& element : right.elements)
        if (element_named(left, element.name) == nullptr) add_entry(right, element, false, out);
}

std::string in_table(const std::optional<json::Value>& value) {
    return value ? json::write(*value, json::Style::compact) : "absent";
}

}  // namespace

std::vector<Difference> diff(const FieldInfo& left, const FieldInfo& right) {
    std::vector<Difference> out;
    compare(left, right, out);
    return out;
}

std::vector<Difference> not_resumable(std::vector<Difference> differences) {
    std::erase_if(differences, [](const Difference& d) { return d.resumable; });
    return differences;
}

std::string diff_table(const std::vector<Difference>& differences) {
    size_t path_width = 0, left_width = 0, right_width = 0;
    for (const Difference& d : differences) {
        path_width = std::max(path_width, d.path.size());
        left_width = std::max(left_width, in_table(d.left).size());
        right_width = std::max(right_width, in_table(d.right).size());
    }
    std::string out;
    for (const Difference& d : differences) {
        out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {}", d.path, path_width, in_table(d.left), left_width,
                           in_table(d.right), right_width, d.resumable ? "" : "fixed once a run has begun");
        out.erase(out.find_last_not_of(' ') + 1);
        out += '\n';
    }
    return out;
}

}  // namespace longreach::config
