#include "exchange/export.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/build_info.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/units.h"
#include "config/loader.h"
#include "exchange/model_card.h"
#include "exchange/own_form.h"
#include "exchange/stock.h"
#include "exchange/tokenizer_files.h"
#include "io/staged_directory.h"
#include "io/written_files.h"
#include "model/transformer.h"
#include "tokenizer/byte_text.h"
#include "train/experiment.h"
#include "train/run_directory.h"

namespace longreach::exchange {

namespace {

constexpr const char* export_list = "longreach_export.json";  // of the files of an export

// One tensor of the export: ours, or ones.
struct Output {
    io::StoredTensor stored;
    std::string ours;  // "": ones
};

uint16_t rounded_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays NaN
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// stock: null for a model of modeling_longreach.py, whose tensors have our names.
std::vector<Output> outputs(const model::ParamTable& table, const Stock* stock, ExportType type) {
    std::vector<Output> all;
    const auto add = [&](const std::string& theirs, const std::vector<int64_t>& shape,
                         const std::string& ours) {
        Output output;
        output.stored.name = theirs;
        output.stored.shape = shape;
        output.stored.type = type == ExportType::f32 ? io::StoredType::f32 : io::StoredType::bf16;
        output.ours = ours;
        all.push_back(std::move(output));
    };
    for (const model::Param& param : table.params()) {
        const Place place = stock ? stock->places.place(param.name) : Place{.name = own_prefix + param.name};
        check(place.plain(), "{} would have to be converted", param.name);
        add(place.name, param.shape, param.name);
    }
    if (stock)
        for (const auto& [name, count] : stock->ones) add(name, {count}, "");
    std::sort(all.begin(), all.end(),
              [](const Output& a, const Output& b) { return a.stored.name < b.stored.name; });
    return all;
}

uint64_t bytes_of(const Output& output) {
    uint64_t bytes = static_cast<uint64_t>(io::bits_of(output.stored.type)) / 8;
    for (const int64_t dim : output.stored.shape) bytes *= static_cast<uint64_t>(dim);
    return bytes;
}

// Writes the tensors into files of at most `limit` bytes (one tensor at least), and the index if there are several.
class WeightFiles {
  public:
    WeightFiles(const std::string& checkpoint, std::vector<Output> outputs, std::string directory,
                uint64_t shard_bytes)
        : source_(io::SafetensorsFile::open(checkpoint, io::Links::refuse)),
          path_(checkpoint),
          outputs_(std::move(outputs)),
          directory_(std::move(directory)),
          shard_bytes_(shard_bytes) {}

    void write(std::vector<std::string>& files) {
        std::vector<std::vector<Output>> shards(1);
        uint64_t in_shard = 0, total = 0;
        for (const Output& output : outputs_) {
            const uint64_t bytes = bytes_of(output);
            if (!shards.back().empty() && in_shard + bytes > shard_bytes_) {
                shards.emplace_back();
                in_shard = 0;
            }
            shards.back().push_back(output);
            in_shard += bytes;
            total += bytes;
        }
        if (shards.size() == 1) return write_file("model.safetensors", shards[0], files);
        json::Value map = json::Value::object();
        for (size_t i = 0; i < shards.size(); ++i) {
            const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
            for (const Output& output : shards[i]) map.set(output.stored.name, name);
            write_file(name, shards[i], files);
        }
        const json::Value index = json::Value::object(
            {{"metadata", json::Value::object({{"total_size", total}})}, {"weight_map", map}});
        files.emplace_back("model.safetensors.index.json");
        io::write_file_atomically(io::join_path(directory_, files.back()),
                                  json::write(index, json::Style::pretty));
    }

