// Losses on further validation sets in a report: the page, the terminal, the tables and files of a sweep.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "io/temp_dir.h"
#include "report/page.h"
#include "report/summary.h"
#include "report/sweep_results.h"
#include "report/terminal.h"
#include "report/sample_runs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const std::string head =
    "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,top1_error,fingerprint\n";

// The losses of data.val plus `more`, on tokens of its own.
std::string moved(const std::string& csv, double more, const std::string& fingerprint) {
    std::string out = head;
    std::vector<std::string> cells(1);
    for (const char c : csv.substr(csv.find('\n') + 1)) {
        if (c == ',') {
            cells.emplace_back();
        } else if (c != '\n') {
            cells.back() += c;
        } else {
            cells[3] = fmt::format("{}", std::stod(cells[3]) + more);
            cells[10] = cells[10].substr(0, 14) + fingerprint;
            for (size_t i = 0; i < cells.size(); ++i) out += (i > 0 ? "," : "") + cells[i];
            out += '\n';
            cells.assign(1, "");
        }
    }
    return out;
}

void add_set(const std::string& directory, const std::string& set, double more,
             const std::string& fingerprint = "5e") {
    const std::string at = io::join_path(directory, "sets/" + set);
    io::make_directories(at);
    put(io::join_path(at, "val.csv"), moved(get(io::join_path(directory, "val.csv")), more, fingerprint));
    const std::string positions = io::join_path(directory, "positions.csv");
    if (io::kind_of(positions, io::Links::refuse) == io::PathKind::file)
        put(io::join_path(at, "positions.csv"), get(positions));
}

// A sweep of three variants; books everywhere, code in the first two only.
struct Sweep {
    TempDir dir;
    explicit Sweep(bool sets = true) {
        SampleWriter(SampleSweep()).write_sweep(dir.path());
        for (const char* variant : {"rope", "logn", "si-p-rope"})
            for (int seed = 1; sets && seed <= 3; ++seed) {
                const std::string run = dir / fmt::format("{}.seed{}", variant, seed);
                const bool code = variant != std::string("si-p-rope");
                add_set(run, "books", 1);
                if (code) add_set(run, "code", 2);
                for (const std::string& label : io::list_directory(run + "/eval")) {
                    add_set(run + "/eval/" + label, "books", 1);
                    if (code) add_set(run + "/eval/" + label, "code", 2);
                }
            }
    }
    report::Collection collected() const { return report::collect({dir.path()}); }
};

std::string section(const std::string& page, const std::string& id) {
    const size_t begin = page.find("<section id=\"" + id + "\"");
    if (begin == page.npos) return {};
    return page.substr(begin, page.find("</section>", begin) - begin);
}

}  // namespace

TEST_CASE("report of sets: a section for each, and those of data.val are what they are without sets") {
    const Sweep with, without(false);
    const std::string page = report::report_page(with.collected()),
                      plain = report::report_page(without.collected());
    for (const char* id : {"overview", "lengths", "differences", "training", "positions", "setup"}) {
        CAPTURE(id);
        REQUIRE(section(plain, id) != "");
        CHECK(section(page, id) == section(plain, id));
    }
    CHECK(section(plain, "losses-set1") == "");
    const std::string books = section(page, "losses-set1"), code = section(page, "losses-set2");
    CHECK(contains(books, ">Losses: books</h2>"));
    CHECK(contains(code, ">Losses: code</h2>"));
    for (const char* figure : {"loss-by-length-set1", "differences-8192-set1", "positions-sequence-set1",
                               "positions-document-set1", "validation-8192-set1"})
        CHECK(contains(books, fmt::format("data-chart=\"{}\"", figure)));
    CHECK(contains(books, "Loss on books by context length (nats per token)"));
    CHECK(contains(books, "Top-1 accuracy"));
    CHECK(contains(books, "Error over documents"));
    CHECK(contains(books, "Standard error on books over documents, mean over seeds (share of tokens)"));
    CHECK(contains(code, "No loss on code was measured for si-p-rope.seed1, si-p-rope.seed2"));
    CHECK(!contains(books, "No loss on"));
    // No id twice.
    std::set<std::string> ids;
    for (size_t at = 0; (at = page.find(" id=\"", at)) != page.npos;) {
        at += 5;
        const std::string id = page.substr(at, page.find('"', at) - at);
        CAPTURE(id);
        CHECK(ids.insert(id).second);
    }
}

