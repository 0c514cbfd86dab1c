// The log of requests.
#include "serve/access_log.h"

#include <cerrno>
#include <filesystem>

#include "io/temp_dir.h"
#include "serve/service_bench.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::serve;

namespace {

std::vector<json::Value> lines_of(const std::string& path) {
    std::vector<json::Value> lines;
    std::string rest = get(path);
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
        lines.push_back(json::parse(rest.substr(0, end), "line"));
    CHECK(rest.empty());
    return lines;
}

class FullDisk final : public io::Disk {
  public:
    ssize_t pwrite(int, const void*, size_t, off_t) override {
        errno = ENOSPC;
        return -1;
    }
};

}  // namespace

TEST_CASE("access log: a line for each request, without keys and texts") {
    const TempDir directory;
    const std::string path = directory / "access.jsonl";
    put(path, "{}\n");  // of a server before
    {
        AccessLog log(path);
        ServiceBench bench({.model = "m", .key = "correct horse battery"}, {.context = 96}, {}, &log);
        const std::string completions = "/v1/completions";
        bench.ask("GET", "/v1/models");
        bench.authorization = "Bearer correct horse battery";
        bench.ask("GET", "/v1/models");
        bench.ask("GET", "/secret/path");
        bench.ask("POST", completions, R"({"prompt":"secret","max_tokens":3,"temperature":0})");
        bench.ask("POST", completions, R"({"prompt":"secret","max_tokens":1000})");
        {
            const HttpAnswer streamed = bench.ask(
                "POST", completions, R"({"prompt":"secret","max_tokens":9,"temperature":0,"stream":true})");
            CHECK(lines_of(path).size() == 6);
            bench.client.leaves_after = 1;
            streamed.stream(bench.client);
        }
        bench.client.left = true;
        bench.ask("POST", completions, R"({"prompt":"secret","max_tokens":80,"temperature":0})");
        bench.service.refused({"POST", "/tokenize", {}, {}, {}, {}, {}}, 413);
        CHECK(log.take_problem().empty());
    }
    const std::vector<json::Value> lines = lines_of(path);
    REQUIRE(lines.size() == 9);
    for (const char* word : {"secret", "correct", "Bearer"}) CHECK(get(path).find(word) == std::string::npos);
    const auto field = [&](size_t line, const char* name) {
        return json::write(*lines[line].find(name), json::Style::compact);
    };
    const std::vector<std::string> statuses = {"401", "200", "404", "200", "400", "200", "503", "413"};
    for (size_t i = 0; i < statuses.size(); ++i)
        if (i != 6) CHECK(field(i + 1, "status") == statuses[i]);  // an answer that was ready in time is one
    CHECK(field(1, "path") == "\"/v1/models\"");
    CHECK(field(1, "method") == "\"GET\"");
    CHECK(field(3, "path") == "null");
    CHECK(field(4, "prompt_tokens") == "7");
    CHECK(lines[4].find("completion_tokens")->as_int64() >= 1);
    CHECK(lines[4].find("waiting_ms")->as_number() <= lines[4].find("total_ms")->as_number());
    CHECK(field(4, "client_left") == "false");
    CHECK(field(4, "model") == "\"m\"");
    CHECK(lines[4].find("time")->as_string().size() == std::string_view("2026-11-28T10:00:00.000Z").size());
    CHECK(field(5, "prompt_tokens") == "null");
    CHECK(field(6, "client_left") == "true");
    CHECK(field(7, "client_left") == "true");
}

TEST_CASE("access log: a link is refused, and a full disk is said once and ends nothing") {
    const TempDir directory;
    put(directory / "victim", "kept");
    std::filesystem::create_symlink(directory / "victim", directory / "link");
    CHECK_THROWS_AS(AccessLog(directory / "link"), Error);
    FullDisk full;
    AccessLog log(directory / "log", full);
    ServiceBench bench({.model = "m"}, {.context = 96}, {}, &log);
    for (int i = 0; i < 3; ++i) CHECK(bench.ask("GET", "/health").status == 200);
    CHECK(log.take_problem().find("lines are missing from the log of requests") == 0);
    CHECK(bench.ask("GET", "/health").status == 200);
    CHECK(log.take_problem().empty());
    CHECK(get(directory / "victim") == "kept");
}
