// What a run directory says of the program and the machine that made it.
#include <doctest/doctest.h>
#include <unistd.h>

#include "base/json.h"
#include "commands/process.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("build.json holds version, commit, command line, host and CPU") {
    const TempDir dir;
    make_corpus(dir / "data");
    const std::string config = dir / "config.json";
    put(config, tiny_config(dir.path(), "run"));
    const Finished f = run(dir, {"train", config, "--set", "stages=[{\"steps\":2,\"context\":16}]"});
    REQUIRE_MESSAGE(f.code == 0, f.err);
    const json::Value build = json::parse(get(dir / "run/build.json"), "build.json");
    for (const char* key :
         {"version", "commit", "compiler", "build_type", "flags", "system", "command_line", "host", "cpu"})
        CHECK_MESSAGE((build.find(key) != nullptr && build.find(key)->is_string()), key);
    const std::string line = build.find("command_line")->as_string();
    CHECK(line.find("longreach train " + config) != std::string::npos);
    CHECK(line.ends_with("--set 'stages=[{\"steps\":2,\"context\":16}]'"));
    char host[256] = {};
    REQUIRE(::gethostname(host, sizeof host - 1) == 0);
    CHECK(build.find("host")->as_string() == host);
    CHECK(build.find("cores")->as_int64() >= 1);
    CHECK(build.find("memory_bytes")->as_int64() > 0);
    // As --version has it.
    const Finished version = run(dir, {"--version"});
    const std::string commit = build.find("commit")->as_string();
    CHECK(version.out.starts_with("longreach " + build.find("version")->as_string()));
    if (!commit.empty()) CHECK(contains(version.out, "(commit " + commit + ")"));
}
