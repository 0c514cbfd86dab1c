// Where the parts of an answer arrive; one thread waits here, the engine's writes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/request.h"

namespace longreach::serve {

// A token of an answer, as text.
struct TokenReport {
    std::string text;
    int64_t offset = 0;                     // characters of the answer's text before it
    std::optional<double> log_probability;  // none for the first token of a prompt
    std::vector<std::pair<std::string, double>> top;
};

// A prompt as its answers begin with it.
struct PromptReport {
    std::string text;
    std::vector<TokenReport> tokens;  // if log-probabilities were asked for
    int64_t characters = 0;           // of the text
};

// A part of the answer to one choice.
struct Event {
    size_t choice = 0;
    std::shared_ptr<const PromptReport>
        prompt;  // of a first part with `echo`; choices of one prompt share it
    std::string text;
    std::vector<TokenReport> tokens;  // if log-probabilities were asked for
    std::string finish;               // "stop" or "length" with the last part, else empty
};

class Answer {
  public:
    // most: bytes that the answer may have. memory: what is held for it, released with it.
    Answer(int64_t most, std::shared_ptr<void> memory) : most_(most), memory_(std::move(memory)) {}

    // The next part; empty if none came in time. Throws the Refusal that ended the request.
    std::optional<Event> next(std::chrono::milliseconds wait);
    void cancel() { cancelled_ = true; }
    bool cancelled() const { return cancelled_; }
    int64_t bytes() const;                      // of what has arrived, as JSON, nearly
    int64_t prompt_tokens = 0;                  // of all prompts; set before the answer is handed out
    std::atomic<int64_t> generated_tokens = 0;  // so far

    // When the model began to work on it, if it has.
    std::optional<std::chrono::steady_clock::time_point> work_began() const;

    // For the engine.
    void begin_work();
    void put(Event event);
    void fail(int status, const char* message) noexcept;

  private:
    const int64_t most_;
    const std::shared_ptr<void> memory_;
    mutable std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Event> events_;
    int64_t bytes_ = 0;
    std::optional<std::chrono::steady_clock::time_point> began_;
    std::optional<Refusal> refusal_;
    bool failed_ = false;
    std::atomic<bool> cancelled_ = false;
};

// Bytes that are shared out. Belongs to all threads.
class Budget {
  public:
    explicit Budget(int64_t bytes) : left_(std::make_shared<std::atomic<int64_t>>(bytes)) {}
    // Bytes until the last copy of the result is gone. Throws a Refusal with status 503 if fewer are left.
    std::shared_ptr<void> take(int64_t bytes);

  private:
    std::shared_ptr<std::atomic<int64_t>> left_;
};

}  // namespace longreach::serve
