// A JSON value with its path in the file, for readers that name what they refuse.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace longreach::tokenizer {

class FileNode {
  public:
    FileNode(const json::Value& value, std::string file) : value_(&value), file_(std::move(file)) {}

    const json::Value& value() const { return *value_; }
    std::string where() const;  // "tokenizer.json: model.merges[3]"

    // Empty where the member is missing or null.
    std::optional<FileNode> find(std::string_view name) const;
    FileNode member(std::string_view name) const;  // refuses what find() would not find
    std::vector<FileNode> elements() const;        // of an array

    std::string text() const;
    std::string text_of(std::string_view name) const { return member(name).text(); }
    bool flag(std::string_view name, bool otherwise) const;  // `otherwise` where it is missing or null
    int64_t number(std::string_view name) const;

    // Refuses this object if it has a member of another name: it might change the meaning.
    void allow_only(std::initializer_list<std::string_view> names) const;
    // Refuses the member unless it is missing, null or equal to `neutral`.
    void require_absent(std::string_view name, const json::Value& neutral) const;

    [[noreturn]] void refuse(std::string_view problem) const;

  private:
    const json::Value* value_;
    std::string file_, path_;
};

}  // namespace longreach::tokenizer
