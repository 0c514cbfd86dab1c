#include "data/loader.h"

#include <algorithm>

#include "base/error.h"

namespace longreach::data {

void fill_batch(const TokenStream& stream, const BatchPlan& plan, const BatchRequest& request,
                std::span<int32_t> tokens, std::span<int32_t> targets, std::span<int32_t> doc_start,
                std::vector<Piece>& pieces) {
    const size_t length = static_cast<size_t>(request.length);
    check(tokens.size() == static_cast<size_t>(request.batch) * length && targets.size() == tokens.size(),
          "a micro-batch of {} x {} in {} and {} elements", request.batch, request.length, tokens.size(),
          targets.size());
    for (size_t b = 0; b < static_cast<size_t>(request.batch); ++b) {
        plan.locate(request.consumed + b * length, request.length, pieces);
        size_t at = 0;  // in this sequence
        for (const Piece& piece : pieces) {
            const size_t count = static_cast<size_t>(piece.length);
            int32_t* x = tokens.data() + b * length + at;
            int32_t* y = targets.data() + b * length + at;
            stream.read(piece.begin, piece.length, x);
            std::copy(x + 1, x + count, y);
            stream.read(piece.begin + count, 1, y + count - 1);
            if (!doc_start.empty()) {
                int32_t* starts = doc_start.data() + b * length + at;
                stream.document_starts(piece.begin, piece.length, x, starts);
                for (size_t i = 0; i < count; ++i) starts[i] += static_cast<int32_t>(at);
            }
            at += count;
        }
    }
}

Loader::Loader(BatchSource& source, const LoaderOptions& options) : source_(source), options_(options) {
    check(options.max_tokens >= 1, "a loader for micro-batches of {} tokens", options.max_tokens);
    const size_t size = static_cast<size_t>(options.max_tokens);
    for (Slot& slot : slots_) {
        slot.tokens.resize(size);
        slot.targets.resize(size);
        slot.doc_start.resize(options.documents ? size : 0);
    }
    ring_.resize(64);
    if (options.background) thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Loader::request(const BatchRequest& request) {
    check(request.batch >= 1 && request.length >= 1 && request.batch <= options_.max_tokens / request.length,
          "a micro-batch of {} x {} tokens in a loader for {}", request.batch, request.length,
          options_.max_tokens);
    {
        const std::lock_guard lock(mutex_);
        if (ring_count_ == ring_.size()) {
            std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(ring_begin_), ring_.end());
            ring_begin_ = 0;
            ring_.resize(2 * ring_.size());
        }
        ring_[(ring_begin_ + ring_count_) % ring_.size()] = request;
        ++ring_count_;
        ++pending_;
    }
    changed_.notify_all();
}

BatchRequest Loader::pop_request() {
    const BatchRequest request = ring_[ring_begin_];
    ring_begin_ = (ring_begin_ + 1) % ring_.size();
    --ring_count_;
    return request;
}

void Loader::fill(Slot& slot) {
    slot.failure = nullptr;
    const size_t size = static_cast<size_t>(slot.request.batch * slot.request.length);
    const std::span<int32_t> starts =
        options_.documents ? std::span(slot.doc_start).first(size) : std::span<int32_t>{};
    try {
        source_.fill(slot.request, std::span(slot.tokens).first(size), std::span(slot.targets).first(size),
                     starts);
    } catch (...) {
        slot.failure = std::current_exception();
    }
}

void Loader::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        // Slot n % 2 last held micro-batch n - 2, which the caller returns by completing
        // the take of n - 1.
        const auto slot_is_free = [&] { return filled_ < 2 || filled_ <= taken_; };
        changed_.wait(lock, [&] { return stop_ || (ring_count_ > 0 && slot_is_free()); });
        if (stop_) return;
        Slot& slot = slots_[filled_ % 2];
        slot.request = pop_request();
        lock.unlock();
        fill(slot);
        lock.lock();
        ++filled_;
        changed_.notify_all();
    }
}

MicroBatch Loader::take() {
    std::unique_lock lock(mutex_);
    check(pending_ > 0, "a micro-batch is taken that nobody requested");
    Slot& slot = slots_[taken_ % 2];
    if (options_.background) {
        changed_.wait(lock, [&] { return filled_ > taken_; });
    } else {
        slot.request = pop_request();
        fill(slot);
    }
    ++taken_;
    --pending_;
    lock.unlock();
    changed_.notify_all();
    if (slot.failure) std::rethrow_exception(slot.failure);
    const size_t size = static_cast<size_t>(slot.request.batch * slot.request.length);
    MicroBatch batch;
    batch.request = slot.request;
    batch.tokens = std::span(slot.tokens).first(size);
    batch.targets = std::span(slot.targets).first(size);
    if (options_.documents) batch.doc_start = std::span(slot.doc_start).first(size);
    return batch;
}

size_t Loader::pending() const {
    const std::lock_guard lock(mutex_);
    return pending_;
}

}  // namespace longreach::data
