#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <climits>

#include "base/error.h"
#include "base/interruption.h"

namespace longreach {

namespace {

constexpr uint32_t caller_sleeps = uint32_t{1} << 31;
// How long a thread looks for work before it sleeps. Waking it takes about as long, and the gap between two operations
// of a model is shorter.
constexpr auto spin = std::chrono::microseconds(20);
// Before it sleeps, it checks at most this many other threads for this long: whether they wait for a core.
constexpr int most_looks = 4;
constexpr int64_t look = 4000;  // nanoseconds
// Loops over which CPU time is compared with time: many of the kernel's time slices.
constexpr double window = 0.3;  // seconds

// The pool and the worker of the loop that this thread is in.
thread_local const Pool* current_pool = nullptr;
thread_local int current_worker = 0;

// While it lives, instructions of its thread read and return zeros for subnormal numbers. An Intel core takes about a hundred
// cycles for an instruction that meets one, and weights of attention that fall with the distance are full of them. ARM
// computes with them at full speed: there it keeps the bits those of x86.
class SubnormalsAreZero {
  public:
    SubnormalsAreZero(const SubnormalsAreZero&) = delete;
    SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;
#if defined(__x86_64__)
    SubnormalsAreZero() : before_(_mm_getcsr()) {
        constexpr unsigned flush_results = 0x8000, read_as_zero = 0x0040;
        _mm_setcsr(before_ | flush_results | read_as_zero);
    }
    ~SubnormalsAreZero() {
        _mm_setcsr(before_);
    }

  private:
    unsigned before_;
#elif defined(__aarch64__) && !defined(__clang__)
    SubnormalsAreZero() : before_(__builtin_aarch64_get_fpcr()) {
        constexpr unsigned flush_to_zero = 1u << 24;  // operands too
        __builtin_aarch64_set_fpcr(before_ | flush_to_zero);
    }
    ~SubnormalsAreZero() {
        __builtin_aarch64_set_fpcr(before_);
    }

  private:
    unsigned before_;
#else
    SubnormalsAreZero() = default;
#endif
};

class InLoop {
  public:
    InLoop(const Pool* pool, int worker) : pool_(current_pool), worker_(current_worker) {
        current_pool = pool;
        current_worker = worker;
    }
    ~InLoop() {
        current_pool = pool_;
        current_worker = worker_;
    }
    InLoop(const InLoop&) = delete;
    InLoop& operator=(const InLoop&) = delete;

