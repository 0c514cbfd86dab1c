// eval and report of runs with further validation sets, and of runs that have none.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/json.h"
#include "commands/process.h"
#include "eval/tables.h"
#include "train/reseal.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Home {
    TempDir dir, output;
    Home() {
        make_corpus(dir / "data", 1);
        make_corpus(dir / "books", 2);
        make_corpus(dir / "code", 3);
        for (const std::string name : {"with", "old"}) {
            std::vector<std::string> sets{set("books"), set("code")};
            if (name == "old") sets.clear();
            check(run_training(load_tiny(tiny_config(dir.path(), name), sets)) == ExitCode::ok, "{}", name);
        }
        // A config of a version that knew no sets.
        reseal(dir / "old", 12, "config.json", [](std::string& text) {
            json::Value config = json::parse(text, "config.json"), data = json::Value::object();
            for (const json::Member& m : config.find("data")->as_object())
                if (m.key != "val_sets") data.set(m.key, m.value);
            config.set("data", data);
            text = json::write(config, json::Style::pretty);
            check(!contains(text, "val_sets"), "the config of an earlier version");
        });
        put(dir / "old/config.json", get(dir / "old/checkpoints/step_00000012/config.json"));
    }
    std::string shards(const std::string& name) const { return dir / (name + "/val_000000.bin"); }
    std::string set(const std::string& name) const {
        return "data.val_sets." + name + ".paths=[\"" + shards(name) + "\"]";
    }
    Finished command(const std::vector<std::string>& arguments) const { return run(output, arguments); }
    bool has(const std::string& path) const {
        return io::kind_of(dir / path, io::Links::refuse) == io::PathKind::file;
    }
    // The lines of the last validation, without the tokens of the second column.
    std::string last(const std::string& csv) const {
        std::string out;
        const std::string text = get(dir / csv);
        for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
            if (text.compare(at, 3, "12,") == 0)
                out += "12" + text.substr(text.find(',', at + 3), end + 1 - text.find(',', at + 3));
        return out;
    }
};

const Home& home() {
    static const Home h;
    return h;
}

}  // namespace

TEST_CASE("eval of a run with sets repeats the last validation of each; --sets chooses among them") {
    const Finished f = home().command({"eval", home().dir / "with", "--label", "x"});
    CAPTURE(f.err);
    REQUIRE(f.code == 0);
    CHECK(contains(f.out, "\nbooks:\n"));
    CHECK(contains(f.out, "\ncode:\n"));
    for (const char* file : {"val.csv", "sets/books/val.csv", "sets/code/val.csv"}) {
        CAPTURE(file);
        const std::string rows = home().last(std::string("with/") + file);
        CHECK(std::count(rows.begin(), rows.end(), '\n') == 2);
        CHECK(home().last(std::string("with/eval/x/") + file) == rows);
    }
    CHECK(home().has("with/eval/x/sets/books/positions.csv"));
    const auto sets = [&] {
        const json::Value request = json::parse(get(home().dir / "with/eval/x/request.json"), "request.json");
        std::string names;
        if (const json::Value* list = request.find("sets"))
            for (const json::Value& name : list->as_array()) names += name.as_string() + " ";
        return names;
    };
    CHECK(sets() == "books code ");
    // The label's next request leaves nothing of the sets that it does not score.
    REQUIRE(home().command({"eval", home().dir / "with", "--label", "x", "--sets", "code"}).code == 0);
    CHECK(sets() == "code ");
    CHECK_FALSE(home().has("with/eval/x/sets/books/val.csv"));
    CHECK_FALSE(home().has("with/eval/x/sets/books/positions.csv"));
    CHECK(home().has("with/eval/x/sets/code/val.csv"));
    REQUIRE(
        home().command({"eval", home().dir / "with", "--label", "x", "--data", home().shards("code")}).code ==
        0);
    CHECK(sets() == "");
    CHECK_FALSE(home().has("with/eval/x/sets/code/val.csv"));
    CHECK(home().last("with/eval/x/val.csv") == home().last("with/sets/code/val.csv"));
    // The request says that it is of other text.
    const json::Value request = json::parse(get(home().dir / "with/eval/x/request.json"), "request.json");
    CHECK(request.find("set")->as_array().at(0).as_string() ==
          fmt::format("data.val=[\"{}\"]", home().shards("code")));

    const Finished unknown = home().command({"eval", home().dir / "with", "--sets", "books,cde"});
    CHECK(unknown.code == 2);
    CHECK(contains(unknown.err, "--sets cde: data.val_sets has only books, code"));
    const Finished both =
        home().command({"eval", home().dir / "with", "--sets", "books", "--data", home().shards("code")});
    CHECK(both.code == 2);
    CHECK(contains(both.err, "--data replaces data.val and leaves data.val_sets out"));
}

TEST_CASE("a run of a version without sets resumes, evaluates and reports; --set gives it one") {
    CHECK(contains(home().command({"train", home().dir / "old/config.json"}).out, "nothing to do"));
    const Finished f = home().command({"eval", home().dir / "old", "--label", "plain"});
    CAPTURE(f.err);
    REQUIRE(f.code == 0);
    CHECK(io::kind_of(home().dir / "old/eval/plain/sets", io::Links::refuse) == io::PathKind::missing);
    CHECK(!contains(get(home().dir / "old/eval/plain/request.json"), "sets"));
    CHECK(contains(home().command({"eval", home().dir / "old", "--sets", "books"}).err,
                   "--sets books: data.val_sets has no sets"));
    const Finished alone = home().command({"report", home().dir / "old", "--html", home().dir / "p.html"});
    CHECK(alone.code == 0);
    CHECK(!contains(alone.out, "loss on "));
    CHECK(!contains(get(home().dir / "p.html"), "Losses: "));

    REQUIRE(
        home().command({"eval", home().dir / "old", "--label", "plain", "--set", home().set("books")}).code ==
        0);
    REQUIRE(home()
                .command({"eval", home().dir / "old", "--data", home().shards("books"), "--out",
                          home().dir / "out"})
                .code == 0);
    for (const char* file : {"val.csv", "positions.csv"})
        CHECK(get(home().dir / (std::string("old/eval/plain/sets/books/") + file)) ==
              get(home().dir / (std::string("out/") + file)));
    const Finished two =
        home().command({"report", home().dir / "old", home().dir / "with", "--html", home().dir / "p.html"});
    CHECK(two.code == 0);
    CHECK(contains(two.out, "\nloss on books at context "));
    CHECK(contains(two.out, "note: No loss on code was measured for old."));
    CHECK(contains(get(home().dir / "p.html"), "Losses: books"));
}

TEST_CASE("train --dry-run says which set's files are not there") {
    put(home().dir / "dry.json", tiny_config(home().dir.path(), "dry"));
    const Finished f = home().command({"train", home().dir / "dry.json", "--dry-run", "--set",
                                       "data.val_sets.law.paths=[\"" + (home().dir / "law.bin") + "\"]"});
    CHECK(f.code == 0);
    CHECK(contains(f.out, "law.bin"));
    CHECK(!home().has("dry/config.json"));
}
