#include "text/encode_ahead.h"

#include "base/error.h"

namespace longreach::text {

namespace {

// Text of a batch for each thread: a fraction of a second of work, so that starting threads costs nothing.
constexpr size_t batch_bytes = size_t{4} << 20;

}  // namespace

EncodeAhead::EncodeAhead(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, int threads, Deliver deliver)
    : deliver_(std::move(deliver)) {
    check(threads >= 1, "{} threads that encode", threads);
    for (int i = 0; i < threads; ++i) encoders_.push_back(std::make_unique<tokenizer::Encoder>(tokenizer));
}

EncodeAhead::~EncodeAhead() {
    for (std::thread& thread : threads_) thread.join();
}

void EncodeAhead::add(EncodedPart part) {
    collected_bytes_ += part.text.size();
    collected_.push_back(std::move(part));
    if (collected_bytes_ < batch_bytes * encoders_.size()) return;
    deliver_batch();
    start_batch();
}

void EncodeAhead::finish() {
    deliver_batch();
    start_batch();
    deliver_batch();
}

void EncodeAhead::encode(size_t worker) {
    try {
        for (size_t i = next_++; i < working_.size(); i = next_++)
            encoders_[worker]->encode(working_[i].text, tokenizer::SpecialTokens::as_text, working_[i].ids);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
    }
}

void EncodeAhead::start_batch() {
    std::swap(collected_, working_);
    collected_bytes_ = 0;
    next_ = 0;
    if (encoders_.size() == 1 || working_.size() == 1) return encode(0);
    for (size_t worker = 0; worker < encoders_.size(); ++worker)
        threads_.emplace_back([this, worker] { encode(worker); });
}

void EncodeAhead::deliver_batch() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    if (failure_) std::rethrow_exception(failure_);
    for (const EncodedPart& part : working_) deliver_(part);
    working_.clear();
}

}  // namespace longreach::text
