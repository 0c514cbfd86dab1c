#include "io/staged_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"

namespace longreach::io {

namespace {

constexpr const char* unfinished_mark = ".unfinished";

// The directory itself where `target` is a link to it, with an absolute path.
std::string resolved(const std::string& target) {
    std::error_code failed;
    std::filesystem::path path = std::filesystem::weakly_canonical(target, failed);
    require(!failed, ExitCode::usage, "{}: {}", target, failed.message());
    if (!path.has_filename()) path = path.parent_path();  // "hf/" that does not exist yet
    const PathKind kind = kind_of(path.string(), Links::refuse);
    require(kind == PathKind::missing || kind == PathKind::directory, ExitCode::usage,
            "{} is not a directory", target);
    struct stat own, above;
    require(kind == PathKind::missing || ::stat(path.c_str(), &own) != 0 ||
                ::stat(path.parent_path().c_str(), &above) != 0 || own.st_dev == above.st_dev,
            ExitCode::usage, "{} is where a file system is mounted: name a directory below it", target);
    const std::string here = std::filesystem::current_path().string();
    require(path.has_relative_path() && here != path.string() && !here.starts_with(path.string() + "/"),
            ExitCode::usage,
            "{} contains the working directory, which would be another one after its replacement", target);
    return path.string();
}

// Moves what is left in `from` to `to`, whose files stay.
void merge(const std::string& from, const std::string& to, Disk& disk) {
    for (const std::string& name : list_directory(from)) {
        const std::string source = join_path(from, name), destination = join_path(to, name);
        const PathKind there = kind_of(destination, Links::refuse);
        if (there == PathKind::missing) {
            rename_path(source, destination, disk);
        } else {
            require(there == PathKind::directory && kind_of(source, Links::refuse) == PathKind::directory,
                    ExitCode::usage,
                    "{} was not written by this program, and {} is in its place: move it away", source,
                    destination);
            merge(source, destination, disk);
        }
    }
    require(disk.rmdir(from.c_str()) == 0, ExitCode::disk, "cannot remove {}", from);
}

// Whether a path of `own` is `path` or below it.
bool holds_own(const std::vector<std::string>& sorted, const std::string& path) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), path + "/");
    return at != sorted.end() && at->starts_with(path + "/");
}

void list_foreign(const std::string& directory, const std::string& below,
                  const std::vector<std::string>& sorted, std::vector<std::string>& out) {
    for (const std::string& name : list_directory(directory)) {
        const std::string path = below.empty() ? name : below + "/" + name, full = join_path(directory, name);
        if (std::binary_search(sorted.begin(), sorted.end(), path)) continue;
        if (kind_of(full, Links::refuse) == PathKind::directory && holds_own(sorted, path))
            list_foreign(full, path, sorted, out);
        else
            out.push_back(path);
    }
}

}  // namespace

std::vector<std::string> foreign_entries(const std::string& directory, const std::vector<std::string>& own) {
    std::vector<std::string> sorted = own, out;
    std::sort(sorted.begin(), sorted.end());
    list_foreign(directory, "", sorted, out);
    return out;
}

void remove_own_files(const std::string& directory, const OwnFiles& own, Disk& disk) {
    std::set<std::string, std::greater<>> parents;  // the deeper ones first
    for (const std::string& path : own(directory)) {
        remove_file(join_path(directory, path), disk);
        for (size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
             slash = path.rfind('/', slash - 1))
            parents.insert(path.substr(0, slash));
    }
    for (const std::string& parent : parents)
        if (const std::string path = join_path(directory, parent);
            kind_of(path, Links::refuse) == PathKind::directory && list_directory(path).empty())
            require(disk.rmdir(path.c_str()) == 0, ExitCode::disk, "cannot remove {}", path);
}

StagedDirectory::StagedDirectory(const std::string& target, OwnFiles own, Disk& disk)
    : target_(resolved(target)), own_(std::move(own)), disk_(&disk) {
    stage_ = join_path(parent_path(target_), "." + base_name(target_) + ".longreach");
    next_ = join_path(stage_, "next");
    old_ = join_path(stage_, "old");
    make_directories(parent_path(target_), disk);
    lock();
    recover();
    make_directory(next_, disk);
    File::create(join_path(next_, unfinished_mark), disk).close();
}

StagedDirectory::~StagedDirectory() {
    try {
        if (!published_) recover();
        disk_->rmdir(stage_.c_str());
    } catch (const std::exception&) {  // the next StagedDirectory of this name recovers
    }
}

void StagedDirectory::lock() {
    for (;;) {
        make_directories(stage_, *disk_);
        held_ = File::open_directory(stage_, *disk_);
        if (held_.lock() == File::Lock::busy)
            throw Error(ExitCode::locked, fmt::format("another process is writing {}", target_),
                        "wait until it has ended");
        if (held_.is_at_path(Links::refuse)) break;  // else its owner has just removed it
    }
    for (const std::string& name : list_directory(stage_))
        require(name == "next" || name == "old", ExitCode::usage,
                "{} holds {}, which this program did not write: move it away", stage_, name);
}

// Finishes what an earlier process began.
void StagedDirectory::recover() {
    if (kind_of(old_, Links::refuse) == PathKind::directory &&
        kind_of(target_, Links::refuse) == PathKind::missing)
        rename_path(old_, target_, *disk_);
    for (const std::string& directory : {next_, old_}) {
        if (kind_of(directory, Links::refuse) != PathKind::directory) continue;
        const bool unfinished =
            kind_of(join_path(directory, unfinished_mark), Links::refuse) == PathKind::file;
        if (unfinished)
            remove_tree(directory, *disk_);
        else
            settle(directory);
    }
}

void StagedDirectory::settle(const std::string& old) {
    remove_own_files(old, own_, *disk_);
    make_directories(target_, *disk_);
    merge(old, target_, *disk_);
}

std::vector<std::string> StagedDirectory::publish() {
    std::vector<std::string> foreign;
    const bool replaces = kind_of(target_, Links::refuse) == PathKind::directory;
    if (replaces) foreign = foreign_entries(target_, own_(target_));
    for (const std::string& path : foreign)
        require(kind_of(join_path(next_, path), Links::refuse) == PathKind::missing, ExitCode::usage,
                "{} was not written by this program, or was changed since: move it away",
                join_path(target_, path));
    sync_directory(next_, *disk_);
    remove_file(join_path(next_, unfinished_mark), *disk_);
    if (!replaces) {
        rename_path(next_, target_, *disk_);
    } else if (exchange_paths(next_, target_, *disk_)) {
        sync_directory(parent_path(target_), *disk_);
        settle(next_);
    } else {
        rename_path(target_, old_, *disk_);
        rename_path(next_, target_, *disk_);
        sync_directory(parent_path(target_), *disk_);
        settle(old_);
    }
    published_ = true;
    sync_directory(parent_path(target_), *disk_);
    return foreign;
}

}  // namespace longreach::io
