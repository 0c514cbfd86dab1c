#include "sweep/sweep_queue.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <thread>

#include "base/text.h"
#include "base/units.h"
#include "eval/tables.h"
#include "io/checkpoint_dir.h"
#include "io/run_lock.h"
#include "sweep/child_process.h"
#include "train/run_directory.h"
#include "train/signals.h"
#include "train/step_records.h"

namespace longreach::sweep {

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t largest_small_file = 1 << 20;

// The hash of a file's content; "" if the file does not exist.
std::string fingerprint(const std::string& path, uint64_t limit) {
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return "";
    return format_hash64(xxh64(io::read_file(path, limit, io::Links::refuse)));
}

std::string checkpoint_fingerprint(const PlannedRun& run) {
    const std::string root = io::join_path(run.directory, "checkpoints");
    const std::vector<int64_t> steps = io::checkpoint_steps(root);
    if (steps.empty()) return "";
    // The manifest holds the checksum of every other file.
    return fingerprint(io::join_path(io::join_path(root, io::checkpoint_name(steps[0])), "manifest.json"),
                       largest_small_file);
}

std::string evaluation_directory(const PlannedRun& run, const PlannedEvaluation& e) {
    return io::join_path(io::join_path(run.directory, "eval"), e.label);
}

// The content of asked.json, which is written once an evaluation is complete.
std::string asked_text(const PlannedRun& run, const PlannedEvaluation& e) {
    // Without the run directory, which has many possible names.
    const auto list = [](const std::vector<std::string>& texts) {
        json::Array out(texts.begin(), texts.end());
        if (out.size() > 1) out.erase(out.begin() + 1);
        return out;
    };
    // Results of earlier versions have no fingerprints, so they cannot be compared with new ones.
    return json::write(
        json::Value::object(
            {{"fingerprints", true},
             {"eval", list(e.arguments)},
             {"probe", list(e.probe_arguments)},
             {"checkpoint", checkpoint_fingerprint(run)},
             {"request",
              fingerprint(io::join_path(evaluation_directory(run, e), "request.json"), largest_small_file)}}),
        json::Style::pretty);
}

// The last line of metrics.jsonl; a default row if there is none or it cannot be read.
train::MetricsRow last_step(const std::string& directory) {
    try {
        return train::metrics_file.last(directory).value_or(train::MetricsRow());
    } catch (const Error&) {
        return {};
    }
}

// "256 0.8534  4096 2.3484": the lengths and losses of a val.csv.
std::string losses(const std::string& directory) {
    std::string out;
    for (const eval::LossRow& row : eval::val_file.read(directory))
        out += fmt::format("  {} {:.6}", row.length, io::cell_text(row.loss, io::Column::plain));
    return out;
}

std::string config_path(const SweepPlan& plan, const PlannedRun& run) {
    return io::join_path(plan.directory, "configs/" + run.name + ".json");
}

class Queue {
  public:
    Queue(const SweepPlan& plan, const SweepOptions& options, train::Console& console)
        : plan_(plan), options_(options), console_(console) {}

