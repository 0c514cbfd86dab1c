#include "serve/access_log.h"

#include <ctime>

#include "base/json.h"
#include "serve/text_stream.h"

namespace longreach::serve {

namespace {

std::string shown_time(std::chrono::system_clock::time_point at) {
    const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch()).count();
    const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    char text[32];
    const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    return fmt::format("{}.{:03}Z", std::string_view(text, length), ms % 1000);
}

// To microseconds.
double milliseconds(std::chrono::steady_clock::duration time) {
    return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(time).count()) / 1000;
}

}  // namespace

void AccessLog::write(const std::string& line) noexcept {
    const std::lock_guard lock(mutex_);
    try {
        file_.write(line + "\n");
    } catch (const std::exception& error) {
        if (!failed_) try {
                problem_ = fmt::format("lines are missing from the log of requests: {}", error.what());
            } catch (const std::bad_alloc&) {
            }
        failed_ = true;
    }
}

std::string AccessLog::take_problem() {
    const std::lock_guard lock(mutex_);
    return std::exchange(problem_, {});
}

LoggedRequest::LoggedRequest(AccessLog& log, std::string model, std::string method, std::string path)
    : log_(log), model_(std::move(model)), method_(std::move(method)), path_(std::move(path)) {}

LoggedRequest::~LoggedRequest() {
    try {
        log_.write(line());
    } catch (const std::exception&) {  // no memory for the line
    }
}

std::string LoggedRequest::line() const {
    const auto text = [](const std::string& s) {
        return s.empty() ? json::Value() : json::Value(to_utf8(s));
    };
    json::Value prompt, completion, waiting;
    if (answer) {
        prompt = answer->prompt_tokens;
        completion = answer->generated_tokens.load();
        if (const auto began = answer->work_began()) waiting = milliseconds(*began - begin_);
    }
    return json::write(
        json::Value::object({{"time", shown_time(at_)},
                             {"method", text(method_)},
                             {"path", text(path_)},
                             {"status", status},
                             {"model", text(model_)},
                             {"prompt_tokens", prompt},
                             {"completion_tokens", completion},
                             {"waiting_ms", waiting},
                             {"total_ms", milliseconds(std::chrono::steady_clock::now() - begin_)},
                             {"client_left", left}}),
        json::Style::compact);
}

}  // namespace longreach::serve
