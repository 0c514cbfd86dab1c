#include "base/contention.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace longreach {

namespace {

double process_seconds() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double share(double part, double whole) {
    return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0.0;
}

}  // namespace

ContentionMeter::ContentionMeter(std::string root) : root_(std::move(root)), before_(count()) {}

ContentionMeter::Counts ContentionMeter::count() const {
    Counts c;
    c.own = process_seconds();
    std::error_code error;
    bool threads = false;
    for (const auto& thread : std::filesystem::directory_iterator(root_ + "/proc/self/task", error)) {
        std::ifstream in(thread.path() / "schedstat");
        double running = 0, waiting = 0;  // nanoseconds
        if (!(in >> running >> waiting)) continue;
        threads = true;
        c.running += 1e-9 * running;
        c.waiting += 1e-9 * waiting;
    }
    std::ifstream in(root_ + "/proc/stat");
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;  // ticks
    in >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
    const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
    c.busy = tick * (user + nice + system + irq + softirq);
    c.stolen = tick * steal;
    c.all = c.busy + c.stolen + tick * (idle + iowait);
    c.known = threads && bool(in) && name == "cpu";
    return c;
}

Contention ContentionMeter::seen() const {
    const Counts now = count();
    if (!now.known || !before_.known) return {};
    const double running = now.running - before_.running, waiting = now.waiting - before_.waiting;
    const double all = now.all - before_.all, busy = now.busy - before_.busy;
    return {.known = true,
            .waited = share(waiting, running + waiting),
            .others = share(busy - (now.own - before_.own), all),
            .stolen = share(now.stolen - before_.stolen, all)};
}

std::string describe(const Contention& seen) {
    if (!seen.known) return "this system does not say what other programs used";
    return fmt::format(
        "threads waited for a core {:.0f}% of their time, other programs used {:.0f}% of the cores, {:.0f}% "
        "stolen",
        100 * seen.waited, 100 * seen.others, 100 * seen.stolen);
}

}  // namespace longreach
