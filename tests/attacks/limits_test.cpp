// Limits of the system: sizes of files, full disks, small stacks, little memory;
// and plans that are too large.
#include <doctest/doctest.h>

#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "attacks/rounds.h"
#include "attacks/runs.h"
#include "base/rng.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

constexpr int64_t steps = 12;

const Results& reference() {
    static const Results whole = [] {
        const Finished f = target().run(target().command("reference"));
        check(f.code == 0, "the reference run ended with {}: {}", f.code, f.err);
        return results_of(target().path("reference"), steps);
    }();
    return whole;
}

std::vector<std::string> with(std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return command;
}

}  // namespace

TEST_CASE("a limit on the size of files ends a run with 5 and not by a signal, and the run resumes") {
    reference();
    for (int round = 0; round < attack_rounds(6); ++round) {
        const double where = Rng(4, Purpose::test).uniform(static_cast<uint64_t>(round));
        const auto most = static_cast<rlim_t>(600 * std::pow(60.0, where));  // 600 bytes to 36 KB
        CAPTURE(most);
        fs::remove_all(target().path("limited"));
        const Finished f = target().run(target().command("limited"), {.limits = {{RLIMIT_FSIZE, most}}});
        CAPTURE(f.err);
        CHECK((f.code == 5 || f.code == 0));
        if (f.code == 5) CHECK(contains(f.err, "File too large"));
        const Finished resumed = target().run(target().command("limited"));
        CAPTURE(resumed.err);
        REQUIRE(resumed.code == 0);
        CHECK(differing(reference(), results_of(target().path("limited"), steps)) == "");
    }
}

TEST_CASE("/dev/full under standard error or output") {
    const Finished nowhere = target().run({"eval", target().path("nowhere")}, {.err = "/dev/full"});
    CHECK(nowhere.code == 4);
    // What was asked for cannot be written.
    const Finished shown =
        target().run({"config", "show", target().path("config.json")}, {.out = "/dev/full"});
    CHECK(shown.code == 5);
    CHECK(contains(shown.err, "No space left"));
    // Progress is dropped, and the run goes on.
    const Finished trained = target().run(target().command("silent"), {.out = "/dev/full"});
    CAPTURE(trained.err);
    CHECK(trained.code == 0);
    // So is what a command prints while it works, if it was asked for.
    const std::string run = target().path("silent"), config = target().path("config.json");
    for (const std::vector<std::string>& asked : {std::vector<std::string>{"eval", run, "--tokens", "64"},
                                                  {"probe", run, "--tokens", "64"},
                                                  {"train", config, "--dry-run"},
                                                  {"laws"},
                                                  {"report", run},
                                                  {"runs", target().root()},
                                                  {"--help"}}) {
        CAPTURE(asked[0]);
        const Finished f = target().run(asked, {.out = "/dev/full"});
        CAPTURE(f.err);
        CHECK(f.code == 5);
        CHECK(contains(f.err, "No space left on device"));
        CHECK(std::count(f.err.begin(), f.err.end(), '\n') == 1);
    }
}

TEST_CASE("a small stack is enough") {
    for (const rlim_t kib : {96, 128, 256}) {
        CAPTURE(kib);
        const Process::Options options{.limits = {{RLIMIT_STACK, kib << 10}}};
        fs::remove_all(target().path("small"));
        const Finished f = target().run(target().command("small", {"system.threads=2"}), options);
        CAPTURE(f.err);
        CHECK(f.code == 0);
        CHECK(differing(reference(), results_of(target().path("small"), steps)) == "");
        CHECK(target().run({"eval", target().path("small")}, options).code == 0);
        CHECK(target().run({"report", target().path("small")}, options).code == 0);
        // As deep as a config may be.
        const std::string deep = std::string(63, '[') + std::string(63, ']');
        CHECK(target().run(target().command("small", {"stages=" + deep}), options).code == 2);
    }
}

