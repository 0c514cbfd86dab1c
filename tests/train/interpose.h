// Replaces three calls of the C library in this test program, so that a stop signal or a full disk occurs at
// an exact step instead of at an approximate time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longreach::test {

// Raises `signal` while the record of training step `step` is being written; 0: never.
void raise_at_step(int64_t step, int signal);

// Raises `signal` in the `count`-th read of exactly `size` bytes from now on; count 0: never.
void raise_at_read(size_t size, int count, int signal);

// From the record of training step `step` on, repeated reads of the same bytes differ; 0: never.
void waver_after_step(int64_t step);

// The next `count` reservations of disk space fail with ENOSPC.
void refuse_space(int count);

// While set, writes to event files fail with ENOSPC.
void refuse_event_bytes(bool refuse);

}  // namespace longreach::test
