// Where values come from: bases, the file, overrides, and what is known about it afterwards.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "config/load.h"

using namespace longreach;
using namespace longreach::sample;

namespace {

// A directory that disappears with the test.
class Folder {
  public:
    Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("longreach-config-{}", getpid())) {
        std::filesystem::create_directories(path_ / "sub");
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(path_ / name, std::ios::binary) << text;
        return (path_ / name).string();
    }
    std::string path(const std::string& name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

config::LoadedConfig<Experiment> load_file(const std::string& file,
                                           const std::vector<std::string>& overrides = {}) {
    return config::load_config<Experiment>({.file = file, .overrides = overrides},
                                           [](Experiment& e, config::Problems& p) { e.check(p); });
}

// The message, with the folder's name taken out.
std::string failure(const Folder& folder, const std::string& file) {
    try {
        load_file(file);
        return "";
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::usage);
        std::string message = error.what();
        const std::string prefix = folder.path("");
        for (size_t at; (at = message.find(prefix)) != std::string::npos;) message.erase(at, prefix.size());
        return message.substr(0, message.rfind('\n'));
    }
}

std::string origin_of(const config::LoadedConfig<Experiment>& config, const std::string& path) {
    for (const config::FieldOrigin& entry : config.origins)
        if (entry.path == path) return config::to_string(entry.origin);
    return "no such path";
}

}  // namespace

TEST_CASE("sources: no file at all gives the defaults") {
    const auto config = config::load_config<Experiment>({});
    CHECK(config.value.model.width == 128);
    CHECK(config.value.stages.size() == 1);
    CHECK(config.value.stages[0].steps == 10);
    for (const config::FieldOrigin& entry : config.origins)
        CHECK(config::to_string(entry.origin) == "default");
}

TEST_CASE("sources: every kind of field is read") {
    const Experiment e = load(R"({
        "run": {"name": "caf\u00e9", "seed": 5, "shift": 3},
        "model": {"width": 96, "dropout": 0.25,
                  "attention": {"heads": 6, "gate": true, "window": {"size": 16, "tau": 2.5e1, "shape": "squircle"}},
                  "layouts": {"local": {"window": {"size": 8}}, "global": {"gate": false}},
                  "pattern": ["local", "global"]},
        "stages": [{"steps": 5}, {"context": 32}],
        "eval": {"lengths": []}})")
                             .value;
    CHECK(e.run.name == "caf\u00e9");
    CHECK(e.run.seed == 5);
    CHECK(e.run.shift == 3);
    CHECK(e.model.dropout == 0.25);
    CHECK(e.model.attention.window.shape == Shape::squircle);
    CHECK(e.model.attention.window.tau == 25);
    REQUIRE(e.model.layouts.size() == 2);
    CHECK(e.model.layouts.at("local").heads == 6);  // a variation starts from attention as written
    CHECK(e.model.layouts.at("local").gate);
    CHECK(e.model.layouts.at("local").window.size == 8);
    CHECK(e.model.layouts.at("local").window.tau == 25);
    CHECK_FALSE(e.model.layouts.at("global").gate);
    CHECK(e.model.pattern == std::vector<std::string>{"local", "global"});
    REQUIRE(e.stages.size() == 2);
    CHECK(e.stages[0].context ==
          2048);  // a list element starts from its own defaults, not from the default list
    CHECK(e.stages[1].steps == 100);
    CHECK(e.eval.lengths.empty());
}

