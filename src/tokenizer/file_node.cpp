#include "tokenizer/file_node.h"

#include <algorithm>

#include "base/text.h"

namespace longreach::tokenizer {

std::string FileNode::where() const {
    return path_.empty() ? file_ : fmt::format("{}: {}", file_, path_);
}

void FileNode::refuse(std::string_view problem) const {
    throw Error(ExitCode::data, fmt::format("{}: {}", where(), problem));
}

std::optional<FileNode> FileNode::find(std::string_view name) const {
    if (!value_->is_object()) refuse("not an object");
    const json::Value* value = value_->find(name);
    if (value == nullptr || value->is_null()) return std::nullopt;
    FileNode node(*value, file_);
    node.path_ = path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
    return node;
}

FileNode FileNode::member(std::string_view name) const {
    std::optional<FileNode> node = find(name);
    if (!node) refuse(fmt::format("{} is missing", name));
    return *node;
}

std::vector<FileNode> FileNode::elements() const {
    const json::Array* array = value_->to_array();
    if (array == nullptr) refuse("not an array");
    std::vector<FileNode> nodes;
    for (size_t i = 0; i < array->size(); ++i) {
        nodes.emplace_back((*array)[i], file_);
        nodes.back().path_ = fmt::format("{}[{}]", path_, i);
    }
    return nodes;
}

std::string FileNode::text() const {
    const std::string* text = value_->to_string();
    if (text == nullptr) refuse("not a string");
    return *text;
}

bool FileNode::flag(std::string_view name, bool otherwise) const {
    const std::optional<FileNode> node = find(name);
    if (!node) return otherwise;
    const std::optional<bool> flag = node->value().to_bool();
    if (!flag) node->refuse("neither true nor false");
    return *flag;
}

int64_t FileNode::number(std::string_view name) const {
    const FileNode node = member(name);
    const std::optional<int64_t> number = node.value().to_int64();
    if (!number) node.refuse("not an integer");
    return *number;
}

void FileNode::allow_only(std::initializer_list<std::string_view> names) const {
    if (!value_->is_object()) refuse("not an object");
    for (const json::Member& member : value_->as_object())
        if (std::find(names.begin(), names.end(), member.key) == names.end())
            refuse(fmt::format("{} is not supported", quoted(member.key)));
}

void FileNode::require_absent(std::string_view name, const json::Value& neutral) const {
    const std::optional<FileNode> node = find(name);
    if (node && !(node->value() == neutral))
        node->refuse(fmt::format("{} is not supported", json::write(node->value(), json::Style::compact)));
}

}  // namespace longreach::tokenizer
