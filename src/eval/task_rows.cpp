#include "eval/task_rows.h"

#include "base/error.h"
#include "base/hash.h"

namespace longreach::eval {

namespace {

template <class T>
std::string cell(const std::optional<T>& value) {
    return value ? fmt::format("{}", *value) : "";
}

}  // namespace

std::vector<std::string> task_lines(const std::vector<TaskRow>& rows, int64_t step) {
    std::vector<std::string> lines;
    for (const TaskRow& r : rows)
        lines.push_back(fmt::format("{},{},{},{},{},{},{},{},{},{},{}", step, r.task, r.length, cell(r.depth),
                                    r.samples, r.accuracy, cell(r.accuracy_error), cell(r.margin),
                                    cell(r.margin_error), r.loss, format_hash64(r.fingerprint)));
    return lines;
}

std::string tasks_table(const std::vector<TaskRow>& rows) {
    std::string out = fmt::format("{:>16} {:>9} {:>6} {:>8} {:>9} {:>9} {:>9} {:>9}\n", "task", "length",
                                  "depth", "samples", "accuracy", "std.err", "margin", "loss");
    for (const TaskRow& r : rows)
        out += fmt::format("{:>16} {:>9} {:>6} {:>8} {:>9.4f} {:>9} {:>9} {:>9.4f}\n", r.task, r.length,
                           cell(r.depth), r.samples, r.accuracy,
                           r.accuracy_error ? fmt::format("{:.4f}", *r.accuracy_error) : "-",
                           r.margin ? fmt::format("{:.4f}", *r.margin) : "", r.loss);
    return out;
}

}  // namespace longreach::eval