TEST_CASE("report of sets: a view has the series of the collection and the losses of the set") {
    const Sweep sweep;
    const report::Collection all = sweep.collected();
    CHECK(all.sets == std::vector<std::string>{"books", "code"});
    const report::Summary main = report::summarize(all);
    for (const std::string& set : all.sets) {
        CAPTURE(set);
        const report::Collection view = report::set_view(all, set);
        const report::Summary s = report::summarize(view);
        CHECK(view.measure.fingerprint == "000000000000005e");
        REQUIRE(s.series.size() == main.series.size());
        for (size_t i = 0; i < s.series.size(); ++i) {
            CHECK(s.styles[i].name == main.styles[i].name);
            const bool lacks = set == "code" && s.series[i].group == "si-p-rope";
            CHECK(s.series[i].loss.empty() == lacks);
            for (const auto& [length, values] : s.series[i].loss)
                for (size_t k = 0; k < values.size(); ++k)
                    CHECK(values[k].value == doctest::Approx(main.series[i].loss.at(length)[k].value +
                                                             (set == "books" ? 1 : 2)));
        }
        CHECK(contains(report::headline(view, s)[0], "has the lowest loss on " + set + " of "));
    }
}

TEST_CASE("report of sets: losses on other tokens are set apart within their set, runs behind left out") {
    const Sweep sweep;
    add_set(sweep.dir / "rope.seed1/eval/ntk", "books", 1, "5f");
    const report::Collection all = sweep.collected();
    CHECK(all.notes == Sweep(false).collected().notes);
    const report::Collection view = report::set_view(all, "books");
    REQUIRE(view.notes.size() == 1);
    CHECK(contains(view.notes[0], "Evaluation ntk of rope (seed 1) scored other tokens"));
    const std::string page = report::report_page(all);
    CHECK(contains(section(page, "losses-set1"), "Shown apart"));
    CHECK(contains(section(page, "losses-set1"), "Loss of books by context length on 65,536 tokens"));
    CHECK(!contains(section(page, "losses-set2"), "Shown apart"));
    CHECK(section(page, "apart") == "");

    // Interrupted between the sets: the last validation of code is missing.
    const TempDir dir;
    const SampleWriter writer{SampleSweep()};
    for (int seed : {1, 2}) {
        const std::string run = dir / fmt::format("rope.seed{}", seed);
        writer.write_run(run, 0, seed);
        std::filesystem::remove_all(run + "/eval");
        add_set(run, "code", 2);
    }
    const std::string val = dir / "rope.seed2/sets/code/val.csv";
    put(val, get(val).substr(0, get(val).find("\n400,") + 1));
    const report::Collection two = report::collect({dir / "rope.seed1", dir / "rope.seed2"});
    CHECK(two.notes.empty());
    const report::Collection code = report::set_view(two, "code");
    REQUIRE(code.notes.size() == 1);
    CHECK(contains(code.notes[0], "left out of the losses after training: rope.seed2 (step 200 of 400)."));
    CHECK(report::summarize(code).series[0].loss.at(256).size() == 1);
    CHECK(report::summarize(two).series[0].loss.at(256).size() == 2);
}

TEST_CASE("report of sets: on the terminal, and for a sweep as tables and as a file") {
    const Sweep with, without(false);
    const report::Collection all = with.collected(), plain = without.collected();
    CHECK(report::comparison_table(all) == report::comparison_table(plain));
    CHECK(report::comparison_table(report::set_view(all, "books")).starts_with("loss on books at context "));
    const std::string tables = report::sweep_tables(all), before = report::sweep_tables(plain);
    CHECK(tables.starts_with(before));
    for (const char* text :
         {"\nlosses on books: the same 65,536 tokens of 320 documents for all\n",
          "\nloss on books at context ", "\nloss on books minus rope ", "\ntop-1 % on code at context "})
        CHECK(contains(tables.substr(before.size()), text));
    for (const Sweep* sweep : {&with, &without}) report::write_sweep_csv(sweep->dir.path());
    for (const char* file : {"results.csv", "results_tasks.csv"})
        CHECK(get(with.dir / file) == get(without.dir / file));
    CHECK(io::kind_of(without.dir / "results_sets.csv", io::Links::refuse) == io::PathKind::missing);
    const std::string csv = get(with.dir / "results_sets.csv");
    CHECK(csv.starts_with(report::results_sets_file.header() + "\nbooks,rope,1,plain,256,"));
    CHECK(contains(csv, "\ncode,logn,3,plain,8192,"));
    CHECK(!contains(csv, "\ncode,si-p-rope,"));
}

TEST_CASE("report of sets: what is no set is not read, and a damaged set is named") {
    const Sweep sweep(false);
    const std::string run = sweep.dir / "rope.seed1";
    for (const char* name : {"a b", "..x"}) {
        io::make_directories(run + "/sets/" + name);
        put(run + "/sets/" + name + "/val.csv", "no record");
    }
    put(run + "/sets/file", "");
    io::make_directories(run + "/sets/empty");
    CHECK(sweep.collected().sets.empty());
    io::make_directories(run + "/sets/bad");
    put(run + "/sets/bad/val.csv", "step,loss\n1,2\n");
    CHECK(contains(error_of([&] { sweep.collected(); }), "sets/bad/val.csv: there is no column 'tokens'"));
}