TEST_CASE("sources: bases, then the file, then overrides; objects merge, lists are replaced") {
    const Folder folder;
    folder.write("sub/deep.json",
                 R"({"model": {"width": 64, "dropout": 0.5, "pattern": ["a", "b"]}, "stages": [{}, {}]})");
    folder.write("one.json",
                 R"({"base": "sub/deep.json", "model": {"dropout": 0.25, "attention": {"heads": 2}}})");
    folder.write("two.json", R"({"model": {"attention": {"heads": 8}, "layouts": {"a": {"heads": 16}}}})");
    const std::string file = folder.write(
        "main.json",
        R"({"base": ["one.json", "two.json"], "model": {"pattern": ["c"], "layouts": {"a": {"gate": true}}}})");
    const auto config =
        load_file(file, {"run.seed=9", "stages.1.steps=7", "eval.lengths.0=512", "run.name=true story"});
    const Experiment& e = config.value;
    CHECK(e.model.width == 64);
    CHECK(e.model.dropout == 0.25);
    CHECK(e.model.attention.heads == 8);
    CHECK(e.model.pattern == std::vector<std::string>{"c"});
    CHECK(e.model.layouts.at("a").heads == 16);
    CHECK(e.model.layouts.at("a").gate);
    CHECK(e.stages.size() == 2);
    CHECK(e.stages[1].steps == 7);
    CHECK(e.eval.lengths == std::vector<int64_t>{512, 4096});  // starts from the default list
    CHECK(e.run.name == "true story");

    CHECK(origin_of(config, "model.width") == folder.path("sub/deep.json") + ":1:21");
    CHECK(origin_of(config, "model.attention.heads") == folder.path("two.json") + ":1:35");
    CHECK(origin_of(config, "model.pattern") == file + ":1:57");
    CHECK(origin_of(config, "stages.1.steps") == "--set stages.1.steps=7");
    CHECK(origin_of(config, "run.shift") == "default");
    CHECK(origin_of(config, "run.init_seed") == "derived");
    CHECK(origin_of(config, "model.layouts.a.window.tau") == "default");
    const std::string table = config::origins_table(config.origins);
    CHECK(table.find("run.seed ") != std::string::npos);
    CHECK(table.find("--set run.seed=9\n") != std::string::npos);
}

TEST_CASE("sources: an override of a list no file gives starts from the default list") {
    const auto config =
        load("{}", {"stages.0.steps=3", "model.layouts.local.heads=2", "model.pattern=[\"local\"]"});
    CHECK(config.value.stages.size() == 1);
    CHECK(config.value.stages[0].steps == 3);
    CHECK(config.value.stages[0].context == 64);
    CHECK(origin_of(config, "stages.0.context") == "default");
    CHECK(config.value.model.layouts.at("local").heads == 2);
}

TEST_CASE("sources: an override may be a whole section, and sections given in parts are merged") {
    const auto config =
        load("{}", {"model={\"width\": 32}", "model.dropout=0.5", "model={\"attention\":{\"heads\":8}}"});
    CHECK(config.value.model.width == 32);
    CHECK(config.value.model.dropout == 0.5);
    CHECK(config.value.model.attention.heads == 8);
}

TEST_CASE("sources: a diamond of bases is fine, a cycle is refused with its chain") {
    const Folder folder;
    folder.write("root.json", R"({"model": {"width": 64}})");
    folder.write("left.json", R"({"base": "root.json"})");
    folder.write("right.json", R"({"base": "./sub/../root.json"})");
    CHECK(load_file(folder.write("d.json", R"({"base": ["left.json", "right.json"]})")).value.model.width ==
          64);

    folder.write("a.json", R"({"base": "sub/b.json"})");
    folder.write("sub/b.json", R"({"base": "../a.json"})");
    CHECK(failure(folder, folder.path("a.json")) ==
          "base (sub/b.json:1:10): the file includes itself: a.json -> sub/b.json -> a.json");
    CHECK(failure(folder, folder.write("self.json", R"({"base": "self.json"})")) ==
          "base (self.json:1:10): the file includes itself: self.json -> self.json");
}

TEST_CASE("sources: wrong bases and unreadable files") {
    const Folder folder;
    CHECK(failure(folder, folder.write("a.json", R"({"base": "none.json"})")) ==
          "base (a.json:1:10): there is no file none.json");
    CHECK(failure(folder, folder.write("b.json", R"({"base": 3})")) ==
          "base (b.json:1:10): expected a file name or a list of file names");
    CHECK(failure(folder, folder.write("c.json", R"({"base": [["x"]]})")) ==
          "base (c.json:1:11): expected a file name");
    CHECK(failure(folder, folder.write("d.json", "{\"base\": \"x\\u0000y\"}")) ==
          "base (d.json:1:10): expected a file name or a list of file names");
    CHECK(failure(folder, folder.write("e.json", R"({"base": "sub"})")) ==
          "cannot read config sub: it is a directory");
    folder.write("bad.json", "{,}");
    CHECK(failure(folder, folder.write("f.json", R"({"base": "bad.json"})")) ==
          "bad.json:1:2: expected a key in double quotes, found ','");
    folder.write("unknown.json", R"({"model": {"widht": 1}})");
    CHECK(failure(folder, folder.write("g.json", R"({"base": "unknown.json"})")) ==
          "model.widht (unknown.json:1:12): unknown key: did you mean model.width?");
    CHECK(failure(folder, folder.write("h.json", R"({"resolved": 1})")) ==
          "resolved (h.json:1:14): expected true: it marks a config written by this program");
    CHECK(failure(folder, folder.path("none.json")) ==
          "cannot read config none.json: No such file or directory");

    // 2^20 ways to the last file, but the number of files read is bounded.
    for (int i = 0; i < 20; ++i)
        folder.write(fmt::format("l{}.json", i),
                     fmt::format(R"({{"base": ["l{0}.json", "l{0}.json"]}})", i + 1));
    folder.write("l20.json", "{}");
    CHECK(failure(folder, folder.path("l0.json")).find("the base files come to more than 64") !=
          std::string::npos);
}

