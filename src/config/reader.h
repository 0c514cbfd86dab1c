// Fills a config struct from a document: the strict visitor of the field list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/document.h"
#include "config/field_info.h"
#include "config/fields.h"
#include "config/problem_list.h"

namespace longreach::config {

// The parts of "2K,64K" or "[2K,64K]", each a string positioned as the whole. Any other value is its only
// part, as it is.
json::Array split_list(const json::Value& value);

// No value converts to another type, with two exceptions: an integer is a number, and
// where a count of tokens is expected, "64K" is one. A value that is refused is
// reported and leaves its field at the default; so is every key that is not in the list.
class Reader final : public Fields {
  public:
    // `table` is the description of the struct at its defaults: what else exists, for suggestions.
    Reader(const Document& document, const FieldInfo& table, ProblemList& problems);

    // Visits the whole config. Call once.
    void read(const Body& body);

    void flag(std::string_view name, bool& value, Doc doc) override;
    void integer(std::string_view name, int64_t& value, IntegerRange range, Doc doc) override;
    void number(std::string_view name, double& value, NumberRange range, Doc doc) override;
    void text(std::string_view name, std::string& value, Doc doc) override;
    void texts(std::string_view name, std::vector<std::string>& value, Doc doc) override;
    void integers(std::string_view name, std::vector<int64_t>& value, IntegerRange range, Doc doc) override;
    void any(std::string_view name, json::Value& value, Doc doc) override;

  protected:
    void choice_value(std::string_view name, int& value, const std::vector<Named<int>>& names,
                      Doc doc) override;
    void section_value(std::string_view name, const Body& body, Doc doc) override;
    void list_value(std::string_view name, size_t size, const std::function<void(size_t)>& resize,
                    const std::function<void(size_t, Fields&)>& element, Doc doc) override;
    void variations_value(std::string_view name, const std::vector<std::string>& present,
                          const std::function<void(const std::string&, Fields&)>& element,
                          const std::function<void(const std::string&)>& add, Doc doc) override;

  private:
    // The object whose members are being read.
    struct Frame {
        const json::Value* object;
        std::string path;
        std::vector<std::string> known;  // names listed so far
    };

    const json::Value* take(std::string_view name);
    std::string path_of(std::string_view name) const { return field_path(frame_.path, name); }
    void refuse(const std::string& path, const json::Value& value, std::string message);
    void wrong_type(const std::string& path, const json::Value& value, std::string_view expected);
    bool read_integer(const std::string& path, const json::Value& value, const IntegerRange& range,
                      int64_t& into);
    // Reads the members of `object` at `path` with `body`, then reports those the body did not list.
    void read_object(const json::Value& object, std::string path, const Body& body);
    void report_unknown(const json::Member& member);

    const Document& document_;
    const FieldInfo& table_;
    ProblemList& problems_;
    Frame frame_;
};

}  // namespace longreach::config
