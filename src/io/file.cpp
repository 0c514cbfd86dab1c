#include "io/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace longreach::io {

namespace {

// Transfers are split so that one call never exceeds a signed 32-bit count.
constexpr size_t largest_transfer = size_t{1} << 30;

[[noreturn]] void fail_reading(const std::string& what, const std::string& path, int reason) {
    const bool user = reason == ENOENT || reason == ENOTDIR || reason == EACCES || reason == EISDIR ||
                      reason == ELOOP || reason == ENAMETOOLONG || reason == ENXIO;
    const char* text = reason == ELOOP ? "it is a symbolic link" : std::strerror(reason);
    throw Error(user ? ExitCode::data : ExitCode::disk, fmt::format("cannot {} {}: {}", what, path, text));
}

[[noreturn]] void fail_writing(const char* what, const std::string& path, int reason) {
    const char* text = reason == ELOOP ? "it is a symbolic link" : std::strerror(reason);
    std::string hint;
    if (reason == ENOSPC || reason == EDQUOT) hint = "free some space, or write elsewhere";
    if (reason == EFBIG) hint = "the limit is the shell's (ulimit -f) or the file system's";
    throw Error(ExitCode::disk, fmt::format("cannot {} {}: {}", what, path, text), hint);
}

// Repeats a call for as long as a signal interrupts it.
template <class Call>
auto uninterrupted(Call call) {
    for (;;) {
        const auto result = call();
        if (result != -1 || errno != EINTR) return result;
    }
}

off_t checked_offset(uint64_t offset, size_t size, const std::string& path) {
    const uint64_t largest = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
    require(offset <= largest && size <= largest - offset, ExitCode::disk,
            "{}: position {} is beyond what a file can hold", path, offset);
    return static_cast<off_t>(offset);
}

constexpr std::string_view temporary_infix = ".tmp.";

// Removes the temporary files of earlier writers of `path` that no process locks. Who holds the lock of a
// temporary file may remove it; a failure leaves it there and matters to nobody.
void remove_abandoned(const std::string& path, Disk& disk) {
    const std::string directory = parent_path(path), target = base_name(path);
    if (kind_of(directory, Links::follow) != PathKind::directory || ::access(directory.c_str(), R_OK) != 0)
        return;
    for (const std::string& name : list_directory(directory)) {
        if (target_of_temporary(name) != target) continue;
        const std::string temporary = join_path(directory, name);
        const int fd = disk.open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
        if (fd < 0) continue;
        struct stat status;
        const bool file = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
        if (file && disk.flock(fd, LOCK_EX | LOCK_NB) == 0) disk.unlink(temporary.c_str());
        disk.close(fd);
    }
}

// Before its lock is taken, another writer may take the new file for an abandoned one.
File create_temporary(const std::string& path, Disk& disk) {
    for (;;) {
        File file = File::create(path + std::string(temporary_infix) + unique_suffix(), disk);
        try {
            if (file.lock() != File::Lock::busy && file.is_at_path(Links::refuse)) return file;
        } catch (const Error&) {
            disk.unlink(file.path().c_str());
            throw;
        }
    }
}

}  // namespace

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      position_(other.position_),
      path_(std::move(other.path_)),
      disk_(other.disk_) {}

File& File::operator=(File&& other) noexcept {
    if (this == &other) return *this;
    if (fd_ >= 0) disk_->close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    position_ = other.position_;
    path_ = std::move(other.path_);
    disk_ = other.disk_;
    return *this;
}

File::~File() {
    if (fd_ >= 0) disk_->close(fd_);
}

File File::create(const std::string& path, Disk& disk) {
    const int flags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
    const int fd = uninterrupted([&] { return disk.open(path.c_str(), flags, 0644); });
    if (fd < 0) fail_writing("create", path, errno);
    return File(fd, path, disk);
}

File File::open(const std::string& path, Links links, Disk& disk) {
    require(!path.empty() && path.find('\0') == std::string::npos, ExitCode::data,
            "cannot open a file: the path is empty or holds a NUL");
    // O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on regular files.
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0);
    const int fd = uninterrupted([&] { return disk.open(path.c_str(), flags, 0); });
    if (fd < 0) fail_reading("open", path, errno);
    File file(fd, path, disk);
    struct stat status;
    if (::fstat(fd, &status) != 0) fail_reading("examine", path, errno);
    require(S_ISREG(status.st_mode), ExitCode::data, "{} is not a regular file", path);
    return file;
}