TEST_CASE("sources: a knob without effect is an error where the file turns it") {
    const Folder folder;
    const std::string base =
        folder.write("base.json", R"({"model": {"attention": {"window": {"size": 16, "tau": 3}}}})");
    CHECK(load_file(base).value.model.attention.window.tau == 3);
    const std::string child = folder.write(
        "child.json", R"({"base": "base.json", "model": {"attention": {"window": {"size": 0}}}})");
    const auto config = load_file(child);
    CHECK(config.value.model.attention.window.tau == 3);
    // Nor in a resolved config, which holds every field.
    CHECK_NOTHROW(load(config::write_resolved(config.value)));
    CHECK_THROWS_AS(load(R"({"model": {"attention": {"window": {"tau": 3}}}})"), Error);
    CHECK(load(config::write_resolved(config.value)).warnings.empty());
}

TEST_CASE("sources: a knob without effect is a warning where --set or a base turns it") {
    const Folder folder;
    const std::string base =
        folder.write("base.json", R"({"model": {"attention": {"window": {"size": 16, "tau": 3}}}})");
    const std::string child = folder.write(
        "child.json", R"({"base": "base.json", "model": {"attention": {"window": {"size": 0}}}})");
    using Lines = std::vector<std::string>;
    CHECK(load_file(base).warnings.empty());
    CHECK(load_file(child).warnings == Lines{"model.attention.window.tau (" + base +
                                             ":1:56): has no effect: there is no window; see "
                                             "model.attention.window.size (" +
                                             child + ":1:66)"});
    CHECK(load_file(child, {"model.attention.window.tau=4"}).warnings ==
          Lines{"model.attention.window.tau (--set model.attention.window.tau=4): has no effect: there is no "
                "window; see model.attention.window.size (" +
                child + ":1:66)"});
    // The file is right by itself: --set makes its key one without effect.
    CHECK(load_file(base, {"model.attention.window.size=0"}).warnings.size() == 1);
    // Taking the key back leaves nothing to warn about.
    CHECK(load_file(base, {"model.attention.window.size=0", "model.attention.window.tau="}).warnings.empty());
    CHECK(load_file(child, {"model.attention.window.tau="}).warnings.empty());
}

TEST_CASE("sources: --set with nothing after '=' takes back what the file gives, or else what a base gives") {
    const Folder folder;
    folder.write("base.json", R"({"model": {"width": 64, "dropout": 0.5}, "eval": {"every": 7}})");
    const std::string file = folder.write(
        "main.json",
        R"({"base": "base.json", "model": {"width": 96, "pattern": ["a"], "layouts": {"a": {"heads": 2}}}, "stages": [{"steps": 3}, {"steps": 4, "context": 32}]})");
    const auto width = load_file(file, {"model.width="});
    CHECK(width.value.model.width == 64);
    CHECK(origin_of(width, "model.width") == folder.path("base.json") + ":1:21");
    const auto dropout = load_file(file, {"model.dropout="});
    CHECK(dropout.value.model.dropout == 0);
    CHECK(origin_of(dropout, "model.dropout") == "default");
    CHECK(dropout.value.model.width == 96);
    CHECK(load_file(file, {"model.layouts.a.heads="}).value.model.layouts.at("a").heads == 4);
    CHECK(load_file(file, {"model.layouts=", "model.pattern="}).value.model.layouts.empty());
    CHECK(load_file(file, {"stages.1.context="}).value.stages[1].context == 2048);
    CHECK(load_file(file, {"stages="}).value.stages.size() == 1);
    CHECK(load_file(file, {"stages="}).value.stages[0].steps == 10);
    // What the file says again in a section that the base has too.
    const auto model = load_file(file, {"model="});
    CHECK(model.value.model.width == 64);
    CHECK(model.value.model.dropout == 0.5);
    CHECK(model.value.model.pattern.empty());
    // Nobody gave it: nothing to take back.
    CHECK(load_file(file, {"run.name="}).value.run.name.empty());
    // A value laid over the config counts as the newest one.
    const auto laid = config::load_config<Experiment>(
        {.file = file,
         .overrides = {"eval.every="},
         .values = {{"eval.every", 9, {.kind = config::Origin::Kind::file, .file = "s.json"}}}});
    CHECK(laid.value.eval.every == 7);
}

