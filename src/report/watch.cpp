#include "report/watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "io/file.h"
#include "report/run_list.h"

namespace longreach::report {

namespace {

constexpr int deepest = 8;  // of a sweep: <run>/eval/<label>/sets/<set>/val.csv

bool is_record(const std::string& name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos || name == "tables.txt") return false;
    const std::string kind = name.substr(dot);
    return kind == ".csv" || kind == ".jsonl" || kind == ".json" || kind == ".txt";
}

void add_state(const std::string& directory, int depth, std::string& out) {
    std::vector<std::string> names;
    try {
        names = io::list_directory(directory);
    } catch (const Error&) {
        return;  // not there yet, or gone again
    }
    for (const std::string& name : names) {
        const std::string path = io::join_path(directory, name);
        struct stat status {};
        if (name == "checkpoints" || ::lstat(path.c_str(), &status) != 0) continue;
        if (S_ISDIR(status.st_mode) && depth < deepest)
            add_state(path, depth + 1, out);
        else if (S_ISREG(status.st_mode) && is_record(name))
            out += fmt::format("{} {} {}.{}\n", path, status.st_size, status.st_mtim.tv_sec,
                               status.st_mtim.tv_nsec);
    }
}

}  // namespace

uint64_t records_state(const std::vector<std::string>& paths) {
    std::string all;
    for (const std::string& path : paths) add_state(path, 0, all);
    return xxh64(all);
}

bool any_in_use(const std::vector<std::string>& paths) {
    return std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
        if (is_in_use(path)) return true;  // a sweep, also between two of its runs
        const std::vector<RunSummary> runs = list_runs(path);
        return std::any_of(runs.begin(), runs.end(),
                           [](const RunSummary& run) { return run.state == RunState::running; });
    });
}

bool wait_for(std::chrono::milliseconds duration, const std::function<bool()>& stopped) {
    constexpr std::chrono::milliseconds slice(100);
    for (; duration.count() > 0 && !stopped(); duration -= slice)
        std::this_thread::sleep_for(std::min(duration, slice));
    return !stopped();
}

}  // namespace longreach::report
