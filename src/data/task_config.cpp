#include "data/task_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"

namespace longreach::data {

namespace {

constexpr int64_t gpt2_vocabulary = 50257;
// Marks, digits and filler take 32 ids; the rest are names, of which a sample needs a few dozen at least.
constexpr int64_t fewest_ids = 128;

const std::vector<config::Named<TaskKind>>& task_names() {
    static const std::vector<config::Named<TaskKind>> names{
        {TaskKind::none, "none", "ordinary training on data.train"},
        {TaskKind::needle, "needle", "a phrase and a number; asked by the phrase"},
        {TaskKind::needle_s3, "needle_s3", "three cities with numbers; all three are asked"},
        {TaskKind::niah_single, "niah_single", "one key with a number"},
        {TaskKind::niah_multikey, "niah_multikey", "several keys with numbers, one is asked"},
        {TaskKind::niah_multivalue, "niah_multivalue", "one key with several numbers, all are asked"},
        {TaskKind::niah_multiquery, "niah_multiquery", "several keys with numbers, all are asked"},
        {TaskKind::variable_tracking, "variable_tracking", "a chain of assignments"},
        {TaskKind::common_words, "common_words", "the words of a list that occur most often"},
        {TaskKind::frequent_words, "frequent_words", "the three most frequent of a Zipf-like text"},
        {TaskKind::copy, "copy", "a random string again"},
        {TaskKind::induction, "induction", "random symbols, A B among them, then A: what follows"},
        {TaskKind::associative_recall, "associative_recall", "pairs of names; the partner of one"},
        {TaskKind::multi_query_recall, "multi_query_recall", "pairs of names; the partners of several"},
        {TaskKind::reverse, "reverse", "a random string backwards"},
        {TaskKind::sort, "sort", "the symbols of a random string in rising order"},
        {TaskKind::local_count, "local_count", "for each symbol of a string, its number in its run"},
        {TaskKind::two_back, "two_back", "for each symbol of a string, the one two before"},
        {TaskKind::flip_flop, "flip_flop", "bits written, ignored and read; the bit written last"}};
    return names;
}

const std::vector<config::Named<TaskTerms>>& term_names() {
    static const std::vector<config::Named<TaskTerms>> names{
        {TaskTerms::words, "words", "a name of three syllables; form ids: one token"},
        {TaskTerms::numbers, "numbers", "of data.task.digits digits"},
        {TaskTerms::uuids, "uuids", "random, in the shape of version 4: 36 letters; form ids: 32 digits"}};
    return names;
}

}  // namespace

void TaskConfig::fields(config::Fields& f) {
    f.choice("kind", kind, task_names(), {"task the run trains on instead of plain text"});
    f.integer("seed", seed, {.min = -1}, {"seed of the samples; -1: that of the data order"});
    f.choice<TaskHaystack>("haystack", haystack,
                           {{TaskHaystack::by_task, "by_task", "as the task's definition says"},
                            {TaskHaystack::essay, "essay", "a piece of the token stream"},
                            {TaskHaystack::noise, "noise", "the same few sentences over and over"},
                            {TaskHaystack::needles, "needles", "other needles (tasks niah_...)"}},
                           {"what the needles lie in; for needle, niah and variable_tracking"});
    f.choice<TaskForm>(
        "form", form,
        {{TaskForm::automatic, "auto", "text with a vocabulary of 257, else ids"},
         {TaskForm::text, "text", "bytes of English sentences: tokens 0 to 255"},
         {TaskForm::gpt2, "gpt2", "needle_s3: English sentences in GPT-2's vocabulary, numbers by digits"},
         {TaskForm::ids, "ids", "one reserved token per mark, digit and name"}},
        {"how a task is written in tokens"});
    f.choice("keys", keys, term_names(), {"tasks niah_...: what the needles are asked by"});
    f.choice("values", values, term_names(), {"tasks niah_...: what the needles hold"});
    f.text("phrase", phrase,
           {"needle in text: the words before the number, in the needle and in the question"});
    f.integer("digits", digits, {.min = 0, .max = 18},
              {"digits of a needle's number; 0: 4 for needle, 7 for the others"});
    f.integer("ids_first", ids_first, {.min = -1, .max = (int64_t{1} << 31) - 1},
              {"form ids: first reserved token; -1: the last of the vocabulary are reserved"});
    f.integer("ids", ids, {.min = fewest_ids, .max = int64_t{1} << 24}, {"form ids: reserved tokens"});
    f.integer("samples", samples, {.min = 0, .max = 1 << 20},
              {"samples of the task scored at each validation, at the training context; 0: none", true});
}

bool TaskConfig::is_text(int64_t vocab_size) const {
    return form == TaskForm::text ||
           (form == TaskForm::automatic && vocab_size == tokenizer::byte_vocabulary);
}

int64_t TaskConfig::digits_of(TaskKind task) const {
    return digits > 0 ? digits : task == TaskKind::needle ? 4 : 7;
}

void TaskConfig::check(config::Problems& p, int64_t vocab_size) const {
    const auto no_effect = [&](const char* key, const char* reason, const char* other) {
        p.no_effect(key, reason, other);
    };
    if (kind == TaskKind::none) {
        for (const char* key : {"data.task.seed", "data.task.samples"})
            no_effect(key, "data.task.kind is none", "data.task.kind");
        if (!evaluated) {
            for (const char* key :
                 {"data.task.haystack", "data.task.form", "data.task.keys", "data.task.values",
                  "data.task.phrase", "data.task.digits", "data.task.ids_first", "data.task.ids"})
                no_effect(key, "data.task.kind is none", "data.task.kind");
            return;
        }
    }
    const bool text = is_text(vocab_size);
    if (form == TaskForm::text && vocab_size < 256)
        p.add("data.task.form",
              fmt::format("text needs the bytes 0 to 255, the vocabulary has {}", vocab_size),
              "model.vocab_size");
    if (form == TaskForm::gpt2) {
        for (const char* key : {"data.task.ids_first", "data.task.ids", "data.task.phrase"})
            no_effect(key, "the task is written in GPT-2's vocabulary", "data.task.form");
        if (vocab_size < gpt2_vocabulary)
            p.add("data.task.form",
                  fmt::format("gpt2 needs {} tokens, the vocabulary has {}", gpt2_vocabulary, vocab_size),
                  "model.vocab_size");
        if (kind != TaskKind::none && kind != TaskKind::needle_s3)
            p.add("data.task.form", "gpt2 has the words of needle_s3 alone", "data.task.kind");
    } else if (text) {
        for (const char* key : {"data.task.ids_first", "data.task.ids"})
            no_effect(key, "the task is written as text", "data.task.form");
        if (phrase.empty()) p.add("data.task.phrase", "is empty: the question would be, too");
    } else {
        no_effect("data.task.phrase", "the task is written in reserved ids", "data.task.form");
        const int64_t first = first_id(vocab_size);
        if (first < 0 || first + ids > vocab_size)
            p.add(ids_first >= 0 ? "data.task.ids_first" : "data.task.ids",
                  fmt::format("{} reserved tokens from {} on do not fit a vocabulary of {}", ids, first,
                              vocab_size),
                  "model.vocab_size");
    }
    if (kind == TaskKind::none || evaluated) return;
    const bool niah = kind == TaskKind::niah_single || kind == TaskKind::niah_multikey ||
                      kind == TaskKind::niah_multivalue || kind == TaskKind::niah_multiquery;
    const bool needle = niah || kind == TaskKind::needle || kind == TaskKind::needle_s3;
    if (kind != TaskKind::needle)
        no_effect("data.task.phrase", "only the task needle has one", "data.task.kind");
    if (!needle) no_effect("data.task.digits", "the task has no needle", "data.task.kind");
    if (!niah)
        for (const char* key : {"data.task.keys", "data.task.values"})
            no_effect(key, "only the tasks niah_... have a choice", "data.task.kind");
    if (niah && keys != TaskTerms::numbers && values != TaskTerms::numbers)
        no_effect("data.task.digits", "neither keys nor values are numbers", "data.task.values");
    if (!needle && kind != TaskKind::variable_tracking)
        no_effect("data.task.haystack", "the task fills its context itself", "data.task.kind");
    if (haystack == TaskHaystack::needles && !niah)
        p.add("data.task.haystack", "other needles are the haystack of niah tasks only", "data.task.kind");
}

std::string_view name_of(TaskKind task) {
    for (const config::Named<TaskKind>& n : task_names())
        if (n.value == task) return n.name;
    return "";
}

std::string_view name_of(TaskTerms terms) {
    for (const config::Named<TaskTerms>& n : term_names())
        if (n.value == terms) return n.name;
    return "";
}

std::vector<TaskKind> all_tasks() {
    std::vector<TaskKind> tasks;
    for (const config::Named<TaskKind>& n : task_names())
        if (n.value != TaskKind::none) tasks.push_back(n.value);
    return tasks;
}

TaskKind task_by_name(std::string_view name) {
    std::vector<std::string> known;
    for (const TaskKind task : all_tasks()) {
        if (name_of(task) == name) return task;
        known.emplace_back(name_of(task));
    }
    throw Error(ExitCode::usage, fmt::format("there is no task {}", quoted(name)),
                "the tasks: " + join(known, ", "));
}

}  // namespace longreach::data
