// The system calls that change or read files, one virtual method each.
//
// src/io is the only place that makes these calls, and it makes them through this class. Programs use
// Disk::system(); tests substitute a Disk that fails, shortens or ends the world at the k-th call, so that
// every crash point of the checkpoint protocol can be enumerated. Methods have the contract of the call they
// are named after (-1 and errno).
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace longreach::io {

class Disk {
  public:
    virtual ~Disk() = default;

    virtual int open(const char* path, int flags, mode_t mode);
    virtual int close(int fd);
    virtual ssize_t pread(int fd, void* out, size_t size, off_t offset);
    virtual ssize_t pwrite(int fd, const void* data, size_t size, off_t offset);
    virtual int fsync(int fd);
    virtual int fallocate(int fd, off_t size);  // posix_fallocate from 0, but -1 and errno like the others
    virtual int ftruncate(int fd, off_t size);
    virtual int flock(int fd, int operation);
    virtual int rename(const char* from, const char* to);
    virtual int exchange(const char* a, const char* b);  // renameat2 with RENAME_EXCHANGE
    virtual int unlink(const char* path);
    virtual int mkdir(const char* path, mode_t mode);
    virtual int rmdir(const char* path);

    static Disk& system();  // the real one; it has no state
};

}  // namespace longreach::io
