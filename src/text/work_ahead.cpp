#include "text/work_ahead.h"

#include "base/error.h"

namespace longreach::text {

namespace {

// Text of a batch for each thread: a fraction of a second of work, so that starting threads costs nothing.
constexpr size_t batch_bytes = size_t{4} << 20;

}  // namespace

WorkAhead::WorkAhead(int threads, Work work, Deliver deliver)
    : thread_count_(static_cast<size_t>(threads)), work_(std::move(work)), deliver_(std::move(deliver)) {
    check(threads >= 1, "{} threads that work ahead", threads);
}

WorkAhead::~WorkAhead() {
    for (std::thread& thread : threads_) thread.join();
}

void WorkAhead::add(TextPart part) {
    collected_bytes_ += part.text.size();
    collected_.push_back(std::move(part));
    if (collected_bytes_ < batch_bytes * thread_count_) return;
    deliver_batch();
    start_batch();
}

void WorkAhead::finish() {
    deliver_batch();
    start_batch();
    deliver_batch();
}

void WorkAhead::work(size_t thread) {
    try {
        for (size_t i = next_++; i < working_.size(); i = next_++) work_(thread, working_[i]);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
    }
}

void WorkAhead::start_batch() {
    std::swap(collected_, working_);
    collected_bytes_ = 0;
    next_ = 0;
    if (thread_count_ == 1 || working_.size() == 1) return work(0);
    for (size_t thread = 0; thread < thread_count_; ++thread)
        threads_.emplace_back([this, thread] { work(thread); });
}

void WorkAhead::deliver_batch() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    if (failure_) std::rethrow_exception(failure_);
    for (const TextPart& part : working_) deliver_(part);
    working_.clear();
}

}  // namespace longreach::text
