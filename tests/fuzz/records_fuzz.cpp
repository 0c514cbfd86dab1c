// A run directory as the report reads it: its records, one part of the input each, in the order below; then
// the page, the picture, the tables and the files for a paper. No part can put a script into the page.
#include "fuzz/target.h"
#include "report/figures.h"
#include "report/page.h"
#include "report/sweep_results.h"
#include "report/terminal.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

constexpr const char* files[] = {"val.csv",       "positions.csv", "probe.csv",   "tasks.csv",
                                 "metrics.jsonl", "timing.jsonl",  "config.json", "build.json"};

size_t count_of(std::string_view text, std::string_view part) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
    return count;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    static const size_t scripts = [] {
        scratch.put("val.csv", "step,tokens,length,loss\n1,16,16,1.5\n");
        return count_of(report::report_page(report::collect({scratch.path()})), "<script");
    }();
    const std::vector<std::string_view> parts = parts_of(text_of(data, size));
    for (size_t i = 0; i < std::size(files); ++i) {
        if (i < parts.size() && !parts[i].empty())
            scratch.put(files[i], parts[i]);
        else
            io::remove_file(scratch / files[i]);
    }
    accepts([&] {
        const report::Collection collection = report::collect({scratch.path()});
        if (collection.runs.empty()) return;  // the command refuses to draw nothing
        report::comparison_table(collection);
        report::comparison_chart(collection);
        const std::string page = report::report_page(collection);
        holds(count_of(page, "<script") == scripts, "a record put a script into the page");
        accepts([&] { report::report_picture(collection); });
        report::paper_files(collection);
    });
    return 0;
}
