#include "io/file.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "io/fault_disk.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("what is written is read back, at any 64-bit position") {
    const TempDir dir;
    const std::string path = dir / "sparse";
    const uint64_t far = (uint64_t{1} << 33) + 5;  // beyond 32 bits of bytes
    io::File out = io::File::create(path);
    out.write("begin");
    out.write_at("end", 3, far);
    out.write(" more");
    out.sync();
    out.close();
    const io::File in = io::File::open(path, io::Links::refuse);
    CHECK(in.size() == far + 3);
    std::string text(10, ' ');
    in.read_at(text.data(), 10, 0);
    CHECK(text == "begin more");
    in.read_at(text.data(), 3, far);
    CHECK(text.substr(0, 3) == "end");
    CHECK(error_of([&] { in.read_at(text.data(), 4, far); }) ==
          fmt::format("3: {} ends at byte {}, but 1 more bytes were expected there", path, far + 3));
}

TEST_CASE("errors name the path, the reason and the cause") {
    const TempDir dir;
    const auto open = [&](const std::string& name, io::Links links) {
        return error_of([&] { io::File::open(dir / name, links); });
    };
    CHECK(open("missing", io::Links::follow) ==
          "3: cannot open " + (dir / "missing") + ": No such file or directory");
    std::filesystem::create_directory(dir / "directory");
    CHECK(open("directory", io::Links::follow) == "3: " + (dir / "directory") + " is not a regular file");
    REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
    CHECK(open("fifo", io::Links::follow) == "3: " + (dir / "fifo") + " is not a regular file");
    put(dir / "file", "x");
    std::filesystem::create_symlink(dir / "file", dir / "link");
    CHECK(open("link", io::Links::refuse) == "3: cannot open " + (dir / "link") + ": it is a symbolic link");
    CHECK(open("link", io::Links::follow) == "no error");
    CHECK(open(std::string(300, 'n'), io::Links::follow) ==
          "3: cannot open " + (dir / std::string(300, 'n')) + ": File name too long");
    CHECK(error_of([&] { io::File::open(std::string("a\0b", 3), io::Links::follow); }) ==
          "3: cannot open a file: the path is empty or holds a NUL");
    CHECK(error_of([&] { io::File::create(dir / "file"); }) ==
          "5: cannot create " + (dir / "file") + ": File exists");
    CHECK(error_of([&] { io::read_file(dir / "file", 0, io::Links::follow); }) ==
          "3: " + (dir / "file") + " has 1 bytes; at most 0 are accepted");
    CHECK(
        contains(error_of([] { io::File::open("/dev/null", io::Links::follow); }), "is not a regular file"));
}

TEST_CASE("a full disk gives a hint") {
    const TempDir dir;
    FaultDisk disk(Fault::full, 0);
    try {
        io::File::create(dir / "file", disk);
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::disk);
        CHECK(error.hint() == "free some space, or write elsewhere");
    }
}

TEST_CASE("an atomic file is there whole or not at all") {
    const TempDir dir;
    const std::string path = dir / "file";
    io::write_file_atomically(path, "old");
    FaultDisk counter;
    io::write_file_atomically(path, "old", counter);
    for (const Fault fault : {Fault::crash, Fault::error, Fault::full, Fault::short_write, Fault::interrupt})
        for (int64_t at = 0; at < counter.operations(); ++at)
            for (const Loss loss : {Loss::nothing, Loss::data, Loss::everything}) {
                io::write_file_atomically(path, "old");
                FaultDisk disk(fault, at, EIO);
                const std::string outcome =
                    error_of([&] { io::write_file_atomically(path, "new content", disk); });
                disk.lose_power(loss);
                const std::string content = get(path);
                INFO(outcome, " fault ", static_cast<int>(fault), " at ", at);
                if (outcome == "no error") CHECK(content == "new content");
                CHECK((content == "old" || content == "new content"));
                // A file system that keeps names and drops data may leave an unfinished one
                // behind; others may not.
                if (fault != Fault::crash) CHECK(io::list_directory(dir.path()).size() <= 2);
                for (const std::string& name : io::list_directory(dir.path()))
                    if (name != "file") std::filesystem::remove(dir / name);
            }
}