    SweepOutcome work() {
        for (const PlannedRun& run : plan_.runs) add(run);
        const train::StopSignals signals;
        while (true) {
            collect();
            if (train::StopSignals::received() != 0) {
                if (!stopping_) console_.line("stopping: each run saves a checkpoint first");
                stopping_ = true;
                for (auto& task : running_) task->child->terminate();
            } else {
                start_some();
            }
            if (running_.empty() && (stopping_ || waiting_.empty())) break;
            show();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        outcome_.stopped = stopping_;
        outcome_.left += waiting_.size();
        console_.clear_status();
        return outcome_;
    }

  private:
    // Commands of one run that belong together; each starts when the previous one has succeeded.
    struct Task {
        const PlannedRun* run = nullptr;
        const PlannedEvaluation* evaluation = nullptr;  // null: training
        std::deque<std::vector<std::string>> commands;
        std::unique_ptr<ChildProcess> child;
        Clock::time_point begun;
        bool told_waiting = false;
        std::string log;
        std::string name() const { return run->name + (evaluation ? "  " + evaluation->label : ""); }
    };
    using TaskPtr = std::unique_ptr<Task>;

    void add(const PlannedRun& run) {
        if (run.state == RunState::trained) {
            if (!options_.goes_on)
                console_.line(fmt::format("{}  trained already, {} steps", run.name, run.step));
            ++outcome_.done;
            add_evaluations(run, waiting_.end());
            return;
        }
        auto task = std::make_unique<Task>();
        task->run = &run;
        task->commands.push_back({"train", config_path(plan_, run)});
        if (run.starts_over) task->commands.back().emplace_back("--fresh");
        task->log = io::join_path(plan_.directory, "logs/" + run.name + ".log");
        waiting_.push_back(std::move(task));
    }

    void add_evaluations(const PlannedRun& run, std::deque<TaskPtr>::iterator where) {
        std::vector<TaskPtr> tasks;
        for (const PlannedEvaluation& e : run.evaluations) {
            if (is_evaluated(run, e)) {
                if (!options_.goes_on) console_.line(fmt::format("{}  {}  done already", run.name, e.label));
                ++outcome_.done;
                continue;
            }
            auto task = std::make_unique<Task>();
            task->run = &run;
            task->evaluation = &e;
            for (std::vector<std::string> command : {e.arguments, e.probe_arguments}) {
                if (command.empty()) continue;
                command.insert(command.end(), {"--set", fmt::format("system.threads={}", plan_.threads)});
                task->commands.push_back(std::move(command));
            }
            task->log = io::join_path(plan_.directory, fmt::format("logs/{}.{}.log", run.name, e.label));
            tasks.push_back(std::move(task));
        }
        waiting_.insert(where, std::make_move_iterator(tasks.begin()), std::make_move_iterator(tasks.end()));
    }

    // The holder of the run's directory: a process of an earlier
    // sweep that is still saving, or a run started by hand.
    static std::string holder(const PlannedRun& run) {
        if (io::kind_of(io::join_path(run.directory, "lock"), io::Links::refuse) != io::PathKind::file)
            return "";
        try {
            const io::RunLock lock(run.directory);
            return "";
        } catch (const Error& e) {
            if (e.code() != ExitCode::locked) throw;
            return e.what();
        }
    }

    // Whether the run whose weights this one starts from is still to be trained. One that failed is not waited for:
    // the run then fails, too, and says why.
    bool awaits_weights(const Task& task) const {
        const auto trains_it = [&](const TaskPtr& other) {
            return !other->evaluation && other->run->directory == task.run->after;
        };
        return !task.evaluation && !task.run->after.empty() &&
               (std::any_of(waiting_.begin(), waiting_.end(), trains_it) ||
                std::any_of(running_.begin(), running_.end(), trains_it));
    }

    // Starts waiting tasks while there is room. Not yet: those that need the weights of another run first, and those
    // whose directory another process holds.
    void start_some() {
        const Clock::time_point now = Clock::now();
        for (size_t i = 0; i < waiting_.size() && running_.size() < static_cast<size_t>(plan_.jobs);) {
            Task& task = *waiting_[i];
            if (awaits_weights(task)) {
                ++i;
                continue;
            }
            if (!task.evaluation && (!task.told_waiting || now >= ask_again_)) {
                const std::string held = holder(*task.run);
                if (!held.empty()) {
                    if (!task.told_waiting) console_.line(fmt::format("{}  waits: {}", task.name(), held));
                    task.told_waiting = true;
                    ++i;
                    continue;
                }
            } else if (task.told_waiting) {
                ++i;
                continue;
            }
            TaskPtr next = std::move(waiting_[i]);
            waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
            start(std::move(next));
        }
        if (now >= ask_again_) ask_again_ = now + std::chrono::milliseconds(200);
    }

    void start(TaskPtr task) {
        task->begun = Clock::now();
        if (!task->evaluation) {
            const RunFound found = look_at_run(task->run->directory, task->run->experiment);
            if (found.state == RunState::trained && !task->run->starts_over) {  // by the previous holder
                console_.line(fmt::format("{}  trained already, {} steps", task->name(), found.step));
                ++outcome_.done;
                add_evaluations(*task->run, waiting_.begin());
                return;
            }
            console_.line(task->run->starts_over ? task->name() + "  starts over: its data changed"
                          : found.state == RunState::begun
                              ? fmt::format("{}  resumes after step {}", task->name(), found.step)
                              : fmt::format("{}  starts", task->name()));
        } else {
            // If this evaluation fails halfway, results of an earlier request must not pass for its own.
            io::remove_file(io::join_path(evaluation_directory(*task->run, *task->evaluation), "asked.json"));
        }
        launch(*task);
        running_.push_back(std::move(task));
    }

    void launch(Task& task) {
        task.child = std::make_unique<ChildProcess>(options_.program, task.commands.front(), task.log);
        task.commands.pop_front();
    }

    void collect() {
        for (size_t i = 0; i < running_.size();) {
            Task& task = *running_[i];
            const std::optional<ProcessEnd> end = task.child->ended();
            if (!end || (end->ok() && !stopping_ && !task.commands.empty())) {
                if (end) launch(task);
                ++i;
                continue;
            }
            const TaskPtr ended = std::move(running_[i]);
            running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
            if (end->ok() && ended->commands.empty()) {
                finished(*ended);
            } else if (stopping_) {
                ++outcome_.left;
                const std::vector<int64_t> steps =
                    io::checkpoint_steps(io::join_path(ended->run->directory, "checkpoints"));
                const int64_t step = ended->evaluation || steps.empty() ? 0 : steps[0];
                console_.line(step > 0 ? fmt::format("{}  stopped after step {}", ended->name(), step)
                                       : fmt::format("{}  stopped", ended->name()));
            } else {
                failed(*ended, *end);
            }
            if (options_.on_progress) options_.on_progress();
        }
    }

    void finished(const Task& task) {
        ++outcome_.done;
        const double seconds = std::chrono::duration<double>(Clock::now() - task.begun).count();
        if (task.evaluation) {
            const std::string directory = evaluation_directory(*task.run, *task.evaluation);
            io::make_directories(directory);
            io::write_file_atomically(io::join_path(directory, "asked.json"),
                                      asked_text(*task.run, *task.evaluation));
            console_.line(fmt::format("{}{}  {}", task.name(), losses(directory), human_duration(seconds)));
            return;
        }
        const train::MetricsRow last = last_step(task.run->directory);
        console_.line(fmt::format("{}  trained {} steps  loss {:.4f}  {}", task.name(), last.step, last.loss,
                                  human_duration(seconds)));
        add_evaluations(*task.run, waiting_.begin());
    }

    void failed(const Task& task, const ProcessEnd& end) {
        ++outcome_.failed;
        if (!task.evaluation) outcome_.left += task.run->evaluations.size();
        std::string lines;
        for (const std::string& line : last_lines(task.log, 5)) lines += "\n    " + line;
        console_.line(
            fmt::format("{}  failed: {}; the end of {}:{}", task.name(), to_string(end), task.log, lines));
    }

    void show() {
        std::string text = fmt::format("{} done", outcome_.done);
        if (outcome_.failed > 0) text += fmt::format(", {} failed", outcome_.failed);
        text += fmt::format(", {} waiting", waiting_.size());
        for (const TaskPtr& task : running_) {
            text += "  | " + task->name();
            if (task->evaluation) continue;
            const train::MetricsRow last = last_step(task->run->directory);
            if (last.step > 0)
                text +=
                    fmt::format(" {}/{} {:.3f}", last.step, task->run->experiment.total_steps(), last.loss);
        }
        constexpr size_t widest = 110;  // a line that wraps cannot be redrawn
        if (text.size() > widest) text.replace(widest - 3, std::string::npos, "...");
        if (text == shown_) return;
        shown_ = text;
        console_.status(text);
    }

    const SweepPlan& plan_;
    const SweepOptions& options_;
    train::Console& console_;
    std::deque<TaskPtr> waiting_;
    std::vector<TaskPtr> running_;
    Clock::time_point ask_again_;
    bool stopping_ = false;
    std::string shown_;
    SweepOutcome outcome_;
};

}  // namespace

bool is_evaluated(const PlannedRun& run, const PlannedEvaluation& evaluation) {
    const std::string path = io::join_path(evaluation_directory(run, evaluation), "asked.json");
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return false;
    return io::read_file(path, largest_small_file, io::Links::refuse) == asked_text(run, evaluation);
}

SweepOutcome run_sweep(const SweepPlan& plan, const SweepOptions& options, train::Console& console) {
    io::make_directories(plan.directory);
    const io::RunLock lock(plan.directory);
    const auto needed = static_cast<uint64_t>(plan.disk_bytes()), available = io::free_bytes(plan.directory);
    if (needed > available)
        throw Error(ExitCode::disk,
                    fmt::format("the sweep needs {} for checkpoints, {} has {} free",
                                human_bytes(static_cast<int64_t>(needed)), plan.directory,
                                human_bytes(static_cast<int64_t>(available))),
                    "free some, choose another dir, or train fewer runs at a time (--jobs)");
    io::make_directories(io::join_path(plan.directory, "configs"));
    io::make_directories(io::join_path(plan.directory, "logs"));
    io::write_file_atomically(io::join_path(plan.directory, "sweep.json"), sweep_json(plan));
    for (const PlannedRun& run : plan.runs) {
        io::write_file_atomically(train::origins_beside(config_path(plan, run)), run.origins);
        io::write_file_atomically(config_path(plan, run), run.resolved);
    }
    if (!options.goes_on) console.open_log(io::join_path(plan.directory, "log.txt"));
    Queue queue(plan, options, console);
    return queue.work();
}

}  // namespace longreach::sweep
