#include "base/memory.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

using namespace longreach;

namespace fs = std::filesystem;

namespace {

// A /proc and a /sys of one's own.
class Machine {
  public:
    Machine() {
        std::string pattern = (fs::temp_directory_path() / "longreach.XXXXXX").string();
        root_ = ::mkdtemp(pattern.data());
    }
    ~Machine() { fs::remove_all(root_); }
    void put(const std::string& path, const std::string& text) const {
        fs::create_directories(fs::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text;
    }
    FreeMemory free() const { return free_memory(root_); }

  private:
    std::string root_;
};

constexpr int64_t mib = 1 << 20;

}  // namespace

TEST_CASE("free memory: what the kernel says is available") {
    const Machine machine;
    CHECK(machine.free().bytes == std::numeric_limits<int64_t>::max());  // nothing is known
    machine.put("/proc/meminfo", "MemTotal:  2048 kB\nMemFree:  10 kB\nMemAvailable:    1024 kB\n");
    CHECK(machine.free().bytes == mib);
    CHECK(machine.free().limit == "this machine");
}

TEST_CASE("free memory: control groups of version 2, the tightest up to the root") {
    const Machine machine;
    machine.put("/proc/meminfo", "MemAvailable: 1048576 kB\n");
    machine.put("/proc/self/cgroup", "0::/slice/job\n");
    const std::string groups = "/sys/fs/cgroup";
    machine.put(groups + "/slice/job/memory.max", "max\n");
    machine.put(groups + "/slice/job/memory.current", "1000\n");
    CHECK(machine.free().bytes == 1024 * mib);
    machine.put(groups + "/slice/memory.max", "104857600\n");
    machine.put(groups + "/slice/memory.current", "62914560\n");
    CHECK(machine.free().bytes == 40 * mib);
    CHECK(machine.free().limit == "the control group /slice");
    // Pages of files that nobody uses are given back.
    machine.put(groups + "/slice/memory.stat", "anon 1\nfile 5\ninactive_file 10485760\n");
    CHECK(machine.free().bytes == 50 * mib);
    // Over its limit already: nothing, and not less.
    machine.put(groups + "/slice/job/memory.max", "10\n");
    CHECK(machine.free().bytes == 0);
    // In a container the group of the process is the root.
    machine.put("/proc/self/cgroup", "0::/\n");
    machine.put(groups + "/memory.max", "20971520\n");
    machine.put(groups + "/memory.current", "0\n");
    CHECK(machine.free().bytes == 20 * mib);
    CHECK(machine.free().limit == "the control group /");
}

TEST_CASE("free memory: control groups of version 1") {
    const Machine machine;
    machine.put("/proc/meminfo", "MemAvailable: 1048576 kB\n");
    machine.put("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:hugetlb,memory:/job\n0::/\n");
    machine.put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    machine.put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4096\n");
    CHECK(machine.free().bytes == 1024 * mib);
    machine.put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8388608\n");
    CHECK(machine.free().bytes == 8 * mib - 4096);
}

TEST_CASE("free memory: files that hold something else are passed over") {
    const Machine machine;
    machine.put("/proc/meminfo", "MemAvailable: much\n");
    machine.put("/proc/self/cgroup", "garbage\n::\n0::\n1:memory\n");
    machine.put("/sys/fs/cgroup/memory.max", "");
    machine.put("/sys/fs/cgroup/memory.current", "x");
    CHECK(machine.free().bytes == std::numeric_limits<int64_t>::max());
}