TEST_CASE(
    "the temporary file of a killed writer is removed by the next writer of that file, a live one's is not") {
    const TempDir dir;
    const std::string path = dir / "file";
    const auto temporaries = [&] {
        size_t count = 0;
        for (const std::string& name : io::list_directory(dir.path()))
            count += io::target_of_temporary(name) == "file";
        return count;
    };
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        io::AtomicFile killed(path);
        killed.write("half");
        ::raise(SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(temporaries() == 1);
    // Names that are none of this file's temporaries.
    const std::vector<std::string> others{"file.tmp.0123456789abcde", "file.tmp.0123456789ABCDEF",
                                          "other.tmp.0123456789abcdef", "file.tmp.x",
                                          ".tmp.0123456789abcdef"};
    for (const std::string& name : others) put(dir / name, "kept");
    std::filesystem::create_symlink(dir / "other.tmp.0123456789abcdef", dir / "file.tmp.0123456789abcdef");
    io::write_file_atomically(dir / "other", "");  // removes its own only
    put(dir / "other.tmp.0123456789abcdef", "kept");
    CHECK(temporaries() == 2);
    {
        io::AtomicFile first(path), second(path);
        CHECK(temporaries() == 3);  // the link and the two
        second.write("second");
        second.commit();
        CHECK(get(path) == "second");
        first.write("first");
        first.commit();
        CHECK(get(path) == "first");
    }
    CHECK(temporaries() == 1);
    for (const std::string& name : others) CHECK(get(dir / name) == "kept");
}

TEST_CASE("two processes that write one file again and again never fail, and leave nothing behind") {
    const TempDir dir;
    const std::string path = dir / "file";
    pid_t children[2];
    for (pid_t& child : children) {
        child = ::fork();
        REQUIRE(child >= 0);
        if (child != 0) continue;
        const std::string outcome = error_of([&] {
            for (int i = 0; i < 300; ++i) io::write_file_atomically(path, std::string(100, 'x'));
        });
        ::_exit(outcome == "no error" ? 0 : 1);
    }
    for (const pid_t child : children) {
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    CHECK(io::list_directory(dir.path()) == std::vector<std::string>{"file"});
}

TEST_CASE(
    "directories are made with their parents, listed in byte order and removed without following links") {
    const TempDir dir;
    io::make_directories(dir / "a/b/c");
    io::make_directories(dir / "a/b/c");
    put(dir / "a/b/Z", "");
    put(dir / "a/b/_", "");
    put(dir / "a/b/a", "");
    CHECK(io::list_directory(dir / "a/b") == std::vector<std::string>{"Z", "_", "a", "c"});
    CHECK(io::expand_pattern(dir / "a/b/?") ==
          std::vector<std::string>{dir / "a/b/Z", dir / "a/b/_", dir / "a/b/a", dir / "a/b/c"});
    CHECK(io::expand_pattern(dir / "nothing*").empty());
    put(dir / "outside", "kept");
    std::filesystem::create_symlink(dir / "outside", dir / "a/link");
    std::filesystem::create_directory_symlink(dir.path(), dir / "a/b/up");
    io::remove_tree(dir / "a");
    CHECK(io::list_directory(dir.path()) == std::vector<std::string>{"outside"});
    io::remove_tree(dir / "a");
    CHECK(contains(error_of([&] { io::make_directories(dir / "outside/inner"); }),
                   "5: cannot create directory"));
    CHECK(contains(error_of([&] { io::list_directory(dir / "missing"); }), "3: cannot list directory"));
}

TEST_CASE("paths are joined and split") {
    CHECK(io::join_path("a", "b") == "a/b");
    CHECK(io::join_path("a/", "b") == "a/b");
    CHECK(io::join_path("", "b") == "b");
    CHECK(io::parent_path("a/b") == "a");
    CHECK(io::parent_path("a/b/") == "a");
    CHECK(io::parent_path("b") == ".");
    CHECK(io::parent_path("/b") == "/");
    CHECK(io::parent_path("/") == "/");
    CHECK(io::base_name("a/b/") == "b");
    CHECK(io::base_name("b") == "b");
    CHECK(io::unique_suffix() != io::unique_suffix());
}
