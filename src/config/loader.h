// Reads a config from files and --set overrides, using the field list.
//
//     const auto config = load_config<Experiment>({.file = "si.json", .overrides = {"run.seed=2"}},
//                                                 [](Experiment& e, Problems& p) { e.check(p); });
//     config.value.model.width ... ; write_resolved(config.value) ...
//
// Every problem is found before any is reported: one Error(ExitCode::usage), one line per problem,
//     model.width (si.json:3:12): expected an integer, got the string "1"
// and a last line with their number. Only a file that cannot be read or is not JSON ends the reading at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/acts.h"
#include "config/document.h"
#include "config/field_info.h"
#include "config/fields.h"
#include "config/problem_list.h"
#include "config/problems.h"

namespace longreach::config {

struct FieldOrigin {
    std::string path;  // "stages.0.steps"
    json::Value value;
    Origin origin;
};

// What load_config throws if anything is wrong with the values.
class ConfigError : public Error {
  public:
    ConfigError(const std::string& message, const std::string& hint, std::vector<std::string> lines,
                bool contradiction)
        : Error(ExitCode::usage, message, hint), lines_(std::move(lines)), contradiction_(contradiction) {}
    const std::vector<std::string>& lines() const { return lines_; }  // one per problem
    // Every single value is valid, but a rule between fields is violated.
    bool contradiction() const { return contradiction_; }

  private:
    std::vector<std::string> lines_;
    bool contradiction_;
};

template <class S>
struct LoadedConfig {
    S value;
    std::vector<FieldOrigin> origins;   // of every field, in the order of the list
    std::vector<std::string> warnings;  // lines like those of problems: see Problems
};

// One loading; use load_config below.
class ConfigLoad final : public Problems {
  public:
    // `defaults` outlives this.
    ConfigLoad(const ConfigSource& source, const FieldInfo& defaults);

    void read(const Fields::Body& body);
    bool clean() const { return problems_.empty(); }

    bool is_set(std::string_view path) const override;
    bool is_inherited(std::string_view path) const override;
    Origin origin(std::string_view path) const override;
    void add(std::string_view path, std::string message, std::string_view other = {}) override;
    void no_effect(std::string_view path, const std::string& reason, std::string_view other) override;
    void warn(std::string_view path, const std::string& message) override;

    // Throws if there was any problem. `checked`: the cross-field checks ran.
    void finish(bool checked) const;
    std::vector<std::string> warnings() const { return lines(warnings_); }

    // Origins after reading and checking: a value that is neither as written nor
    // the default was derived.
    std::vector<FieldOrigin> origins(const FieldInfo& config) const;

  private:
    std::string hint(const std::string& path) const;
    ProblemList::Problem placed(std::string_view path, std::string_view message,
                                std::string_view other) const;
    std::vector<std::string> lines(const ProblemList& problems) const;

    const FieldInfo& defaults_;
    ProblemList problems_, warnings_;
    Document document_;
};

// Loads S. `check(S&, Problems&)` holds the rules between fields, and may fill in values that follow from
// others; it runs only if every single value is valid, because a rule about a value that could not be read
// misleads. Filled-in values must be the same when they are read back (Problems::is_inherited).
template <class S, class Check>
LoadedConfig<S> load_config(const ConfigSource& source, Check&& check_rules) {
    LoadedConfig<S> out{};
    static const FieldInfo defaults = describe<S>();
    ConfigLoad load(source, defaults);
    load.read([&](Fields& f) { out.value.fields(f); });
    if (!load.clean()) load.finish(false);
    check_acts(describe<S>(out.value), load);
    check_rules(out.value, static_cast<Problems&>(load));
    load.finish(true);
    out.origins = load.origins(describe<S>(out.value));
    out.warnings = load.warnings();
    return out;
}

template <class S>
LoadedConfig<S> load_config(const ConfigSource& source) {
    return load_config<S>(source, [](S&, Problems&) {});
}

// The resolved config: every field, marked "resolved". Reading it and writing it again gives the same bytes.
std::string write_resolved(const FieldInfo& config);
template <class S>
std::string write_resolved(const S& config) {
    return write_resolved(describe<S>(config));
}

// A readable table: path, value, origin.
std::string origins_table(const std::vector<FieldOrigin>& origins);

}  // namespace longreach::config