  private:
    void write_file(const std::string& name, const std::vector<Output>& outputs,
                    std::vector<std::string>& files) {
        std::vector<io::StoredTensor> stored;
        std::map<std::string, std::string> sources;
        for (const Output& output : outputs) {
            stored.push_back(output.stored);
            sources[output.stored.name] = output.ours;
        }
        io::AtomicFile file(io::join_path(directory_, name));
        io::SafetensorsWriter(std::move(stored))
            .write(file, [&](const io::StoredTensor& tensor, io::ByteSink& out) {
                write_tensor(tensor, sources.at(tensor.name), out);
            });
        file.commit();
        files.push_back(name);
    }

    void write_tensor(const io::StoredTensor& tensor, const std::string& ours, io::ByteSink& out) {
        const size_t count =
            static_cast<size_t>(tensor.bytes() * 8 / static_cast<uint64_t>(io::bits_of(tensor.type)));
        std::vector<float> values(count, 1.0f);
        if (!ours.empty()) {
            const io::StoredTensor* found = source_.find(ours);
            require(found != nullptr && found->type == io::StoredType::f32 && found->shape == tensor.shape,
                    ExitCode::checkpoint, "{}: {} is missing, or of another type or shape", path_, ours);
            source_.read(*found, values.data(), found->bytes());
        }
        if (tensor.type == io::StoredType::f32) return out.write(values.data(), count * sizeof(float));
        std::vector<uint16_t> rounded(count);
        std::transform(values.begin(), values.end(), rounded.begin(), rounded_bf16);
        out.write(rounded.data(), count * sizeof(uint16_t));
    }