  private:
    const Pool* pool_;
    int worker_;
    SubnormalsAreZero subnormals_;
};

static_assert(sizeof(std::atomic<uint32_t>) == 4 && sizeof(std::atomic<int>) == 4);

// Sleeps for as long as `word` holds `value`; may return earlier.
template <class T>
void sleep_while(std::atomic<T>& word, T value) {
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
template <class T>
void wake(std::atomic<T>& word, int most) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
}

// Looks whether ready() for microseconds.
template <class Ready>
bool spin_until(Ready ready) {
    const auto begin = std::chrono::steady_clock::now();
    do {
        for (int i = 0; i < 16; ++i) {
            if (ready()) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (std::chrono::steady_clock::now() - begin < spin);
    return ready();
}

int64_t nanoseconds_of(clockid_t clock) {
    timespec t{};
    ::clock_gettime(clock, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
int64_t cpu_nanoseconds() {
    return nanoseconds_of(CLOCK_THREAD_CPUTIME_ID);
}
// The clock of a thread's CPU time, as Linux numbers it (clock_getcpuclockid gives that of a process only).
clockid_t cpu_clock_of(pid_t thread) {
    constexpr unsigned of_thread = 4, time_on_cores = 2;
    return static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | of_thread | time_on_cores);
}
// Whether a thread of this process has a core: its CPU time goes on while `look` passes.
bool is_running(pid_t thread) {
    const clockid_t clock = cpu_clock_of(thread);
    const int64_t time = nanoseconds_of(CLOCK_MONOTONIC), cpu = nanoseconds_of(clock);
    int64_t elapsed = 0;
    while (elapsed < look) elapsed = nanoseconds_of(CLOCK_MONOTONIC) - time;
    return nanoseconds_of(clock) - cpu > elapsed / 4;
}

// Moves a thread of this process (0: this one) to the cores that choose() leaves of its affinity mask, and restores the mask.
template <class Choose>
void move_thread(pid_t thread, Choose choose) {
    cpu_set_t allowed, some;
    if (::sched_getaffinity(thread, sizeof allowed, &allowed) != 0) return;
    some = allowed;
    choose(some);
    if (CPU_COUNT(&some) == 0 || CPU_EQUAL(&some, &allowed)) return;
    if (::sched_setaffinity(thread, sizeof some, &some) == 0)
        ::sched_setaffinity(thread, sizeof allowed, &allowed);
}

// Signals of the process go to threads that existed before the pool; those that an instruction raises stay.
class ForNewThreads {
  public:
    ForNewThreads() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, own);
        ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    }
    ~ForNewThreads() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    ForNewThreads(const ForNewThreads&) = delete;
    ForNewThreads& operator=(const ForNewThreads&) = delete;

  private:
    sigset_t before_{};
};

}  // namespace

int usable_threads() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

Pool::Pool(int threads)
    : workers_(static_cast<size_t>(threads > 0 ? threads : usable_threads())),
      active_(this->threads()),
      own_cores_(this->threads() <= usable_threads()) {
    if (threads == 0 && this->threads() > 1) choice_ = std::make_unique<ThreadChoice>(this->threads());
}

Pool::~Pool() {
    stop_.store(true);
    posted_.fetch_add(1);
    wake(posted_, INT_MAX);
    active_.store(INT_MAX);
    wake(active_, INT_MAX);
    for (Worker& worker : workers_)
        if (worker.thread.joinable()) worker.thread.join();
}

void Pool::use(int active) {
    active_.store(std::clamp(active, 1, threads()));
    wake(active_, INT_MAX);
}

// A machine that refuses a thread has given all it has: the loops do with fewer.
void Pool::start() {
    started_ = true;
    const ForNewThreads signals;
    for (int worker = 1; worker < threads(); ++worker) {
        try {
            workers_[static_cast<size_t>(worker)].thread = std::thread([this, worker] { live(worker); });
        } catch (const std::system_error&) {
            return;
        }
    }
}

// This thread is about to sleep, unless ready(): a thread that holds an item and waits for a core gets this one.
template <class Ready>
void Pool::lend_core(Ready ready) {
    if (!own_cores_) return;
    const pid_t self = ::gettid();
    int looks = 0;
    // Each looks first at the worker after its own, so that all of many are looked at.
    for (int i = 1; i <= threads(); ++i) {
        const auto worker = static_cast<size_t>((current_worker + i) % threads());
        const pid_t thread = workers_[worker].id.load(std::memory_order_relaxed);
        if (thread == 0 || thread == self) continue;
        if (ready() || looks++ == most_looks) return;
        if (is_running(thread)) continue;
        const int core = ::sched_getcpu();
        return move_thread(thread, [=](cpu_set_t& cores) {
            const bool may = core >= 0 && CPU_ISSET(core, &cores);
            CPU_ZERO(&cores);
            if (may) CPU_SET(core, &cores);
        });
    }
}

void Pool::live(int worker) {
    const InLoop inside(this, worker);
    while (true) {
        const uint32_t seen = posted_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return;
        if (const int active = active_.load(); worker >= active) {
            sleep_while(active_, active);
            continue;
        }
        if (const int64_t done = take(worker); done > 0) {
            const uint32_t items = static_cast<uint32_t>(done);
            if (pending_.fetch_sub(items, std::memory_order_acq_rel) - items == caller_sleeps)
                wake(pending_, 1);
        }
        const auto posted = [&] { return posted_.load(std::memory_order_relaxed) != seen; };
        if (spin_until(posted)) continue;
        lend_core(posted);
        // The caller posts and then looks who sleeps; a thread counts itself and then looks what is posted.
        sleeping_.fetch_add(1);
        sleep_while(posted_, seen);
        sleeping_.fetch_sub(1);
        leave_core_of_caller();
    }
}

// The caller has most to do: a thread that woke up on its core goes elsewhere.
void Pool::leave_core_of_caller() {
    const int core = ::sched_getcpu();
    if (own_cores_ && core >= 0 && core == caller_core_.load(std::memory_order_relaxed))
        move_thread(0, [=](cpu_set_t& cores) { CPU_CLR(core, &cores); });
}

// Takes items until none is left; returns how many it did. They count as in flight until the caller of this function
// takes them off pending_, and no other loop can begin before: all of them are of one loop.
int64_t Pool::take(int worker) {
    if (left_.load(std::memory_order_relaxed) <= 0) return 0;
    const int64_t began = choice_ ? cpu_nanoseconds() : 0;
    Worker& self = workers_[static_cast<size_t>(worker)];
    self.id.store(::gettid(), std::memory_order_relaxed);
    int64_t done = 0;
    while (left_.load(std::memory_order_relaxed) > 0) {
        if (worker == 0 && Interruption::asked()) {
            done += drop_items();
            break;
        }
        const int64_t left = left_.fetch_sub(1, std::memory_order_acquire);
        if (left <= 0) break;
        call_one(loop_.count - left, worker);
        ++done;
    }
    self.id.store(0, std::memory_order_relaxed);
    if (choice_) self.nanoseconds.fetch_add(cpu_nanoseconds() - began, std::memory_order_relaxed);
    return done;
}

// Takes what is left of an unwanted loop and does none of it; returns how many items that are.
int64_t Pool::drop_items() {
    const int64_t left = std::max<int64_t>(left_.exchange(0, std::memory_order_acquire), 0);
    const std::lock_guard lock(failing_);
    if (left > 0 && !failure_) {
        failure_ = std::make_exception_ptr(Interrupted());
        failed_index_ = loop_.count;
    }
    return left;
}

void Pool::call_one(int64_t index, int worker) noexcept {
    try {
        loop_.call(loop_.context, index, worker);
    } catch (...) {
        const std::lock_guard lock(failing_);
        if (failure_ && failed_index_ < index) return;
        failure_ = std::current_exception();
        failed_index_ = index;
    }
}

void Pool::wait_for_items() {
    const auto done = [&] { return (pending_.load(std::memory_order_acquire) & ~caller_sleeps) == 0; };
    if (spin_until(done)) return;
    lend_core(done);
    uint32_t pending = pending_.fetch_or(caller_sleeps, std::memory_order_acq_rel) | caller_sleeps;
    while (pending != caller_sleeps) {
        sleep_while(pending_, pending);
        pending = pending_.load(std::memory_order_acquire);
    }
}

void Pool::share(const Loop& loop, int active) {
    if (!started_) start();
    loop_ = loop;
    pending_.store(static_cast<uint32_t>(loop.count), std::memory_order_relaxed);
    left_.store(loop.count, std::memory_order_release);
    caller_core_.store(::sched_getcpu(), std::memory_order_relaxed);
    posted_.fetch_add(1);
    const int64_t others = std::min<int64_t>(loop.count, active) - 1;
    if (const int64_t asleep = std::min<int64_t>(sleeping_.load(), others); asleep > 0)
        wake(posted_, static_cast<int>(asleep));
    {
        const InLoop inside(this, 0);
        pending_.fetch_sub(static_cast<uint32_t>(take(0)), std::memory_order_acq_rel);
    }
    wait_for_items();
}

// Every item even where one throws, as threads do, unless the loop is unwanted.
void Pool::run_inline(int64_t count, Call call, const void* context, int worker) {
    std::exception_ptr failure;
    {
        const InLoop inside(this, worker);
        for (int64_t index = 0; index < count; ++index) {
            try {
                if (Interruption::asked()) throw Interrupted();
                call(context, index, worker);
            } catch (const Interrupted&) {
                if (!failure) failure = std::current_exception();
                break;
            } catch (...) {
                if (!failure) failure = std::current_exception();
            }
        }
    }
    if (failure) std::rethrow_exception(failure);
}

void Pool::run_loop(int64_t count, Call call, const void* context) {
    if (current_pool == this) return run_inline(count, call, context, current_worker);
    check(!calling_.exchange(true, std::memory_order_acquire), "two threads call one pool");
    struct Called {
        std::atomic<bool>& calling;
        ~Called() { calling.store(false, std::memory_order_release); }
    } const called{calling_};
    const int active = this->active();
    if (count <= 1 || (active == 1 && !choice_)) return run_inline(count, call, context, 0);
    check(count < int64_t{caller_sleeps}, "a loop of {} items", count);
    if (!choice_) {
        share({call, context, count}, active);
    } else {
        const auto began = std::chrono::steady_clock::now();
        share({call, context, count}, active);
        note(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Pool::note(double seconds) {
    window_seconds_ += seconds;
    if (window_seconds_ < window) return;
    int64_t now = 0;
    for (const Worker& worker : workers_) now += worker.nanoseconds.load(std::memory_order_relaxed);
    use(choice_->next(static_cast<double>(now - window_began_) * 1e-9 / window_seconds_));
    if (!choice_->news().empty()) news_ = choice_->news();
    window_began_ = now;
    window_seconds_ = 0;
}

}  // namespace longreach
