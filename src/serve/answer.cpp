#include "serve/answer.h"

#include <new>

#include "base/error.h"

namespace longreach::serve {

namespace {

constexpr int64_t number_bytes = 20;  // of a log-probability, with the text around it

int64_t bytes_of(const std::vector<TokenReport>& tokens) {
    int64_t bytes = 0;
    for (const TokenReport& token : tokens) {
        bytes += static_cast<int64_t>(token.text.size()) + 2 * number_bytes;
        for (const auto& [text, value] : token.top) bytes += static_cast<int64_t>(text.size()) + number_bytes;
    }
    return bytes;
}

int64_t bytes_of(const Event& event) {
    int64_t bytes = static_cast<int64_t>(event.text.size()) + bytes_of(event.tokens);
    if (event.prompt)
        bytes += static_cast<int64_t>(event.prompt->text.size()) + bytes_of(event.prompt->tokens);
    return bytes;
}

}  // namespace

std::optional<Event> Answer::next(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, wait, [&] { return !events_.empty() || failed_; });
    if (refusal_) throw Refusal(*refusal_);
    if (failed_) throw std::bad_alloc();
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
}

int64_t Answer::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

std::optional<std::chrono::steady_clock::time_point> Answer::work_began() const {
    const std::lock_guard lock(mutex_);
    return began_;
}

void Answer::begin_work() {
    const std::lock_guard lock(mutex_);
    if (!began_) began_ = std::chrono::steady_clock::now();
}

void Answer::put(Event event) {
    {
        const std::lock_guard lock(mutex_);
        bytes_ += bytes_of(event);
        if (bytes_ <= most_) {
            events_.push_back(std::move(event));
            arrived_.notify_one();
            return;
        }
    }
    fail(400, "the answer has become longer than --max-answer: ask for less at once");
}

// Without memory for a message the status is all that is said.
void Answer::fail(int status, const char* message) noexcept {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (failed_) return;
    failed_ = true;
    try {
        refusal_.emplace(status, message);
    } catch (const std::bad_alloc&) {
    }
    arrived_.notify_one();
}

std::shared_ptr<void> Budget::take(int64_t bytes) {
    // Made before anything is taken, so that nothing is lost if there is no memory for it.
    const std::shared_ptr<std::atomic<int64_t>> left = left_;
    struct Part {
        std::shared_ptr<std::atomic<int64_t>> of;
        int64_t bytes = 0;
        ~Part() { *of += bytes; }
    };
    const auto part = std::make_shared<Part>();
    part->of = left;
    int64_t now = *left;
    while (now >= bytes && !left->compare_exchange_weak(now, now - bytes)) {
    }
    if (now < bytes) throw Refusal(503, "the answers to other clients hold the memory: ask again");
    part->bytes = bytes;
    return part;
}

}  // namespace longreach::serve