TEST_CASE("little address space ends in a clear error") {
    for (int round = 0; round < attack_rounds(8); ++round) {
        const double where = Rng(5, Purpose::test).uniform(static_cast<uint64_t>(round));
        const auto most = static_cast<rlim_t>(48e6 * std::pow(10.0, where));  // 48 to 480 MB
        CAPTURE(most);
        fs::remove_all(target().path("narrow"));
        const Finished f =
            target().run(target().command("narrow", {"system.threads=2"}), {.limits = {{RLIMIT_AS, most}}});
        CAPTURE(f.err);
        CHECK((f.code == 6 || f.code == 0));
        if (f.code != 0) CHECK(f.err != "");
    }
}

TEST_CASE("a full disk ends a run with 5 and names it; the run resumes elsewhere") {
    const std::string disk = target().path("disk");
    fs::create_directories(disk);
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=96k") != 0) {
        MESSAGE("no small disk can be mounted here: skipped");
        return;
    }
    const Finished f = target().run(target().command("full", {"run.dir=" + disk}));
    CAPTURE(f.err);
    CHECK(f.code == 5);
    CHECK(contains(f.err, "No space left on device"));
    ::umount(disk.c_str());
}

TEST_CASE("--dry-run of 150 TiB fails with 6 and names the largest micro-batch that fits") {
    const std::vector<std::string> huge = {"model.width=16384",
                                           "model.attention.heads=128",
                                           "model.attention.head_dim=128",
                                           "model.mlp.hidden=65536",
                                           "stages=[{\"steps\":1,\"context\":16}]",
                                           "batch.tokens=1073741824",
                                           "batch.micro_tokens=1073741824"};
    const Finished f = target().run(with(target().command("huge", huge), {"--dry-run"}));
    CAPTURE(f.err);
    CHECK(f.code == 6);
    CHECK(contains(f.err, "TiB of memory"));
    CHECK_FALSE(fs::exists(target().path("huge")));
    // Without the dry run, before anything is made.
    CHECK(target().run(target().command("huge", huge)).code == 6);
    CHECK_FALSE(fs::exists(target().path("huge")));

    // Of a small model, the advice fits.
    const std::vector<std::string> tokens = {"stages=[{\"steps\":1,\"context\":16}]", "batch.tokens=1048576"};
    const auto plan = [&](int64_t micro) {
        std::vector<std::string> set = tokens;
        set.push_back(fmt::format("batch.micro_tokens={}", micro));
        return target().run(with(target().command("plan", set), {"--dry-run", "--plan-for", "64MiB"}));
    };
    const Finished large = plan(1048576);
    CHECK(large.code == 6);
    const std::string mark = "the largest micro-batch that fits: batch.micro_tokens=";
    const size_t at = large.err.find(mark);
    REQUIRE(at != std::string::npos);
    const int64_t fits = std::stoll(large.err.substr(at + mark.size()));
    CHECK(plan(fits).code == 0);
    CHECK(plan(2 * fits).code == 6);
    // So does what is computed again.
    const auto deep = [&](const char* recompute, const std::string& memory) {
        std::vector<std::string> set = tokens;
        set.insert(set.end(), {"model.layers=4", "batch.micro_tokens=1048576", recompute});
        return target().run(with(target().command("plan", set), {"--dry-run", "--plan-for", memory}));
    };
    const Finished kept = deep("system.recompute=false", "64MiB");
    const std::string again = "system.recompute=true needs ";
    REQUIRE(contains(kept.err, again));
    double needed = 0;
    char unit[4] = {};
    REQUIRE(std::sscanf(kept.err.c_str() + kept.err.find(again) + again.size(), "%lf %3s", &needed, unit) ==
            2);
    const std::string enough = fmt::format("{:.0f}{}", std::ceil(1.01 * needed), unit);
    CHECK(deep("system.recompute=false", enough).code == 6);
    CHECK(deep("system.recompute=true", enough).code == 0);
    CHECK(deep("system.recompute=true", "64MiB").err.find(again) == std::string::npos);
    // Evaluations that are too long are named as such.
    const Finished long_ones = target().run(
        with(target().command("plan", {"eval.lengths=[16,64,262144]", "eval.tokens=262144",
                                       "eval.final_tokens=262144", "data.val=[\"nothing.bin\"]"}),
             {"--dry-run", "--plan-for", "32MiB"}));
    CAPTURE(long_ones.err);
    CHECK(long_ones.code == 6);
    CHECK(contains(long_ones.err, "the longest length that fits: 64"));
}

