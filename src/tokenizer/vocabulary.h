// The tokens of a vocabulary while a file is read: texts to ids, and merges by text.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizer/file_node.h"
#include "tokenizer/formats.h"

namespace longreach::tokenizer {

class Vocabulary {
  public:
    explicit Vocabulary(const FileNode& node);  // an object of ids by token

    std::optional<int32_t> find(std::string_view token) const;

    // The merge of two tokens, or what is wrong with it.
    Merge merge_of(const std::string& left, const std::string& right, const std::string& where) const;

    // Stores the tokens, byte-level ones as their bytes.
    void store(Definition& definition) const;

  private:
    std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace longreach::tokenizer
