// Writes a sweep with made-up results and its report: write_sample DIR; the page is DIR/report.html. And, in
// which every text is an attack, DIR/hostile.html of a sweep and DIR/hostile-run.html of one run;
// DIR/run.html of a run; DIR/watched.html, which loads itself again after a second.
#include "hostile_runs.h"
#include "io/file.h"
#include "report/page.h"
#include "sample_runs.h"

using namespace longreach;
using namespace longreach::test;

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    SampleSweep sweep;
    // Names that would break out of an attribute, a tag or a script, were they not escaped.
    sweep.name = "</script><script>window.broken = 1</script><img src='https://example.invalid/x.png'> & co";
    sweep.variants.push_back({"<script>\"'&<img src=x onerror=\"window.broken=2\">", 0.1, {}});
    for (SampleVariant& variant : sweep.variants) variant.evaluations.push_back("suffix");
    SampleWriter(sweep).write_sweep(argv[1]);
    SampleWriter(sweep).write_apart(io::join_path(argv[1], "rope.seed1"), "tried");
    io::write_file_atomically(io::join_path(argv[1], "report.html"),
                              report::report_page(report::collect({argv[1]})));
    io::write_file_atomically(io::join_path(argv[1], "watched.html"),
                              report::report_page(report::collect({argv[1]}), {.reload_seconds = 1}));
    io::write_file_atomically(io::join_path(argv[1], "report.svg"),
                              report::report_picture(report::collect({argv[1]})));
    io::write_file_atomically(io::join_path(argv[1], "run.html"),
                              report::report_page(report::collect({io::join_path(argv[1], "rope.seed1")})));
    const std::string hostile = io::join_path(argv[1], "hostile");
    std::string all;
    for (const std::string& text : hostile_texts()) all += text + " ";
    // Names of directories have at most 255 bytes.
    const std::vector<std::string> runs = write_hostile_sweep(hostile, all.substr(0, 180));
    io::write_file_atomically(io::join_path(argv[1], "hostile.html"),
                              report::report_page(report::collect({hostile})));
    io::write_file_atomically(io::join_path(argv[1], "hostile-run.html"),
                              report::report_page(report::collect({runs[0]})));
}
