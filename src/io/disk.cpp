#include "io/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace longreach::io {

int Disk::open(const char* path, int flags, mode_t mode) {
    return ::open(path, flags, mode);
}
int Disk::close(int fd) {
    return ::close(fd);
}
ssize_t Disk::pread(int fd, void* out, size_t size, off_t offset) {
    return ::pread(fd, out, size, offset);
}
ssize_t Disk::pwrite(int fd, const void* data, size_t size, off_t offset) {
    return ::pwrite(fd, data, size, offset);
}
int Disk::fsync(int fd) {
    return ::fsync(fd);
}
int Disk::fallocate(int fd, off_t size) {
    errno = ::posix_fallocate(fd, 0, size);
    return errno == 0 ? 0 : -1;
}
int Disk::ftruncate(int fd, off_t size) {
    return ::ftruncate(fd, size);
}
int Disk::flock(int fd, int operation) {
    return ::flock(fd, operation);
}
int Disk::rename(const char* from, const char* to) {
    return ::rename(from, to);
}
int Disk::exchange(const char* a, const char* b) {
    return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}
int Disk::unlink(const char* path) {
    return ::unlink(path);
}
int Disk::mkdir(const char* path, mode_t mode) {
    return ::mkdir(path, mode);
}
int Disk::rmdir(const char* path) {
    return ::rmdir(path);
}

Disk& Disk::system() {
    static Disk disk;
    return disk;
}

}  // namespace longreach::io
