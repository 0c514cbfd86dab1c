// A directory replaced as a whole: every crash point, foreign files, two processes.
#include "io/staged_directory.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "base/error.h"
#include "io/fault_disk.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

// What `own` counts as written by the program: the files of one version, listed in its marker.
std::vector<std::string> listed(const std::string& directory) {
    std::vector<std::string> names;
    if (!fs::exists(directory + "/marker")) return names;
    const std::string text = get(directory + "/marker");
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        names.push_back(text.substr(at, end - at));
    names.emplace_back("marker");
    return names;
}

const std::vector<std::string> old_files{"a", "sub/b", "only_old"}, new_files{"a", "sub/b", "only_new"};

void fill(const std::string& directory, const std::vector<std::string>& names, const std::string& content,
          io::Disk& disk = io::Disk::system()) {
    std::string marker;
    for (const std::string& name : names) {
        const std::string path = io::join_path(directory, name);
        io::make_directories(io::parent_path(path), disk);
        io::write_file_atomically(path, content, disk);
        marker += name + "\n";
    }
    io::write_file_atomically(io::join_path(directory, "marker"), marker, disk);
}

bool holds(const std::string& directory, const std::vector<std::string>& names, const std::string& content) {
    for (const std::string& name : names)
        if (!fs::exists(io::join_path(directory, name)) || get(io::join_path(directory, name)) != content)
            return false;
    return true;
}

void replace(const std::string& target, io::Disk& disk) {
    io::StagedDirectory staged(target, listed, disk);
    fill(staged.path(), new_files, "new", disk);
    staged.publish();
}

// Whether the fault happened. Afterwards the directory is the old or the new one, whole, and what is not the program's is
// in it or comes back to it with the next command.
bool survives(Fault fault, int64_t at, Loss loss, bool exchanges) {
    const TempDir dir;
    const std::string target = dir / "hf";
    fill(target, old_files, "old");
    put(target + "/mine", "mine");
    put(target + "/sub/mine", "mine too");
    for (const std::string& path : {target, target + "/sub", dir.path()}) io::sync_directory(path);
    FaultDisk disk(fault, at, EIO);
    disk.refuse_exchange(!exchanges);
    try {
        replace(target, disk);
    } catch (const Error&) {
    }
    const bool happened = disk.fault_happened();
    disk.lose_power(loss);
    if (fs::exists(target)) CHECK((holds(target, old_files, "old") || holds(target, new_files, "new")));
    { const io::StagedDirectory recovered(target, listed); }
    const bool is_old = holds(target, old_files, "old"), is_new = holds(target, new_files, "new");
    CHECK(is_old != is_new);
    CHECK(get(target + "/mine") == "mine");
    CHECK(get(target + "/sub/mine") == "mine too");
    CHECK(fs::exists(target + "/only_old") == is_old);
    CHECK(fs::exists(target + "/only_new") == is_new);
    CHECK(io::list_directory(dir.path()) == std::vector<std::string>{"hf"});
    return happened;
}

}  // namespace

TEST_CASE("a directory is replaced as a whole at every crash point, and foreign files stay") {
    for (const bool exchanges : {true, false})
        for (const Fault fault : {Fault::crash, Fault::error})
            for (const Loss loss : {Loss::nothing, Loss::data, Loss::everything}) {
                if (fault == Fault::error && loss != Loss::nothing) continue;
                int64_t at = 0;
                bool happened = true;
                for (; happened; ++at) {
                    CAPTURE(at);
                    CAPTURE(static_cast<int>(fault));
                    CAPTURE(static_cast<int>(loss));
                    CAPTURE(exchanges);
                    happened = survives(fault, at, loss, exchanges);
                }
                CHECK(at > 40);
            }
}

TEST_CASE("a directory is replaced: a file of its owner in the way is refused, before anything changes") {
    const TempDir dir;
    const std::string target = dir / "hf";
    fill(target, old_files, "old");
    put(target + "/only_new", "mine");
    CHECK(error_of([&] { replace(target, io::Disk::system()); }) ==
          fmt::format("2: {}/only_new was not written by this program, or was changed since: move it away",
                      fs::canonical(target).string()));
    CHECK(holds(target, old_files, "old"));
    CHECK(io::list_directory(dir.path()) == std::vector<std::string>{"hf"});
}

TEST_CASE("a directory is replaced by one process at a time; links to it and missing parents are taken") {
    const TempDir dir;
    const std::string target = dir / "deep/hf";
    {
        const io::StagedDirectory first(target, listed);
        CHECK(error_of([&] { replace(target, io::Disk::system()); }).starts_with("10: another process"));
    }
    CHECK(io::list_directory(dir / "deep").empty());
    replace(target + "/", io::Disk::system());
    CHECK(holds(target, new_files, "new"));
    fs::create_directory_symlink(target, dir / "link");
    fs::remove(target + "/only_new");
    fill(target, old_files, "old");
    replace(dir / "link", io::Disk::system());
    CHECK(fs::is_symlink(dir / "link"));
    CHECK(holds(dir / "link", new_files, "new"));
    CHECK(error_of([&] { replace("/", io::Disk::system()); }).starts_with("2: "));
    CHECK(error_of([&] { replace(".", io::Disk::system()); }).starts_with("2: "));
    put(dir / "file", "");
    CHECK(error_of([&] { replace(dir / "file", io::Disk::system()); }).starts_with("2: "));
}
