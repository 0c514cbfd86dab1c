// "did you mean" for files, and lengths as people write them.
#include <doctest/doctest.h>

#include <unistd.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/nearest_path.h"
#include "base/units.h"

using namespace longreach;
namespace fs = std::filesystem;

namespace {

class Folder {
  public:
    Folder() { fs::create_directories(path_ / "configs" / "nor2k"); }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    void touch(const std::string& name) const { std::ofstream(path_ / name) << "{}"; }
    std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  private:
    fs::path path_ = fs::temp_directory_path() / fmt::format("longreach-paths-{}", ::getpid());
};

}  // namespace

TEST_CASE("nearest path: a misspelt file, directory, extension or missing one") {
    const Folder folder;
    folder.touch("configs/nor2k/sqrt2logn.json");
    folder.touch("configs/nor2k/si.json");
    const std::string right = folder / "configs/nor2k/sqrt2logn.json";
    for (const char* wrong :
         {"configs/nor2k/sqrt2lgon.json", "configs/nor2k/sqrt2logn.jsn", "config/nor2k/sqrt2logn.json",
          "configs/nork2/sqrt2log.json", "configs/nor2k/sqrt2logn"}) {
        CAPTURE(wrong);
        CHECK(nearest_path(folder / wrong) == right);
    }
    CHECK(nearest_path(right).empty());
    CHECK(nearest_path(folder / "configs/nor2k/").empty());
    CHECK(nearest_path(folder / "elsewhere/si.json").empty());
    CHECK(nearest_path(folder / "configs/nor2k/alibi.json").empty());
    CHECK(nearest_path("").empty());
    CHECK(nearest_path(std::string("a\0b", 3)).empty());
    CHECK(path_suggestion(folder / "configs/nor2k/sj.json") ==
          ": did you mean " + (folder / "configs/nor2k/si.json") + "?");
    CHECK(path_suggestion(right).empty());
}

TEST_CASE("token counts: digits, K, M and G of 1024, nothing else") {
    CHECK(parse_token_count("512") == 512);
    CHECK(parse_token_count("2K") == 2048);
    CHECK(parse_token_count("2k") == 2048);
    CHECK(parse_token_count("1m") == 1 << 20);
    CHECK(parse_token_count("3g") == int64_t{3} << 30);
    CHECK(parse_token_count("64K") == 65536);
    CHECK(parse_token_count("1M") == 1 << 20);
    CHECK(parse_token_count("3G") == int64_t{3} << 30);
    CHECK(parse_token_count("0K") == 0);
    CHECK(parse_token_count("9223372036854775807") == std::numeric_limits<int64_t>::max());
    for (const char* wrong : {"", "K", "k", "2KB", "2 K", "-2K", "+2K", "1.5K", "2KK", "x",
                              "9223372036854775808", "9007199254740992K", "99999999999999999999"}) {
        CAPTURE(wrong);
        CHECK_FALSE(parse_token_count(wrong));
    }
}
