// Reads micro-batches ahead of the trainer.
//
// The caller announces micro-batches with request(), in order, and receives them with take(), in the
// same order. With `background` a thread reads one micro-batch ahead; without, take() reads. Both give
// the same bits. A failed read (a bad token, a failing disk) surfaces as the Error of the take() that
// would have delivered it.
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

namespace longreach::data {

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

// Where micro-batches come from. What is filled depends on the request alone, so neither the cut into
// micro-batches nor the place where a run was interrupted changes a token.
class BatchSource {
  public:
    virtual ~BatchSource() = default;
    // The spans have batch * length elements (doc_start may be empty: not needed). One call at a time.
    virtual void fill(const BatchRequest& request, std::span<int32_t> tokens, std::span<int32_t> targets,
                      std::span<int32_t> doc_start) = 0;
    // Targets that are scored (not -1) in every sequence of this length; what a step's loss and
    // gradient are divided by.
    virtual int64_t scored_per_sequence(int64_t length) const = 0;
};

// Fills one micro-batch from the stream, in the plan's order; `pieces` is scratch.
void fill_batch(const TokenStream& stream, const BatchPlan& plan, const BatchRequest& request,
                std::span<int32_t> tokens, std::span<int32_t> targets, std::span<int32_t> doc_start,
                std::vector<Piece>& pieces);

// The stream in the order of a plan: fill_batch(). Both must outlive it.
class StreamBatches : public BatchSource {
  public:
    StreamBatches(const TokenStream& stream, const BatchPlan& plan) : stream_(stream), plan_(plan) {
        pieces_.reserve(16);
    }
    void fill(const BatchRequest& request, std::span<int32_t> tokens, std::span<int32_t> targets,
              std::span<int32_t> doc_start) override {
        fill_batch(stream_, plan_, request, tokens, targets, doc_start, pieces_);
    }
    int64_t scored_per_sequence(int64_t length) const override { return length; }

  private:
    const TokenStream& stream_;
    const BatchPlan& plan_;
    std::vector<Piece> pieces_;
};

struct LoaderOptions {
    int64_t max_tokens = 0;  // the largest batch * length that will be requested
    bool documents = true;   // fill doc_start
    bool background = true;
};

// The source must outlive the loader. All methods are for one thread.
class Loader {
  public:
    Loader(BatchSource& source, const LoaderOptions& options);
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
        std::exception_ptr failure;
    };
    void fill(Slot& slot);
    void run();  // the thread
    BatchRequest pop_request();

    BatchSource& source_;
    LoaderOptions options_;
    Slot slots_[2];  // one held by the caller, one being filled

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

}  // namespace longreach::data
