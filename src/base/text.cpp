#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace longreach {

size_t utf8_sequence(std::string_view text) {
    auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    auto within = [&](size_t i, int low, int high) {
        return i < text.size() && byte(i) >= low && byte(i) <= high;
    };
    if (text.empty()) return 0;
    const int lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
    if (lead >= 0xE0 && lead <= 0xEF) {
        const int low = lead == 0xE0 ? 0xA0 : 0x80;   // below: overlong
        const int high = lead == 0xED ? 0x9F : 0xBF;  // above: surrogates
        return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        const int low = lead == 0xF0 ? 0x90 : 0x80;
        const int high = lead == 0xF4 ? 0x8F : 0xBF;
        return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
    }
    return 0;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const size_t length = utf8_sequence(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

size_t utf8_length(std::string_view text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

namespace {

// Characters of two or three bytes that a terminal or a reader does not see: controls U+0080 to
// U+009F (some terminals take U+009B for ESC [), line separators, changes of writing direction. 0 if not one.
unsigned hidden_control(std::string_view sequence) {
    const auto byte = [&](size_t i) {
        return static_cast<unsigned>(static_cast<unsigned char>(sequence[i]));
    };
    unsigned code = 0;
    if (sequence.size() == 2) code = (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    if (sequence.size() == 3) code = (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    const bool hidden = (code >= 0x80 && code <= 0x9F) || (code >= 0x2028 && code <= 0x202E) ||
                        (code >= 0x2066 && code <= 0x2069);
    return hidden ? code : 0;
}

// Appends the first character of `text` and removes it, escaped if it is a control character or not UTF-8.
void take_printable(std::string_view& text, std::string& out) {
    const unsigned char c = text[0];
    if (c >= 0x20 && c < 0x7F) {
        out += text[0];
        return text.remove_prefix(1);
    }
    const size_t length = utf8_sequence(text);
    if (length == 0) {
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", c);
    } else if (c == '\n') {
        out += "\\n";
    } else if (c == '\t') {
        out += "\\t";
    } else if (c <= 0x7F) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    } else if (const unsigned code = hidden_control(text.substr(0, length))) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
        out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
}

}  // namespace

std::string quoted(std::string_view text, size_t max_chars) {
    std::string out = "\"";
    for (size_t chars = 0; !text.empty(); ++chars) {
        if (chars == max_chars) return out + "...\"";
        if (text[0] == '"' || text[0] == '\\') out += '\\';
        take_printable(text, out);
    }
    return out + "\"";
}

std::string one_line(std::string_view text) {
    std::string out;
    while (!text.empty()) take_printable(text, out);
    return out;
}

std::string shown(std::string_view text, size_t max_chars) {
    const bool plain =
        !text.empty() && text.size() <= max_chars && std::all_of(text.begin(), text.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                   c == '-' || c == '.' || c == '/';
        });
    return plain ? std::string(text) : quoted(text, max_chars);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
    std::string out;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) out += separator;
        out += parts[i];
    }
    return out;
}

std::string alternatives(const std::vector<std::string>& parts) {
    if (parts.size() < 2) return join(parts, "");
    return join({parts.begin(), parts.end() - 1}, ", ") + " or " + parts.back();
}

std::string counted(size_t count, std::string_view noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
    const size_t far = limit + 1;
    if ((a.size() > b.size() ? a.size() - b.size() : b.size() - a.size()) > limit) return far;
    // Three rows of the table of distances between prefixes; a swap of neighbours looks two rows back.
    std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        size_t best = row[0];
        for (size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
            best = std::min(best, row[j]);
        }
        if (best > limit) return far;
        before.swap(above);
        above.swap(row);
    }
    return std::min(above[b.size()], far);
}

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates,
                                 size_t count) {
    struct Found {
        size_t rank;
        const std::string* name;
    };
    std::vector<Found> found;
    for (const std::string& name : candidates) {
        const size_t limit = 2;
        const size_t edits = edit_distance(word, name, limit);
        const size_t shorter = std::min(word.size(), name.size());
        if (edits <= limit && edits < std::max<size_t>(word.size(), 1)) {
            found.push_back({edits, &name});
        } else if (shorter >= 3 && (name.starts_with(word) || word.starts_with(name))) {
            found.push_back({limit + 1, &name});
        }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Found& a, const Found& b) { return a.rank < b.rank; });
    std::vector<std::string> out;
    for (const Found& f : found)
        if (out.size() < count) out.push_back(*f.name);
    return out;
}

}  // namespace longreach
