#include "config/diff.h"

#include <algorithm>

#include "base/text.h"

namespace longreach {
namespace {

const FieldInfo* element_named(const FieldInfo& container, std::string_view name) {
    for (const FieldInfo& element : container.elements)
        if (element.name == name) return &element;
    return nullptr;
}

void compare(const FieldInfo& left, const FieldInfo& right, std::vector<Difference>& out) {
    check(left.kind == right.kind && left.fields.size() == right.fields.size(),
          "configs of two structs compared at {}", left.path);
    if (holds_value(left)) {
        if (left.value != right.value) out.push_back({left.path, left.value, right.value, left.resumable});
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
            out.push_back({element.path, to_json(element), std::nullopt, element.resumable});
        }
    }
    for (const FieldInfo& element : right.elements)
        if (element_named(left, element.name) == nullptr)
            out.push_back({element.path, std::nullopt, to_json(element), element.resumable});
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

}  // namespace longreach
