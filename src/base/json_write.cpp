#include <cmath>
#include <iterator>

#include "base/json.h"
#include "base/text.h"

namespace longreach::json {
namespace {

constexpr size_t line_width = 100;  // a list of plain values longer than this is written one value per line

void write_string(const std::string& text, std::string& out) {
    check(is_utf8(text), "string {} is not UTF-8 and has no JSON form", quoted(text));
    out += '"';
    for (const char c : text) {
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
                break;
            case '\n':
                out += "\\n";
                break;
            case '\r':
                out += "\\r";
                break;
            case '\t':
                out += "\\t";
                break;
            case '\b':
                out += "\\b";
                break;
            case '\f':
                out += "\\f";
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20) {
                    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<int>(c));
                } else {
                    out += c;
                }
        }
    }
    out += '"';
}

void write_plain(const Value& value, std::string& out) {
    switch (value.kind()) {
        case Kind::null:
            out += "null";
            break;
        case Kind::boolean:
            out += value.as_bool() ? "true" : "false";
            break;
        case Kind::integer:
            if (const auto i = value.to_int64()) {
                fmt::format_to(std::back_inserter(out), "{}", *i);
            } else {
                fmt::format_to(std::back_inserter(out), "{}", value.as_uint64());
            }
            break;
        case Kind::real:
            check(std::isfinite(value.as_number()), "{} has no JSON form", value.as_number());
            fmt::format_to(std::back_inserter(out), "{}", value.as_number());
            break;
        case Kind::string:
            write_string(value.as_string(), out);
            break;
        case Kind::array:
        case Kind::object:
            break;
    }
}

bool is_plain(const Value& value) {
    return !value.is_array() && !value.is_object();
}

void write_compact(const Value& value, std::string& out) {
    if (const Array* array = value.to_array()) {
        out += '[';
        for (size_t i = 0; i < array->size(); ++i) {
            if (i > 0) out += ',';
            write_compact((*array)[i], out);
        }
        out += ']';
    } else if (const Object* object = value.to_object()) {
        out += '{';
        for (size_t i = 0; i < object->size(); ++i) {
            if (i > 0) out += ',';
            write_string((*object)[i].key, out);
            out += ':';
            write_compact((*object)[i].value, out);
        }
        out += '}';
    } else {
        write_plain(value, out);
    }
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

void write_pretty(const Value& value, size_t level, size_t line_start, std::string& out) {
    auto start_line = [&](size_t at_level) {
        out += '\n';
        line_start = out.size();
        out.append(2 * at_level, ' ');
    };
    if (const Array* array = value.to_array()) {
        if (write_on_one_line(*array, line_start, out)) return;
        out += '[';
        for (size_t i = 0; i < array->size(); ++i) {
            if (i > 0) out += ',';
            start_line(level + 1);
            write_pretty((*array)[i], level + 1, line_start, out);
        }
        start_line(level);
        out += ']';
    } else if (const Object* object = value.to_object()) {
        out += '{';
        for (size_t i = 0; i < object->size(); ++i) {
            if (i > 0) out += ',';
            start_line(level + 1);
            write_string((*object)[i].key, out);
            out += ": ";
            write_pretty((*object)[i].value, level + 1, line_start, out);
        }
        if (!object->empty()) start_line(level);
        out += '}';
    } else {
        write_plain(value, out);
    }
}

}  // namespace

std::string write(const Value& value, Style style) {
    std::string out;
    if (style == Style::compact) {
        write_compact(value, out);
    } else {
        write_pretty(value, 0, 0, out);
        out += '\n';
    }
    return out;
}

}  // namespace longreach::json
