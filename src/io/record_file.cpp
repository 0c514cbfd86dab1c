#include "io/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace longreach {

RecordFile::RecordFile(const std::string& path, int64_t bytes, std::string_view header) : path_(path) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    require(fd_ >= 0, ExitCode::disk, "cannot open {}: {}", path, std::strerror(errno));
    struct stat info {};
    require(fstat(fd_, &info) == 0, ExitCode::disk, "cannot stat {}: {}", path, std::strerror(errno));
    require(info.st_size >= bytes, ExitCode::disk,
            "{} has {} bytes, but the checkpoint was made when it had {}", path, info.st_size, bytes);
    require(ftruncate(fd_, bytes) == 0, ExitCode::disk, "cannot truncate {}: {}", path, std::strerror(errno));
    bytes_ = bytes;
    if (bytes == 0 && !header.empty()) append(header);
}

RecordFile::~RecordFile() {
    if (fd_ >= 0) ::close(fd_);
}

RecordFile::RecordFile(RecordFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), path_(std::move(other.path_)) {}

RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    std::swap(path_, other.path_);
    return *this;
}

void RecordFile::append(std::string_view line) {
    std::string text(line);
    text += '\n';
    size_t done = 0;
    while (done < text.size()) {
        const ssize_t n =
            ::pwrite(fd_, text.data() + done, text.size() - done, bytes_ + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        require(n > 0, ExitCode::disk, "cannot write {}: {}", path_, std::strerror(errno));
        done += static_cast<size_t>(n);
    }
    bytes_ += static_cast<int64_t>(text.size());
}

void RecordFile::sync() {
    require(::fsync(fd_) == 0, ExitCode::disk, "cannot sync {}: {}", path_, std::strerror(errno));
}

}  // namespace longreach
