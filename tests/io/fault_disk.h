// A disk that misbehaves at a chosen operation, and forgets what was not made durable.
//
// Every call is numbered from 0. At operation `at` the chosen fault happens. A crash freezes the disk:
// from then on nothing reaches it and every call fails. lose_power() afterwards undoes what a power
// cut may undo: data written since the file's last fsync, and names made, changed or removed since
// their directory's last fsync.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "io/disk.h"

namespace longreach::test {

enum class Fault {
    none,
    crash,        // nothing happens from here on
    error,        // this call fails
    full,         // this and every later call that needs space fails with ENOSPC
    short_write,  // a write transfers only part
    interrupt,    // EINTR, once
};

enum class Loss {
    nothing,    // a killed process: the kernel still writes everything
    data,       // names survive, un-synced contents do not (a journalling file system)
    everything  // un-synced names are undone too
};

class FaultDisk final : public io::Disk {
  public:
    static constexpr int64_t never = std::numeric_limits<int64_t>::max();

    explicit FaultDisk(Fault fault = Fault::none, int64_t at = never, int error = 0)
        : fault_(fault), at_(at), error_(error) {}
    ~FaultDisk() override;

    void refuse_exchange(bool refuse) { refuses_exchange_ = refuse; }  // as some file systems do
    int64_t operations() const { return operations_; }
    bool fault_happened() const { return happened_; }
    void lose_power(Loss loss);

    int open(const char* path, int flags, mode_t mode) override;
    int close(int fd) override;
    ssize_t pread(int fd, void* out, size_t size, off_t offset) override;
    ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) override;
    int fsync(int fd) override;
    int fallocate(int fd, off_t size) override;
    int ftruncate(int fd, off_t size) override;
    int flock(int fd, int operation) override;
    int rename(const char* from, const char* to) override;
    int exchange(const char* a, const char* b) override;
    int unlink(const char* path) override;
    int mkdir(const char* path, mode_t mode) override;
    int rmdir(const char* path) override;

  private:
    bool refuses_exchange_ = false;
    enum class Call { plain, allocating, write };
    // A change of a directory that is not yet durable.
    struct Change {
        enum class Kind { made, made_directory, renamed, exchanged, removed, removed_directory } kind;
        std::string path, other;  // `other`: where a renamed entry came from, or the partner of an exchange
        std::string saved;        // a hard link to the file that was removed or replaced; may be empty
    };
    bool refused(Call call);  // counts; true with errno set if the call must fail
    std::string save(const std::string& path);
    void undo(const Change& change);
    void move_tracking(const std::string& from, const std::string& to);

    Fault fault_;
    int64_t at_;
    int error_;
    int64_t operations_ = 0, saves_ = 0;
    bool happened_ = false, frozen_ = false, shorten_ = false;
    std::map<int, std::string> open_;         // descriptor -> path
    std::map<std::string, int64_t> durable_;  // files written here: bytes that survive
    std::vector<Change> changes_;
};

}  // namespace longreach::test
