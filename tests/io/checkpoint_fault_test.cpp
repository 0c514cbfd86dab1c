// Every crash point and every failing call of a commit.
#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>

#include "io/checkpoint_dir.h"
#include "io/fault_disk.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const io::Notice ignore = [](const std::string&) {};

// A checkpoint of two files, whose content depends on `version`.
io::Checkpoint save(const std::string& root, int64_t step, char version, int64_t keep, io::Disk& disk) {
    io::CheckpointWriter writer(root, step, disk);
    const std::string weights(3000, version);
    writer.add("weights.bin", weights.size(), [&](io::ByteSink& out) {
        out.write(weights.data(), 1000);
        out.write(weights.data() + 1000, 2000);
    });
    writer.add_text("state.json", std::string("{\"version\": \"") + version + "\"}\n");
    return writer.commit({.keep = keep, .pinned = {}}, ignore);
}

// The version of the newest checkpoint, all of whose files must agree; the step goes to `step`.
char load(const std::string& root, int64_t& step) {
    const std::optional<io::Checkpoint> newest = io::newest_checkpoint(root, io::Damaged::quarantine, ignore);
    REQUIRE(newest.has_value());
    step = newest->step;
    const std::string weights = get(newest->file("weights.bin"));
    REQUIRE(weights == std::string(3000, weights[0]));
    REQUIRE(get(newest->file("state.json")) == std::string("{\"version\": \"") + weights[0] + "\"}\n");
    return weights[0];
}

struct Scenario {
    int64_t old_step, new_step, keep;
};

// Runs one save of version b over a durable version a with a fault at operation `at`; checks what can be
// loaded. Returns false if the save has fewer operations.
bool run(const Scenario& scenario, Fault fault, int error, int64_t at, Loss loss) {
    const TempDir dir;
    const std::string root = dir / "checkpoints";
    save(root, scenario.old_step, 'a', scenario.keep, io::Disk::system());
    FaultDisk disk(fault, at, error);
    bool saved = true;
    try {
        save(root, scenario.new_step, 'b', scenario.keep, disk);
    } catch (const Error& e) {
        REQUIRE(e.code() == ExitCode::disk);
        saved = false;
    }
    const bool happened = disk.fault_happened();
    disk.lose_power(loss);

    INFO("fault ", static_cast<int>(fault), " error ", error, " at ", at, " loss ", static_cast<int>(loss));
    int64_t step = 0;
    const char version = load(root, step);
    if (saved) {
        CHECK(version == 'b');
        CHECK(step == scenario.new_step);
    } else {
        const bool legal =
            (version == 'a' && step == scenario.old_step) || (version == 'b' && step == scenario.new_step);
        CHECK(legal);
    }
    if (fault == Fault::interrupt || fault == Fault::short_write) CHECK(saved);

    // Whatever was left behind, the next save works and tidies up.
    save(root, scenario.new_step, 'c', 1, io::Disk::system());
    CHECK(load(root, step) == 'c');
    for (const std::string& name : io::list_directory(root)) CHECK_FALSE(contains(name, ".tmp."));
    return happened;
}

// Another step, and the same step again (which goes through an exchange of directories).
const Scenario scenarios[] = {{100, 200, 1}, {200, 200, 2}};

int64_t operations_of(const Scenario& scenario) {
    const TempDir dir;
    save(dir.path(), scenario.old_step, 'a', scenario.keep, io::Disk::system());
    FaultDisk disk;
    save(dir.path(), scenario.new_step, 'b', scenario.keep, disk);
    return disk.operations();
}

}  // namespace

TEST_CASE(
    "a crash at any operation of a commit leaves one of the two legal states, whatever a power cut undoes") {
    for (const Scenario& scenario : scenarios) {
        const int64_t operations = operations_of(scenario);
        CHECK(operations > 30);
        for (int64_t at = 0; at < operations; ++at)
            for (const Loss loss : {Loss::nothing, Loss::data, Loss::everything})
                CHECK(run(scenario, Fault::crash, 0, at, loss));
        CHECK_FALSE(run(scenario, Fault::crash, 0, operations, Loss::everything));
    }
}

