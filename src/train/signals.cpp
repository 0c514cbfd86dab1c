#include "train/signals.h"

#include <csignal>
#include <cstdlib>
#include <unistd.h>

namespace longreach {

namespace {

// A handler can reach nothing but static storage; this is the only such variable of the program.
volatile std::sig_atomic_t received_signal = 0;

constexpr int stop_signals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT};

void on_signal(int signal) {
    if (signal == SIGINT && received_signal == SIGINT) _exit(128 + SIGINT);
    received_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
    received_signal = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (int signal : stop_signals) sigaction(signal, &action, nullptr);
}

StopSignals::~StopSignals() {
    for (int signal : stop_signals) std::signal(signal, SIG_DFL);
}

int StopSignals::received() {
    return received_signal;
}

}  // namespace longreach
