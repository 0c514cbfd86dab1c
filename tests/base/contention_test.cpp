// What a meter makes of the kernel's counters: files of /proc as this test writes them.
#include "base/contention.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace longreach;

namespace {

struct FakeProc {
    std::filesystem::path root =
        std::filesystem::temp_directory_path() / ("contention." + std::to_string(getpid()));
    FakeProc() { std::filesystem::create_directories(root / "proc/self/task/1"); }
    ~FakeProc() { std::filesystem::remove_all(root); }
    void write(const char* path, const std::string& text) const {
        std::filesystem::create_directories((root / path).parent_path());
        std::ofstream(root / path) << text;
    }
};

}  // namespace

TEST_CASE("contention: shares of the time between two readings") {
    const FakeProc proc;
    proc.write("proc/self/task/1/schedstat", "5000000000 1000000000 7\n");
    proc.write("proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n");
    const ContentionMeter meter(proc.root);
    proc.write("proc/self/task/1/schedstat", "8000000000 2000000000 9\n");  // 3 s on a core, 1 s waiting
    // A thread that has begun since: all of its time counts.
    proc.write("proc/self/task/2/schedstat", "3000000000 1000000000 9\n");
    // 1000 ticks: 500 of work in five columns, 100 stolen, the rest idle.
    proc.write("proc/stat", "cpu  200 100 200 1000 200 100 100 100 50 50\ncpu0 1 2 3\n");
    const Contention seen = meter.seen();
    CHECK(seen.known);
    CHECK(seen.waited == doctest::Approx(0.25));
    CHECK(seen.others == doctest::Approx(0.5).epsilon(0.02));  // less what this test itself used
    CHECK(seen.stolen == doctest::Approx(0.1));
    CHECK(describe({.known = true, .waited = 0.254, .others = 0.5, .stolen = 0}) ==
          "threads waited for a core 25% of their time, other programs used 50% of the cores, 0% stolen");
}

TEST_CASE("contention: a thread that has ended makes no share negative") {
    const FakeProc proc;
    proc.write("proc/self/task/1/schedstat", "5000000000 1000000000 7\n");
    proc.write("proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\n");
    const ContentionMeter meter(proc.root);
    proc.write("proc/self/task/1/schedstat", "10 5 1\n");
    const Contention seen = meter.seen();
    CHECK(seen.waited == 0);
    CHECK(seen.others == 0);
}

TEST_CASE("contention: not known without the files, or with others than expected") {
    CHECK_FALSE(ContentionMeter("/nonexistent").seen().known);
    const FakeProc proc;
    proc.write("proc/self/task/1/schedstat", "not numbers\n");
    proc.write("proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\n");
    CHECK_FALSE(ContentionMeter(proc.root).seen().known);
    CHECK(describe(Contention()) == "this system does not say what other programs used");
}
