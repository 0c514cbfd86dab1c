#include "io/record_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Text final : io::ByteSink {
    using io::ByteSink::write;
    void write(const void* data, size_t size) override { all.append(static_cast<const char*>(data), size); }
    std::string all;
};

}  // namespace

TEST_CASE("a record file is cut to its length, appended to, and shared by its copies") {
    const TempDir dir;
    {
        io::RecordFile file(dir / "val.csv", 0, "a,b");
        io::RecordFile copy = file;
        copy.append("1,2");
        CHECK(file.bytes() == 8);
        file.append("3,4");
        file.sync();
        CHECK(copy.bytes() == 12);
    }
    CHECK(get(dir / "val.csv") == "a,b\n1,2\n3,4\n");
    io::RecordFile file(dir / "val.csv", 8, "a,b");
    CHECK(get(dir / "val.csv") == "a,b\n1,2\n");
    CHECK(contains(error_of([&] { io::RecordFile(dir / "val.csv", 9); }), "5: "));
}

TEST_CASE("a record file that lost its name still has its content, and says what happened") {
    const TempDir dir;
    io::RecordFile file(dir / "metrics.jsonl", 0);
    file.append("{}");
    CHECK(file.in_place());
    std::filesystem::remove(dir / "metrics.jsonl");
    CHECK_FALSE(file.in_place());
    CHECK(file.whereabouts() == "was removed");
    file.append("[]");
    CHECK(file.whole());
    Text text;
    file.copy_to(text, file.bytes());
    CHECK(text.all == "{}\n[]\n");
    put(dir / "metrics.jsonl", "{}\n[]\n");
    CHECK_FALSE(file.in_place());  // equal, but another file
}

TEST_CASE("a record file that was cut is noticed") {
    const TempDir dir;
    io::RecordFile file(dir / "metrics.jsonl", 0);
    file.append("{}");
    put(dir / "metrics.jsonl", "");
    CHECK(file.in_place());
    CHECK_FALSE(file.whole());
    CHECK(error_of([&] { file.append("{}"); }) ==
          fmt::format("5: {} was cut while the run used it", dir / "metrics.jsonl"));
    CHECK(get(dir / "metrics.jsonl") == "");
}

TEST_CASE("links and FIFOs in the place of a record file are refused, without waiting") {
    const TempDir dir;
    put(dir / "elsewhere", "precious");
    std::filesystem::create_symlink(dir / "elsewhere", dir / "link");
    CHECK(error_of([&] { io::RecordFile(dir / "link", 0); }) ==
          fmt::format("5: cannot open {}: it is a symbolic link", dir / "link"));
    CHECK(get(dir / "elsewhere") == "precious");
    REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
    CHECK(error_of([&] { io::RecordFile(dir / "fifo", 0); }) ==
          fmt::format("5: {} is not a regular file", dir / "fifo"));
    CHECK(contains(error_of([&] { io::RecordFile(dir.path(), 0); }), "5: cannot open"));
}
