// The problems of a config: all of them at once, each with its position.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longreach::config {

// Where a value came from.
struct Origin {
    enum class Kind {
        default_value,
        derived,  // filled in from other values: by a rule, or from what a variation starts with
        file,
        command_line,
    } kind = Kind::default_value;
    std::string file = {};      // for file
    int line = 0, column = 0;   // 1-based, for file
    std::string argument = {};  // for command_line: "a.b=c"
};

// "default", "derived", "runs/a.json:3:14" or "--set a.b=c".
std::string to_string(const Origin& origin);

// The interface of cross-field checks; the loader implements it, so checks know nothing about files.
//
// Paths name a field as --set does: "model.attention.window", "stages.0.steps", "model.layouts.local.window".
class Problems {
  public:
    virtual ~Problems() = default;

    // True if the key at `path` ("model.attention.window") was written by the user for this run: in the
    // file being loaded, or with --set. A value inherited through "base" or read back from a resolved config
    // does not count. For a section: true if anything in it is set.
    virtual bool is_set(std::string_view path) const = 0;

    // True if the key at `path` was written, but only in a base file or a resolved config.
    // A rule that fills in a missing value tests !is_set(path) && !is_inherited(path), so that a resolved
    // config reads back as it was.
    virtual bool is_inherited(std::string_view path) const {
        static_cast<void>(path);
        return false;
    }

    // Where the value at `path` was written; a default if it was not written.
    virtual Origin origin(std::string_view path) const {
        static_cast<void>(path);
        return {};
    }

    // Reports a problem with the value at `path`; `other`, if given, is the second half of a contradiction.
    virtual void add(std::string_view path, std::string message, std::string_view other = {}) = 0;

    // Reports that the key at `path` has no effect because of the key `other`. A problem if the
    // file being loaded gives the key; a warning if --set or a base file gives it, or if --set gives `other`;
    // nothing if the key was not written or a resolved config contains it.
    virtual void no_effect(std::string_view path, const std::string& reason, std::string_view other) {
        if (is_set(path)) add(path, "has no effect: " + reason, other);
    }

    // Reports what is valid but may not be meant: a warning, as from no_effect(),
    // and nothing if the key was not written or a resolved config contains it.
    virtual void warn(std::string_view path, const std::string& message) {
        static_cast<void>(path);
        static_cast<void>(message);
    }
};

}  // namespace longreach::config