File File::open_or_create(const std::string& path, Writes writes, Disk& disk) {
    // O_RDWR and O_NONBLOCK: opening a FIFO neither waits nor fails, so that it is recognised below.
    const int flags =
        O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (writes == Writes::appended ? O_APPEND : 0);
    const int fd = uninterrupted([&] { return disk.open(path.c_str(), flags, 0644); });
    if (fd < 0) fail_writing("open", path, errno);
    File file(fd, path, disk);
    struct stat status;
    if (::fstat(fd, &status) != 0) fail_writing("examine", path, errno);
    require(S_ISREG(status.st_mode), ExitCode::disk, "{} is not a regular file", path);
    return file;
}

File File::open_directory(const std::string& path, Disk& disk) {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int fd = uninterrupted([&] { return disk.open(path.c_str(), flags, 0); });
    if (fd < 0) fail_writing("open directory", path, errno);
    return File(fd, path, disk);
}

void File::write(const void* data, size_t size) {
    write_at(data, size, position_);
    position_ += size;
}

void File::write_at(const void* data, size_t size, uint64_t offset) {
    const auto* p = static_cast<const unsigned char*>(data);
    off_t at = checked_offset(offset, size, path_);
    while (size > 0) {
        const size_t part = std::min(size, largest_transfer);
        const ssize_t done = uninterrupted([&] { return disk_->pwrite(fd_, p, part, at); });
        if (done < 0) fail_writing("write", path_, errno);
        if (done == 0) fail_writing("write", path_, ENOSPC);
        p += done;
        at += done;
        size -= static_cast<size_t>(done);
    }
}

void File::reserve(uint64_t bytes) {
    if (bytes == 0) return;
    const off_t size = checked_offset(bytes, 0, path_);
    if (uninterrupted([&] { return disk_->fallocate(fd_, size); }) == 0) return;
    if (errno == EOPNOTSUPP || errno == EINVAL)
        return;  // not supported by the file system: a full disk then shows while writing
    fail_writing("reserve space for", path_, errno);
}

void File::truncate(uint64_t bytes) {
    const off_t size = checked_offset(bytes, 0, path_);
    if (uninterrupted([&] { return disk_->ftruncate(fd_, size); }) != 0) fail_writing("cut", path_, errno);
}

void File::sync() {
    // An interrupted fsync has reported nothing and may be repeated; after any other failure the kernel may
    // have forgotten which pages were dirty, and a second call would succeed with the data lost.
    if (uninterrupted([&] { return disk_->fsync(fd_); }) != 0) fail_writing("make durable", path_, errno);
}

void File::close() {
    const int fd = std::exchange(fd_, -1);
    // On Linux the descriptor is gone even if close was interrupted: closing again could hit another file.
    if (fd >= 0 && disk_->close(fd) != 0 && errno != EINTR) fail_writing("close", path_, errno);
}

void File::read_at(void* out, size_t size, uint64_t offset) const {
    auto* p = static_cast<unsigned char*>(out);
    off_t at = checked_offset(offset, size, path_);
    while (size > 0) {
        const size_t part = std::min(size, largest_transfer);
        const ssize_t done = uninterrupted([&] { return disk_->pread(fd_, p, part, at); });
        if (done < 0) fail_reading("read", path_, errno);
        require(done > 0, ExitCode::data, "{} ends at byte {}, but {} more bytes were expected there", path_,
                at, size);
        p += done;
        at += done;
        size -= static_cast<size_t>(done);
    }
}

uint64_t File::size() const {
    struct stat status;
    if (::fstat(fd_, &status) != 0) fail_reading("examine", path_, errno);
    return static_cast<uint64_t>(status.st_size);
}

File::Lock File::lock() {
    if (uninterrupted([&] { return disk_->flock(fd_, LOCK_EX | LOCK_NB); }) == 0) return Lock::taken;
    const int reason = errno;
    if (reason == EWOULDBLOCK) return Lock::busy;
    // EBADF: network file systems that lock only what is open for writing, which a directory cannot be.
    const bool unsupported =
        reason == ENOLCK || reason == EOPNOTSUPP || reason == ENOSYS || reason == EINVAL || reason == EBADF;
    if (!unsupported) fail_writing("lock", path_, reason);
    return Lock::unsupported;
}

