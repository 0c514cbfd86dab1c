#include "base/terminal.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

using namespace longreach;

TEST_CASE("terminal: text is broken at spaces, and what follows is indented") {
    CHECK(wrapped("one two three", 7) == "one two\n  three");
    CHECK(wrapped("one two three\n", 13) == "one two three\n");
    CHECK(wrapped("one two three", 0) == "one two three");
    CHECK(wrapped("", 3).empty());
    CHECK(wrapped("a\n\nb\n", 3) == "a\n\nb\n");
    CHECK(wrapped("error: a file of this name is there\nhint: --replace", 20) ==
          "error: a file of\n  this name is there\nhint: --replace");
}

TEST_CASE("terminal: the second column of a list stays a column") {
    CHECK(wrapped("  mixer  what moves information", 20) == "  mixer  what moves\n         information");
    CHECK(wrapped("            what moves information", 24) ==
          "            what moves\n            information");
    // Beyond the middle of the line columns are no longer aligned.
    CHECK(wrapped("a.long.path         1     default", 22) == "a.long.path  1\n  default");
    CHECK(wrapped("a.long.path         1     default", 24) == "a.long.path  1  default");
}

TEST_CASE("terminal: a number stays with its unit") {
    CHECK(wrapped("second 64.50 KiB", 12) == "second\n  64.50 KiB");
    CHECK(wrapped("is 512, here", 8) == "is 512,\n  here");
    CHECK(wrapped("losses 1 2", 8) == "losses\n  1 2");
}

TEST_CASE("terminal: a word that is longer than a line stays whole") {
    CHECK(wrapped("see /a/path/without/spaces in it", 10) == "see\n  /a/path/without/spaces\n  in it");
    CHECK(wrapped("/a/path/without/spaces", 10) == "/a/path/without/spaces");
}

TEST_CASE("terminal: characters count, not bytes, and escape sequences not at all") {
    CHECK(wrapped("ééé ééé", 7) == "ééé ééé");
    CHECK(wrapped("\x1b[1mone\x1b[0m two", 7) == "\x1b[1mone\x1b[0m two");
    CHECK(wrapped("\x1b[1mone\x1b[0m two", 6) == "\x1b[1mone\x1b[0m\n  two");
    CHECK(wrapped("\x1b[", 1) == "\x1b[");
    CHECK(wrapped("\xff\xff \xff", 3) == "\xff\xff\n \xff");
}

TEST_CASE("terminal: a line is cut after its last whole character") {
    CHECK(cut("██░░ 1/2", 3) == "██░");
    CHECK(cut("one", 3) == "one");
    CHECK(cut("one", 0) == "one");
    CHECK(cut("\x1b[1mone\x1b[0m", 3) == "\x1b[1mone\x1b[0m");
}

TEST_CASE("terminal: a pipe has no width, a terminal that of COLUMNS or its own") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const char* before = std::getenv("COLUMNS");
    const std::string kept = before != nullptr ? before : "";
    ::setenv("COLUMNS", "33", 1);
    CHECK(terminal_width(ends[1]) == 0);
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal >= 0) {
        CHECK(terminal_width(terminal) == 33);
        const winsize size{24, 44, 0, 0};
        REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
        for (const char* columns : {"", "0", "-3", "12x"}) {
            ::setenv("COLUMNS", columns, 1);
            CHECK(terminal_width(terminal) == 44);
        }
        ::close(terminal);
    }
    before != nullptr ? ::setenv("COLUMNS", kept.c_str(), 1) : ::unsetenv("COLUMNS");
    ::close(ends[0]);
    ::close(ends[1]);
}
