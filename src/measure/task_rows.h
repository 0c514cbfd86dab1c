// Results of tasks, as tasks.csv and as text. A task asks for tokens
// that only the context determines; a row is one task at one length.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "io/record_columns.h"

namespace longreach::measure {

struct TaskRow {
    int64_t step = 0;
    std::string task;
    int64_t length = 0;           // T of the sequences
    std::optional<double> depth;  // of the answer, in percent of the context; none: the task has no depth
    int64_t samples = 0;          // sequences
    double accuracy = 0;          // share of answers
    // Standard errors are over samples; none with fewer than two.
    std::optional<double> accuracy_error;
    std::optional<double> margin, margin_error;  // mean log p(answer) - log p(decoy)
    double loss = NAN;                           // mean nats per answer token
    std::string fingerprint;                     // of the tokens and targets of all samples
};

inline constexpr io::RecordColumns tasks_file(
    "tasks.csv", 10, io::required("step", &TaskRow::step), io::required("task", &TaskRow::task),
    io::required("length", &TaskRow::length), io::plain("depth", &TaskRow::depth),
    io::plain("samples", &TaskRow::samples), io::required("accuracy", &TaskRow::accuracy),
    io::plain("accuracy_error", &TaskRow::accuracy_error), io::plain("margin", &TaskRow::margin),
    io::plain("margin_error", &TaskRow::margin_error), io::plain("loss", &TaskRow::loss),
    io::plain("fingerprint", &TaskRow::fingerprint));

std::vector<std::string> task_lines(std::vector<TaskRow> rows, int64_t step);
std::string tasks_table(const std::vector<TaskRow>& rows);  // for the terminal

}  // namespace longreach::measure
