// spdlog with the fmt of this program, and its names for the levels of messages.
#pragma once

#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL
#endif
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string_view>

#include "base/messages.h"
#include "base/terminal.h"

namespace longreach {

inline spdlog::level::level_enum spdlog_level(MessageLevel level) {
    switch (level) {
        case MessageLevel::info:
            return spdlog::level::info;
        case MessageLevel::warning:
            return spdlog::level::warn;
        case MessageLevel::error:
            return spdlog::level::err;
    }
    return spdlog::level::info;
}

// Messages as they are, broken at the width of the terminal of a file descriptor.
class LineFormatter final : public spdlog::formatter {
  public:
    explicit LineFormatter(int fd) : fd_(fd) {}
    void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
        std::string text =
            wrapped(std::string_view(message.payload.data(), message.payload.size()), terminal_width(fd_));
        text += '\n';
        out.append(text.data(), text.data() + text.size());
    }
    std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(fd_); }

  private:
    int fd_;
};

}  // namespace longreach
