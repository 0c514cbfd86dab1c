#include "measure/task_rows.h"

#include "base/error.h"

namespace longreach::measure {

std::vector<std::string> task_lines(std::vector<TaskRow> rows, int64_t step) {
    for (TaskRow& row : rows) row.step = step;
    return tasks_file.lines(rows);
}

std::string tasks_table(const std::vector<TaskRow>& rows) {
    std::string out = fmt::format("{:>16} {:>9} {:>6} {:>8} {:>9} {:>9} {:>9} {:>9}\n", "task", "length",
                                  "depth", "samples", "accuracy", "std.err", "margin", "loss");
    for (const TaskRow& r : rows)
        out += fmt::format("{:>16} {:>9} {:>6} {:>8} {:>9.4f} {:>9} {:>9} {:>9.4f}\n", r.task, r.length,
                           io::cell_text(r.depth, io::Column::plain), r.samples, r.accuracy,
                           r.accuracy_error ? fmt::format("{:.4f}", *r.accuracy_error) : "-",
                           r.margin ? fmt::format("{:.4f}", *r.margin) : "", r.loss);
    return out;
}

}  // namespace longreach::measure
