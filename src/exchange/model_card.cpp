#include "exchange/model_card.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/text.h"
#include "base/units.h"
#include "config/field_info.h"
#include "eval/tables.h"
#include "model/attention_angle.h"
#include "train/run_directory.h"

namespace longreach::exchange {

namespace {

// The rows of the newest step up to the checkpoint's.
std::vector<eval::LossRow> newest(std::vector<eval::LossRow> rows, int64_t limit) {
    int64_t step = -1;
    for (const eval::LossRow& row : rows)
        if (row.step <= limit) step = std::max(step, row.step);
    std::erase_if(rows, [&](const eval::LossRow& row) { return row.step != step; });
    return rows;
}

// A name as Markdown that shows it and is nothing else: no link, no HTML, no cell of a table.
std::string literal(const std::string& name) {
    std::string out;
    for (const char c : one_line(name)) {
        if (std::ispunct(static_cast<unsigned char>(c))) out += '\\';
        out += c;
    }
    return out;
}

std::string table(const std::string& title, const std::vector<eval::LossRow>& rows) {
    if (rows.empty()) return {};
    std::string text =
        fmt::format("\n{}\n\n| length | loss | standard error | tokens scored | documents |\n", title);
    text += "|---:|---:|---:|---:|---:|\n";
    const auto whole = [](double count) {
        return std::isnan(count) ? std::string("-") : fmt::format("{:.0f}", count);
    };
    for (const eval::LossRow& row : rows)
        text += fmt::format("| {} | {:.4f} | {} | {} | {} |\n", row.length, row.loss,
                            std::isnan(row.standard_error) ? "-" : fmt::format("{:.4f}", row.standard_error),
                            whole(row.scored), whole(row.documents));
    return text;
}

// Of data.val in a directory of results, and of the further sets there.
std::string losses_in(const std::string& directory, const std::string& title, int64_t step) {
    std::string text = table(title + ":", newest(eval::val_file.read(directory), step));
    const std::string sets = io::join_path(directory, "sets");
    if (io::kind_of(sets, io::Links::refuse) != io::PathKind::directory) return text;
    for (const std::string& set : io::list_directory(sets))
        if (config::is_plain_name(set))
            text += table(fmt::format("{}, on {}:", title, set),
                          newest(eval::val_file.read(io::join_path(sets, set)), step));
    return text;
}

// Of the validations of the run, and of its evaluations under a label.
std::string losses(const std::string& run, int64_t step) {
    std::string text = losses_in(run, fmt::format("Validation after step {}", step), step);
    const std::string evaluations = io::join_path(run, "eval");
    if (io::kind_of(evaluations, io::Links::refuse) != io::PathKind::directory) return text;
    for (const std::string& label : io::list_directory(evaluations))
        if (train::is_label(label))
            text += losses_in(io::join_path(evaluations, label), fmt::format("Evaluation `{}`", label), step);
    return text;
}

}  // namespace

std::string model_card(const train::Experiment& e, const io::Checkpoint& checkpoint, const CardFacts& facts) {
    const std::string run = io::parent_path(io::parent_path(checkpoint.path));
    std::string text = "---\nlibrary_name: transformers\ntags:\n- longreach\n- long-context\n---\n\n";
    text += fmt::format("# {}\n\n", literal(e.run.name));
    text += fmt::format(
        "A `{}` of {} parameters, a checkpoint of longreach: {} layers of width {}, a vocabulary of {} tokens. ",
        facts.architecture, human_count(static_cast<double>(facts.parameters)), e.model.layers, e.model.width,
        e.model.vocab_size);
    text += checkpoint.step > 0
                ? fmt::format("Step {} of its training, at contexts of up to {} tokens.\n", checkpoint.step,
                              e.model.train_context)
                : fmt::format(
                      "longreach has not trained it: its weights are imported, or as they begin. It is "
                      "configured for contexts of up to {} tokens.\n",
                      e.model.train_context);
    if (e.data.document_mask)
        text +=
            "\nIn training, attention stayed inside each document (`data.document_mask`). This model does "
            "not separate documents: give it one document at a time.\n";
    if (!facts.tokenizer)
        text += "\nNo tokenizer is here: token ids are those of the data that the model was trained on.\n";
    text += "\n## Use\n\n```python\nfrom transformers import AutoModelForCausalLM\n\n";
    text += fmt::format("model = AutoModelForCausalLM.from_pretrained(\".\"{})\n```\n",
                        facts.own_code ? ", trust_remote_code=True" : "");
    const std::string measured =
        io::kind_of(run, io::Links::follow) == io::PathKind::directory ? losses(run, checkpoint.step) : "";
    text += "\n## Loss by length\n";
    text += measured.empty()
                ? "\nNot measured.\n"
                : "\nMean loss per token in nats. The same tokens are scored at every length of a table.\n" +
                      measured;
    text += "\n## Config\n\n`longreach_config.json` is the config of the run.\n";
    return text;
}

}  // namespace longreach::exchange
