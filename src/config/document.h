// What the user wrote, before any field list is applied: a file, the files it includes, and the --set
// overrides, merged into one JSON tree in which every value keeps the place where it was written.
//
// Order, later wins: bases in the order listed, the file, the overrides in the order given. Objects are
// merged, anything else is replaced. An override without a value, "a.b=", removes the key's newest value:
// the file's, which restores the base's value, or else the base's, which restores the default.
// Three keys at the top level of a file are the loader's own:
//   "base"      a path or a list of paths, relative to the file that names them
//   "resolved"  true in a config written by this program: its values count as inherited, not as chosen
//               by the user
//   "$schema"   for editors; ignored
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/problem_list.h"
#include "config/problems.h"

namespace longreach::config {

struct FieldInfo;

// A value laid over a config by another file or command line; reported at its place there.
struct PlacedValue {
    std::string path;  // "model.width"
    json::Value value;
    Origin origin;       // file or command_line
    bool unset = false;  // no value: removes the present one
};

// "a.b=c": the value is JSON if it parses as JSON, else a string; "a.b=" unsets. Text without '='
// has no value (null).
PlacedValue parse_override(const std::string& text);

// What to load.
struct ConfigSource {
    std::string file = {};  // "" for defaults and overrides only
    std::vector<std::string> overrides = {};
    // Read instead of the file, whose name is then used in messages and for "base".
    std::optional<std::string> text = {};
    // Before the overrides, in this order; later wins.
    std::vector<PlacedValue> values = {};
};

class Document {
  public:
    // `fields` describes the default config: an override of one element of a list that no file gives
    // starts from its value. Throws Error(ExitCode::usage) if a file cannot be read or is not JSON; all other
    // problems are added to `problems`.
    Document(const ConfigSource& source, const FieldInfo& fields, ProblemList& problems);

    const json::Value& root() const { return root_; }

    // The value written at a dotted path, or null. A key may itself contain dots: {"a.b": 1}
    // has a value at "a.b".
    const json::Value* find(std::string_view path) const;

    // Where a value was written, weakest first. Values of a resolved file count as `nobody`.
    enum class Giver { nobody, base, command_line, file };
    // Of a section or list: the strongest of the values in it.
    Giver giver(const json::Value& value) const;
    // True if the value, or anything in it, comes from the main file or the command line.
    bool is_chosen(const json::Value& value) const { return giver(value) > Giver::base; }

    Origin origin(const json::Position& at) const;
    bool from_command_line(const json::Position& at) const;

  private:
    struct Source {
        Origin::Kind kind = Origin::Kind::default_value;
        std::string name;  // file name, or "a.b=c"
        Giver giver = Giver::nobody;
    };

    json::Value read_file(const std::string& name, const std::optional<std::string>& text, bool main_file,
                          std::vector<std::string>& chain);
    void include(const json::Value& base, const std::string& including, json::Value& into,
                 std::vector<std::string>& chain);
    void apply(const PlacedValue& placed);
    // Replaces or merges the value at the path; problems are reported at `place`.
    void lay(const std::string& key, json::Value value, const json::Position& place);
    // Removes the value at the path.
    void unset(const std::string& key, const json::Position& place);
    void assign(json::Value& target, json::Value value, const std::string& path, const json::Position& place);
    // Something in `value` that an earlier override than number `now` gave, or null.
    const json::Value* already_given(const json::Value& value, int now) const;
    void report_duplicates(const json::Value& value, const std::string& path);

    ProblemList& problems_;
    const FieldInfo& fields_;
    const json::Value defaults_;
    json::Value bases_;  // the merged bases of the main file
    std::vector<std::pair<std::string, json::Position>> unset_;
    std::vector<Source> sources_;  // by Position::source; 0: not written
    int files_read_ = 0;
    json::Value root_;
};

}  // namespace longreach::config
