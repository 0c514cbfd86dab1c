#include "data/data_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "config/field_info.h"

namespace longreach::data {
namespace {

double largest(const std::vector<double>& weights) {
    return *std::max_element(weights.begin(), weights.end());
}

// What is wrong with weights of which one is too small to be kept; "" if none is.
std::string too_small(const std::vector<double>& weights) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (const double weight : weights)
        if (weight > 0 && weight * mixture_slots < sum)
            return fmt::format("the weight {} is less than 1/{} of the sum {}", weight, mixture_slots, sum);
    return "";
}

}  // namespace

void BoundaryConfig::fields(config::Fields& f) {
    f.integer("token", token, {.min = -1, .max = (int64_t{1} << 31) - 1},
              {"token that marks a document; -1: what the shards say (llm.c v1: 50256)"});
    f.choice("side", side,
             {{BoundarySide::before, "before", "the marker is the first token of its document"},
              {BoundarySide::after, "after", "the marker is the last token of its document"}},
             {.help = "which end of a document boundary.token marks; with -1 the shards say it",
              .acts = config::unless("token", "-1")});
}

void SourceConfig::fields(config::Fields& f) {
    f.texts("paths", paths, {"training shards: files, directories or shell patterns, read in this order"});
    f.number("weight", weight, {.min = 0, .max = 1e6},
             {"share of the training tokens, relative to the other sources; 0: none unless a stage says "
              "otherwise"});
}

void ValSetConfig::fields(config::Fields& f) {
    f.texts("paths", paths, {"validation shards: files, directories or shell patterns, read in this order"});
}

void DataConfig::fields(config::Fields& f) {
    f.texts("train", train, {"training shards: files, directories or shell patterns, read in this order"});
    f.variations("mixture", mixture, SourceConfig(),
                 {"sources of training tokens by name, in place of `train`"});
    f.texts("val", val, {"validation shards: files, directories or shell patterns, read in this order"});
    f.variations(
        "val_sets", val_sets, ValSetConfig(),
        {"further validation sets by name; their losses have records, tables and charts of their own"});
    f.choice("format", format,
             {{DataFormat::automatic, "auto", "decided by the first bytes of each file"},
              {DataFormat::raw, "raw", "no header: tokens of `width` bytes and nothing else"}},
             {"how the shards are stored"});
    f.integer("width", width, {.min = 0, .max = 4},
              {.help = "bytes per token, 2 or 4; other formats say it themselves",
               .acts = config::only("format", "raw")});
    f.flag("document_mask", document_mask, {"attention stays inside the document"});
    f.section("boundary", boundary, {"where documents begin"});
    f.choice(
        "shuffle", shuffle,
        {{ShuffleKind::random, "random", "blocks of the largest context, in a new random order each epoch"},
         {ShuffleKind::none, "none", "file order"}},
        {"order in which the training tokens are read"});
    f.choice("blocks", blocks,
             {{BlockKind::stream, "stream", "all training tokens, one after the other"},
              {BlockKind::documents, "documents",
               "documents of the largest context and longer, each from its start; shorter ones and what is "
               "left over are not read"}},
             {"what the blocks of the largest context are cut from"});
    f.section("task", task, {"synthetic tasks: training on one, and how all of them are written"});
}

void DataConfig::check(config::Problems& problems, int64_t vocab_size) const {
    const bool is_raw = format == DataFormat::raw;
    if (is_raw && width != 2 && width != 4)
        problems.add("data.width", fmt::format("raw shards need 2 or 4 bytes per token, not {}", width),
                     "data.format");
    if (is_raw && document_mask && boundary.token < 0)
        problems.add("data.boundary.token",
                     "raw shards do not say where documents begin: name the marker, or switch "
                     "the document mask off",
                     "data.document_mask");
    if (boundary.token >= vocab_size)
        problems.add("data.boundary.token",
                     fmt::format("token {} is outside the vocabulary of {}", boundary.token, vocab_size),
                     "model.vocab_size");
    if (!mixture.empty() && !train.empty())
        problems.add("data.train", "training tokens come from `train` or from `mixture`, not both",
                     "data.mixture");
    for (const auto& [name, source] : mixture)
        if (source.paths.empty()) problems.add("data.mixture." + name, "a source needs `paths`");
    if (!mixture.empty() && largest(weights({})) == 0)
        problems.add("data.mixture", "every source has weight 0");
    else if (const std::string small = too_small(weights({})); !small.empty())
        problems.add("data.mixture", small);
    for (const auto& [name, set] : val_sets)
        if (set.paths.empty()) problems.add("data.val_sets." + name, "a validation set needs `paths`");
    task.check(problems, vocab_size);
    if (task.kind != TaskKind::none) {
        if (document_mask)
            problems.add("data.document_mask",
                         "a sample of a task has documents in it that its question must reach across",
                         "data.task.kind");
        if (!mixture.empty())
            problems.add("data.mixture", "a task takes its haystacks from one source", "data.task.kind");
        if (shuffle == ShuffleKind::none)
            problems.no_effect("data.shuffle", "a task takes its haystacks from random places",
                               "data.task.kind");
    }
}

void DataConfig::check_weights(config::Problems& problems, const std::string& path,
                               const json::Value& stage) const {
    if (stage.is_null()) return;
    if (!stage.is_object()) return problems.add(path, "expected an object of names and weights");
    if (mixture.empty()) return problems.add(path, "data.mixture has no sources to weigh", "data.mixture");
    bool sound = true;
    for (const json::Member& member : stage.as_object()) {
        const std::optional<double> weight = member.value.to_number();
        std::string problem;
        if (!mixture.contains(member.key)) {
            std::vector<std::string> names;
            for (const auto& [name, unused] : mixture) names.push_back(name);
            problem = fmt::format("data.mixture has no source of this name, only {}", join(names, ", "));
        } else if (!weight || !(*weight >= 0 && *weight <= 1e6)) {
            problem = "expected a weight from 0 to 1e6";
        }
        if (problem.empty()) continue;
        problems.add(config::field_path(path, member.key), problem);
        sound = false;
    }
    if (!sound) return;
    if (largest(weights(stage)) == 0) return problems.add(path, "every source has weight 0");
    if (const std::string small = too_small(weights(stage)); !small.empty()) problems.add(path, small);
}

std::vector<std::vector<std::string>> DataConfig::sources() const {
    if (mixture.empty()) return {train};
    std::vector<std::vector<std::string>> paths;
    for (const auto& [name, source] : mixture) paths.push_back(source.paths);
    return paths;
}

const std::vector<std::string>& DataConfig::val_paths(const std::string& set) const {
    return set.empty() ? val : val_sets.at(set).paths;
}

std::vector<double> DataConfig::weights(const json::Value& stage) const {
    if (mixture.empty()) return {1.0};
    std::vector<double> weights;
    for (const auto& [name, source] : mixture) {
        const json::Value* own = stage.is_object() ? stage.find(name) : nullptr;
        weights.push_back(own != nullptr      ? own->to_number().value_or(0)
                          : stage.is_object() ? 0
                                              : source.weight);
    }
    return weights;
}

StreamOptions DataConfig::stream_options(int64_t vocab_size) const {
    StreamOptions options;
    options.shard = {format == DataFormat::raw, static_cast<int>(width)};
    options.vocab = vocab_size;
    options.boundary_token = boundary.token;
    options.side = boundary.side;
    options.need_documents = document_mask;
    return options;
}

}  // namespace longreach::data
