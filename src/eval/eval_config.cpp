#include "eval/eval_config.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace longreach::eval {

namespace {

// A CPU's tiles of queries that share tiles of keys, and chunks of the delta rule, divide it.
constexpr int64_t piece_multiple = 512;

}  // namespace

void EvalConfig::take_lengths(const std::vector<int64_t>& given, int64_t scored) {
    if (!given.empty()) lengths = given;
    if (scored > 0) final_tokens = scored;
    if (lengths.empty()) return;  // check() refuses that
    tokens = std::max(tokens, lengths.back());
    final_tokens = std::max(final_tokens, lengths.back());
}

void EvalConfig::fields(config::Fields& f) {
    f.integer("every", every, {.min = 0}, {"steps between validations; 0: only at the end", true});
    f.integers("lengths", lengths, {.min = 1, .max = int64_t{1} << 31, .tokens = true},
               {"context lengths, in tokens; the same tokens are scored at every length", true});
    f.integer("tokens", tokens, {.min = 1, .tokens = true},
              {.help = "tokens scored at each length during training; at the end it is final_tokens",
               .resumable = true,
               .acts = config::unless("every", "0")});
    f.integer("final_tokens", final_tokens, {.min = 1, .tokens = true},
              {"tokens scored at each length at the end of a run", true});
    f.choice<EvalPick>(
        "pick", pick,
        {{EvalPick::spread, "spread", "windows (suffix: documents) spread evenly over the whole stream"},
         {EvalPick::head, "head", "the first ones of the stream"}},
        {"which part of the validation stream is scored if not all of it", true});
    f.choice<EvalAlign>(
        "align", align,
        {{EvalAlign::chunk, "chunk", "cut one stream into sequences of each length; every token is scored"},
         {EvalAlign::suffix, "suffix",
          "score the last tokens of documents after prefixes of each length: only the context changes"}},
        {"which tokens are scored at which context", true});
    f.integer("suffix_tokens", suffix_tokens, {.min = 0, .tokens = true},
              {.help = "tokens scored at the end of each document; 0: half the smallest length",
               .resumable = true,
               .acts = config::only("align", "suffix")});
    f.integer("min_document", min_document, {.min = 0, .tokens = true},
              {"score only tokens of documents at least this long, in tokens; 0: all", true});
    f.integer(
        "batch_tokens", batch_tokens, {.min = 0, .tokens = true},
        {"tokens evaluated at once; 0: as many as a training micro-batch, at least one longest sequence or, if "
         "that is longer, one piece of it",
         true});
    f.integer(
        "piece", piece, {.min = 0, .max = int64_t{1} << 31, .tokens = true},
        {"a longer sequence is read in pieces of this many tokens, a multiple of 512, one after the other: "
         "the same losses in less memory, on a CPU without top_k; 0: 16384 where that is possible, "
         "otherwise whole sequences. longreach probe reads pieces for states alone, and by default where no "
         "layer attends to keys",
         true});
    f.any("score", rope.score,
          {.help =
               "formulas or names of laws that are applied to the score at lengths beyond train_context, in "
               "the layers that eval.rope.layers chooses: \"z * max(1, log(n)/log(L))\"; null: none",
           .resumable = true,
           .of_library = true});
    f.any("angle", rope.angle,
          {.help =
               "the angles of those layers at these lengths: a formula of p, m, theta, R, d, L and T, "
               "\"p*theta*L/T\"; the name of an angle (longreach laws); or {near, far_query, far_key, "
               "far_from} with angles of their own for pairs at distance far_from or more; null: as trained",
           .resumable = true,
           .of_library = true});
    f.integer(
        "top_k", rope.top_k, {.min = 0, .max = int64_t{1} << 31},
        {"every query attends to this many of its keys, those with the highest scores, of equal ones the "
         "nearest, in all layers and at all lengths; on a CPU alone; 0: to all",
         true});
    f.integer(
        "top_k_block", rope.top_k_block, {.min = 0, .max = int64_t{1} << 31},
        {.help = "top_k takes keys in blocks of this many positions: the query's own block and, up to top_k "
                 "keys together, those whose keys have the highest mean score; 0: keys one by one",
         .resumable = true,
         .acts = config::unless("top_k", "0")});
    f.choice<model::TopBy>(
        "top_k_by", rope.top_k_by,
        {{model::TopBy::scores, "scores", "the scores of each head, which chooses for itself"},
         {model::TopBy::index, "index",
          "the layer's index of keys (attention.index_heads), for all of its heads; layers without one use "
          "scores"}},
        {.help = "what top_k chooses keys by", .resumable = true, .acts = config::unless("top_k", "0")});
    f.section("rope", rope, {"changes to a trained model for sequences longer than train_context"});
}

void EvalConfig::check(config::Problems& p) const {
    rope.check("eval.rope", p);
    if (lengths.empty()) p.add("eval.lengths", "needs at least one length");
    const bool rising = std::is_sorted(lengths.begin(), lengths.end(), std::less_equal<>());
    if (!rising) p.add("eval.lengths", "lengths must rise");
    for (int64_t length : lengths)
        if (rising && lengths.back() % length != 0)
            p.add("eval.lengths",
                  fmt::format(
                      "{} does not divide the largest length {}, so the two cannot score the same tokens",
                      length, lengths.back()));
    if (rope.top_k > 0 && rope.top_k_block > 0 && rope.top_k % rope.top_k_block != 0)
        p.add("eval.top_k_block", fmt::format("{} does not divide top_k, {}", rope.top_k_block, rope.top_k),
              "eval.top_k");
    if (rope.top_k > 0 && rope.top_k_block > 0 && rope.top_k_by == model::TopBy::index)
        p.add("eval.top_k_by", "an index chooses keys one by one: top_k_block must be 0", "eval.top_k_block");
    if (piece % piece_multiple != 0)
        p.add("eval.piece", fmt::format("{} is not a multiple of {}", piece, piece_multiple));
    if (piece > 0 && rope.top_k > 0 && !lengths.empty() && lengths.back() > piece)
        p.add("eval.piece", "the keys with the highest scores are chosen in whole sequences: top_k must be 0",
              "eval.top_k");
    if (align == EvalAlign::suffix && !lengths.empty() && suffix_tokens > lengths.front())
        p.add("eval.suffix_tokens",
              fmt::format("{} tokens do not fit the smallest length {}", suffix_tokens, lengths.front()),
              "eval.lengths");
    if (every > 0 && !lengths.empty() && tokens < lengths.back())
        p.add("eval.tokens",
              fmt::format("{} tokens are fewer than one sequence of the largest length {}", tokens,
                          lengths.back()),
              "eval.lengths");
    if (!lengths.empty() && final_tokens < lengths.back())
        p.add("eval.final_tokens",
              fmt::format("{} tokens are fewer than one sequence of the largest length {}", final_tokens,
                          lengths.back()),
              "eval.lengths");
}

}  // namespace longreach::eval
