// What a process needs before anything else works: a stack, and a way to report an error that cannot fail.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace longreach {

// "error: ..." and "hint: ..." (unless empty) on standard error; control characters other than newlines are
// shown as escapes, since messages contain file names. Output that cannot be written is dropped.
void print_error(std::string_view message, std::string_view hint = {}) noexcept;

// Waits while standard error is full; text that cannot be written is dropped. Allocates nothing.
void write_to_stderr(std::string_view text) noexcept;

// Runs `body` where the stack has at least 8 MiB, whatever `ulimit -s` says, and gives as much to
// every thread that is started from then on without a size of its own. The result is that of body(),
// which must not throw.
int with_enough_stack(const std::function<int()>& body);

std::string host_name();  // "unknown" if the system does not say

// Writing a file beyond RLIMIT_FSIZE then fails with EFBIG instead of ending the process.
void ignore_file_size_signal();

}  // namespace longreach
