#include "data/data_config.h"

#include <fmt/format.h>

namespace longreach::data {

void BoundaryConfig::fields(config::Fields& f) {
    f.integer("token", token, {.min = -1, .max = (int64_t{1} << 31) - 1},
              {"token that marks a document; -1: what the shards say (llm.c v1: 50256)"});
    f.choice("side", side,
             {{BoundarySide::before, "before", "the marker is the first token of its document"},
              {BoundarySide::after, "after", "the marker is the last token of its document"}},
             {"which end of a document boundary.token marks"});
}

void DataConfig::fields(config::Fields& f) {
    f.texts("train", train, {"training shards: files, directories or shell patterns, read in this order"});
    f.texts("val", val, {"validation shards: files, directories or shell patterns, read in this order"});
    f.choice("format", format,
             {{DataFormat::automatic, "auto", "decided by the first bytes of each file"},
              {DataFormat::raw, "raw", "no header: tokens of `width` bytes and nothing else"}},
             {"how the shards are stored"});
    f.integer("width", width, {.min = 0, .max = 4}, {"bytes per token of raw shards: 2 or 4"});
    f.flag("document_mask", document_mask, {"attention stays inside the document"});
    f.section("boundary", boundary, {"where documents begin"});
    f.choice(
        "shuffle", shuffle,
        {{ShuffleKind::random, "random", "blocks of the largest context, in a new random order each epoch"},
         {ShuffleKind::none, "none", "file order"}},
        {"order in which the training tokens are read"});
    f.section("task", task, {"synthetic tasks: training on one, and how all of them are written"});
}

void DataConfig::check(config::Problems& problems, int64_t vocab_size) const {
    const bool is_raw = format == DataFormat::raw;
    if (is_raw && width != 2 && width != 4)
        problems.add("data.width", fmt::format("raw shards need 2 or 4 bytes per token, not {}", width),
                     "data.format");
    if (!is_raw) problems.no_effect("data.width", "the shards' headers state the width", "data.format");
    if (is_raw && document_mask && boundary.token < 0)
        problems.add("data.boundary.token",
                     "raw shards do not say where documents begin: name the marker, or switch "
                     "the document mask off",
                     "data.document_mask");
    if (boundary.token < 0)
        problems.no_effect("data.boundary.side", "with token -1 the shards state the side",
                           "data.boundary.token");
    if (boundary.token >= vocab_size)
        problems.add("data.boundary.token",
                     fmt::format("token {} is outside the vocabulary of {}", boundary.token, vocab_size),
                     "model.vocab_size");
    task.check(problems, vocab_size);
    if (task.kind != TaskKind::none) {
        if (document_mask)
            problems.add("data.document_mask",
                         "a sample of a task has documents in it that its question must reach across",
                         "data.task.kind");
        if (shuffle == ShuffleKind::none)
            problems.no_effect("data.shuffle", "a task takes its haystacks from random places",
                               "data.task.kind");
    }
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
