#include "exchange/import.h"

#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "base/finite.h"
#include "base/hash.h"
#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "config/loader.h"
#include "data/tokenizer_file.h"
#include "exchange/family.h"
#include "exchange/gguf_model.h"
#include "exchange/model_directory.h"
#include "exchange/tokenizer_files.h"
#include "exchange/weights.h"
#include "io/run_lock.h"
#include "io/staged_directory.h"
#include "io/written_files.h"
#include "model/transformer.h"
#include "train/experiment.h"
#include "train/run_directory.h"
#include "train/run_files.h"

namespace longreach::exchange {

namespace {

using Loaded = config::LoadedConfig<train::Experiment>;

// The trained context, or the largest power of two below it that an ordinary machine trains.
int64_t stage_context(int64_t context) {
    int64_t length = 1;
    while (2 * length <= std::min<int64_t>(context, 2048)) length *= 2;
    return length;
}

json::Value evaluated_lengths(int64_t context) {
    json::Value lengths = json::Value::array();
    for (int64_t length = stage_context(std::min<int64_t>(context, 1024));
         length <= std::min<int64_t>(context, 65536); length *= 2)
        lengths.push(length);
    return lengths;
}

// A model before it is a run: a directory, or a GGUF file.
struct Model {
    Settings settings;
    std::string asks;  // where the settings are, for messages
    std::function<Weights()> weights;
    std::function<TokenizerFiles()> tokenizer;
};

bool is_gguf(const std::string& target) {
    return target.ends_with(".gguf") || io::kind_of(target, io::Links::follow) == io::PathKind::file;
}

Model open_model(const std::string& target) {
    if (is_gguf(target)) {
        const auto file = std::make_shared<const GgufFile>(GgufFile::open(target));
        const Settings settings = gguf_settings(*file);
        return {settings, "metadata", [=] { return gguf_weights(file, settings); },
                [=] { return gguf_tokenizer(*file); }};
    }
    const std::string file = file_in(target, "config.json");
    if (io::kind_of(target, io::Links::follow) == io::PathKind::directory &&
        io::kind_of(file, io::Links::follow) == io::PathKind::missing)
        for (const std::string& name : io::list_directory(target))
            if (name.ends_with(".gguf"))
                throw Error(
                    ExitCode::checkpoint, fmt::format("{} has no config.json", target),
                    "name the GGUF file itself: longreach import " + one_line(io::join_path(target, name)));
    return {Settings(io::read_file(file, largest_settings, io::Links::follow), file), "config.json",
            [=] { return Weights::open(target); }, [=] { return find_tokenizer(target); }};
}

std::string default_name(const std::string& target) {
    const std::string name = io::base_name(target);
    return name.size() > 5 && name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
}

// The config of the run. It counts as resolved, so that fields without effect are accepted.
Loaded load_config(const Foreign& foreign, const std::string& run, const ImportOptions& options) {
    const std::optional<int64_t> context = foreign.model.find("train_context")->to_int64();
    const int64_t length = stage_context(*context);
    const json::Value config = json::Value::object(
        {{"resolved", true},
         {"run", json::Value::object({{"name", io::base_name(run)}, {"dir", io::parent_path(run)}})},
         {"model", foreign.model},
         {"stages", json::Value::array({json::Value::object({{"steps", 1}, {"context", length}})})},
         {"batch", json::Value::object({{"tokens", length}})},
         {"eval", json::Value::object({{"lengths", evaluated_lengths(*context)}})}});
    return config::load_config<train::Experiment>(
        {.file = "the config of " + one_line(options.directory),
         .overrides = options.set,
         .text = json::write(config, json::Style::pretty)},
        [](train::Experiment& e, config::Problems& p) { e.check(p); });
}

// The tensor of theirs, which may lack the name of the model around the stack of layers.
const std::string* find_name(const Weights& weights, const std::string& name, std::string& shorter) {
    if (weights.find(name) != nullptr) return &name;
    shorter = name.substr(name.find('.') + 1);
    return weights.find(shorter) != nullptr ? &shorter : nullptr;
}

struct Source {
    std::string name;
    Place place;
};

// Where every tensor of the model comes from. Each tensor of the directory is used or known to hold no weights.
std::map<std::string, Source> match(const model::ParamTable& table, const Foreign& foreign,
                                    const Weights& weights, const Model& source, const std::string& target) {
    std::map<std::string, Source> sources;
    std::set<std::string> used;
    for (const model::Param& param : table.params()) {
        const Place place = foreign.place(param.name);
        std::string shorter;
        const std::string* name = find_name(weights, place.name, shorter);
        require(name != nullptr, ExitCode::checkpoint, "{} lacks {}, which a model of the form {} has",
                target, place.name, foreign.family);
        std::vector<int64_t> wanted = param.shape;
        wanted[0] *= place.parts;
        if (place.transposed) std::swap(wanted.front(), wanted.back());
        const ForeignTensor& tensor = *weights.find(*name);
        require(tensor.shape == wanted, ExitCode::checkpoint, "{}: {} has the shape [{}]; {} asks for [{}]",
                target, *name, fmt::join(tensor.shape, ", "), source.asks, fmt::join(wanted, ", "));
        require(tensor.refusal.empty(), ExitCode::checkpoint, "{}: {} {}", target, *name, tensor.refusal);
        used.insert(*name);
        sources[param.name] = {*name, place};
    }
    const bool tied = table.find("head.weight") == nullptr;
    for (const auto& [name, unused] : weights.tensors())
        require(used.count(name) > 0 || foreign.ignores(name) || (tied && name == "lm_head.weight"),
                ExitCode::checkpoint, "{} holds {}, which a model of the form {} with this {} does not have",
                target, shown(name), foreign.family, source.asks);
    return sources;
}

// The values of ours from those of theirs; shape is that of ours.
std::vector<float> converted(std::vector<float> theirs, const std::vector<int64_t>& shape,
                             const Place& place) {
    if (place.plain()) return theirs;
    const auto rows = static_cast<size_t>(shape.size() > 1 ? shape[0] : 1);
    const auto parts = static_cast<size_t>(place.parts), part = static_cast<size_t>(place.part);
    const size_t count = theirs.size() / parts, columns = count / std::max<size_t>(rows, 1);
    std::vector<float> ours(count);
    for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c) {
            const size_t from =
                place.transposed ? c * rows * parts + part * rows + r : (part * rows + r) * columns + c;
            ours[r * columns + c] =
                static_cast<float>(place.factor * (static_cast<double>(theirs[from]) + place.added));
        }
    return ours;
}

void write_checkpoint(const std::string& run, const model::ParamTable& table, const Weights& weights,
                      const std::map<std::string, Source>& sources, const std::string& config,
                      uint64_t tokenizer, const io::Notice& notice) {
    io::CheckpointWriter writer(io::join_path(run, "checkpoints"), 0);
    std::vector<io::StoredTensor> tensors;
    for (const model::Param& param : table.params()) {
        io::StoredTensor tensor;
        tensor.name = param.name;
        tensor.shape = param.shape;
        tensors.push_back(std::move(tensor));
    }
    writer.add_safetensors("model.safetensors", io::SafetensorsWriter(std::move(tensors)),
                           [&](const io::StoredTensor& tensor, io::ByteSink& out) {
                               const Source& source = sources.at(tensor.name);
                               const std::vector<float> values =
                                   converted(weights.find(source.name)->read(), tensor.shape, source.place);
                               const NonFinite bad = find_non_finite(values);
                               require(bad.count == 0, ExitCode::checkpoint,
                                       "{} holds {} values that are not finite, the first at index {}",
                                       source.name, bad.count, bad.first);
                               out.write(values.data(), values.size() * sizeof(float));
                           });
    writer.add_text("config.json", config);
    train::TrainState state;
    state.data.tokenizer = tokenizer;
    writer.add_text("state.json", json::write(state.to_json(), json::Style::pretty));
    writer.commit({.keep = 1, .pinned = {}}, notice);
}

// Keeps other processes out of the run that is to be replaced, if there is one.
std::optional<io::RunLock> lock_earlier(const std::string& run, bool replace) {
    if (train::is_blank(run)) return std::nullopt;
    require(train::is_run(run), ExitCode::usage,
            "{} holds files and is not a run of this program: name another directory with -o", run);
    require(replace, ExitCode::usage,
            "{} holds a run already: name another with -o, or replace it with --replace", run);
    return std::optional<io::RunLock>(std::in_place, run);
}

}  // namespace

