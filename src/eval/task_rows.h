// Results of tasks, as tasks.csv and as text. A task asks for tokens that only the context gives; a row is
// one task at one length.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace longreach::eval {

struct TaskRow {
    std::string task;
    int64_t length = 0;        // T of the sequences
    std::optional<int> depth;  // percent of the way into the context; none: the task has no such place
    int64_t samples = 0;       // sequences
    double accuracy = 0;       // share of answers
    // Standard errors are over samples; none with fewer than two.
    std::optional<double> accuracy_error;
    std::optional<double> margin, margin_error;  // mean log p(answer) - log p(decoy)
    double loss = 0;                             // mean nats per answer token
    uint64_t fingerprint = 0;                    // of the tokens and targets of all samples
};

// Columns of tasks.csv; data/README documents them.
inline constexpr const char* tasks_header =
    "step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss,fingerprint";
inline constexpr size_t first_tasks_columns = 10;  // of the first version
std::vector<std::string> task_lines(const std::vector<TaskRow>& rows, int64_t step);
std::string tasks_table(const std::vector<TaskRow>& rows);  // for the terminal

}  // namespace longreach::eval
