#include "table/readable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/text.h"

namespace longreach::table {

namespace {

std::string with_minus(const std::string& text) {
    return text.starts_with('-') ? fmt::format("\u2212{}", std::string_view(text).substr(1)) : text;
}

// "-0.00" becomes "0.00".
std::string unsigned_zero(std::string text) {
    if (text.find_first_of("123456789") == std::string::npos && text[0] == '-') text.erase(0, 1);
    return text;
}

}  // namespace

std::string short_length(int64_t length) {
    constexpr int64_t kilo = 1024, mega = kilo * kilo;
    if (length >= mega && length % mega == 0) return fmt::format("{}M", length / mega);
    if (length >= kilo && length % kilo == 0) return fmt::format("{}K", length / kilo);
    return fmt::format("{}", length);
}

std::string fixed(double value, int decimals) {
    if (!std::isfinite(value)) return "not finite";
    if (std::abs(value) >= 1e9) return significant(value);
    return with_minus(unsigned_zero(fmt::format("{:.{}f}", value, decimals)));
}

std::string signed_fixed(double value, int decimals) {
    const std::string text = fixed(value, decimals);
    return std::isfinite(value) && value >= 0 ? fmt::format("+{}", text) : text;
}

std::string significant(double value, int digits) {
    if (!std::isfinite(value)) return "not finite";
    return with_minus(fmt::format("{:.{}g}", value + 0.0, digits));
}

std::string exact(double value) {
    return std::isnan(value) ? "" : fmt::format("{}", value);
}

std::string shortened(const std::string& text, size_t characters) {
    std::vector<size_t> begins;
    for (size_t at = 0; at < text.size();) {
        begins.push_back(at);
        at += std::max<size_t>(utf8_sequence(std::string_view(text).substr(at)), 1);
    }
    if (begins.size() <= characters) return text;
    const size_t back = characters / 2, front = characters - 1 - back;
    return fmt::format("{}…{}", text.substr(0, begins[front]), text.substr(begins[begins.size() - back]));
}

}  // namespace longreach::table
