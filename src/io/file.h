// Files and directories.
//
// Every failure is an Error that names the path and the system's reason: ExitCode::data if what was to be
// read is missing or of the wrong kind, ExitCode::disk otherwise. Interrupted and short transfers are
// continued. Nothing is memory-mapped, so a file truncated by another process is an error and not a
// signal. Offsets are 64-bit.
//
// This header never opens a path found inside a file: names are given by the user or
// made by this program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "io/disk.h"

namespace longreach::io {

// Whether a symbolic link in the last component of a path is followed: yes for what the user named (data sets
// are often links), no inside directories that belong to this program.
enum class Links { follow, refuse };

// Somewhere bytes can be written to in order.
class ByteSink {
  public:
    virtual ~ByteSink() = default;
    virtual void write(const void* data, size_t size) = 0;
    void write(std::string_view text) { write(text.data(), text.size()); }
};

// Where writes go: to the given position, or always to the end of the file.
enum class Writes { placed, appended };

// An open regular file; owns the descriptor. Movable. The destructor closes without a check: call close()
// after writing, for that is where some file systems report a full disk.
class File final : public ByteSink {
  public:
    File() = default;
    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;
    ~File() override;

    static File create(const std::string& path, Disk& disk = Disk::system());  // must not exist; for writing
    static File open(const std::string& path, Links links, Disk& disk = Disk::system());  // for reading
    // For reading and writing; made if it is missing. Error(ExitCode::disk) for a link, a FIFO and whatever
    // else is not a regular file.
    static File open_or_create(const std::string& path, Writes writes, Disk& disk = Disk::system());
    // A directory, for lock() and is_at() only.
    static File open_directory(const std::string& path, Disk& disk = Disk::system());

    using ByteSink::write;
    void write(const void* data, size_t size) override;  // appends
    void write_at(const void* data, size_t size, uint64_t offset);
    void reserve(
        uint64_t bytes);  // takes the space now, so that a full disk shows before anything is written
    void truncate(uint64_t bytes);
    void sync();  // durable on return; after a failure the file must be thrown away, never synced again
    void close();

    void read_at(void* out, size_t size, uint64_t offset) const;  // all of it, or an Error
    uint64_t size() const;
    // Takes the kernel's exclusive lock (flock) without waiting. Error(ExitCode::disk)
    // if that fails otherwise.
    enum class Lock { taken, busy, unsupported };
    Lock lock();
    // Whether path() still names this file or directory, compared by device and inode.
    bool is_at_path(Links links) const;
    // For messages about a file that is not at its path: "was moved to /elsewhere", "was removed".
    std::string whereabouts() const;
    bool is_open() const { return fd_ >= 0; }
    const std::string& path() const { return path_; }

  private:
    File(int fd, std::string path, Disk& disk) : fd_(fd), path_(std::move(path)), disk_(&disk) {}
    int fd_ = -1;
    uint64_t position_ = 0;  // where write() continues
    std::string path_;
    Disk* disk_ = nullptr;
};

// A file that appears under its name complete and durable, or not at all. It is written under a temporary
// name in the same directory, and locked there; without commit() the destructor removes it. What a killed
// writer of the same file left is removed first: a temporary file of that name which nobody locks.
class AtomicFile final : public ByteSink {
  public:
    explicit AtomicFile(std::string path, Disk& disk = Disk::system());
    ~AtomicFile() override;
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    using ByteSink::write;
    void write(const void* data, size_t size) override { file_.write(data, size); }
    File& file() { return file_; }
    void commit();  // replaces any file of that name

  private:
    std::string path_;
    Disk* disk_;
    File file_;
    bool committed_ = false;
};

void write_file_atomically(const std::string& path, std::string_view content, Disk& disk = Disk::system());

// The file that an AtomicFile writes under the temporary name `name`; empty for every other name.
std::string_view target_of_temporary(std::string_view name);

// The whole file; refuses one longer than `limit` bytes before allocating anything.
std::string read_file(const std::string& path, uint64_t limit, Links links, Disk& disk = Disk::system());

enum class PathKind { missing, file, directory, other };
PathKind kind_of(const std::string& path, Links links);

std::vector<std::string> list_directory(const std::string& path);  // names in byte order, without . and ..
std::vector<std::string> expand_pattern(
    const std::string& pattern);  // paths matching a shell pattern, byte order

void make_directories(const std::string& path, Disk& disk = Disk::system());  // with parents; may exist
void make_directory(const std::string& path, Disk& disk = Disk::system());    // must not exist
void sync_directory(const std::string& path, Disk& disk = Disk::system());    // makes its entries durable
void rename_path(const std::string& from, const std::string& to, Disk& disk = Disk::system());
// Exchanges two entries atomically; false if the file system cannot.
bool exchange_paths(const std::string& a, const std::string& b, Disk& disk = Disk::system());
void remove_file(const std::string& path, Disk& disk = Disk::system());  // no error if missing
void remove_tree(const std::string& path, Disk& disk = Disk::system());  // links are removed, not followed

// Throws what making an entry in `directory`, or in the nearest of its parents that exists,
// would throw; leaves nothing there.
void require_writable(const std::string& directory, Disk& disk = Disk::system());

uint64_t free_bytes(const std::string& directory);  // available to this user
std::string join_path(std::string_view directory, std::string_view name);
std::string parent_path(std::string_view path);  // "." if there is none
std::string base_name(std::string_view path);
std::string unique_suffix();  // 16 hexadecimal digits, different at each call

}  // namespace longreach::io
