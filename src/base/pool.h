// Threads that share the items of a loop and lose little where other programs take cores away.
//
// Items are taken one by one from an atomic counter, by the calling thread too. A thread that was descheduled before it
// took an item costs nothing: the loop ends when all items are done, whoever did them. Only items in flight are waited
// for, at most one per thread. A thread without work looks for some for microseconds and then sleeps. Before it does, it
// gives its core to a thread of the same loop that waits for one: the kernel may let that wait for another program for
// milliseconds while this core is idle. A thread that wakes up on the core of the caller goes to another one.
// Affinity masks stay as they were, but for the moment of the move.
//
// What an item is has to follow from the problem alone, never from the number of threads: then neither that number nor
// who takes what can change a bit of the results.
//
// On x86 and ARM subnormal numbers are zeros inside a loop, whichever thread it runs on.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/thread_choice.h"

namespace longreach {

// Threads that this process may run at once, by its affinity mask.
int usable_threads();

class Pool {
  public:
    // Up to `threads` threads, the caller of run() among them; 0: usable_threads(), and fewer of them for as long as
    // other programs keep the machine so busy that fewer get more done (thread_choice.h). They start with the first
    // loop that has work for them.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()); }
    // Threads that take items from the next loop on; the others sleep. Any thread may call these at any time.
    int active() const { return active_.load(std::memory_order_relaxed); }
    void use(int active);

    // Calls body(index, worker) for every index in [0, count), each once, in no order, and returns when all have
    // returned. Two calls that run at once have different workers, in [0, threads()): memory per worker needs no lock.
    // Indices are handed out in ascending order. Every call is made even where one throws; then the exception of the
    // lowest index is thrown here. A call that is unwanted (interruption.h) leaves out what is left and throws Interrupted;
    // what it has written is then of no use. A loop inside a body runs on the body's own thread, with the body's worker. Only one
    // thread at a time may call this.
    template <class Body>
    void run(int64_t count, Body&& body) {
        using Plain = std::remove_reference_t<Body>;
        run_loop(
            count,
            [](const void* context, int64_t index, int worker) {
                (*static_cast<Plain*>(const_cast<void*>(context)))(index, worker);
            },
            std::addressof(body));
    }

    // One line for the log where the number of threads changed since the last call, else nothing.
    std::string news() { return std::exchange(news_, {}); }

  private:
    using Call = void (*)(const void* context, int64_t index, int worker);
    struct Loop {
        Call call;
        const void* context;
        int64_t count;
    };
    struct alignas(64) Worker {
        std::thread thread;        // worker 0 is the caller and has none
        std::atomic<pid_t> id{0};  // of the thread while it takes items, else 0
        std::atomic<int64_t> nanoseconds{
            0};  // CPU time inside loops, measured where the number of threads adapts
    };

    void run_loop(int64_t count, Call call, const void* context);
    void run_inline(int64_t count, Call call, const void* context, int worker);
    void share(const Loop& loop, int active);
    void start();
    void live(int worker);
    int64_t take(int worker);
    void wait_for_items();
    template <class Ready>
    void lend_core(Ready ready);
    void leave_core_of_caller();
    int64_t drop_items();
    void call_one(int64_t index, int worker) noexcept;
    void note(double seconds);

    std::vector<Worker> workers_;
    bool started_ = false;
    std::atomic<bool> calling_{false};
    std::atomic<bool> stop_{false};

    // Written by the caller between loops, read only by those who hold an item of the loop.
    alignas(64) Loop loop_{};
    // Items not yet taken; below 0 once threads found none. An item is its holder's until pending_ counts it.
    alignas(64) std::atomic<int64_t> left_{0};
    // Items not yet done, and the bit that says that the caller sleeps on this word.
    alignas(64) std::atomic<uint32_t> pending_{0};
    // Loops so far: what threads without work sleep on, `sleeping_` of them.
    alignas(64) std::atomic<uint32_t> posted_{0};
    std::atomic<int> sleeping_{0};
    // Threads that take items: what the others sleep on.
    std::atomic<int> active_;
    std::atomic<int> caller_core_{-1};
    bool own_cores_;  // there are as many cores as threads

    std::mutex failing_;
    std::exception_ptr failure_;
    int64_t failed_index_ = 0;

    std::unique_ptr<ThreadChoice> choice_;  // null: the number of threads stays
    double window_seconds_ = 0;             // of loops since the last decision
    int64_t window_began_ = 0;              // CPU nanoseconds of all workers then
    std::string news_;
};

}  // namespace longreach
