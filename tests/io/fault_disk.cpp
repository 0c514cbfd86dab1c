#include "io/fault_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "io/temp_dir.h"

namespace longreach::test {

namespace fs = std::filesystem;

FaultDisk::~FaultDisk() {
    for (const Change& change : changes_)
        if (!change.saved.empty()) ::unlink(change.saved.c_str());
}

bool FaultDisk::refused(Call call) {
    const int64_t number = operations_++;
    shorten_ = false;
    if (frozen_) {
        errno = EIO;
        return true;
    }
    if (fault_ == Fault::full && number >= at_ && call != Call::plain) {
        happened_ = true;
        errno = ENOSPC;
        return true;
    }
    if (number != at_) return false;
    switch (fault_) {
        case Fault::none:
        case Fault::full:
            return false;
        case Fault::crash:
            happened_ = frozen_ = true;
            errno = EIO;
            return true;
        case Fault::error:
            happened_ = true;
            errno = error_;
            return true;
        case Fault::short_write:
            happened_ = shorten_ = call == Call::write;
            return false;
        case Fault::interrupt:
            happened_ = true;
            errno = EINTR;
            return true;
    }
    return false;
}

// Keeps a file that is about to lose its name; directories are emptied before they go and need nothing.
std::string FaultDisk::save(const std::string& path) {
    struct stat status;
    if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
    const std::string name = "longreach.saved." + std::to_string(::getpid()) + "." +
                             std::to_string(reinterpret_cast<uintptr_t>(this)) + "." +
                             std::to_string(saves_++);
    const std::string hidden = io::join_path(temp_base(), name);
    return ::link(path.c_str(), hidden.c_str()) == 0 ? hidden : std::string{};
}

void FaultDisk::move_tracking(const std::string& from, const std::string& to) {
    const auto moved = [&](const std::string& path) {
        if (path == from) return to;
        return path.starts_with(from + "/") ? to + path.substr(from.size()) : path;
    };
    for (Change& change : changes_) {
        if (change.path.starts_with(from + "/")) change.path = moved(change.path);
        if (change.other.starts_with(from + "/")) change.other = moved(change.other);
    }
    std::map<std::string, int64_t> durable;
    for (const auto& [path, bytes] : durable_) durable[moved(path)] = bytes;
    durable_ = durable;
}

int FaultDisk::open(const char* path, int flags, mode_t mode) {
    if (refused((flags & O_CREAT) != 0 ? Call::allocating : Call::plain)) return -1;
    const bool existed = ::access(path, F_OK) == 0;
    const int fd = ::open(path, flags, mode);
    if (fd < 0) return fd;
    open_[fd] = path;
    if ((flags & O_CREAT) != 0 && !existed) {
        changes_.push_back({Change::Kind::made, path, {}, {}});
        durable_[path] = 0;
    }
    return fd;
}

int FaultDisk::close(int fd) {
    const bool fails = refused(Call::plain);
    const int reason = errno;
    ::close(fd);  // whatever is reported, the descriptor is gone
    open_.erase(fd);
    errno = reason;
    return fails ? -1 : 0;
}

ssize_t FaultDisk::pread(int fd, void* out, size_t size, off_t offset) {
    if (refused(Call::plain)) return -1;
    return ::pread(fd, out, size, offset);
}

ssize_t FaultDisk::pwrite(int fd, const void* data, size_t size, off_t offset) {
    if (refused(Call::write)) return -1;
    return ::pwrite(fd, data, shorten_ && size > 1 ? size / 2 : size, offset);
}

int FaultDisk::fsync(int fd) {
    if (refused(Call::plain)) return -1;
    const std::string path = open_[fd];
    struct stat status;
    ::fstat(fd, &status);
    if (!S_ISDIR(status.st_mode)) {
        durable_[path] = status.st_size;
        return 0;
    }
    std::erase_if(changes_, [&](const Change& change) {
        if (io::parent_path(change.path) != path) return false;
        if (!change.saved.empty()) ::unlink(change.saved.c_str());
        return true;
    });
    return 0;
}

int FaultDisk::fallocate(int fd, off_t size) {
    if (refused(Call::allocating)) return -1;
    return io::Disk::fallocate(fd, size);
}

int FaultDisk::ftruncate(int fd, off_t size) {
    if (refused(Call::allocating)) return -1;
    return ::ftruncate(fd, size);
}

int FaultDisk::flock(int fd, int operation) {
    if (refused(Call::plain)) return -1;
    return io::Disk::flock(fd, operation);
}

int FaultDisk::rename(const char* from, const char* to) {
    if (refused(Call::allocating)) return -1;
    const std::string saved = save(to);
    if (::rename(from, to) != 0) return -1;
    move_tracking(from, to);
    changes_.push_back({Change::Kind::renamed, to, from, saved});
    return 0;
}

int FaultDisk::exchange(const char* a, const char* b) {
    if (refuses_exchange_) {
        errno = EINVAL;
        return -1;
    }
    if (refused(Call::allocating)) return -1;
    if (io::Disk::exchange(a, b) != 0) return -1;
    const std::string between = std::string(a) + ".between";
    move_tracking(a, between);
    move_tracking(b, a);
    move_tracking(between, b);
    changes_.push_back({Change::Kind::exchanged, a, b, {}});
    return 0;
}

int FaultDisk::unlink(const char* path) {
    if (refused(Call::plain)) return -1;
    const std::string saved = save(path);
    if (::unlink(path) != 0) return -1;
    changes_.push_back({Change::Kind::removed, path, {}, saved});
    return 0;
}

int FaultDisk::mkdir(const char* path, mode_t mode) {
    if (refused(Call::allocating)) return -1;
    if (::mkdir(path, mode) != 0) return -1;
    changes_.push_back({Change::Kind::made_directory, path, {}, {}});
    return 0;
}

int FaultDisk::rmdir(const char* path) {
    if (refused(Call::plain)) return -1;
    if (::rmdir(path) != 0) return -1;
    changes_.push_back({Change::Kind::removed_directory, path, {}, {}});
    return 0;
}

void FaultDisk::undo(const Change& change) {
    switch (change.kind) {
        case Change::Kind::made:
            ::unlink(change.path.c_str());
            break;
        case Change::Kind::made_directory:
            fs::remove_all(change.path);
            break;
        case Change::Kind::renamed:
            ::rename(change.path.c_str(), change.other.c_str());
            move_tracking(change.path, change.other);
            if (!change.saved.empty()) ::rename(change.saved.c_str(), change.path.c_str());
            break;
        case Change::Kind::exchanged:
            io::Disk::exchange(change.path.c_str(), change.other.c_str());
            move_tracking(change.path, change.path + ".between");
            move_tracking(change.other, change.path);
            move_tracking(change.path + ".between", change.other);
            break;
        case Change::Kind::removed:
            if (!change.saved.empty()) ::rename(change.saved.c_str(), change.path.c_str());
            break;
        case Change::Kind::removed_directory:
            ::mkdir(change.path.c_str(), 0755);
            break;
    }
}

void FaultDisk::lose_power(Loss loss) {
    if (loss != Loss::nothing)
        for (const auto& [path, bytes] : durable_)
            if (::access(path.c_str(), F_OK) == 0 && ::truncate(path.c_str(), bytes) != 0) errno = 0;
    while (!changes_.empty()) {
        const Change change = changes_.back();
        changes_.pop_back();
        if (loss == Loss::everything) {
            undo(change);
        } else if (!change.saved.empty()) {
            ::unlink(change.saved.c_str());
        }
    }
}

}  // namespace longreach::test
