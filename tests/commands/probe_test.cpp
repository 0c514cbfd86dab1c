// longreach probe from outside: where results go, what they say, what is refused.
#include <doctest/doctest.h>

#include "commands/process.h"
#include "measure/probe.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Home {
    TempDir dir, output;
    Home() {
        make_corpus(dir / "data");
        put(dir / "config.json", tiny_config(dir.path(), "done"));
        const Finished f = command({"train", dir / "config.json", "--set", "probe.every=6", "--set",
                                    "probe.lengths=[16,64]", "--set", "probe.tokens=128"});
        check(f.code == 0, "the run ended with {}: {}", f.code, f.err);
    }
    Finished command(const std::vector<std::string>& arguments) const { return run(output, arguments); }
};

const Home& home() {
    static const Home h;
    return h;
}
std::string file(const std::string& name) {
    return home().dir / name;
}

// The bin with most queries of layer 0, head 0 at length 64; the later one of two.
int64_t fullest_bin(const std::string& csv) {
    int64_t best = 0, most = 0;
    for (const int64_t bin : {1, 2, 4, 8, 16, 32}) {
        const size_t at = csv.find(fmt::format(",64,0,0,{},entropy,", bin));
        if (at == std::string::npos) continue;
        const std::string line = csv.substr(at + 1, csv.find('\n', at + 1) - at - 1);
        const int64_t queries = std::stoll(line.substr(line.rfind(',') + 1));
        if (queries >= most) best = bin, most = queries;
    }
    return best;
}

}  // namespace

TEST_CASE("probe of a run repeats its last probe to the last digit, whatever the threads") {
    const std::string trained = get(file("done/probe.csv"));
    for (const char* threads : {"1", "2"}) {
        const Finished f =
            home().command({"probe", file("done"), "--set", fmt::format("system.threads={}", threads)});
        CAPTURE(f.err);
        REQUIRE(f.code == 0);
        CHECK(contains(f.out, "length 64\n"));
        CHECK(contains(f.out, "kurtosis"));
        CHECK(contains(f.out, "induction"));
        CHECK(contains(f.out, "on repeated random tokens and needles\n"));
        const std::string written = get(file("done/eval/plain/probe.csv"));
        CHECK(contains(f.out, fmt::format("    0     0 {:>8} ", fmt::format("{}+", fullest_bin(written)))));
        const std::string header = measure::probe_file.header() + "\n";
        REQUIRE(written.starts_with(header));
        CHECK(trained == header + trained.substr(header.size(), trained.find("\n12,") + 1 - header.size()) +
                             written.substr(header.size()));
    }
    const std::string request = get(file("done/eval/plain/request.json"));
    const json::Value v = json::parse(request, "request.json");
    CHECK(v.find("checkpoint")->as_int64() == 12);
    CHECK(v.find("tokens")->as_int64() == 128);
}

TEST_CASE("probe --lengths, --tokens, --label, --set and --rope decide what is looked at") {
    const Finished f =
        home().command({"probe", file("done/checkpoints/step_00000012"), "--lengths", "8,32,128", "--tokens",
                        "256", "--label", "ntk-2.x", "--rope", "ntk", "--set", "model.train_context=32"});
    CAPTURE(f.err);
    REQUIRE(f.code == 0);
    const std::string written = get(file("done/eval/ntk-2.x/probe.csv"));
    CHECK(contains(written, "\n12,128,0,1,0,entropy,"));
    CHECK(contains(written, "\n12,8,0,0,8,max_logit,"));
    const json::Value v = json::parse(get(file("done/eval/ntk-2.x/request.json")), "request.json");
    CHECK(v.find("lengths")->as_array().size() == 3);
    CHECK(contains(json::write(v, json::Style::compact), "eval.rope.kind"));
}

TEST_CASE("probe reads a long sequence in pieces where layers have states, and where that is asked for") {
    const Finished trained =
        home().command({"train", file("config.json"), "--set", "run.name=states", "--set",
                        "model.attention.mixer=gdn", "--set", "stages.0.steps=1"});
    CAPTURE(trained.err);
    REQUIRE(trained.code == 0);
    for (const char* run : {"states", "done"}) {
        const Finished f =
            home().command({"probe", file(run), "--lengths", "64,1K", "--set", "eval.piece=512", "--set",
                            fmt::format("data.val=[\"{}\"]", file("data/train_*.bin"))});
        CAPTURE(f.err);
        REQUIRE(f.code == 0);
        const bool states = std::string(run) == "states";
        CHECK(
            contains(f.out, "sequences of more than 512 tokens are read in pieces, for their states alone") ==
            states);
        const std::string written = get(file(std::string(run) + "/eval/plain/probe.csv"));
        CHECK(contains(written, ",1024,0,0,8,state_norm,") == states);
        CHECK(contains(written, ",1024,0,0,8,entropy,") == !states);
        CHECK(contains(written, ",1024,0,-1,0,pair_cosine,") == !states);
    }
}

TEST_CASE("probe refuses what it cannot do") {
    const auto code = [](std::vector<std::string> more) {
        more.insert(more.begin(), {"probe", file("done")});
        return home().command(more).code;
    };
    CHECK(code({"--label", "Up"}) == 2);
    CHECK(code({"--label", "../x"}) == 2);
    CHECK(code({"--label", ""}) == 2);
    CHECK(code({"--lengths", "24,64"}) == 2);
    CHECK(code({"--lengths", "64", "--tokens", "32"}) == 2);
    CHECK(code({"--lengths", "1048576"}) == 3);
    CHECK(home().command({"probe", file("nowhere")}).code == 4);
    CHECK(home().command({"probe", "--help"}).code == 0);
}
