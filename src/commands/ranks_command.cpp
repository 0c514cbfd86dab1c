// longreach ranks: the last collectives of the ranks of a run, from their logs.
#include <algorithm>

#include "base/json.h"
#include "commands/commands.h"
#include "ranks/collective_log.h"
#include "io/file.h"
#include "io/result_file.h"

namespace longreach::commands {

namespace {

struct RanksOptions {
    std::string run, trace;
    int last = 16;
    bool replace = false;
};

std::vector<ranks::CollectiveLogContents> read_logs(const std::string& run) {
    std::vector<ranks::CollectiveLogContents> logs;
    for (int rank = 0; logs.empty() || rank < logs[0].ranks; ++rank) {
        const std::string path = ranks::collective_log_path(run, rank);
        if (io::kind_of(path, io::Links::refuse) == io::PathKind::file)
            logs.push_back(ranks::read_collective_log(path));
        else
            require(rank > 0, ExitCode::data, "{} has no logs of ranks: {} is missing", run, path);
    }
    return logs;
}

double milliseconds(int64_t from, int64_t to) {
    return static_cast<double>(to - from) * 1e-6;
}

void print_log(const ranks::CollectiveLogContents& log, int last, int64_t zero) {
    fmt::print("rank {} of {}, process {}{}\n", log.rank, log.ranks, log.process,
               log.torn == 0 ? "" : fmt::format(", {} records damaged", log.torn));
    fmt::print("  {:>8}{:>8}  {:<16}{:>12} {:<5}{:>12}{:>12}\n", "number", "step", "collective", "elements",
               "", "begun, ms", "took, ms");
    const size_t first =
        log.records.size() > static_cast<size_t>(last) ? log.records.size() - static_cast<size_t>(last) : 0;
    for (size_t i = first; i < log.records.size(); ++i) {
        const ranks::CollectiveRecord& r = log.records[i];
        fmt::print("  {:>8}{:>8}  {:<16}{:>12} {:<5}{:>12.3f}{:>12}\n", r.sequence, r.step,
                   ranks::op_name(r.op), r.count, ranks::element_name(r.element),
                   milliseconds(zero, r.begun_ns),
                   r.finished_ns == 0 ? "not ended"
                                      : fmt::format("{:.3f}", milliseconds(r.begun_ns, r.finished_ns)));
    }
}

// In the format of chrome://tracing and Perfetto: one row
// of bars per rank, from the start to the end of the wait.
std::string trace_of(const std::vector<ranks::CollectiveLogContents>& logs, int64_t zero) {
    json::Value events = json::Value::array();
    for (const ranks::CollectiveLogContents& log : logs)
        for (const ranks::CollectiveRecord& r : log.records)
            for (const bool end : {false, true}) {
                const int64_t at = end ? r.finished_ns : r.begun_ns;
                if (at == 0) continue;
                json::Value event = json::Value::object();
                event
                    .set("name", fmt::format("{} {} {}", ranks::op_name(r.op), r.count,
                                             ranks::element_name(r.element)))
                    .set("cat", "collective")
                    .set("ph", end ? "e" : "b")
                    .set("id", static_cast<int64_t>(r.sequence))
                    .set("pid", log.rank)
                    .set("ts", milliseconds(zero, at) * 1e3);
                events.push(event);
            }
    return json::write(events, json::Style::compact);
}

ExitCode show(const RanksOptions& options) {
    const std::vector<ranks::CollectiveLogContents> logs = read_logs(options.run);
    int64_t zero = 0;
    for (const ranks::CollectiveLogContents& log : logs)
        if (!log.records.empty() && (zero == 0 || log.records[0].begun_ns < zero))
            zero = log.records[0].begun_ns;
    for (const ranks::CollectiveLogContents& log : logs) print_log(log, options.last, zero);
    if (!options.trace.empty()) io::write_result(options.trace, trace_of(logs, zero), options.replace);
    return ExitCode::ok;
}

}  // namespace

void add_ranks_command(Command& program) {
    auto options = std::make_shared<RanksOptions>();
    Command command = program.add("ranks", "Show the last collectives of the ranks of a run");
    command.option("run", options->run, "Run directory").required();
    command.option("--last", options->last, "Collectives to show for each rank").in_range(1, 64);
    command.option("--trace", options->trace, "Also write them as a trace for chrome://tracing or Perfetto");
    add_replace_flag(command, options->replace);
    command.run([options] { return show(*options); });
}

}  // namespace longreach::commands
