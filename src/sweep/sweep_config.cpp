#include "sweep/sweep_config.h"

#include <algorithm>
#include <set>

#include "base/nearest_path.h"
#include "base/text.h"
#include "config/loader.h"
#include "io/file.h"
#include "train/experiment.h"
#include "train/file_name.h"
#include "train/run_directory.h"
#include "sweep/contrasts.h"

namespace longreach::sweep {

namespace {

// Fields that the sweep sets itself.
struct Owned {
    std::string_view path, reason;
};
constexpr Owned owned[] = {
    {"run.name", "runs are named <variant>.seed<seed>"},
    {"run.dir", "runs live in the directory of the sweep"},
    {"run.seed", "seeds are listed under seeds"},
    {"system.threads", "the sweep divides the threads: threads"},
};

// The path of a file named by the value at `path`: relative to the file
// that contains the value or, on a command line, to the working directory.
std::string named_file(const config::Problems& p, std::string_view path, const std::string& written) {
    const config::Origin origin = p.origin(path);
    if (written.starts_with('/') || origin.kind != config::Origin::Kind::file) return written;
    return io::join_path(io::parent_path(origin.file), written);
}

void take_file(config::Problems& p, const std::string& path, const std::string& written,
               std::vector<std::string>& files) {
    files.push_back(named_file(p, path, written));
    if (written.empty() || io::kind_of(files.back(), io::Links::follow) == io::PathKind::missing)
        p.add(path, fmt::format("there is no file {}{}", shown(files.back(), 200),
                                written.empty() ? "" : path_suggestion(files.back())));
}

void check_setting(config::Problems& p, const std::string& at, const std::string& path) {
    for (const Owned& o : owned)
        if (path == o.path) p.add(at, fmt::format("{} is the sweep's own: {}", path, o.reason));
}

// Appends every value in `set` with its path: {"model": {"width": 8}} and
// {"model.width": 8} are the same. `at`: the path of `set`, for messages.
void take_settings(config::Problems& p, const std::string& at, const json::Value& set,
                   const std::string& path, Settings& settings) {
    const json::Object* object = set.to_object();
    if (path.empty() && object == nullptr) return p.add(at, "expected an object of paths and values");
    if (object == nullptr || (object->empty() && !path.empty())) {
        check_setting(p, at, path);
        settings.push_back({path, set, p.origin(at)});
        return;
    }
    for (const json::Member& m : *object)
        take_settings(p, at + "." + m.key, m.value, path.empty() ? m.key : path + "." + m.key, settings);
}

// Names show the first value of a parameter under the parameter: params.tau.init as params.tau.
std::string labelled(const std::string& path) {
    constexpr std::string_view end = ".init";
    const bool parameter = path.find(".params.") != std::string::npos && path.ends_with(end);
    return parameter ? path.substr(0, path.size() - end.size()) : path;
}

// The shortest end of `path` that no other of `paths` ends with.
std::string short_label(const std::string& path, const std::vector<std::string>& paths) {
    const auto ends = [](const std::string& text, const std::string& end) {
        return text == end || text.ends_with("." + end);
    };
    size_t dot = path.rfind('.');
    while (dot != std::string::npos) {
        const std::string end = path.substr(dot + 1);
        if (std::count_if(paths.begin(), paths.end(), [&](auto& other) { return ends(other, end); }) < 2)
            return end;
        dot = dot == 0 ? std::string::npos : path.rfind('.', dot - 1);
    }
    return path;
}

std::vector<SweepAxis> take_axes(config::Problems& p, const std::string& at, const json::Value& axes) {
    std::vector<SweepAxis> out;
    const json::Object* object = axes.to_object();
    if (object == nullptr) {
        p.add(at, "expected an object of paths and lists of values");
        return out;
    }
    std::vector<std::string> paths;
    for (const json::Member& m : *object) paths.push_back(labelled(m.key));
    for (const json::Member& m : *object) {
        const std::string key = at + "." + m.key;
        check_setting(p, key, m.key);
        const json::Array* values = m.value.to_array();
        if (values == nullptr || values->empty()) {
            p.add(key, "expected a list of values, at least one");
            continue;
        }
        SweepAxis axis{m.key, short_label(labelled(m.key), paths), {}};
        for (size_t i = 0; i < values->size(); ++i)
            axis.values.push_back({m.key, (*values)[i], p.origin(fmt::format("{}.{}", key, i))});
        out.push_back(std::move(axis));
    }
    return out;
}

void check_name(config::Problems& p, const std::string& path, const std::string& name,
                std::set<std::string>& seen) {
    if (!is_file_name(name)) {
        p.add(path, fmt::format("{} is not a valid name: use letters, digits, '_', '-', '.'; no leading '.'",
                                quoted(name)));
    } else if (const std::string problem = train::too_long(name); !problem.empty()) {
        p.add(path, problem);
    } else if (!seen.insert(name).second) {
        p.add(path, fmt::format("{} is given twice", name));
    }
}

}  // namespace

bool is_file_name(std::string_view name) {
    return !name.empty() && name[0] != '.' && std::all_of(name.begin(), name.end(), [](char c) {
        return config::is_plain_name(std::string_view(&c, 1)) || c == '.';
    });
}

void SweepVariant::fields(config::Fields& f) {
    f.text("name", name, {"of the variant; its runs are <name>.seed<seed>"});
    f.any("config", config,
          {"config file or list of config files, where later ones win; relative to this file"});
    f.any("set", set, {"fields of this variant: {\"model.width\": 64}"});
}

void SweepPoint::fields(config::Fields& f) {
    f.text("name", name, {"suffix of the variant names"});
    f.any("set", set, {"fields of this point"});
}

void SweepEvaluation::fields(config::Fields& f) {
    f.text("name", name, {"label of the results, <run>/eval/<name>; plain: the unchanged model"});
    f.texts("variants", variants, {"variants to evaluate; empty: all"});
    f.any("set", set, {"fields to change: {\"eval.rope.kind\": \"yarn\"}"});
    f.integers("lengths", lengths, {.min = 1, .max = int64_t{1} << 31, .tokens = true},
               {"context lengths, in tokens; empty: those of the config"});
    f.integer("tokens", tokens, {.min = 0, .tokens = true},
              {"tokens scored at each length; 0: eval.final_tokens"});
    f.texts("tasks", tasks, {"tasks to score besides the loss"});
    f.integers("depths", depths, {.min = 0, .max = 100}, {"depths of the tasks, percent of the context"});
    f.integer("samples", samples, {.min = 0}, {"samples per task, length and depth; 0: as the task has it"});
    f.flag("repeat", repeat, {"score repeated text too"});
    f.flag("probe", probe, {"also the statistics of attention (longreach probe)"});
}

void SweepConfig::fields(config::Fields& f) {
    f.text("name", name, {"names the directory <dir>/<name>"});
    f.text("dir", dir, {"directory of all sweeps"});
    f.texts("over", over,
            {"config files applied on top of every variant, such as the scale of the experiment"});
    f.list("variants", variants, {"the variants to compare"});
    f.any("grid", grid, {"paths and lists of values: every combination, for each variant"});
    f.any("zip", zip, {"paths and lists of equal lengths, combined element by element"});
    f.list("list", list, {"named points, each with any fields, for every variant"});
    f.integers("seeds", seeds, {.min = 0}, {"run.seed of the runs of each variant"});
    f.text("baseline", baseline, {"the variant that others are compared with"});
    f.any("set", set, {"fields of every run"});
    f.list("evaluations", evaluations, {"evaluations of each trained run"});
    f.list("contrasts", contrasts, {"differences of two variants that the sweep is to decide"});
    f.flag("skip_contradictory", skip_contradictory,
           {"skip contradictory combinations instead of refusing the sweep"});
    f.integer(
        "jobs", jobs, {.min = 0, .max = 1024},
        {"runs at the same time; 0: on a CPU one for each core, as far as their memory fits, on a GPU one"});
    f.integer("threads", threads, {.min = 0, .max = 1024},
              {"threads of each run; 0: the cores divided by jobs"});
}

void SweepConfig::check(config::Problems& p) {
    std::set<std::string> names;
    if (!is_file_name(name)) p.add("name", fmt::format("{} is not a plain directory name", quoted(name)));
    if (const std::string problem = train::too_long(name); !problem.empty()) p.add("name", problem);
    if (variants.empty()) p.add("variants", "at least one variant is needed");
    if (seeds.empty()) p.add("seeds", "at least one seed is needed");
    if (std::set<int64_t>(seeds.begin(), seeds.end()).size() != seeds.size())
        p.add("seeds", "a seed is given twice");
    for (size_t i = 0; i < over.size(); ++i) take_file(p, fmt::format("over.{}", i), over[i], over_files);
    for (size_t i = 0; i < variants.size(); ++i) {
        SweepVariant& v = variants[i];
        const std::string at = fmt::format("variants.{}", i);
        check_name(p, at + ".name", v.name, names);
        if (const std::string* file = v.config.to_string()) {
            take_file(p, at + ".config", *file, v.files);
        } else if (const json::Array* files = v.config.to_array(); files != nullptr && !files->empty()) {
            for (size_t k = 0; k < files->size(); ++k) {
                const std::string each = fmt::format("{}.config.{}", at, k);
                if (const std::string* one = (*files)[k].to_string()) {
                    take_file(p, each, *one, v.files);
                } else {
                    p.add(each, "expected a file name");
                }
            }
        } else {
            p.add(v.config.is_null() ? at : at + ".config", "config: expected a file name or a list of them");
        }
        take_settings(p, at + ".set", v.set, "", v.settings);
    }
    grid_axes = take_axes(p, "grid", grid);
    zip_axes = take_axes(p, "zip", zip);
    for (const SweepAxis& axis : zip_axes)
        if (axis.values.size() != zip_axes[0].values.size())
            p.add("zip." + axis.path,
                  fmt::format("has {} values, but the first list has {}", axis.values.size(),
                              zip_axes[0].values.size()),
                  "zip." + zip_axes[0].path);
    for (const SweepAxis& axis : zip_axes)
        for (const SweepAxis& other : grid_axes)
            if (axis.path == other.path) p.add("zip." + axis.path, "is in the grid too", "grid." + axis.path);
    names.clear();
    for (size_t i = 0; i < list.size(); ++i) {
        const std::string at = fmt::format("list.{}", i);
        check_name(p, at + ".name", list[i].name, names);
        take_settings(p, at + ".set", list[i].set, "", list[i].settings);
    }
    take_settings(p, "set", set, "", settings);
    names.clear();
    for (size_t i = 0; i < evaluations.size(); ++i) {
        SweepEvaluation& e = evaluations[i];
        const std::string at = fmt::format("evaluations.{}", i);
        check_name(p, at + ".name", e.name, names);
        if (is_file_name(e.name) && !train::is_label(e.name))
            p.add(at + ".name", "a label has no capital letters");
        take_settings(p, at + ".set", e.set, "", e.settings);
        if (e.name == "plain" && !e.settings.empty())
            p.add(at + ".set", "plain is the label of the unchanged model", at + ".name");
        if (e.tasks.empty() && !e.depths.empty())
            p.add(at + ".depths", "has no effect: there are no tasks", at + ".tasks");
        if (e.tasks.empty() && e.samples > 0)
            p.add(at + ".samples", "has no effect: there are no tasks", at + ".tasks");
    }
    check_contrasts(*this, p);
}

std::string SweepConfig::directory() const {
    return io::join_path(dir, name);
}

SweepConfig load_sweep(const std::string& file, const std::vector<std::string>& overrides,
                       const std::vector<std::string>& over) {
    std::vector<std::string> experiment_fields, own;
    for (const config::FieldInfo& field : config::describe<train::Experiment>().fields)
        experiment_fields.push_back(field.name);
    Settings late;
    for (const std::string& text : overrides) {
        config::PlacedValue value = config::parse_override(text);
        const std::string first = value.path.substr(0, value.path.find('.'));
        const bool of_runs =
            std::find(experiment_fields.begin(), experiment_fields.end(), first) != experiment_fields.end();
        if (!of_runs || text.find('=') == std::string::npos) {
            own.push_back(text);
            continue;
        }
        for (const Owned& o : owned)
            require(value.path != o.path, ExitCode::usage, "--set {}: {} is the sweep's own: {}", text,
                    value.path, o.reason);
        late.push_back(std::move(value));
    }
    try {
        SweepConfig sweep =
            config::load_config<SweepConfig>({.file = file, .overrides = own}, [](SweepConfig& s,
                                                                                  config::Problems& p) {
                s.check(p);
            }).value;
        sweep.overrides = std::move(late);
        const bool named =
            std::any_of(own.begin(), own.end(), [](auto& o) { return o.starts_with("name="); });
        for (const std::string& overlay : over) {
            require(io::kind_of(overlay, io::Links::follow) == io::PathKind::file, ExitCode::usage,
                    "--over: there is no file {}{}", overlay, path_suggestion(overlay));
            sweep.over_files.push_back(overlay);
            const std::string file_name = io::base_name(overlay);
            if (!named) sweep.name += fmt::format("-{}", file_name.substr(0, file_name.rfind('.')));
        }
        require(is_file_name(sweep.name), ExitCode::usage,
                "--over makes the name {}, which is not a file name: add --set name=NAME",
                quoted(sweep.name));
        const std::string problem = train::too_long(sweep.name);
        require(problem.empty(), ExitCode::usage, "--over makes {}: add --set name=NAME", problem);
        return sweep;
    } catch (const config::ConfigError& e) {
        throw config::ConfigError(e.what(), "longreach sweep --help lists the fields", e.lines(),
                                  e.contradiction());
    }
}

void keep_variants(SweepConfig& sweep, const std::vector<std::string>& names) {
    std::vector<std::string> known;
    for (const SweepVariant& variant : sweep.variants) known.push_back(variant.name);
    for (const std::string& name : names) {
        if (std::find(known.begin(), known.end(), name) != known.end()) continue;
        const std::vector<std::string> near = nearest(name, known, 2);
        throw Error(ExitCode::usage, fmt::format("--only: there is no variant {}: {}", quoted(name),
                                                 near.empty() ? "known are " + join(known, ", ")
                                                              : "did you mean " + alternatives(near) + "?"));
    }
    // "si" and its points, "si.tau-10".
    const auto is_left_out = [&](const std::string& name) {
        return std::none_of(names.begin(), names.end(), [&](const std::string& kept) {
            return name == kept || name.starts_with(kept + ".");
        });
    };
    std::erase_if(sweep.variants, [&](const SweepVariant& v) { return is_left_out(v.name); });
    if (is_left_out(sweep.baseline)) sweep.baseline.clear();
    std::erase_if(sweep.evaluations, [&](SweepEvaluation& e) {
        const bool of_all = e.variants.empty();
        std::erase_if(e.variants, is_left_out);
        return !of_all && e.variants.empty();
    });
    for (SweepContrast& contrast : sweep.contrasts)
        contrast.left_out = is_left_out(contrast.first) || is_left_out(contrast.second);
}

}  // namespace longreach::sweep