TEST_CASE("eval, probe and generate name the longest length that fits") {
    reference();
    const std::string run = target().path("reference");
    text::SynthOptions text;
    text.output = target().path("long");
    text.train_bytes = 1000;
    text.val_bytes = 3 << 20;
    text::synthesize(text);
    const std::string data = target().path("long") + "/val_*.bin";
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"eval", run, "--lengths", "2097152", "--data", data, "--set", "eval.piece=2097152"},
             {"generate", run, "--tokens", "2147483648"}}) {
        const Finished f = target().run(command, {.limits = {{RLIMIT_AS, rlim_t{512} << 20}}});
        CAPTURE(f.err);
        CHECK(f.code == 6);
        CHECK(contains(f.err, "of memory"));
        CHECK(contains(f.err, "the longest length that fits: "));
    }
}

TEST_CASE("a dry run says what a run would end with") {
    const auto dry = [&](const std::vector<std::string>& set, const std::vector<std::string>& more = {}) {
        return target().run(with(with(target().command("dry", set), {"--dry-run"}), more));
    };
    CHECK(dry({}).code == 0);
    CHECK_FALSE(fs::exists(target().path("dry")));
    const Finished weights = dry({"run.init_from=" + target().path("nothing")});
    CHECK(weights.code == 4);
    CHECK(contains(weights.err, "nothing is neither a run directory nor a checkpoint"));
    put(target().path("file"), "");
    const Finished place = dry({"run.dir=" + target().path("file")});
    CHECK(place.code == 5);
    CHECK(contains(place.err, "is not a directory"));
    CHECK(dry({"run.dir=/proc/self"}).code == 5);
    CHECK(dry({"run.dir=" + target().path("new/and/deep")}).code == 0);
    CHECK_FALSE(fs::exists(target().path("new")));
}

TEST_CASE("a dry run needs no data if they are named, and can plan for a device that is not here") {
    const auto dry = [&](const std::vector<std::string>& set, const std::vector<std::string>& more = {}) {
        return target().run(with(with(target().command("dry", set), {"--dry-run"}), more));
    };
    for (const char* absent : {"data.train=[\"elsewhere/train_*.bin\"]", "data.val=[\"elsewhere.bin\"]"}) {
        const Finished f = dry({absent});
        CAPTURE(f.err);
        CHECK(f.code == 0);
        CHECK(contains(f.out, "not looked at: there is no file "));
        CHECK(contains(f.out, "memory plan"));
        // A run needs them.
        CHECK(target().run(target().command("dry", {absent})).code == 3);
    }
    CHECK(dry({"data.train=[]"}).code != 0);

    const Finished fits = dry({}, {"--plan-for", "80GiB"});
    CHECK(fits.code == 0);
    CHECK(contains(fits.out, "planned for: a CPU with 80.00 GiB"));
    const Finished tight = dry({}, {"--plan-for", "16KiB"});
    CHECK(tight.code == 6);
    CHECK(contains(tight.err, "16.00 KiB are free (the device planned for)"));
    for (const char* wrong : {"80", "80GB", "GiB", "-1GiB", "80GiB:tpu", "nanGiB", "1e30TiB"}) {
        CAPTURE(wrong);
        CHECK(dry({}, {"--plan-for", wrong}).code == 2);
    }
    CHECK(target().run(with(target().command("dry"), {"--plan-for", "1GiB"})).code == 2);  // not a dry run
    const Finished gpu = dry({"system.device=auto"}, {"--plan-for", "80GiB:cuda"});
    CAPTURE(gpu.err);
    CHECK(gpu.code == 0);  // in a build without CUDA, too
    CHECK(contains(gpu.out, "planned for: a GPU with 80.00 GiB, bf16"));
    CHECK(dry({"system.device=auto"}, {"--plan-for", "16KiB:cuda"}).code == 6);
}
