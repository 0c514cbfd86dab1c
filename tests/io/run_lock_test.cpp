#include "io/run_lock.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A child process that takes the lock, says so and holds it until it is killed. Returns its id.
pid_t holder_process(const std::string& directory) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        try {
            const io::RunLock lock(directory);
            const char byte = 'x';
            if (::write(ready[1], &byte, 1) == 1)
                for (;;) ::pause();
        } catch (...) {
        }
        ::_exit(1);
    }
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    return child;
}

}  // namespace

TEST_CASE("a held lock is refused and its holder is named; a dead process holds nothing") {
    const TempDir dir;
    const pid_t child = holder_process(dir.path());
    const std::string refused = error_of([&] { const io::RunLock lock(dir.path()); });
    CHECK(contains(refused, fmt::format("10: {} is in use by process {} on ", dir.path(), child)));
    CHECK(contains(refused, " since 20"));

    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const io::RunLock lock(dir.path());
    CHECK(contains(lock.taken_over_from(), fmt::format("process {}", child)));
    CHECK(contains(get(dir / "lock"), fmt::format("process {} on ", ::getpid())));
}

TEST_CASE("a lock that was let go leaves nothing to take over") {
    const TempDir dir;
    {
        const io::RunLock lock(dir.path());
        CHECK(lock.taken_over_from().empty());
        CHECK(contains(error_of([&] { const io::RunLock second(dir.path()); }), "10: "));
    }
    const io::RunLock lock(dir.path());
    CHECK(lock.taken_over_from().empty());
}

TEST_CASE("a lock file that is garbage, a link or a directory") {
    const TempDir dir;
    put(dir / "lock", std::string("\x01\n\xff garbage \0", 12));
    CHECK(error_of([&] { const io::RunLock lock(dir.path()); }) == "no error");
    std::filesystem::remove(dir / "lock");
    put(dir / "elsewhere", "precious");
    std::filesystem::create_symlink(dir / "elsewhere", dir / "lock");
    CHECK(contains(error_of([&] { const io::RunLock lock(dir.path()); }), "5: cannot open"));
    CHECK(get(dir / "elsewhere") == "precious");
    std::filesystem::remove(dir / "lock");
    std::filesystem::create_directory(dir / "lock");
    CHECK(contains(error_of([&] { const io::RunLock lock(dir.path()); }), "5: cannot open"));
    CHECK(contains(error_of([&] { const io::RunLock lock(dir / "missing"); }), "5: cannot open"));
}

TEST_CASE("deleting the lock file lets nobody in, and its holder sees that it is gone") {
    const TempDir dir;
    const io::RunLock lock(dir.path());
    CHECK(lock.lock_lost() == "");
    CHECK(lock.holds_directory());
    std::filesystem::remove(dir / "lock");
    CHECK(lock.lock_lost() == "was removed");
    CHECK(contains(error_of([&] { const io::RunLock second(dir.path()); }), "10: "));
    // The second process has made a file of that name, which is not the one that is locked.
    CHECK(std::filesystem::exists(dir / "lock"));
    CHECK(lock.lock_lost() == "was removed");
    CHECK(lock.directory_lost() == "");
}

TEST_CASE("a directory that was moved, replaced or removed is noticed by the holder of its lock") {
    const TempDir dir;
    io::make_directories(dir / "run");
    const io::RunLock lock(dir / "run");
    CHECK(lock.directory_lost() == "");
    std::filesystem::rename(dir / "run", dir / "elsewhere");
    CHECK(lock.directory_lost() == "was moved to " + std::filesystem::canonical(dir / "elsewhere").string());
    io::make_directories(dir / "run");
    CHECK(contains(lock.directory_lost(), "was moved to "));
    std::filesystem::remove(dir / "run");
    std::filesystem::rename(dir / "elsewhere", dir / "run");
    CHECK(lock.directory_lost() == "");
    std::filesystem::remove_all(dir / "run");
    CHECK(lock.directory_lost() == "was removed");
}

TEST_CASE("a FIFO in the place of the lock file is refused without waiting for its other end") {
    const TempDir dir;
    REQUIRE(::mkfifo((dir / "lock").c_str(), 0600) == 0);
    CHECK(error_of([&] { const io::RunLock lock(dir.path()); }) ==
          fmt::format("5: {} is not a regular file", dir / "lock"));
}
