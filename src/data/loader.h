// Fills micro-batches ahead of the trainer.
//
// The caller announces what it will want with request(), in order, and receives it with take(), in the same
// order. With `background` a thread reads one micro-batch ahead; without, take() reads. Both give the same
// bits. A failed read (a bad token, a failing disk) surfaces as the Error of the take() that would have
// delivered it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "data/batch_plan.h"
#include "data/token_stream.h"

namespace longreach {

// `batch` sequences of `length` tokens, the first of which begins after `consumed` tokens of the run;
// sequence b begins length * b tokens later.
struct BatchRequest {
    uint64_t consumed = 0;
    int64_t batch = 0, length = 0;
};

// Views of the loader's memory, valid until the next take().
struct MicroBatch {
    BatchRequest request;
    std::span<const int32_t> tokens;     // [B, T]
    std::span<const int32_t> targets;    // [B, T] the token that follows each
    std::span<const int32_t> doc_start;  // [B, T] offset in its own sequence of the first token of its
                                         // document; empty if the loader was not asked for documents
};

// Fills one micro-batch; the spans have batch * length elements (doc_start may be empty: not wanted).
// `pieces` is scratch. This is the whole meaning of a Loader; the rest is about when it runs.
void fill_batch(const TokenStream& stream, const BatchPlan& plan, const BatchRequest& request,
                std::span<int32_t> tokens, std::span<int32_t> targets, std::span<int32_t> doc_start,
                std::vector<Piece>& pieces);

struct LoaderOptions {
    int64_t max_tokens = 0;  // the largest batch * length that will be requested
    bool documents = true;   // fill doc_start
    bool background = true;
};

// `stream` and `plan` must outlive the loader. All methods are for one thread.
class Loader {
  public:
    Loader(const TokenStream& stream, const BatchPlan& plan, const LoaderOptions& options);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void request(const BatchRequest& request);
    MicroBatch take();       // needs an earlier request()
    size_t pending() const;  // requested and not taken

  private:
    struct Slot {
        BatchRequest request;
        std::vector<int32_t> tokens, targets, doc_start;
        std::vector<Piece> pieces;
        std::exception_ptr failure;
    };
    void fill(Slot& slot) const;
    void run();  // the thread
    BatchRequest pop_request();

    const TokenStream& stream_;
    const BatchPlan& plan_;
    LoaderOptions options_;
    Slot slots_[2];  // one in the caller's hands, one being filled

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<BatchRequest> ring_;  // requests not yet begun, in a circle that grows as needed
    size_t ring_begin_ = 0, ring_count_ = 0;
    uint64_t filled_ = 0;  // micro-batches completed by the thread
    uint64_t taken_ = 0;   // micro-batches handed out
    size_t pending_ = 0;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace longreach
