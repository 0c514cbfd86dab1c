// What is wrong with a config: every problem at once, each with where it stands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longreach {

// Where a value came from.
struct Origin {
    enum class Kind { default_value, file, command_line } kind = Kind::default_value;
    std::string file;           // for file
    int line = 0, column = 0;   // 1-based, for file
};

// Cross-field checks talk to this; the loader implements it, so that a check needs no knowledge of files.
class Problems {
  public:
    virtual ~Problems() = default;

    // True if the key at `path` ("model.attention.window") was written by the user, in a file or with --set.
    virtual bool is_set(std::string_view path) const = 0;

    // Reports a problem with the value at `path`; `other`, if given, is the second half of a contradiction.
    virtual void add(std::string_view path, std::string message, std::string_view other = {}) = 0;
};

}  // namespace longreach
