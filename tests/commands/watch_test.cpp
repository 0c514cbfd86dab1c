// report --watch and --figures on a run whose lock this process holds, as a training would.
#include <doctest/doctest.h>

#include <optional>

#include "eval/tables.h"
#include "io/file.h"
#include "io/run_lock.h"
#include "process.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Run {
    TempDir dir;
    std::string path = dir / "run", page = path + "/report.html";
    std::optional<io::RunLock> lock;

    Run() {
        io::make_directories(path);
        write("5.5");
        lock.emplace(path);
    }
    void write(const std::string& loss) const {
        put(path + "/val.csv",
            eval::val_file.header() + "\n12,1536,16," + loss + ",0.1,256,4,,0,,0123456789abcdef\n");
    }
    // Whether the page is there with the loss, and loads itself again or not.
    bool shows(const std::string& loss, bool reloads) const {
        if (io::kind_of(page, io::Links::refuse) != io::PathKind::file) return false;
        const std::string html = get(page);
        return html.find(loss) != std::string::npos &&
               (html.find("<body data-reload=\"1\"") != html.npos) == reloads;
    }
};

}  // namespace

TEST_CASE("report --watch draws the page again when a record changes, and a last time when the run ends") {
    Run run;
    Process watching(run.dir, {"report", run.path, "--watch", "--every", "1"});
    CHECK(wait_until([&] { return run.shows("5.5000", true); }));
    run.write("4.25");
    CHECK(wait_until([&] { return run.shows("4.2500", true); }));
    CHECK(watching.running());
    run.lock.reset();
    CHECK(watching.wait() == 0);
    CHECK(run.shows("4.2500", false));
    CHECK(watching.out().find("drawn again every 1 seconds") != std::string::npos);
}

TEST_CASE("report --watch: ^C leaves a page that stays as it is, and ends the program as ^C ends others") {
    Run run;
    Process watching(run.dir, {"report", run.path, "--watch", "--every", "1"});
    CHECK(wait_until([&] { return run.shows("5.5000", true); }));
    watching.signal(SIGINT);
    CHECK(watching.wait() == -SIGINT);  // 130 in a shell
    CHECK(run.shows("5.5000", false));
    // Before there is anything to draw, it waits for it.
    io::remove_file(run.path + "/val.csv");
    Process early(run.dir, {"report", run.path, "--watch", "--every", "1"});
    sleep_for(0.3);
    CHECK(early.running());
    early.signal(SIGINT);
    CHECK(early.wait() == -SIGINT);
}

TEST_CASE("report --figures writes every file that it names, and makes the directory") {
    Run run;
    const std::string at = run.dir / "paper/figures";
    const Finished f = test::run(run.dir, {"report", run.path, "--figures", at});
    CHECK(f.code == 0);
    CHECK(f.out.find("for a paper: ") != std::string::npos);
    CHECK(get(at + "/loss-by-length.pdf").starts_with("%PDF-"));
    CHECK(get(at + "/loss-by-length.svg").starts_with("<svg "));
    CHECK(get(at + "/tables.tex").find("\\toprule") != std::string::npos);
    put(run.dir / "file", "");
    CHECK(test::run(run.dir, {"report", run.path, "--figures", run.dir / "file"}).code == 5);
}
