#include "report/run_list.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "base/json.h"
#include "base/nearest_path.h"
#include "config/loader.h"
#include "io/checkpoint_dir.h"
#include "eval/tables.h"
#include "io/file.h"
#include "train/experiment.h"
#include "train/step_records.h"

namespace longreach::report {

namespace {

constexpr int deepest = 3;  // runs/reference/<sweep>/<run>

enum class Holder { none, alive, gone };

// A holder writes its name into the lock file and empties the file when it ends cleanly. The shared lock is
// requested only if there is a name, so that a process starting at this moment is not refused.
Holder holder_of(const std::string& run) {
    const std::string path = io::join_path(run, "lock");
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return Holder::none;
    struct stat status {};
    Holder holder = Holder::none;
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        const bool free = ::flock(fd, LOCK_SH | LOCK_NB) == 0;
        holder = free ? Holder::gone : Holder::alive;
    }
    ::close(fd);
    return holder;
}

bool has_file(const std::string& run, const char* name) {
    return io::kind_of(io::join_path(run, name), io::Links::refuse) != io::PathKind::missing;
}

bool is_run(const std::string& path) {
    for (const char* name : {"config.json", "metrics.jsonl", "val.csv", "checkpoints"})
        if (has_file(path, name)) return true;
    return false;
}

double age_of(const std::string& run) {
    double newest = -1;
    for (const char* name : {"metrics.jsonl", "val.csv", "log.txt", "checkpoints", "config.json"}) {
        struct stat status {};
        if (::lstat(io::join_path(run, name).c_str(), &status) != 0) continue;
        newest = std::max(newest, static_cast<double>(status.st_mtim.tv_sec) +
                                      1e-9 * static_cast<double>(status.st_mtim.tv_nsec));
    }
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return newest < 0 ? static_cast<double>(NAN) : std::max(0.0, now - newest);
}

int64_t planned_steps(const std::string& run) {
    const std::string path = io::join_path(run, "config.json");
    json::ParseOptions options;
    options.code = ExitCode::data;
    json::parse(io::read_file(path, uint64_t{1} << 24, io::Links::refuse), path,
                options);  // damaged if it throws
    try {
        return config::load_config<train::Experiment>({.file = path}).value.total_steps();
    } catch (const Error&) {
        return 0;  // of a version that no longer loads
    }
}

void read_records(const std::string& run, RunSummary& out) {
    if (const auto last = train::metrics_file.last(run)) {
        require(last->step > 0, ExitCode::data, "{}/metrics.jsonl: the last line has no step", run);
        out.step = last->step;
        out.loss = last->loss;
    }
    if (!has_file(run, "val.csv")) return;
    int64_t newest = -1;
    for (const eval::LossRow& row : eval::val_file.read(run)) {
        if (row.step < newest || (row.step == newest && row.length < out.length)) continue;
        newest = row.step;
        out.length = row.length;
        out.validation = row.loss;
    }
    out.step = std::max(out.step, newest);
}

bool gave_up(const std::string& run) {
    if (!has_file(run, "log.txt")) return false;
    const std::string line = io::last_line(io::join_path(run, "log.txt"));
    return line.find("giving up") != std::string::npos || line.find("error:") != std::string::npos;
}

RunState state_of(const std::string& run, RunSummary& out) {
    const Holder holder = holder_of(run);
    if (holder == Holder::alive) return RunState::running;
    const std::string checkpoints = io::join_path(run, "checkpoints");
    bool any = false;
    if (io::kind_of(checkpoints, io::Links::refuse) == io::PathKind::directory) {
        const std::vector<int64_t> steps = io::checkpoint_steps(checkpoints);
        any = !io::list_directory(checkpoints).empty();
        require(!any || !steps.empty() || out.step == 0, ExitCode::checkpoint, "{}: no checkpoint is whole",
                checkpoints);
        // Records after the newest checkpoint are cut off on resuming; until then they show the progress.
        if (!steps.empty()) out.step = std::max(out.step, steps[0]);
    }
    if (out.steps > 0 && out.step >= out.steps) return RunState::finished;
    if (holder == Holder::gone || gave_up(run)) return RunState::failed;
    return out.step > 0 || any ? RunState::stopped : RunState::unknown;
}

RunSummary summary_of(const std::string& run, const std::string& name) {
    RunSummary out;
    out.name = name;
    out.age = age_of(run);
    try {
        out.steps = planned_steps(run);
        read_records(run, out);
        out.state = state_of(run, out);
    } catch (const std::exception& e) {
        out.state = RunState::damaged;
        out.problem = e.what();
    }
    return out;
}

void add_runs(const std::string& path, const std::string& name, int depth, std::vector<RunSummary>& out) {
    if (is_run(path)) {
        out.push_back(summary_of(path, name.empty() ? io::base_name(path) : name));
        return;
    }
    if (depth == deepest) return;
    std::vector<std::string> entries;
    try {
        entries = io::list_directory(path);
    } catch (const Error&) {
        if (depth == 0) throw;
        return;  // not readable by this user
    }
    for (const std::string& entry : entries) {
        const std::string below = io::join_path(path, entry);
        if (entry[0] == '.' || io::kind_of(below, io::Links::refuse) != io::PathKind::directory) continue;
        add_runs(below, name.empty() ? entry : io::join_path(name, entry), depth + 1, out);
    }
}

}  // namespace

bool is_in_use(const std::string& directory) {
    return holder_of(directory) == Holder::alive;
}

const char* name_of(RunState state) {
    constexpr std::array names{"running", "finished", "stopped", "failed", "damaged", "new"};
    return names[static_cast<size_t>(state)];
}

std::vector<RunSummary> list_runs(const std::string& directory) {
    require(io::kind_of(directory, io::Links::follow) == io::PathKind::directory, ExitCode::data,
            "{} is not a directory{}", directory, path_suggestion(directory));
    std::vector<RunSummary> out;
    add_runs(directory, "", 0, out);
    return out;
}

}  // namespace longreach::report
