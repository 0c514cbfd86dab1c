// spdlog with the fmt of this program, and its names for the levels of messages.
#pragma once

#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL
#endif
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/messages.h"

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

}  // namespace longreach
