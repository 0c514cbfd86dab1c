#include "train/interpose.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <string_view>

namespace {

std::string wanted_record;
int wanted_signal = 0;
int refusals = 0;
bool events_refused = false;
std::atomic<int> reads_left = 0;  // the loader's thread reads, too
size_t wanted_size = 0;
std::string wavering_record;
std::atomic<bool> wavering = false;
std::atomic<unsigned> wavers = 0;

}  // namespace

namespace longreach::test {

static std::string record_of(int64_t step) {
    return step > 0 ? "{\"step\":" + std::to_string(step) + ",\"tokens\":" : "";
}

void raise_at_step(int64_t step, int signal) {
    wanted_record = record_of(step);
    wanted_signal = signal;
}

void raise_at_read(size_t size, int count, int signal) {
    wanted_size = size;
    wanted_signal = signal;
    reads_left = count;
}

void waver_after_step(int64_t step) {
    wavering_record = record_of(step);
    wavering = false;
}

void refuse_space(int count) {
    refusals = count;
}

void refuse_event_bytes(bool refuse) {
    events_refused = refuse;
}

}  // namespace longreach::test

extern "C" ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
    const std::string_view text(static_cast<const char*>(data), size);
    if (!wanted_record.empty() && text.starts_with(wanted_record)) std::raise(wanted_signal);
    if (!wavering_record.empty() && text.starts_with(wavering_record)) wavering = true;
    if (events_refused && text.find("brain.Event:2") != text.npos) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

extern "C" ssize_t pread(int fd, void* data, size_t size, off_t offset) {
    if (size == wanted_size && reads_left > 0 && --reads_left == 0) std::raise(wanted_signal);
    const ssize_t read = syscall(SYS_pread64, fd, data, size, offset);
    // Tokens of sequences (manifests and weights are longer), and of them bytes, not the marker of documents.
    auto* bytes = static_cast<unsigned char*>(data);
    // By a hash of the number of the read: a mask of small period would repeat itself when a step is read again.
    if (wavering && read > 16 && read < 130 && bytes[1] == 0) bytes[0] ^= ++wavers * 2654435761u >> 30;
    return read;
}

extern "C" int posix_fallocate(int fd, off_t offset, off_t size) {
    if (refusals > 0) {
        --refusals;
        return ENOSPC;
    }
    return syscall(SYS_fallocate, fd, 0, offset, size) == 0 || errno == EOPNOTSUPP ? 0 : errno;
}