TEST_CASE("EIO, ENOSPC, EDQUOT and EROFS at any operation of a commit leave a loadable state") {
    for (const Scenario& scenario : scenarios) {
        const int64_t operations = operations_of(scenario);
        for (int64_t at = 0; at < operations; ++at)
            for (const int error : {EIO, ENOSPC, EDQUOT, EROFS})
                // A power cut afterwards shows whether a failed fsync was taken for a good one.
                for (const Loss loss : {Loss::nothing, Loss::everything})
                    run(scenario, Fault::error, error, at, loss);
    }
}

TEST_CASE("a disk that becomes full during a commit keeps the old checkpoint") {
    for (const Scenario& scenario : scenarios)
        for (int64_t at = 0; at < operations_of(scenario); ++at)
            run(scenario, Fault::full, 0, at, Loss::everything);
}

TEST_CASE("short writes and interrupted calls do not disturb a commit") {
    for (const Scenario& scenario : scenarios)
        for (int64_t at = 0; at < operations_of(scenario); ++at) {
            run(scenario, Fault::short_write, 0, at, Loss::everything);
            run(scenario, Fault::interrupt, 0, at, Loss::everything);
        }
}

TEST_CASE("a file system that cannot exchange directories replaces a checkpoint all the same") {
    const Scenario& same_step = scenarios[1];
    for (int64_t at = 0; at < operations_of(same_step); ++at)
        run(same_step, Fault::error, EINVAL, at, Loss::nothing);
}

TEST_CASE("a disk error while loading falls back without renaming anything") {
    const TempDir dir;
    save(dir.path(), 100, 'a', 2, io::Disk::system());
    save(dir.path(), 200, 'b', 2, io::Disk::system());
    FaultDisk counter;
    io::newest_checkpoint(dir.path(), io::Damaged::quarantine, ignore, counter);
    for (int64_t at = 0; at < counter.operations(); ++at) {
        FaultDisk disk(Fault::error, at, EIO);
        const auto found = io::newest_checkpoint(dir.path(), io::Damaged::quarantine, ignore, disk);
        REQUIRE(found.has_value());
        CHECK((found->step == 100 || found->step == 200));
        int64_t step = 0;
        CHECK(load(dir.path(), step) == 'b');
    }
}

TEST_CASE("the fault disk itself forgets what was not synced") {
    const TempDir dir;
    const std::string path = dir / "file";
    for (const bool sync_file : {false, true})
        for (const bool sync_name : {false, true}) {
            FaultDisk disk;
            {
                io::File file = io::File::create(path, disk);
                file.write("hello");
                if (sync_file) file.sync();
                file.close();
                if (sync_name) io::sync_directory(dir.path(), disk);
            }
            disk.lose_power(Loss::everything);
            REQUIRE(std::filesystem::exists(path) == sync_name);
            if (sync_name) CHECK(get(path) == (sync_file ? "hello" : ""));
            std::filesystem::remove(path);
        }

    // Removed and replaced files come back; a renamed directory returns to its old name with
    // its un-synced files gone.
    put(dir / "a", "A");
    put(dir / "b", "B");
    FaultDisk disk;
    io::rename_path(dir / "a", dir / "b", disk);
    io::remove_file(dir / "b", disk);
    io::make_directory(dir / "d", disk);
    io::sync_directory(dir.path(), disk);
    CHECK_FALSE(std::filesystem::exists(dir / "b"));
    put(dir / "a", "A");
    put(dir / "b", "B");
    io::rename_path(dir / "a", dir / "b", disk);
    io::remove_file(dir / "b", disk);
    io::File::create(dir / "d/inside", disk).close();
    io::rename_path(dir / "d", dir / "e", disk);
    disk.lose_power(Loss::everything);
    CHECK(get(dir / "a") == "A");
    CHECK(get(dir / "b") == "B");
    CHECK(std::filesystem::exists(dir / "d"));
    CHECK_FALSE(std::filesystem::exists(dir / "d/inside"));
}
