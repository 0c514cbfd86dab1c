// Loops over shared threads: every item once, whatever the threads do; and the rule that chooses their number.
#include "base/pool.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/interruption.h"

using namespace longreach;

namespace {

// How often a loop of `count` items called each index; -1 where a worker was none of the pool's.
std::vector<int> calls(Pool& pool, int64_t count) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
    pool.run(count, [&](int64_t index, int worker) {
        if (worker < 0 || worker >= pool.threads()) seen[static_cast<size_t>(index)] -= 1000;
        ++seen[static_cast<size_t>(index)];
    });
    return {seen.begin(), seen.end()};
}
bool each_once(Pool& pool, int64_t count) {
    const std::vector<int> seen = calls(pool, count);
    return std::count(seen.begin(), seen.end(), 1) == count;
}

// Waits until `arrived` is `count`; false after ten seconds.
bool wait_for(const std::atomic<int>& arrived, int count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (arrived.load() < count)
        if (std::chrono::steady_clock::now() > end) return false;
    return true;
}

}  // namespace

TEST_CASE("pool: every item once, for no item to many, and many more threads than cores") {
    for (const int threads : {1, 2, 3, 8, 64, 128}) {
        CAPTURE(threads);
        Pool pool(threads);
        CHECK(pool.threads() == threads);
        for (const int64_t count : {0, 1, 2, 3, 63, 64, 65, 5000}) {
            CAPTURE(count);
            CHECK(each_once(pool, count));
        }
    }
}

// What products rely on: whoever has an item knows that the earlier ones are taken.
TEST_CASE("pool: each thread gets items in ascending order") {
    for (const int threads : {1, 4}) {
        Pool pool(threads);
        std::vector<int64_t> last(static_cast<size_t>(threads), -1);
        std::atomic<bool> ordered{true};
        pool.run(20000, [&](int64_t index, int worker) {
            int64_t& before = last[static_cast<size_t>(worker)];
            if (index <= before) ordered = false;
            before = index;
        });
        CHECK(ordered.load());
    }
}

TEST_CASE("pool: two calls at once have different workers") {
    Pool pool(8);
    std::vector<std::atomic<int>> inside(8);
    std::atomic<bool> alone{true};
    for (int round = 0; round < 50; ++round)
        pool.run(200, [&](int64_t, int worker) {
            if (++inside[static_cast<size_t>(worker)] != 1) alone = false;
            --inside[static_cast<size_t>(worker)];
        });
    CHECK(alone.load());
}

TEST_CASE("pool: thousands of tiny loops, each complete when it returns") {
    Pool pool(8);
    std::array<int64_t, 3> values{};  // plain memory: a loop that returned early would be a race
    for (int64_t round = 1; round <= 20000; ++round) {
        pool.run(3, [&](int64_t index, int) { values[static_cast<size_t>(index)] += index + round; });
        if (round % 5000 == 0) {
            const int64_t rounds = round * (round + 1) / 2;
            CHECK(values == std::array<int64_t, 3>{rounds, rounds + round, rounds + 2 * round});
        }
    }
}

TEST_CASE("pool: the number of threads may change at any time") {
    Pool pool(8);
    std::atomic<bool> stop{false};
    std::thread changing([&] {
        for (int i = 0; !stop; ++i) pool.use(1 + i * 5 % 9);
    });
    bool complete = true;
    for (int round = 0; round < 2000; ++round) complete = complete && each_once(pool, 17);
    stop = true;
    changing.join();
    CHECK(complete);
    pool.use(0);
    CHECK(pool.active() == 1);
    pool.use(100);
    CHECK(pool.active() == 8);
    CHECK(each_once(pool, 100));
}

TEST_CASE("pool: an exception reaches the caller after every item ran, the lowest index first") {
    for (const int threads : {1, 2, 8}) {
        CAPTURE(threads);
        Pool pool(threads);
        for (int round = 0; round < 100; ++round) {
            std::atomic<int> ran{0};
            std::string message;
            try {
                pool.run(50, [&](int64_t index, int) {
                    ++ran;
                    if (index % 10 == 7) throw std::runtime_error(std::to_string(index));
                });
            } catch (const std::runtime_error& error) {
                message = error.what();
            }
            CHECK(message == "7");
            CHECK(ran == 50);
        }
        CHECK(each_once(pool, 1000));
    }
}

