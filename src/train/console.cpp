#include "train/console.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace longreach::train {

namespace {

// A console that went away must not end a run: what cannot be written is dropped (fmt::print would throw).
void write_or_drop(const std::string& text, std::FILE* file) {
    std::fwrite(text.data(), 1, text.size(), file);
    if (std::fflush(file) != 0) std::clearerr(file);
}

}  // namespace

Console::Console(bool quiet) : quiet_(quiet), terminal_(!quiet && isatty(STDOUT_FILENO) != 0) {
    std::signal(SIGPIPE,
                SIG_IGN);  // the default would end the process at the first line after the reader left
}

Console::~Console() {
    clear_status();
}

void Console::open_log(const std::string& path, io::Disk& disk) {
    log_ = io::File::open_or_create(path, io::Writes::appended, disk);
}

void Console::line(const std::string& text) {
    clear_status();
    if (!quiet_) write_or_drop(text + "\n", stdout);
    if (!log_.is_open()) return;
    const std::time_t now = std::time(nullptr);
    const std::string stamp = fmt::format("{:%Y-%m-%d %H:%M:%S}  ", fmt::localtime(now));
    std::string lines;
    size_t begin = 0;
    while (begin <= text.size()) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        lines += fmt::format("{}{}\n", stamp, text.substr(begin, end - begin));
        begin = end + 1;
    }
    try {
        log_.write(lines);
        log_failed_ = false;
    } catch (const Error& e) {
        if (!std::exchange(log_failed_, true) && !quiet_)
            write_or_drop(fmt::format("warning: lines are missing from the log: {}\n", e.what()), stdout);
    }
}

void Console::status(const std::string& text) {
    if (!terminal_) return;
    write_or_drop("\r\x1b[2K" + text, stdout);
    status_shown_ = true;
}

void Console::clear_status() {
    if (!status_shown_) return;
    write_or_drop("\r\x1b[2K", stdout);
    status_shown_ = false;
}

std::string progress_line(const Progress& p) {
    const int width = static_cast<int>(fmt::formatted_size("{}", p.total_steps));
    std::string out = fmt::format("{:>{}}/{} {:>3.0f}%", p.step, width, p.total_steps,
                                  100.0 * static_cast<double>(p.step) / static_cast<double>(p.total_steps));
    if (!p.stage.empty()) out += "  " + p.stage;
    out += fmt::format("  T {}  loss {:.4f}  norm {:<7.3g}  lr {:<7.3g}  {:>6} tok/s", p.context, p.loss,
                       p.gradient_norm, p.lr, human_count(p.tokens_per_second));
    if (p.peak_fraction > 0) out += fmt::format("  {:>3.0f}% of peak", 100 * p.peak_fraction);
    if (p.mfu > 0) out += fmt::format("  mfu {:.1f}%", 100 * p.mfu);
    if (p.memory_bytes > 0) out += fmt::format("  {}", human_bytes(p.memory_bytes));
    out += fmt::format("  eta {}", human_duration(p.seconds_left));
    if (p.skipped > 0) out += fmt::format("  skipped {}", p.skipped);
    return out;
}

std::string progress_bar(const Progress& p) {
    constexpr int cells = 24;
    const int filled = static_cast<int>(cells * p.step / std::max<int64_t>(p.total_steps, 1));
    std::string bar;
    for (int i = 0; i < cells; ++i) bar += i < filled ? "█" : "░";
    return fmt::format("{} {}/{}  loss {:.4f}  {} tok/s  eta {}", bar, p.step, p.total_steps, p.loss,
                       human_count(p.tokens_per_second), human_duration(p.seconds_left));
}

namespace {

int64_t status_field(const char* field) {
    std::ifstream in("/proc/self/status");
    std::string line;
    while (std::getline(in, line))
        if (line.rfind(field, 0) == 0) return std::stoll(line.substr(std::strlen(field))) * 1024;
    return 0;
}

}  // namespace

int64_t resident_bytes() {
    return status_field("VmRSS:");
}
int64_t peak_resident_bytes() {
    return status_field("VmHWM:");
}

}  // namespace longreach::train
