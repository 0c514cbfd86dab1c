#include "train/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/spdlog.h"
#include "base/terminal.h"
#include "base/units.h"

namespace longreach::train {

namespace {

std::string lost_reason;

// Ignores errors: a lost console must not end a run (fmt::print would throw).
void write_or_drop(const std::string& text, std::FILE* file) {
    std::fwrite(text.data(), 1, text.size(), file);
    if (std::fflush(file) != 0) std::clearerr(file);
}

// log.txt, with the time of day at the start of every line.
class LogFile final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  public:
    LogFile(const std::string& path, io::Disk& disk, bool quiet)
        : file_(io::File::open_or_create(path, io::Writes::appended, disk)), quiet_(quiet) {
        set_formatter_(std::make_unique<spdlog::pattern_formatter>("%Y-%m-%d %H:%M:%S  ",
                                                                   spdlog::pattern_time_type::local, ""));
    }

  protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
        spdlog::memory_buf_t stamp;
        formatter_->format(message, stamp);
        const std::string_view text(message.payload.data(), message.payload.size());
        std::string lines;
        for (size_t begin = 0; begin <= text.size();) {
            const size_t end = std::min(text.find('\n', begin), text.size());
            lines.append(stamp.data(), stamp.size());
            lines += text.substr(begin, end - begin);
            lines += '\n';
            begin = end + 1;
        }
        try {
            file_.write(lines);
            failed_ = false;
        } catch (const Error& e) {
            if (!std::exchange(failed_, true) && !quiet_)
                write_or_drop(fmt::format("warning: lines are missing from the log: {}\n", e.what()), stdout);
        }
    }
    void flush_() override {}

  private:
    io::File file_;
    bool quiet_;
    bool failed_ = false;  // the last write failed, and the console has reported it
};

}  // namespace

struct Console::Log {
    spdlog::logger logger{"longreach"};
};

Console::Console(bool quiet)
    : quiet_(quiet),
      terminal_(!quiet && printed_from() == MessageLevel::info && isatty(STDOUT_FILENO) != 0),
      log_(std::make_unique<Log>()) {
    // The default action would end the process at the first line after the reader has closed the pipe.
    std::signal(SIGPIPE, SIG_IGN);
    if (!quiet) {
        auto console = std::make_shared<spdlog::sinks::stdout_sink_st>();
        console->set_formatter(std::make_unique<LineFormatter>(STDOUT_FILENO));
        console->set_level(spdlog_level(printed_from()));
        log_->logger.sinks().push_back(std::move(console));
    }
    log_->logger.set_error_handler([](const std::string&) {});  // a lost console
}

Console::~Console() {
    clear_status();
}

void Console::open_log(const std::string& path, io::Disk& disk) {
    log_->logger.sinks().push_back(std::make_shared<LogFile>(path, disk, quiet_));
    accompany();
}

void Console::accompany() {
    accompanies_ = true;
    lost_reason.clear();
}

const std::string& Console::lost() {
    return lost_reason;
}

void Console::line(const std::string& text) {
    write(MessageLevel::info, text);
}

void Console::warn(const std::string& text) {
    write(MessageLevel::warning, "warning: " + text);
}

void Console::write(MessageLevel level, const std::string& text) {
    clear_status();
    errno = 0;
    log_->logger.log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
    if (std::ferror(stdout) == 0) return;
    // A reader that closed the pipe has read what it wanted.
    if (!accompanies_ && errno != EPIPE && lost_reason.empty()) lost_reason = std::strerror(errno);
    std::clearerr(stdout);  // a lost console, as in write_or_drop
}

void Console::end_line(const std::string& text) {
    end_line_ = text;
    write(MessageLevel::error, text);
}

void Console::status(const std::string& text) {
    if (!terminal_) return;
    // One line: of a longer one only the last row would be drawn over.
    write_or_drop("\r\x1b[2K" + cut(text, terminal_width(STDOUT_FILENO)), stdout);
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
    out += fmt::format("  T {}  loss {:.4f}", p.context, p.loss);
    if (p.index_loss) out += fmt::format("  index {:.4f}", *p.index_loss);
    out += fmt::format("  norm {:<7.3g}  lr {:<7.3g}  {:>6} tok/s", p.gradient_norm, p.lr,
                       human_count(p.tokens_per_second));
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
