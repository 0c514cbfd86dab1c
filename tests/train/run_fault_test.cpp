// A whole small run on a disk that fails: lock, log, record files, event files and checkpoints. Whatever
// happens at whichever call, the same command then ends with the bytes of a run that nothing disturbed.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "io/fault_disk.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 12;

// As test::train, but on `disk`. The exit code, or that of the error.
ExitCode train_on(io::Disk& disk, const config::LoadedConfig<train::Experiment>& config) {
    train::Console console(true);
    const train::Experiment& e = config.value;
    std::string note;
    const std::unique_ptr<Ops> ops = train::open_device(e.system, note);
    try {
        train::Trainer trainer(e, console, *ops);
        train::RunDirectory directory(io::join_path(e.run.dir, e.run.name), disk);
        directory.adopt_config(config::describe(e), config.origins);
        console.open_log(directory.file("log.txt"), disk);
        ranks::SingleComm comm;
        ranks::Team team;
        return trainer.run(&directory, comm, team);
    } catch (const Error& error) {
        CAPTURE(error.what());
        CHECK(error.code() == ExitCode::disk);
        return error.code();
    }
}

struct Home {
    TempDir dir;
    config::LoadedConfig<train::Experiment> config;
    Results whole;
    int64_t operations = 0;
    Home() {
        make_corpus(dir / "data");
        config = load_tiny(tiny_config(dir.path(), "run"));
        FaultDisk disk;
        check(train_on(disk, config) == ExitCode::ok, "the reference run failed");
        whole = results_of(run(), steps);
        operations = disk.operations();
        std::filesystem::remove_all(run());
    }
    std::string run() const { return dir / "run"; }
};

const Home& home() {
    static const Home h;
    return h;
}

// A sample of the calls of the run that differs between faults. Long tests take every eighth call: each fault alone
// would take an hour with every one.
void enumerate(Fault fault, int error, Loss loss) {
    const int64_t stride = std::getenv("LONGREACH_LONG_TESTS") ? 8 : home().operations / 5;
    for (int64_t at = (7 * static_cast<int64_t>(fault) + error) % stride; at < home().operations;
         at += stride) {
        CAPTURE(static_cast<int>(fault));
        CAPTURE(error);
        CAPTURE(at);
        FaultDisk disk(fault, at, error);
        const ExitCode code = train_on(disk, home().config);
        if (fault != Fault::short_write) CHECK(disk.fault_happened());  // only a write can be short
        if (fault == Fault::interrupt || fault == Fault::short_write) CHECK(code == ExitCode::ok);
        disk.lose_power(loss);
        REQUIRE(run_training(home().config) == ExitCode::ok);
        CHECK(differing(home().whole, results_of(home().run(), steps)) == "");
        std::filesystem::remove_all(home().run());
    }
}

}  // namespace

TEST_CASE("the files of a whole run go through the disk that it is given") {
    // Two calls at least for each logged line, and many more for each checkpoint.
    CHECK(home().operations > 300);
}

TEST_CASE("a power cut at any call of a whole run loses nothing that a resume does not bring back") {
    enumerate(Fault::crash, 0, Loss::nothing);
    enumerate(Fault::crash, 1, Loss::data);
    enumerate(Fault::crash, 2, Loss::everything);
}

TEST_CASE("a disk that fails or becomes full at any call of a whole run ends it with 5, or not at all") {
    enumerate(Fault::error, EIO, Loss::nothing);
    enumerate(Fault::error, ENOSPC, Loss::everything);
    enumerate(Fault::full, 0, Loss::nothing);
}

TEST_CASE("interrupted calls and short writes do not disturb a run") {
    enumerate(Fault::interrupt, 0, Loss::nothing);
    enumerate(Fault::short_write, 0, Loss::nothing);
}

TEST_CASE("a full disk under log.txt ends no run") {
    const TempDir dir;
    FaultDisk good, full(Fault::full, 1);
    train::Console console(true);
    console.open_log(dir / "log.txt", good);
    console.line("first");
    CHECK(contains(get(dir / "log.txt"), "first\n"));
    train::Console refused(true);
    refused.open_log(dir / "other.txt", full);
    for (int i = 0; i < 3; ++i) refused.line("lost");
    CHECK(get(dir / "other.txt") == "");
}
