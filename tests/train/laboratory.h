// Tiny runs that show what a config field changes.
#pragma once

#include <filesystem>
#include <map>

#include "report/methods.h"
#include "train/tiny_run.h"

namespace longreach::test {

using Overrides = std::vector<std::string>;

// What a run shows to the outside.
enum class Seen {
    metrics,      // training losses, gradient norms, learning rates
    validation,   // val.csv, positions.csv, probe.csv and tasks.csv
    weights,      // model.safetensors of the last step
    moments,      // optimizer.safetensors
    plan,         // the planned memory
    device_line,  // the line that says what computes, or why it cannot
    checkpoints,  // which steps are kept
    directory,    // where the run is
    events,       // whether it writes for TensorBoard
    outcome,      // exit code, if not 0 with the last line of the log, or the message of the error
    rank_plan,    // the memory that the second of two ranks plans
    methods,      // what a report says about the model
    patience,     // when the watchdog of several ranks or of a GPU loses it
};

class Laboratory {
  public:
    Laboratory() {
        make_corpus(dir_ / "data");
        std::string tokens;
        for (int i = 0; i < 2000; ++i) tokens += {static_cast<char>(i * i % 251), '\0'};
        put(dir_ / "raw.bin", tokens);
        observe({"run.name=source", "run.seed=9"});
        copy_with_other_tokenizer(dir_ / "source", dir_ / "foreign");
    }

    // `@` in an override stands for the directory of this laboratory.
    std::map<Seen, std::string> observe(const Overrides& overrides) {
        Overrides all{"model.init.zero_head=false"};  // which a tied head would make a knob without effect
        for (std::string text : overrides) {
            for (size_t at; (at = text.find('@')) != std::string::npos;) text.replace(at, 1, dir_.path());
            // A path may be set only once: the later one counts.
            const std::string path = text.substr(0, text.find('=') + 1);
            std::erase_if(all, [&](const std::string& earlier) { return earlier.starts_with(path); });
            if (text == "model.head.tied=true") all.clear();
            all.push_back(text);
        }

        std::map<Seen, std::string> seen;
        const std::string log = dir_ / "log.txt";
        std::filesystem::remove(log);
        std::string run;
        try {
            const auto config = load_tiny(text_, all);
            run = io::join_path(config.value.run.dir, config.value.run.name);
            if (!run.ends_with("/source")) std::filesystem::remove_all(run);
            train::Console console(true);
            console.open_log(log);
            std::string note;
            const std::unique_ptr<Ops> ops = train::open_device(config.value.system, note);
            console.line(note);
            train::Trainer trainer(config.value, console, *ops);
            seen[Seen::rank_plan] = plan_of_second_rank(config.value, *ops);
            const ranks::WatchdogOptions watchdog = config.value.parallel.watchdog();
            seen[Seen::patience] = fmt::format("{} {} {}", watchdog.timeout, watchdog.first_timeout,
                                               train::cuda_options(config.value.system, 0).timeout);
            train::RunDirectory directory(run);
            directory.adopt_config(config::describe(config.value), config.origins);
            ranks::SingleComm comm;
            ranks::Team team;
            seen[Seen::outcome] = fmt::format("{}", static_cast<int>(trainer.run(&directory, comm, team)));
        } catch (const Error& error) {
            seen[Seen::outcome] = error.what();
            seen[Seen::device_line] = error.what();
            return seen;
        }
        seen[Seen::directory] =
            io::kind_of(run + "/metrics.jsonl", io::Links::refuse) == io::PathKind::file ? run : "nowhere";
        seen[Seen::events] =
            io::kind_of(run + "/events", io::Links::refuse) == io::PathKind::directory ? "written" : "none";
        seen[Seen::metrics] = get(run + "/metrics.jsonl");
        seen[Seen::validation] = get(run + "/val.csv") + get(run + "/positions.csv");
        for (const char* file : {"/probe.csv", "/tasks.csv", "/sets/b/val.csv"})
            if (io::kind_of(run + file, io::Links::refuse) == io::PathKind::file)
                seen[Seen::validation] += get(run + file);
        if (seen[Seen::outcome] != "0") seen[Seen::outcome] += ", " + lines_of(get(log)).back();
        for (const std::string& line : lines_of(get(log)))
            if (line.starts_with("device: ")) seen[Seen::device_line] = line;
        seen[Seen::plan] = plan_in(log);
        const report::Collection collection = report::collect({run});
        seen[Seen::methods] = report::methods_of(collection, report::summarize(collection)).text;
        if (seen[Seen::outcome] != "0") return seen;
        const std::vector<int64_t> steps = io::checkpoint_steps(run + "/checkpoints");
        seen[Seen::checkpoints] = fmt::format("{}", fmt::join(steps, " "));
        const std::string newest = io::join_path(run + "/checkpoints", io::checkpoint_name(steps.front()));
        seen[Seen::weights] = get(newest + "/model.safetensors");
        const bool moments =
            io::kind_of(newest + "/optimizer.safetensors", io::Links::refuse) == io::PathKind::file;
        seen[Seen::moments] = moments ? get(newest + "/optimizer.safetensors") : "none";
        return seen;
    }

  private:
    std::string plan_of_second_rank(const train::Experiment& experiment, Ops& ops) const {
        const std::string log = dir_ / "second.txt";
        std::filesystem::remove(log);
        train::Console console(true);
        console.open_log(log);
        try {
            const train::Trainer trainer(experiment, console, ops, 1, 2);
        } catch (const Error& error) {  // some of these runs have too few micro-batches
            return error.what();
        }
        return plan_in(log);
    }
    static std::string plan_in(const std::string& log) {
        std::string plan;
        for (const std::string& line : lines_of(get(log)))
            if (line.find("planned") != std::string::npos || line.find("activations") != std::string::npos)
                plan += line;
        return plan;
    }
    // Lines of a log without the time in front.
    static std::vector<std::string> lines_of(const std::string& text) {
        constexpr size_t stamp = std::string_view("2000-01-01 00:00:00  ").size();
        std::vector<std::string> lines;
        for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
            lines.push_back(text.substr(std::min(at + stamp, end), end - std::min(at + stamp, end)));
        return lines;
    }

    TempDir dir_;
    // Nothing starts at zero, so that every weight has a gradient in the first step.
    std::string text_ = fmt::format(R"({{
  "run": {{ "name": "run", "dir": "{0}", "log_every": 1 }},
  "model": {{
    "layers": 2, "width": 16, "mlp": {{ "hidden": 24 }}, "attention": {{ "heads": 2, "head_dim": 8 }},
    "init": {{ "zero_projections": false }}
  }},
  "data": {{ "train": ["{0}/data/train_*.bin"], "val": ["{0}/data/val_*.bin"] }},
  "stages": [{{ "steps": 2, "context": 16 }}, {{ "steps": 2, "context": 32 }}],
  "batch": {{ "tokens": 128, "micro_tokens": 32 }},
  "eval": {{ "every": 0, "lengths": [16, 64], "final_tokens": 256 }},
  "checkpoint": {{ "every": 0 }},
  "system": {{ "device": "cpu", "threads": 1 }}
}})",
                                    dir_.path());
};

}  // namespace longreach::test