    io::SafetensorsFile source_;
    std::string path_;
    std::vector<Output> outputs_;
    std::string directory_;
    uint64_t shard_bytes_;
};

// The tokenizer's files, from where they are: named, or in the run directory. One that is not the tokenizer of the
// run's data is refused.
TokenizerFiles copy_tokenizer(const ExportOptions& options, const io::Checkpoint& checkpoint,
                              const std::string& to, std::vector<std::string>& files) {
    const std::string run = io::parent_path(io::parent_path(checkpoint.path));
    std::string directory = options.tokenizer.empty() ? run : options.tokenizer;
    if (io::kind_of(directory, io::Links::follow) == io::PathKind::file)
        directory = io::parent_path(directory);
    const bool there = io::kind_of(directory, io::Links::follow) == io::PathKind::directory;
    require(there || options.tokenizer.empty(), ExitCode::usage, "--tokenizer: there is no {}",
            options.tokenizer);
    TokenizerFiles tokenizer;
    if (there) tokenizer = find_tokenizer(directory);
    require(options.tokenizer.empty() || !tokenizer.names.empty(), ExitCode::usage,
            "{} holds no tokenizer.json", options.tokenizer);
    const uint64_t trained = train::tokenizer_of(checkpoint);
    require(trained == 0 || tokenizer.fingerprint == 0 || trained == tokenizer.fingerprint, ExitCode::usage,
            "the model was trained on tokens of the tokenizer {}; that in {} is {}", format_hash64(trained),
            directory, format_hash64(tokenizer.fingerprint));
    if (tokenizer.names.empty() && trained == tokenizer::bytes_fingerprint())
        tokenizer = write_byte_tokenizer(to);
    else
        copy_tokenizer_files(tokenizer, directory, to);
    files.insert(files.end(), tokenizer.names.begin(), tokenizer.names.end());
    return tokenizer;
}

void require_place(const ExportOptions& options) {
    const io::PathKind kind = io::kind_of(options.directory, io::Links::follow);
    if (kind == io::PathKind::missing) return;
    require(kind == io::PathKind::directory, ExitCode::usage, "{} is not a directory", options.directory);
    if (io::list_directory(options.directory).empty()) return;
    require(
        io::kind_of(io::join_path(options.directory, export_list), io::Links::refuse) == io::PathKind::file,
        ExitCode::usage,
        "{} holds files and is not an export of this program: name a new or an empty directory",
        options.directory);
    require(options.replace, ExitCode::usage,
            "{} holds an export already: name another directory, or --replace it", options.directory);
}

}  // namespace

ExportResult export_model(const ExportOptions& options, const io::Notice& notice) {
    const io::Checkpoint checkpoint = train::find_checkpoint(options.target, notice);
    const std::string config_text =
        io::read_file(checkpoint.file("config.json"), uint64_t{1} << 20, io::Links::refuse);
    const train::Experiment experiment =
        config::load_config<train::Experiment>({.file = checkpoint.file("config.json")},
                                               [](train::Experiment& e, config::Problems& p) { e.check(p); })
            .value;
    std::string why;
    const std::optional<Stock> stock = stock_form(experiment.model, why);
    const std::string beyond = stock ? "" : beyond_own_form(experiment.model);
    if (!beyond.empty())
        throw Error(ExitCode::usage,
                    fmt::format("neither a class of transformers (for {}) nor modeling_longreach.py "
                                "can express this model: {}",
                                why, beyond));
    const model::Transformer model(experiment.model, 1);  // without memory, for its list of tensors
    ExportResult result;
    result.directory = options.directory;
    result.architecture = stock ? stock->architecture : "LongreachForCausalLM";
    result.parameters = model.params().count();
    require_place(options);
    io::StagedDirectory staged(options.directory, [](const std::string& directory) {
        return io::files_as_written(directory, export_list);
    });
    const TokenizerFiles tokenizer = copy_tokenizer(options, checkpoint, staged.path(), result.files);
    const bool has_tokenizer = !tokenizer.description.empty() || !tokenizer.problem.empty();
    if (!tokenizer.problem.empty()) result.notes.push_back(tokenizer.problem);
    WeightFiles(checkpoint.file("model.safetensors"),
                outputs(model.params(), stock ? &*stock : nullptr, options.type), staged.path(),
                options.shard_bytes)
        .write(result.files);
    const auto write = [&](const std::string& name, const std::string& text) {
        io::write_file_atomically(io::join_path(staged.path(), name), text);
        result.files.push_back(name);
    };
    json::Value config = stock ? stock->config : own_config(experiment.model, model.params());
    if (!stock) {
        write("modeling_longreach.py", modeling_code());
        result.notes.push_back(
            fmt::format("no class of transformers computes it ({}), so modeling_longreach.py does: "
                        "load it with trust_remote_code=True",
                        why));
    }
    // No padding token: the classes would train its row of the embedding no further.
    if (tokenizer.boundary >= 0)
        config.set("bos_token_id", tokenizer.boundary).set("eos_token_id", tokenizer.boundary);
    for (const auto& [name, value] : usage_files(tokenizer))
        write(name, json::write(value, json::Style::pretty));
    config.set("torch_dtype", options.type == ExportType::f32 ? "float32" : "bfloat16")
        .set("longreach_version", build_info().version);
    write("longreach_config.json", config_text);
    write("README.md", model_card(experiment, checkpoint,
                                  {.architecture = result.architecture,
                                   .parameters = result.parameters,
                                   .own_code = !stock,
                                   .tokenizer = has_tokenizer}));
    write("config.json", json::write(config, json::Style::pretty));
    io::write_file_list(staged.path(), export_list, result.files);
    result.kept = staged.publish();
    if (!has_tokenizer)
        result.notes.emplace_back("no tokenizer is known for this model: --tokenizer FILE adds one");
    if (tokenizer.bytes) result.notes.emplace_back("the tokens are bytes, and tokenizer.json says so");
    if (experiment.data.document_mask)
        result.notes.emplace_back(
            "the model was trained with a document mask, which transformers does not have");
    return result;
}

std::string to_text(const ExportResult& result) {
    std::string text = fmt::format("{}: {}, {} parameters, {} files\n", result.directory, result.architecture,
                                   human_count(static_cast<double>(result.parameters)), result.files.size());
    for (const std::string& note : result.notes) text += "note: " + note + "\n";
    if (!result.kept.empty())
        text +=
            fmt::format("kept, since this program did not write it: {}\n", one_line(join(result.kept, ", ")));
    return text;
}

}  // namespace longreach::exchange