TEST_CASE("sources: lengths and token counts as 2K") {
    const auto config = load(R"({"stages": [{"context": "2K"}], "eval": {"lengths": [512, "1K", "64K"]}})");
    CHECK(config.value.stages[0].context == 2048);
    CHECK(config.value.eval.lengths == std::vector<int64_t>{512, 1024, 65536});
    CHECK(origin_of(config, "stages.0.context") == "c.json:1:25");
    CHECK(origin_of(config, "eval.lengths").starts_with("c.json:1:"));
    for (const char* lengths : {"eval.lengths=2K,64K", "eval.lengths=[2K, 64K]",
                                "eval.lengths=[\"2K\",65536]", "eval.lengths=2048,65536"}) {
        CAPTURE(lengths);
        const auto set = load("{}", {"stages.0.context=1K", lengths});
        CHECK(set.value.stages[0].context == 1024);
        CHECK(set.value.eval.lengths == std::vector<int64_t>{2048, 65536});
        CHECK(origin_of(set, "eval.lengths") == std::string("--set ") + lengths);
    }
    CHECK(load("{}", {"eval.lengths=2K"}).value.eval.lengths == std::vector<int64_t>{2048});
    CHECK(load("{}", {"eval.lengths=2048"}).value.eval.lengths == std::vector<int64_t>{2048});
}

TEST_CASE("sources: a list of one string may be the string") {
    const auto config = load(R"({"model": {"layouts": {"local": {}}, "pattern": "local"}})");
    CHECK(config.value.model.pattern == std::vector<std::string>{"local"});
    CHECK(origin_of(config, "model.pattern") == "c.json:1:49");
    CHECK(load("{}", {"model.layouts.local={}", "model.pattern=local"}).value.model.pattern ==
          std::vector<std::string>{"local"});
}

TEST_CASE("sources: a missing file is answered with the nearest one") {
    const Folder folder;
    folder.write("sqrt2logn.json", "{}");
    CHECK(failure(folder, folder.path("sqrt2lgn.json")) ==
          "cannot read config sqrt2lgn.json: No such file or directory: did you mean sqrt2logn.json?");
    CHECK(failure(folder, folder.write("child.json", R"({"base": "sqrt2logn.jsn"})")) ==
          "base (child.json:1:10): there is no file sqrt2logn.jsn: did you mean sqrt2logn.json?");
}

TEST_CASE("sources: is_set and is_inherited") {
    const Folder folder;
    folder.write("base.json",
                 R"({"model": {"width": 64, "attention": {"heads": 2}}, "stages": [{"steps": 3}]})");
    const std::string file = folder.write(
        "main.json",
        R"({"base": "base.json", "model": {"attention": {"heads": 4, "window": {}}, "layouts": {"a": {}}}})");
    bool ran = false;
    config::load_config<Experiment>(
        {.file = file, .overrides = {"eval.lengths.0=16"}}, [&](Experiment&, config::Problems& p) {
            ran = true;
            for (const char* path :
                 {"model", "model.attention", "model.attention.heads", "model.attention.window",
                  "model.layouts", "model.layouts.a", "eval", "eval.lengths", "eval.lengths.0"}) {
                CAPTURE(path);
                CHECK(p.is_set(path));
                CHECK_FALSE(p.is_inherited(path));
            }
            for (const char* path : {"model.width", "stages", "stages.0", "stages.0.steps"}) {
                CAPTURE(path);
                CHECK_FALSE(p.is_set(path));
                CHECK(p.is_inherited(path));
            }
            for (const char* path :
                 {"run", "run.name", "stages.1.steps", "stages.0.context", "model.dropout", "eval.every",
                  "eval.lengths.1", "nothing.at.all", "model.layouts.a.heads"}) {
                CAPTURE(path);
                CHECK_FALSE(p.is_set(path));
                CHECK_FALSE(p.is_inherited(path));
            }
        });
    CHECK(ran);
}

TEST_CASE("sources: the editor's $schema key is ignored") {
    CHECK(load(R"({"$schema": "schema.json", "model": {"width": 64}})").value.model.width == 64);
}
