#include "train/run_directory.h"

#include "base/build_info.h"
#include "base/finite.h"
#include "base/text.h"
#include "config/diff.h"
#include "train/experiment.h"

namespace longreach {

namespace {

constexpr const char* model_file = "model.safetensors";
constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* state_file = "state.json";
constexpr uint64_t largest_json = 1 << 20;

StoredTensor stored(const std::string& name, const std::vector<int64_t>& shape) {
    StoredTensor t;
    t.name = name;
    t.type = StoredType::f32;
    t.shape = shape;
    return t;
}

// "layers.0.mlp.up: 2 of 384 values are not finite, the first at index 7"; "" if all are.
std::string non_finite(const std::string& name, const std::vector<float>& values) {
    const NonFinite found = find_non_finite(values);
    if (found.count == 0) return "";
    return fmt::format("{}: {} of {} values {} not finite, the first at index {}", name, found.count,
                       values.size(), found.count == 1 ? "is" : "are", found.first);
}

// What to do when the numbers of this file of a checkpoint are of no use.
std::string advice_against(const std::string& file) {
    const std::string checkpoint = parent_path(file), root = parent_path(checkpoint);
    for (const int64_t step : checkpoint_steps(root))
        if (checkpoint_name(step) < base_name(checkpoint))
            return fmt::format("move {} away; the same command then resumes from {}", checkpoint,
                               checkpoint_name(step));
    return "there is no older checkpoint in " + root;
}

void write_tensor(Ops& ops, const std::string& name, const Tensor& tensor, std::vector<float>& host,
                  ByteSink& out) {
    host.resize(static_cast<size_t>(tensor.count()));
    ops.download(host.data(), tensor);
    const std::string problem = non_finite(name, host);
    require(problem.empty(), ExitCode::numerics, "{}", problem);
    out.write(host.data(), static_cast<size_t>(tensor.bytes()));
}

// Reads `name` into `host`; false if the file has no such tensor.
bool read_tensor(const SafetensorsFile& file, const std::string& path, const std::string& name,
                 const std::vector<int64_t>& shape, std::vector<float>& host) {
    const StoredTensor* found = file.find(name);
    if (!found) return false;
    require(found->type == StoredType::f32, ExitCode::checkpoint, "{}: {} is {}, not F32", path, name,
            name_of(found->type));
    require(found->shape == shape, ExitCode::checkpoint, "{}: {} has shape [{}], this model needs [{}]", path,
            name, fmt::join(found->shape, ", "), fmt::join(shape, ", "));
    host.resize(static_cast<size_t>(found->bytes()) / sizeof(float));
    file.read(*found, host.data(), found->bytes());
    return true;
}

Notice to_console(Console& console) {
    return [&console](const std::string& text) { console.line(text); };
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, bool fresh) : path_(path) {
    make_directories(path_);
    lock_.emplace(path_);
    if (!fresh) return;
    remove_tree(file("checkpoints"));
    remove_tree(file("eval"));
    remove_tree(file("events"));
    for (const std::string& name : list_directory(path_))
        if (name != "lock" && kind_of(file(name), Links::refuse) == PathKind::file) remove_file(file(name));
}

std::string RunDirectory::file(const std::string& name) const {
    return join_path(path_, name);
}

void RunDirectory::adopt_config(const FieldInfo& config, const std::vector<FieldOrigin>& origins) {
    config_text_ = write_resolved(config);
    if (kind_of(file("config.json"), Links::refuse) == PathKind::file) {
        const auto earlier = load_config<Experiment>({.file = file("config.json"), .overrides = {}});
        const std::vector<Difference> differences = diff(describe(earlier.value), config);
        const std::vector<Difference> fixed = not_resumable(differences);
        if (!fixed.empty())
            throw Error(
                ExitCode::usage,
                fmt::format("{} was started with another config:\n{}", path_, diff_table(differences)),
                "give the run another run.name, or start it over with --fresh");
    }
    write_file_atomically(file("config.json"), config_text_);

    json::Value origin_list = json::Value::object();
    for (const FieldOrigin& o : origins) {
        std::string where = "default";
        if (o.origin.kind == Origin::Kind::command_line) where = "command line";
        if (o.origin.kind == Origin::Kind::file)
            where = fmt::format("{}:{}:{}", o.origin.file, o.origin.line, o.origin.column);
        origin_list.set(o.path, where);
    }
    write_file_atomically(file("origins.json"), json::write(origin_list, json::Style::pretty));

    const BuildInfo build = build_info();
    json::Value info = json::Value::object();
    info.set("version", build.version)
        .set("compiler", build.compiler)
        .set("build_type", build.build_type)
        .set("flags", build.flags)
        .set("system", build.system);
    write_file_atomically(file("build.json"), json::write(info, json::Style::pretty));
}

void RunDirectory::save(const CheckpointParts& parts, const TrainState& state, int64_t keep,
                        Console& console) {
    save(parts, state, {keep, {0}}, true, console);
}

void RunDirectory::save_weights_only(const CheckpointParts& parts, const TrainState& state,
                                     Console& console) {
    save(parts, state, {1, {0}}, false, console);
}

void RunDirectory::save(const CheckpointParts& parts, const TrainState& state, const Retention& retention,
                        bool optimizer, Console& console) {
    CheckpointWriter writer(file("checkpoints"), state.step);
    std::vector<float> host;
    std::vector<StoredTensor> tensors;
    for (const Param& p : parts.table.params()) tensors.push_back(stored(p.name, p.shape));
    writer.add_safetensors(
        model_file, SafetensorsWriter(std::move(tensors)), [&](const StoredTensor& t, ByteSink& out) {
            write_tensor(parts.ops, t.name, parts.weights.view(*parts.table.find(t.name)), host, out);
        });
    if (optimizer)
        writer.add_safetensors(optimizer_file, parts.state.writer(),
                               [&](const StoredTensor& t, ByteSink& out) {
                                   write_tensor(parts.ops, t.name, parts.state.fetch(t.name), host, out);
                               });
    writer.add_text("config.json", config_text_);
    writer.add_text(state_file, json::write(state.to_json(), json::Style::pretty));
    writer.commit(retention, to_console(console));
}

std::optional<RunDirectory::Loaded> RunDirectory::load_newest(Ops& ops, const ParamTable& table,
                                                              const FlatParams& weights, int64_t total_steps,
                                                              Console& console) {
    const std::optional<Checkpoint> checkpoint =
        newest_checkpoint(file("checkpoints"), Damaged::quarantine, to_console(console));
    if (!checkpoint) return std::nullopt;
    load_weights(*checkpoint, ops, table, weights, {}, to_console(console));
    const std::string text = read_file(checkpoint->file(state_file), largest_json, Links::refuse);
    const json::Value json = json::parse(text, checkpoint->file(state_file), {.code = ExitCode::checkpoint});
    Loaded loaded{TrainState::from_json(json), {}};
    if (checkpoint->has(optimizer_file))
        loaded.optimizer = checkpoint->file(optimizer_file);
    else if (loaded.state.step < total_steps)
        throw Error(ExitCode::checkpoint,
                    fmt::format("{} holds the weights only (checkpoint.keep_optimizer was false): the run "
                                "cannot go on to step {}",
                                checkpoint->path, total_steps),
                    "another run can start from its weights: run.init_from");
    return loaded;
}

void load_optimizer(const std::string& path, StateExchange& state) {
    const SafetensorsFile file = SafetensorsFile::open(path, Links::refuse);
    std::vector<float> host;
    for (const StoredTensor& t : state.tensors()) {
        require(read_tensor(file, path, t.name, t.shape, host), ExitCode::checkpoint, "{}: {} is missing",
                path, t.name);
        const std::string problem = non_finite(t.name, host);
        if (!problem.empty())
            throw Error(ExitCode::numerics, fmt::format("{}: {}", path, problem), advice_against(path));
        state.deliver(host.data());
    }
}

bool is_label(std::string_view name) {
    return !name.empty() && name[0] != '.' &&
           name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.-") == std::string_view::npos;
}

Checkpoint find_checkpoint(const std::string& path, const Notice& notice) {
    if (kind_of(join_path(path, "manifest.json"), Links::refuse) == PathKind::file) {
        const std::string root = parent_path(path);
        for (int64_t step : checkpoint_steps(root))
            if (checkpoint_name(step) == base_name(path)) return verify_checkpoint(root, step);
        fail(ExitCode::checkpoint, "{} has a manifest but not the name of a checkpoint (step_00000000)",
             path);
    }
    require(kind_of(path, Links::follow) == PathKind::directory, ExitCode::checkpoint,
            "{} is neither a run directory nor a checkpoint", path);
    std::optional<Checkpoint> newest =
        newest_checkpoint(join_path(path, "checkpoints"), Damaged::leave, notice);
    require(newest.has_value(), ExitCode::checkpoint, "{} has no checkpoint", path);
    return *newest;
}

void load_weights(const Checkpoint& checkpoint, Ops& ops, const ParamTable& table, const FlatParams& weights,
                  const LoadOptions& options, const Notice& notice) {
    const std::string path = checkpoint.file(model_file);
    const SafetensorsFile file = SafetensorsFile::open(path, Links::refuse);
    std::vector<float> host;
    std::vector<std::string> missing, unused;
    for (const Param& p : table.params()) {
        if (!read_tensor(file, path, p.name, p.shape, host)) {
            missing.push_back(p.name);
            continue;
        }
        ops.upload(weights.view(p), host.data());
        const std::string problem = non_finite(p.name, host);
        if (problem.empty()) continue;
        if (!options.non_finite)
            throw Error(ExitCode::numerics, fmt::format("{}: {}", path, problem), advice_against(path));
        notice(fmt::format("warning: {}: {}", path, problem));
    }
    for (const StoredTensor& t : file.tensors())
        if (!table.find(t.name)) unused.push_back(t.name);
    if (options.partial) {
        if (!missing.empty())
            notice(fmt::format("not in {}, kept as initialised: {}", path, join(missing, ", ")));
        if (!unused.empty())
            notice(fmt::format("in {}, not used by this model: {}", path, join(unused, ", ")));
        return;
    }
    require(missing.empty(), ExitCode::checkpoint, "{} lacks {}", path, join(missing, ", "));
    require(unused.empty(), ExitCode::checkpoint, "{} holds {}, which this model does not have", path,
            join(unused, ", "));
}

}  // namespace longreach