bool File::is_at_path(Links links) const {
    struct stat here, there;
    if (::fstat(fd_, &here) != 0) fail_reading("examine", path_, errno);
    const int result =
        links == Links::follow ? ::stat(path_.c_str(), &there) : ::lstat(path_.c_str(), &there);
    return result == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

std::string File::whereabouts() const {
    std::string name(PATH_MAX, '\0');
    const std::string link = fmt::format("/proc/self/fd/{}", fd_);
    const ssize_t size = ::readlink(link.c_str(), name.data(), name.size());
    if (size <= 0) return "was moved or removed";
    name.resize(static_cast<size_t>(size));
    return name.ends_with(" (deleted)") ? "was removed" : "was moved to " + name;
}

std::string_view target_of_temporary(std::string_view name) {
    constexpr size_t suffix = temporary_infix.size() + 16;
    uint64_t id = 0;
    if (name.size() <= suffix || !parse_hash64(name.substr(name.size() - 16), id)) return {};
    const std::string_view target = name.substr(0, name.size() - suffix);
    return name.substr(target.size()).starts_with(temporary_infix) ? target : std::string_view();
}

AtomicFile::AtomicFile(std::string path, Disk& disk) : path_(std::move(path)), disk_(&disk) {
    remove_abandoned(path_, disk);
    file_ = create_temporary(path_, disk);
}

AtomicFile::~AtomicFile() {
    if (!committed_) disk_->unlink(file_.path().c_str());
}

void AtomicFile::commit() {
    file_.sync();
    // Still open, and so locked: without the lock another writer could remove it before it has its name.
    rename_path(file_.path(), path_, *disk_);
    committed_ = true;
    file_.close();
    sync_directory(parent_path(path_), *disk_);
}

void write_file_atomically(const std::string& path, std::string_view content, Disk& disk) {
    AtomicFile file(path, disk);
    file.write(content);
    file.commit();
}

std::string read_file(const std::string& path, uint64_t limit, Links links, Disk& disk) {
    const File file = File::open(path, links, disk);
    const uint64_t size = file.size();
    require(size <= limit, ExitCode::data, "{} has {} bytes; at most {} are accepted", path, size, limit);
    std::string content(static_cast<size_t>(size), '\0');
    file.read_at(content.data(), content.size(), 0);
    return content;
}

void make_directory(const std::string& path, Disk& disk) {
    if (uninterrupted([&] { return disk.mkdir(path.c_str(), 0755); }) != 0)
        fail_writing("create directory", path, errno);
}

void make_directories(const std::string& path, Disk& disk) {
    if (kind_of(path, Links::follow) == PathKind::directory) return;
    const std::string parent = parent_path(path);
    if (parent != path) make_directories(parent, disk);
    const int result = uninterrupted([&] { return disk.mkdir(path.c_str(), 0755); });
    if (result != 0 && errno != EEXIST) fail_writing("create directory", path, errno);
    require(kind_of(path, Links::follow) == PathKind::directory, ExitCode::disk,
            "cannot create directory {}: something else has that name", path);
    sync_directory(parent, disk);
}

void sync_directory(const std::string& path, Disk& disk) {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int fd = uninterrupted([&] { return disk.open(path.c_str(), flags, 0); });
    if (fd < 0) fail_writing("open directory", path, errno);
    const int result = uninterrupted([&] { return disk.fsync(fd); });
    const int reason = errno;
    disk.close(fd);
    // EINVAL: a file system whose directories need no syncing.
    if (result != 0 && reason != EINVAL) fail_writing("make directory durable", path, reason);
}

void rename_path(const std::string& from, const std::string& to, Disk& disk) {
    if (uninterrupted([&] { return disk.rename(from.c_str(), to.c_str()); }) != 0)
        fail_writing("rename", from + " to " + to, errno);
}

bool exchange_paths(const std::string& a, const std::string& b, Disk& disk) {
    if (uninterrupted([&] { return disk.exchange(a.c_str(), b.c_str()); }) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        fail_writing("exchange", a + " and " + b, errno);
    return false;
}

void remove_file(const std::string& path, Disk& disk) {
    if (uninterrupted([&] { return disk.unlink(path.c_str()); }) != 0 && errno != ENOENT)
        fail_writing("remove", path, errno);
}

void remove_tree(const std::string& path, Disk& disk) {
    const PathKind kind = kind_of(path, Links::refuse);
    if (kind == PathKind::missing) return;
    if (kind != PathKind::directory) return remove_file(path, disk);
    for (const std::string& name : list_directory(path)) remove_tree(join_path(path, name), disk);
    if (uninterrupted([&] { return disk.rmdir(path.c_str()); }) != 0 && errno != ENOENT)
        fail_writing("remove directory", path, errno);
}

void require_writable(const std::string& directory, Disk& disk) {
    const PathKind kind = kind_of(directory, Links::follow);
    if (kind == PathKind::missing && parent_path(directory) != directory)
        return require_writable(parent_path(directory), disk);
    require(kind == PathKind::directory, ExitCode::disk, "{} is not a directory", directory);
    const std::string trial = join_path(directory, ".longreach." + unique_suffix());
    make_directory(trial, disk);
    remove_tree(trial, disk);
}

std::string unique_suffix() {
    uint64_t random = 0;
    const ssize_t got = uninterrupted([&] { return ::getrandom(&random, sizeof random, 0); });
    require(got == sizeof random, ExitCode::disk, "the system gives no random numbers: {}",
            std::strerror(errno));
    return format_hash64(random);
}

}  // namespace longreach::io
