#include "base/messages.h"

#include <unistd.h>

#include <memory>

#include "base/spdlog.h"

namespace longreach {

namespace {

spdlog::logger& logger() {
    static spdlog::logger all = [] {
        auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
        sink->set_formatter(std::make_unique<LineFormatter>(STDERR_FILENO));
        spdlog::logger made("longreach", std::move(sink));
        made.set_error_handler([](const std::string&) {});  // nobody reads standard error
        return made;
    }();
    return all;
}

MessageLevel least = MessageLevel::info;

}  // namespace

void print_from(MessageLevel level) {
    least = level;
    logger().set_level(spdlog_level(level));
}

MessageLevel printed_from() {
    return least;
}

void print_message(MessageLevel level, std::string_view text) {
    const char* prefix = level == MessageLevel::warning ? "warning: "
                         : level == MessageLevel::error ? "error: "
                                                        : "";
    logger().log(spdlog_level(level), "{}{}", prefix, text);
}

}  // namespace longreach
