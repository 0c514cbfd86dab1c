// Works on documents, or parts of long ones, with several threads and delivers them in the order in which they were added.
//
// Parts are collected into a batch; while the threads work on one batch the caller collects the next. What is
// delivered does not depend on the number of threads, unless the work on one part depends on another's.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace longreach::text {

struct TextPart {
    std::string text = {};
    uint64_t document = 0;                 // counts the documents of a call
    bool validation = false;               // which split it belongs to
    bool is_first = true, is_last = true;  // of the document
    std::vector<int32_t> ids = {};         // of its tokens, for those who encode
};

class WorkAhead {
  public:
    using Work = std::function<void(size_t thread, TextPart&)>;  // thread: from 0; a part has one at a time
    using Deliver = std::function<void(const TextPart&)>;
    WorkAhead(int threads, Work work, Deliver deliver);
    ~WorkAhead();
    WorkAhead(const WorkAhead&) = delete;
    WorkAhead& operator=(const WorkAhead&) = delete;

    void add(TextPart part);
    void finish();  // delivers what is left

  private:
    void start_batch();    // hands what was collected to the threads
    void deliver_batch();  // waits for the threads
    void work(size_t thread);

    size_t thread_count_;
    Work work_;
    Deliver deliver_;
    std::vector<TextPart> collected_, working_;
    size_t collected_bytes_ = 0;
    std::atomic<size_t> next_ = 0;  // of working_
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::exception_ptr failure_;
};

}  // namespace longreach::text