ImportResult import_model(const ImportOptions& options, const io::Notice& notice) {
    const Model source = open_model(options.directory);
    const Foreign foreign = read_form(source.settings);
    ImportResult result;
    result.family = foreign.family;
    result.run =
        options.output.empty() ? io::join_path("runs", default_name(options.directory)) : options.output;
    while (result.run.size() > 1 && result.run.ends_with('/')) result.run.pop_back();
    if (const std::vector<std::string> unread = source.settings.unread(); !unread.empty())
        result.notes.push_back(fmt::format("{}: not used: {}", source.settings.file(), join(unread, ", ")));

    const Loaded loaded = load_config(foreign, result.run, options);
    const Weights weights = source.weights();
    // A model without memory, for its list of tensors alone.
    const model::Transformer model(loaded.value.model, 1);
    const std::map<std::string, Source> sources =
        match(model.params(), foreign, weights, source, options.directory);
    result.parameters = model.params().count();
    const TokenizerFiles tokenizer = source.tokenizer();
    if (!tokenizer.problem.empty()) result.notes.push_back(tokenizer.problem);
    result.tokenizer = tokenizer.description;

    const int64_t vocab = loaded.value.model.vocab_size;
    require(tokenizer.vocab_size <= vocab, ExitCode::checkpoint,
            "{}: the tokenizer makes {} tokens, the model has {}", options.directory, tokenizer.vocab_size,
            vocab);

    const std::optional<io::RunLock> earlier = lock_earlier(result.run, options.replace);
    io::StagedDirectory staged(result.run, train::run_files);
    train::RunDirectory run(staged.path());
    run.adopt_config(config::describe(loaded.value), loaded.origins);
    io::write_file_list(run.path(), train::import_list,
                        copy_tokenizer_files(tokenizer, options.directory, run.path()));
    write_checkpoint(run.path(), model.params(), weights, sources, config::write_resolved(loaded.value),
                     tokenizer.fingerprint, notice);
    result.kept = staged.publish();
    return result;
}

std::string to_text(const ImportResult& result) {
    std::string text = fmt::format("{}: a model of the form {}, {} parameters\n", result.run, result.family,
                                   human_count(static_cast<double>(result.parameters)));
    if (!result.tokenizer.empty()) text += result.tokenizer + "\n";
    for (const std::string& note : result.notes) text += "note: " + note + "\n";
    if (!result.kept.empty())
        text +=
            fmt::format("kept, since this program did not write it: {}\n", one_line(join(result.kept, ", ")));
    return text;
}

}  // namespace longreach::exchange
