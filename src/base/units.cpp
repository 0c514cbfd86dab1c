#include "base/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

namespace longreach {

std::string human_bytes(int64_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = static_cast<double>(bytes);
    int unit = 0;
    while (x >= 1024 && unit < 4) {
        x /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", x, units[unit]);
}

std::string human_count(double count) {
    const char* units[] = {"", "K", "M", "B", "T"};
    int unit = 0;
    while (std::abs(count) >= 999.5 && unit < 4) {
        count /= 1000;
        ++unit;
    }
    if (unit == 0) return fmt::format("{:g}", std::round(count * 10) / 10);
    return fmt::format("{:.{}f}{}", count, count < 9.995 ? 2 : count < 99.95 ? 1 : 0, units[unit]);
}

std::string grouped(int64_t value) {
    const std::string digits = fmt::format("{}", value);
    std::string out;
    for (size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) out += ',';
        out += digits[i];
    }
    return out;
}

std::string human_duration(double seconds) {
    if (!(seconds >= 0) || seconds > 1e9) return "?";
    if (seconds < 60) return fmt::format("{:.1f}s", seconds);
    const int64_t s = static_cast<int64_t>(std::llround(seconds));
    if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
    if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
    return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

std::optional<int64_t> parse_token_count(std::string_view text) {
    int64_t factor = 1;
    const size_t unit = text.empty() ? std::string_view::npos : std::string_view("KMGkmg").find(text.back());
    if (unit != std::string_view::npos) {
        factor = int64_t{1} << (10 * (unit % 3 + 1));
        text.remove_suffix(1);
    }
    uint64_t count = 0;  // unsigned: from_chars then refuses a sign
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
    if (count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / factor)) return std::nullopt;
    return static_cast<int64_t>(count) * factor;
}

}  // namespace longreach