TEST_CASE("pool: an unwanted loop ends after the items in flight, and the pool goes on") {
    for (const int threads : {1, 3}) {
        Pool pool(threads);
        std::atomic<int> done = 0;
        std::atomic<bool> unwanted = false;
        const auto loop = [&] {
            pool.run(1000, [&](int64_t, int) {
                if (++done == 20) unwanted = true;
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            });
        };
        {
            const Interruption interruption([&] { return unwanted.load(); });
            CHECK_THROWS_AS(loop(), Interrupted);
            CHECK(done >= 20);
            CHECK(done < 500);
            CHECK_THROWS_AS(loop(), Interrupted);  // once unwanted, always
            const Interruption protected_from_it;
            done = 0;
            pool.run(50, [&](int64_t, int) { ++done; });
            CHECK(done == 50);
        }
        done = 0;
        pool.run(50, [&](int64_t, int) { ++done; });
        CHECK(done == 50);
        // What an item throws counts more.
        const Interruption interruption([&] { return unwanted.load(); });
        unwanted = false;
        CHECK_THROWS_AS(pool.run(1000,
                                 [&](int64_t i, int) {
                                     if (i == 0) throw Error(ExitCode::data, "wrong");
                                     unwanted = true;
                                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                 }),
                        Error);
    }
}

TEST_CASE("pool: a loop in a body runs on the body's thread") {
    Pool pool(4);
    std::atomic<int64_t> sum{0};
    std::atomic<bool> same{true};
    pool.run(20, [&](int64_t outer, int worker) {
        const std::thread::id thread = std::this_thread::get_id();
        pool.run(10, [&](int64_t inner, int own) {
            if (own != worker || std::this_thread::get_id() != thread) same = false;
            sum += outer * 10 + inner;
        });
    });
    CHECK(same.load());
    CHECK(sum == 199 * 200 / 2);
    CHECK(each_once(pool, 100));

    std::string message;
    try {
        pool.run(4, [&](int64_t outer, int) {
            pool.run(4, [&](int64_t inner, int) {
                if (outer == 2 && inner == 1) throw std::runtime_error("inner");
            });
        });
    } catch (const std::runtime_error& error) {
        message = error.what();
    }
    CHECK(message == "inner");
}

#if defined(__x86_64__) || (defined(__aarch64__) && !defined(__clang__))
TEST_CASE("pool: subnormal numbers are zeros inside a loop, on every thread, and there alone") {
    const auto are_zeros = [] {
        volatile float small = 0x1p-126f, half = 0.5f, subnormal = 0x1p-130f, large = 0x1p30f;
        volatile double least = 0x1p-1022, subnormal_double = 0x1p-1030, large_double = 0x1p30;
        const bool results = small * half == 0 && least * static_cast<double>(half) == 0;
        const bool operands = subnormal * large == 0 && subnormal_double * large_double == 0;
        CHECK(results == operands);
        CHECK(small * large == 0x1p-96f);
        return results;
    };
    CHECK(!are_zeros());
    for (const int threads : {1, 4}) {
        Pool pool(threads);
        std::atomic<int> seen{0}, arrived{0};
        pool.run(threads, [&](int64_t, int) {
            ++arrived;
            CHECK(wait_for(arrived, threads));  // one item per thread
            seen += are_zeros();
        });
        CHECK(seen == threads);
        CHECK(!are_zeros());
        CHECK_THROWS_AS(pool.run(2, [&](int64_t, int) { throw std::runtime_error("item"); }),
                        std::runtime_error);
        CHECK(!are_zeros());
        pool.run(1, [&](int64_t, int) { pool.run(1, [&](int64_t, int) { seen += are_zeros(); }); });
        CHECK(seen == threads + 1);
    }
}
#endif

TEST_CASE("pool: several pools at once, from several threads and inside each other") {
    std::vector<std::thread> callers;
    std::atomic<int> complete{0};
    for (int i = 0; i < 4; ++i)
        callers.emplace_back([&] {
            Pool pool(3);
            for (int round = 0; round < 200; ++round) complete += each_once(pool, 20);
        });
    for (std::thread& caller : callers) caller.join();
    CHECK(complete == 800);

    Pool outer(2), inner(3);
    std::atomic<int64_t> sum{0};
    std::mutex one;  // a pool has one caller at a time
    outer.run(10, [&](int64_t, int) {
        const std::lock_guard lock(one);
        inner.run(10, [&](int64_t index, int) { sum += index; });
    });
    CHECK(sum == 450);
}

TEST_CASE("pool: a second caller is refused") {
    Pool pool(2);
    std::string message;
    pool.run(2, [&](int64_t index, int) {
        if (index > 0) return;
        std::thread([&] {
            try {
                pool.run(2, [](int64_t, int) {});
            } catch (const std::exception& error) {
                message = error.what();
            }
        }).join();
    });
    CHECK(message.find("two threads call one pool") != std::string::npos);
    CHECK(each_once(pool, 10));
}

