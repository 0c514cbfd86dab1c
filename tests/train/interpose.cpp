#include "train/interpose.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <string_view>

namespace {

std::string wanted_record;
int wanted_signal = 0;
int refusals = 0;
bool events_refused = false;

}  // namespace

namespace longreach::test {

void raise_at_step(int64_t step, int signal) {
    wanted_record = step > 0 ? "{\"step\":" + std::to_string(step) + ",\"tokens\":" : "";
    wanted_signal = signal;
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
    if (events_refused && text.find("brain.Event:2") != text.npos) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

extern "C" int posix_fallocate(int fd, off_t offset, off_t size) {
    if (refusals > 0) {
        --refusals;
        return ENOSPC;
    }
    return syscall(SYS_fallocate, fd, 0, offset, size) == 0 || errno == EOPNOTSUPP ? 0 : errno;
}
