// Vector clocks over all threads of a block, for order that barriers of a part of the block make: PhaseBarrier, named
// barriers. A block that has none does without them (shadow.h). Column t of a row is what its owner has seen of thread
// t's clock; columns after the threads' count completed phases, one per PhaseBarrier: what the copy engine brought
// is known through them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longreach::simt {

using Clock = std::vector<uint32_t>;

class Clocks {
  public:
    static constexpr unsigned first_engine = 1024, most_engines = 64;  // as Access::thread

    void start_block(size_t threads);
    bool on() const { return on_; }
    void turn_on();  // at the block's first use of such a barrier
    size_t columns() const { return threads_ + most_engines; }
    size_t column(unsigned thread) const {
        return thread < first_engine ? thread : threads_ + thread - first_engine;
    }
    uint32_t* row(int thread) { return &rows_[static_cast<size_t>(thread) * columns()]; }
    uint32_t own(int thread) { return row(thread)[thread]; }
    // What the thread did so far is now told apart from what it does next.
    void tick(int thread) { ++row(thread)[thread]; }
    void release(int thread, Clock& into);
    void acquire(int thread, const Clock& from);
    void join_warp(size_t first, uint32_t mask);
    void join_block();
    // fence_async_proxy() of the thread: its writes so far, up to the clock that is noted.
    void fence(int thread);
    // Whether a fence of the thread lies between its clock `written` and the clock `known` of it.
    bool fenced(unsigned thread, uint32_t written, uint32_t known) const;

  private:
    void join(const std::vector<int>& who);

    bool on_ = false;
    size_t threads_ = 0;
    std::vector<uint32_t> rows_;
    std::vector<std::vector<uint32_t>> fences_;  // clocks by thread, rising
};

}  // namespace longreach::simt
