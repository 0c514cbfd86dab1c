// Tree to text. Strings are escaped by nlohmann; the layout and the form of reals are ours, because files
// written by earlier versions must stay the same byte for byte.
#include <nlohmann/json.hpp>

#include <cmath>
#include <iterator>

#include "base/json.h"
#include "base/text.h"

namespace longreach::json {
namespace {

constexpr size_t line_width = 100;  // a list of plain values longer than this is written one value per line

void write_string(const std::string& text, std::string& out) {
    check(is_utf8(text), "string {} is not UTF-8 and has no JSON form", longreach::quoted(text));
    out += nlohmann::json(text).dump();
}

// Reals by fmt: shortest, as the header promises; nlohmann's own form keeps a ".0" and is
// not always the shortest.
void write_plain(const Value& value, std::string& out) {
    if (const auto b = value.to_bool()) {
        out += *b ? "true" : "false";
    } else if (const std::string* text = value.to_string()) {
        write_string(*text, out);
    } else if (const auto u = value.to_uint64()) {
        fmt::format_to(std::back_inserter(out), "{}", *u);
    } else if (const auto i = value.to_int64()) {
        fmt::format_to(std::back_inserter(out), "{}", *i);
    } else if (const auto d = value.to_number()) {
        check(std::isfinite(*d), "{} has no JSON form", *d);
        fmt::format_to(std::back_inserter(out), "{}", *d);
    } else {
        out += "null";
    }
}

bool is_plain(const Value& value) {
    return !value.is_array() && !value.is_object();
}

// Appends "[a, b, c]" if all elements are plain and the line stays short; otherwise leaves `out` as it was.
bool write_on_one_line(const Array& array, size_t line_start, std::string& out) {
    const size_t before = out.size();
    out += '[';
    for (size_t i = 0; i < array.size(); ++i) {
        if (i > 0) out += ", ";
        if (is_plain(array[i])) write_plain(array[i], out);
        if (!is_plain(array[i]) || out.size() - line_start >= line_width) {
            out.resize(before);
            return false;
        }
    }
    out += ']';
    return true;
}

// line_start: where the line begins in `out`.
void write_value(const Value& value, Style style, size_t level, size_t line_start, std::string& out) {
    const bool pretty = style == Style::pretty;
    const Array* array = value.to_array();
    const Object* object = value.to_object();
    if (!array && !object) return write_plain(value, out);
    if (array && pretty && write_on_one_line(*array, line_start, out)) return;
    auto start_line = [&](size_t at_level) {
        if (!pretty) return;
        out += '\n';
        line_start = out.size();
        out.append(2 * at_level, ' ');
    };
    const size_t size = array ? array->size() : object->size();
    out += array ? '[' : '{';
    for (size_t i = 0; i < size; ++i) {
        if (i > 0) out += ',';
        start_line(level + 1);
        if (object) {
            write_string((*object)[i].key, out);
            out += pretty ? ": " : ":";
        }
        write_value(array ? (*array)[i] : (*object)[i].value, style, level + 1, line_start, out);
    }
    if (size > 0) start_line(level);
    out += array ? ']' : '}';
}

}  // namespace

std::string write(const Value& value, Style style) {
    std::string out;
    write_value(value, style, 0, 0, out);
    if (style == Style::pretty) out += '\n';
    return out;
}

}  // namespace longreach::json
