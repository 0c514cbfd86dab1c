#include "base/process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "base/terminal.h"
#include "base/text.h"

namespace longreach {

namespace {

constexpr size_t enough_stack = size_t{8} << 20;

struct Body {
    const std::function<int()>* run;
    int result = 0;
};

void* run_body(void* argument) {
    Body& body = *static_cast<Body*>(argument);
    body.result = (*body.run)();
    return nullptr;
}

}  // namespace

void write_to_stderr(std::string_view text) noexcept {
    while (!text.empty()) {
        const ssize_t done = ::write(STDERR_FILENO, text.data(), text.size());
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EAGAIN) {
            pollfd p{STDERR_FILENO, POLLOUT, 0};
            ::poll(&p, 1, 1000);
            continue;
        }
        if (done <= 0) return;
        text.remove_prefix(static_cast<size_t>(done));
    }
}

void print_error(std::string_view message, std::string_view hint) noexcept {
    try {
        std::string text;
        // Newlines are kept; other characters that could control a terminal are shown as escapes.
        const auto add = [&](std::string_view label, std::string_view what) {
            text += label;
            for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
                end = what.find('\n', begin);
                text += one_line(what.substr(begin, end - begin)) + "\n";
            }
        };
        add("error: ", message);
        if (!hint.empty()) add("hint: ", hint);
        write_to_stderr(wrapped(text, terminal_width(STDERR_FILENO)));
    } catch (...) {  // no memory to put it together
        write_to_stderr("error: ");
        write_to_stderr(message);
        write_to_stderr("\n");
    }
}

int with_enough_stack(const std::function<int()>& body) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return body();
    // The pool's threads and the loader's have the default size, which the C library took from the limit.
    size_t usual = 0;
    if (::pthread_getattr_default_np(&attributes) == 0 &&
        ::pthread_attr_getstacksize(&attributes, &usual) == 0 && usual < enough_stack &&
        ::pthread_attr_setstacksize(&attributes, enough_stack) == 0)
        ::pthread_setattr_default_np(&attributes);

    rlimit limit{};
    const bool enough = ::getrlimit(RLIMIT_STACK, &limit) == 0 &&
                        (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= enough_stack);
    Body argument{&body};
    pthread_t thread;
    const bool started = !enough && ::pthread_attr_setstacksize(&attributes, enough_stack) == 0 &&
                         ::pthread_create(&thread, &attributes, run_body, &argument) == 0;
    ::pthread_attr_destroy(&attributes);
    if (!started) return body();
    ::pthread_join(thread, nullptr);
    return argument.result;
}

std::string host_name() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void ignore_file_size_signal() {
    std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace longreach
