#include "train/signals.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace longreach::train {

namespace {

// A signal handler can access only static storage; this is the only such variable of the program. Atomic because
// the handler runs in any thread, and where ranks are threads each of them has a StopSignals.
std::atomic<int> received_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // what a handler may use

void remember(int signal) {
    if (signal == SIGINT && received_signal == SIGINT) _exit(128 + SIGINT);
    received_signal = signal;
}

// Makes only calls that are safe in a signal handler.
void end_process(int) {
    constexpr std::string_view text = "stopped before the first step; the same command starts again\n";
    const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
    static_cast<void>(ignored);
    _exit(static_cast<int>(ExitCode::stopped));
}

void install(int signal, void (*handler)(int), struct sigaction* before) {
    struct sigaction old {};
    sigaction(signal, nullptr, &old);
    if (before != nullptr) *before = old;
    if (signal == SIGHUP && old.sa_handler == SIG_IGN) return;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
}

sigset_t stop_signal_set() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : StopSignals::numbers) sigaddset(&set, signal);
    return set;
}

}  // namespace

void end_at_stop_signals() {
    for (const int signal : StopSignals::numbers) install(signal, end_process, nullptr);
    unblock_stop_signals();
}

void unblock_stop_signals() {
    const sigset_t set = stop_signal_set();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

BlockedStopSignals::BlockedStopSignals() {
    const sigset_t set = stop_signal_set();
    pthread_sigmask(SIG_BLOCK, &set, &before_);
}

BlockedStopSignals::~BlockedStopSignals() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

StopSignals::StopSignals() {
    received_signal = 0;
    for (size_t i = 0; i < numbers.size(); ++i) install(numbers[i], remember, &before_[i]);
}

StopSignals::~StopSignals() {
    for (size_t i = 0; i < numbers.size(); ++i) {
        if (before_[i].sa_handler == end_process) continue;
        // Several objects may exist at once if ranks are threads: the last one destroyed must not restore
        // the handler of another.
        if (before_[i].sa_handler == remember) before_[i].sa_handler = SIG_DFL;
        sigaction(numbers[i], &before_[i], nullptr);
    }
}

int StopSignals::received() {
    return received_signal;
}

}  // namespace longreach::train
