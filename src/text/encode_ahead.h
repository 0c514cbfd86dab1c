// Encodes documents, or parts of long ones, with several threads and delivers them in the order in which they were added.
//
// Parts are collected into a batch; while the threads encode one batch the caller collects the next. What is
// delivered does not depend on the number of threads.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace longreach::text {

struct EncodedPart {
    std::string text = {};
    uint64_t document = 0;                 // counts the documents of a call
    bool validation = false;               // which split it belongs to
    bool is_first = true, is_last = true;  // of the document
    std::vector<int32_t> ids = {};
};

class EncodeAhead {
  public:
    using Deliver = std::function<void(const EncodedPart&)>;
    EncodeAhead(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, int threads, Deliver deliver);
    ~EncodeAhead();
    EncodeAhead(const EncodeAhead&) = delete;
    EncodeAhead& operator=(const EncodeAhead&) = delete;

    void add(EncodedPart part);  // its `ids` are filled in
    void finish();               // delivers what is left

  private:
    void start_batch();    // hands what was collected to the threads
    void deliver_batch();  // waits for the threads
    void encode(size_t worker);

    Deliver deliver_;
    std::vector<std::unique_ptr<tokenizer::Encoder>> encoders_;  // one for each thread
    std::vector<EncodedPart> collected_, working_;
    size_t collected_bytes_ = 0;
    std::atomic<size_t> next_ = 0;  // of working_
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::exception_ptr failure_;
};

}  // namespace longreach::text
