#include "plot/markup.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"

namespace longreach::plot {

std::string escaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const size_t length = utf8_sequence(text);
        const unsigned char c = static_cast<unsigned char>(text[0]);
        if (length == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
            out += "\uFFFD";
        else if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else if (c == '\'')
            out += "&#39;";
        else
            out += text.substr(0, length);
        text.remove_prefix(std::max<size_t>(length, 1));
    }
    return out;
}

std::string identifier(std::string_view text) {
    constexpr size_t longest = 64;
    std::string out;
    for (const char c : text.substr(0, longest)) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        out += plain || c == '-' || c == '_' || c == '.' ? c : '-';
    }
    return out == text ? out : fmt::format("{}-{}", out, format_hash64(xxh64(text)));
}

}  // namespace longreach::plot
