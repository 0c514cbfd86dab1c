#include "train/run_directory.h"

#include <algorithm>
#include <map>

#include "base/build_info.h"
#include "base/finite.h"
#include "base/nearest_path.h"
#include "base/text.h"
#include "config/diff.h"
#include "io/staged_directory.h"
#include "train/evaluation.h"
#include "train/experiment.h"
#include "train/run_files.h"
#include "train/validated.h"
#include "train/validation_set.h"

namespace longreach::train {

namespace {

constexpr const char* model_file = "model.safetensors";
constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* state_file = "state.json";
constexpr const char* config_file = "config.json";
constexpr uint64_t largest_json = 1 << 20;

io::StoredTensor stored(const std::string& name, const std::vector<int64_t>& shape) {
    io::StoredTensor t;
    t.name = name;
    t.type = io::StoredType::f32;
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

// What the user can do if the numbers in this file of a checkpoint are unusable.
std::string advice_against(const std::string& file) {
    const std::string checkpoint = io::parent_path(file), root = io::parent_path(checkpoint);
    for (const int64_t step : io::checkpoint_steps(root))
        if (io::checkpoint_name(step) < io::base_name(checkpoint))
            return fmt::format("move {} away; the same command then resumes from {}", checkpoint,
                               io::checkpoint_name(step));
    return "there is no older checkpoint in " + root;
}

void write_tensor(Ops& ops, const std::string& name, const Tensor& tensor, std::vector<float>& host,
                  io::ByteSink& out) {
    host.resize(static_cast<size_t>(tensor.count()));
    ops.download(host.data(), tensor);
    const std::string problem = non_finite(name, host);
    require(problem.empty(), ExitCode::numerics, "{}", problem);
    out.write(host.data(), static_cast<size_t>(tensor.bytes()));
}

// Reads `name` into `host`; false if the file has no such tensor.
bool read_tensor(const io::SafetensorsFile& file, const std::string& path, const std::string& name,
                 const std::vector<int64_t>& shape, std::vector<float>& host) {
    const io::StoredTensor* found = file.find(name);
    if (!found) return false;
    require(found->type == io::StoredType::f32, ExitCode::checkpoint, "{}: {} is {}, not F32", path, name,
            io::name_of(found->type));
    require(found->shape == shape, ExitCode::checkpoint, "{}: {} has shape [{}], this model needs [{}]", path,
            name, fmt::join(found->shape, ", "), fmt::join(shape, ", "));
    host.resize(static_cast<size_t>(found->bytes()) / sizeof(float));
    file.read(*found, host.data(), found->bytes());
    return true;
}

// Which program ran, where, and on which data. It is for people: results do not depend on the lines about the machine.
json::Value build_json(const DataIdentity& data) {
    const BuildInfo build = build_info();
    const ProcessInfo process = process_info();
    json::Value info = json::Value::object();
    info.set("version", build.version)
        .set("commit", build.commit)
        .set("compiler", build.compiler)
        .set("build_type", build.build_type)
        .set("flags", build.flags)
        .set("system", build.system)
        .set("command_line", one_line(process.command_line))
        .set("host", one_line(process.host))
        .set("cpu", process.cpu)
        .set("cores", process.cores)
        .set("memory_bytes", process.memory_bytes);
    if (data.training != 0) {
        json::Value validation = json::Value::object();
        for (const auto& [name, fingerprint] : data.validation)
            validation.set(name.empty() ? "data.val" : name, format_hash64(fingerprint));
        info.set("data", json::Value::object({{"training", format_hash64(data.training)},
                                              {"tokenizer", format_hash64(data.tokenizer)},
                                              {"validation", std::move(validation)}}));
    }
    return info;
}

TrainState read_state(const io::Checkpoint& checkpoint) {
    const std::string path = checkpoint.file(state_file),
                      text = io::read_file(path, largest_json, io::Links::refuse);
    const TrainState state = TrainState::from_json(json::parse(text, path, {.code = ExitCode::checkpoint}));
    require(state.step == checkpoint.step, ExitCode::checkpoint,
            "{} is of step {}, the checkpoint of step {}", path, state.step, checkpoint.step);
    return state;
}

// Checks what the manifest does not cover. A checkpoint made elsewhere may have weights only.
void examine_checkpoint(const io::Checkpoint& checkpoint) {
    for (const char* name : {model_file, optimizer_file})
        if (checkpoint.has(name)) io::SafetensorsFile::open(checkpoint.file(name), io::Links::refuse);
    if (checkpoint.has(state_file)) read_state(checkpoint);
    if (!checkpoint.has(config_file)) return;
    // The loader of configs would accept comments, and follow `base` to any file of this machine.
    const std::string path = checkpoint.file(config_file),
                      text = io::read_file(path, largest_json, io::Links::refuse);
    const json::Value config = json::parse(text, path, {.code = ExitCode::checkpoint});
    const json::Value* resolved = config.find("resolved");
    require(resolved != nullptr && resolved->to_bool() == true && config.find("base") == nullptr,
            ExitCode::checkpoint, "{} is not a resolved config", path);
}

void examine_optimizer(const std::string& path, const std::vector<io::StoredTensor>& moments) {
    const io::SafetensorsFile file = io::SafetensorsFile::open(path, io::Links::refuse);
    for (const io::StoredTensor& t : moments) {
        const io::StoredTensor* found = file.find(t.name);
        require(found && found->type == t.type && found->shape == t.shape, ExitCode::checkpoint,
                "{}: {} is missing, or of another type or shape", path, t.name);
    }
}

io::Notice to_console(Console& console) {
    return [&console](const std::string& text) { console.line(text); };
}

// The content of the file of origins of a config; an empty object if there is none.
json::Value read_origins(const std::string& config_path) {
    const std::string path = origins_beside(config_path);
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return json::Value::object();
    return json::parse(io::read_file(path, largest_json, io::Links::refuse), path);
}

}  // namespace

std::string origins_beside(const std::string& config_path) {
    constexpr std::string_view ending = ".json";
    const bool ends = config_path.ends_with(ending);
    return config_path.substr(0, config_path.size() - (ends ? ending.size() : 0)) + ".origins.json";
}

std::string origins_text(const std::vector<config::FieldOrigin>& origins) {
    json::Value out = json::Value::object();
    std::map<std::string, json::Value> beside;  // by config file
    for (const config::FieldOrigin& o : origins) {
        std::string where = "default";
        if (o.origin.kind == config::Origin::Kind::derived) where = "derived";
        if (o.origin.kind == config::Origin::Kind::command_line) where = "command line";
        if (o.origin.kind == config::Origin::Kind::file) {
            where = fmt::format("{}:{}:{}", o.origin.file, o.origin.line, o.origin.column);
            auto known = beside.find(o.origin.file);
            if (known == beside.end())
                known = beside.emplace(o.origin.file, read_origins(o.origin.file)).first;
            if (const json::Value* earlier = known->second.find(o.path))
                if (const std::string* text = earlier->to_string()) where = *text;
        }
        out.set(o.path, where);
    }
    return json::write(out, json::Style::pretty);
}

RunDirectory::RunDirectory(const std::string& path, io::Disk& disk) : path_(path), disk_(&disk) {
    io::make_directories(path_, disk);
    lock_.emplace(path_, disk);
    check_kinds();
}

std::vector<std::string> RunDirectory::start_over() {
    const auto own = [](const std::string& directory) {
        std::vector<std::string> files = run_files(directory);
        std::erase(files, "lock");
        return files;
    };
    std::vector<std::string> kept = io::foreign_entries(path_, run_files(path_));
    io::remove_own_files(path_, own, *disk_);
    return kept;
}

void RunDirectory::check_kinds() const {
    const auto check = [&](const std::string& name, io::PathKind wanted, const char* what) {
        const io::PathKind kind = io::kind_of(file(name), io::Links::refuse);
        require(kind == io::PathKind::missing || kind == wanted, ExitCode::disk,
                "{} is not {}: links and special files are not accepted in a run directory", file(name),
                what);
    };
    for (const char* name : {"config.json", "origins.json", "build.json", validated_file, "log.txt",
                             "metrics.jsonl", "timing.jsonl"})
        check(name, io::PathKind::file, "a regular file");
    for (const EvaluationFile& f : evaluation_files())
        if (f.of_runs) check(std::string(f.name), io::PathKind::file, "a regular file");
    for (const char* name : {"checkpoints", "eval", "sets"})
        check(name, io::PathKind::directory, "a directory");
    if (io::kind_of(file("sets"), io::Links::refuse) == io::PathKind::missing) return;
    for (const std::string& set : io::list_directory(file("sets"))) {
        if (!config::is_plain_name(set)) continue;
        check("sets/" + set, io::PathKind::directory, "a directory");
        for (const EvaluationFile& f : evaluation_files())
            if (f.of_runs && f.of_sets)
                check(record_of_set(set, f.name), io::PathKind::file, "a regular file");
    }
}

std::string RunDirectory::file(const std::string& name) const {
    return io::join_path(path_, name);
}

void RunDirectory::adopt_config(const config::FieldInfo& config,
                                const std::vector<config::FieldOrigin>& origins, const DataIdentity& data) {
    config_text_ = config::write_resolved(config);
    if (io::kind_of(file("config.json"), io::Links::refuse) == io::PathKind::file) {
        const auto earlier = config::load_config<Experiment>({.file = file("config.json"), .overrides = {}});
        const std::vector<config::Difference> differences =
            config::diff(config::describe(earlier.value), config);
        const std::vector<config::Difference> fixed = config::not_resumable(differences);
        if (!fixed.empty())
            throw Error(ExitCode::usage,
                        fmt::format("{} was started with another config:\n{}", path_,
                                    config::diff_table(differences)),
                        "give the run another run.name, or start it over with --fresh");
    }
    io::write_file_atomically(file("config.json"), config_text_, *disk_);

    io::write_file_atomically(file("origins.json"), origins_text(origins), *disk_);

    io::write_file_atomically(file("build.json"), json::write(build_json(data), json::Style::pretty), *disk_);
}

io::RecordFile RunDirectory::open_record(const std::string& name, int64_t bytes, std::string_view header) {
    const bool made = io::kind_of(file(name), io::Links::refuse) == io::PathKind::missing;
    const std::string parent = io::parent_path(file(name));
    if (is_set_record(name)) io::make_directories(parent, *disk_);
    io::RecordFile record(file(name), bytes, header, *disk_);
    if (made) io::sync_directory(parent, *disk_);  // a checkpoint that refers to it must not outlive its name
    records_.push_back({name, record});
    return record;
}

void RunDirectory::check_in_place() const {
    if (const std::string lost = lock_->directory_lost(); !lost.empty())
        throw Error(ExitCode::disk, fmt::format("{} {} while the run used it", path_, lost),
                    "its checkpoints are still in it: put it back and the same command resumes");
    const std::string lock = lock_->holds_directory() ? "" : lock_->lock_lost();
    if (!lock.empty())
        throw Error(ExitCode::disk,
                    fmt::format("{} {} while the run used it: another process may be at work there",
                                file("lock"), lock),
                    "make sure that there is none; the same command then resumes");
    for (const auto& [name, record] : records_)
        if (!record.whole())
            throw Error(ExitCode::disk, fmt::format("{} was cut while the run used it", record.path()),
                        "the checkpoints hold its lines: the same command resumes and restores it");
}

void RunDirectory::check_names() const {
    check_in_place();
    // If the directory itself disappears between two of these checks, that is the error to report.
    const auto lose = [&](const std::string& path, const std::string& how, const char* hint) {
        check_in_place();
        throw Error(ExitCode::disk, fmt::format("{} {} while the run used it", path, how), hint);
    };
    if (const std::string lost = lock_->lock_lost(); !lost.empty())
        lose(file("lock"), lost,
             "make sure that no other process is at work there; the same command then resumes");
    for (const auto& [name, record] : records_)
        if (!record.in_place())
            lose(record.path(), record.whereabouts(),
                 "the checkpoints hold its lines: the same command resumes and restores it");
}

void RunDirectory::save(const CheckpointParts& parts, const TrainState& state, int64_t keep,
                        Console& console) {
    save(parts, state, {keep, {0}}, true, console);
}

void RunDirectory::save_weights_only(const CheckpointParts& parts, const TrainState& state,
                                     Console& console) {
    save(parts, state, {1, {0}}, false, console);
}

void RunDirectory::save(const CheckpointParts& parts, const TrainState& state, const io::Retention& retention,
                        bool optimizer, Console& console) {
    io::CheckpointWriter writer(file("checkpoints"), state.step, *disk_);
    std::vector<float> host;
    std::vector<io::StoredTensor> tensors;
    for (const model::Param& p : parts.table.params()) tensors.push_back(stored(p.name, p.shape));
    writer.add_safetensors(model_file, io::SafetensorsWriter(std::move(tensors)),
                           [&](const io::StoredTensor& t, io::ByteSink& out) {
                               write_tensor(parts.ops, t.name, parts.weights.view(*parts.table.find(t.name)),
                                            host, out);
                           });
    if (optimizer)
        writer.add_safetensors(optimizer_file, parts.state.writer(),
                               [&](const io::StoredTensor& t, io::ByteSink& out) {
                                   write_tensor(parts.ops, t.name, parts.state.fetch(t.name), host, out);
                               });
    writer.add_text(config_file, config_text_);
    writer.add_text(state_file, json::write(state.to_json(), json::Style::pretty));
    for (const Record& record : records_) {
        const auto bytes = state.file_bytes.find(record.name);
        if (bytes == state.file_bytes.end()) continue;
        writer.add(name_in_checkpoint(record.name), static_cast<uint64_t>(bytes->second),
                   [&](io::ByteSink& out) { record.file.copy_to(out, bytes->second); });
    }
    writer.commit(retention, to_console(console));
}

std::optional<RunDirectory::Loaded> RunDirectory::load_newest(Ops& ops, const model::ParamTable& table,
                                                              const model::FlatParams& weights,
                                                              int64_t total_steps,
                                                              const std::vector<io::StoredTensor>& moments,
                                                              Console& console) {
    // Everything that a resume reads is read here, so that an invalid checkpoint is skipped in favour
    // of the one before it.
    Loaded loaded;
    const auto examine = [&](const io::Checkpoint& c) {
        examine_checkpoint(c);
        load_weights(c, ops, table, weights, {}, to_console(console));
        loaded.state = read_state(c);
        if (c.has(optimizer_file)) examine_optimizer(c.file(optimizer_file), moments);
    };
    const std::optional<io::Checkpoint> checkpoint = io::newest_checkpoint(
        file("checkpoints"), io::Damaged::quarantine, to_console(console), *disk_, examine);
    if (!checkpoint) return std::nullopt;
    restore_records(*checkpoint, loaded.state, console);
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

namespace {

// Whether the first entry.bytes bytes of a file match the hash in the manifest.
bool begins_as(const std::string& path, const io::ManifestEntry& entry, io::Disk& disk) {
    if (io::kind_of(path, io::Links::refuse) == io::PathKind::missing) return false;
    const io::File file = io::File::open(path, io::Links::refuse, disk);
    if (file.size() < entry.bytes) return false;
    std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(entry.bytes, uint64_t{1} << 20)));
    Xxh64 hash;
    for (uint64_t at = 0; at < entry.bytes;) {
        const auto part = static_cast<size_t>(std::min<uint64_t>(entry.bytes - at, buffer.size()));
        file.read_at(buffer.data(), part, at);
        hash.update(buffer.data(), part);
        at += part;
    }
    return hash.digest() == entry.hash;
}

}  // namespace

void RunDirectory::restore_records(const io::Checkpoint& checkpoint, const TrainState& state,
                                   Console& console) const {
    constexpr uint64_t largest = uint64_t{1} << 32;
    for (const io::ManifestEntry& entry : checkpoint.files) {
        const auto record =
            std::find_if(state.file_bytes.begin(), state.file_bytes.end(),
                         [&](const auto& bytes) { return name_in_checkpoint(bytes.first) == entry.name; });
        if (record == state.file_bytes.end()) continue;
        const std::string path = file(record->first);
        if (begins_as(path, entry, *disk_)) continue;
        const std::string text =
            io::read_file(checkpoint.file(entry.name), largest, io::Links::refuse, *disk_);
        if (is_set_record(record->first)) io::make_directories(io::parent_path(path), *disk_);
        io::write_file_atomically(path, text, *disk_);
        console.line(fmt::format("{} was missing or changed; restored from {}", path, checkpoint.path));
    }
}

void load_optimizer(const std::string& path, StateExchange& state) {
    const io::SafetensorsFile file = io::SafetensorsFile::open(path, io::Links::refuse);
    std::vector<float> host;
    for (const io::StoredTensor& t : state.tensors()) {
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

uint64_t tokenizer_of(const io::Checkpoint& checkpoint) {
    return checkpoint.has(state_file) ? read_state(checkpoint).data.tokenizer : 0;
}

io::Checkpoint find_checkpoint(const std::string& path, const io::Notice& notice) {
    if (io::kind_of(io::join_path(path, "manifest.json"), io::Links::refuse) == io::PathKind::file) {
        const std::string root = io::parent_path(path);
        for (int64_t step : io::checkpoint_steps(root))
            if (io::checkpoint_name(step) == io::base_name(path))
                return io::verify_checkpoint(root, step, io::Disk::system(), examine_checkpoint);
        fail(ExitCode::checkpoint, "{} has a manifest but not the name of a checkpoint (step_00000000)",
             path);
    }
    require(io::kind_of(path, io::Links::follow) == io::PathKind::directory, ExitCode::checkpoint,
            "{} is neither a run directory nor a checkpoint{}", path, path_suggestion(path));
    std::optional<io::Checkpoint> newest =
        io::newest_checkpoint(io::join_path(path, "checkpoints"), io::Damaged::leave, notice,
                              io::Disk::system(), examine_checkpoint);
    require(newest.has_value(), ExitCode::checkpoint, "{} has no checkpoint", path);
    return *newest;
}

void check_weights(const io::Checkpoint& checkpoint, const model::ParamTable& table) {
    const std::string path = checkpoint.file(model_file);
    const io::SafetensorsFile file = io::SafetensorsFile::open(path, io::Links::refuse);
    std::vector<float> host;
    for (const model::Param& p : table.params()) {
        const std::string problem =
            read_tensor(file, path, p.name, p.shape, host) ? non_finite(p.name, host) : "";
        require(problem.empty(), ExitCode::numerics, "{}: {}", path, problem);
    }
}

void load_weights(const io::Checkpoint& checkpoint, Ops& ops, const model::ParamTable& table,
                  const model::FlatParams& weights, const LoadOptions& options, const io::Notice& notice) {
    const std::string path = checkpoint.file(model_file);
    const io::SafetensorsFile file = io::SafetensorsFile::open(path, io::Links::refuse);
    std::vector<float> host;
    std::vector<std::string> missing, unused;
    for (const model::Param& p : table.params()) {
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
    for (const io::StoredTensor& t : file.tensors())
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

}  // namespace longreach::train