TEST_CASE("pool: a pool ends with threads that never started, wait for work, sleep or are not used") {
    for (int round = 0; round < 20; ++round) {
        Pool never(8);
        Pool at_once(8);
        CHECK(each_once(at_once, 8));
        Pool asleep(8);
        CHECK(each_once(asleep, 8));
        asleep.use(2);
        CHECK(each_once(asleep, 8));
        if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

// A child of fork() has none of the threads: what a machine does that runs none of them in time.
TEST_CASE("pool: threads that never get a core are not waited for") {
    Pool pool(8);
    CHECK(each_once(pool, 100));
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        int64_t sum = 0;
        for (int round = 0; round < 100; ++round)
            pool.run(100, [&](int64_t index, int worker) { sum += worker == 0 ? index : -1000000; });
        ::_exit(sum == 100 * 4950 ? 0 : 1);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(each_once(pool, 100));
}

TEST_CASE("pool: signals of the process stay with the threads that were there before") {
    Pool pool(2);
    std::atomic<int> arrived{0}, blocked{0};
    pool.run(2, [&](int64_t, int worker) {
        ++arrived;
        if (!wait_for(arrived, 2)) return;  // both threads have one item each
        sigset_t mask;
        ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        if (worker == 1) blocked = 1 + ::sigismember(&mask, SIGTERM) + 2 * ::sigismember(&mask, SIGSEGV);
        if (worker == 0 && ::sigismember(&mask, SIGTERM)) blocked = -1;
    });
    CHECK(arrived == 2);
    CHECK(blocked == 2);
}

TEST_CASE("pool: while another program takes a core, every item once, and affinity masks stay as they were") {
    const auto mask_of = [](pid_t thread) {
        cpu_set_t mask;
        CPU_ZERO(&mask);
        ::sched_getaffinity(thread, sizeof mask, &mask);
        return mask;
    };
    const cpu_set_t before = mask_of(0);
    const auto all_as_before = [&] {
        for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
            const cpu_set_t now = mask_of(std::stoi(thread.path().filename()));
            if (!CPU_EQUAL(&now, &before)) return false;
        }
        return true;
    };
    Pool pool(usable_threads());
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) continue;
    });
    // Threads lose their cores within items, the others run out of them, sleep and wake up again.
    bool complete = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    while (std::chrono::steady_clock::now() < end) {
        std::atomic<int> done{0};
        pool.run(3 * pool.threads(), [&](int64_t, int) {
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
            while (std::chrono::steady_clock::now() < until) continue;
            ++done;
        });
        complete = complete && done == 3 * pool.threads();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    stop = true;
    other.join();
    CHECK(complete);
    // A thread that moves another one may itself have lost its core between the two calls.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!all_as_before() && std::chrono::steady_clock::now() < patience)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(all_as_before());
}

TEST_CASE("pool: a number that adapts keeps every item") {
    Pool pool(0);
    CHECK(pool.threads() == usable_threads());
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    bool complete = true;
    while (std::chrono::steady_clock::now() < end) complete = complete && each_once(pool, 50);
    CHECK(complete);
}

namespace {

// Windows of each number of threads, and lines of news, while n threads get cores(n).
struct Course {
    std::vector<int> windows = std::vector<int>(130);
    int threads = 0, news = 0;
};
Course drive(ThreadChoice& choice, int threads, int windows, const std::function<double(int)>& cores) {
    Course course;
    course.threads = threads;
    for (int i = 0; i < windows; ++i) {
        ++course.windows[static_cast<size_t>(course.threads)];
        course.threads = choice.next(cores(course.threads));
        course.news += !choice.news().empty();
    }
    return course;
}

}  // namespace

TEST_CASE(
    "thread choice: all threads on a quiet machine, and with one neighbour that leaves them more than one "
    "core") {
    for (const double share : {1.0, 0.75, 0.55}) {
        CAPTURE(share);
        ThreadChoice choice(2);
        const Course course = drive(choice, 2, 200, [&](int n) { return share * n; });
        CHECK(course.windows[2] == 200);
        CHECK(course.news == 0);
    }
}

TEST_CASE("thread choice: fewer where fewer get more, all again when the others leave") {
    ThreadChoice choice(2);
    const auto busy = [](int n) { return n == 2 ? 0.48 : 0.77; };
    Course course = drive(choice, 2, 10, busy);
    CHECK(course.windows[1] >= 7);  // all but the first and a trial or two
    CHECK(course.news == 1);
    course = drive(choice, course.threads, 320, busy);
    CHECK(course.windows[2] < 32);  // trials
    CHECK(course.news == 0);
    while (course.threads != 1) course.threads = choice.next(busy(course.threads));
    course = drive(choice, 1, 5, [](int n) { return 0.99 * n; });
    CHECK(course.threads == 2);
    CHECK(course.news == 1);
}

TEST_CASE("thread choice: from many threads down to a container's share of the machine") {
    ThreadChoice choice(128);
    // Four cores' worth of time; with more threads, more of it goes into waking them.
    const auto cores = [](int n) { return n <= 4 ? n : 4.0 - 1.5 * std::log2(n / 4.0) / 5; };
    const Course course = drive(choice, 128, 2000, cores);
    CHECK(course.windows[128] < 600);
    ThreadChoice odd(3);
    const Course down = drive(odd, 3, 10, [](int n) { return n == 1 ? 0.9 : 0.5; });
    CHECK(down.windows[1] >= 7);
    const Course up = drive(odd, down.threads, 20, [](int n) { return 1.0 * n; });
    CHECK(up.threads == 3);
}
