#include "base/build_info.h"

#include <doctest/doctest.h>
#include <unistd.h>

using namespace longreach;

TEST_CASE("--version names version, commit, compiler and flags") {
    const BuildInfo build{"0.1.0", "4bcdef123456+", "GNU 12.2.0", "Release", "-O3", "Linux x86_64"};
    CHECK(describe(build) == "longreach 0.1.0 (commit 4bcdef123456+)\nGNU 12.2.0, Release, flags -O3");
    // Tests carry no commit, so that a commit does not link them all again.
    CHECK(build_info().commit.empty());
    CHECK(describe(build_info()).starts_with("longreach " + build_info().version + "\n"));
}

TEST_CASE("a process knows its command line and its machine") {
    const ProcessInfo process = process_info();
    CHECK(process.command_line.find("test_base") != std::string::npos);
    char host[256] = {};
    REQUIRE(::gethostname(host, sizeof host - 1) == 0);
    CHECK(process.host == host);
    CHECK(process.cores >= 1);
    CHECK(process.memory_bytes > 1 << 20);
}
