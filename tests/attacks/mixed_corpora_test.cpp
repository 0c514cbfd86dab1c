// Two corpora, or two tokenizers, under one name: whatever meets them says so.
#include <doctest/doctest.h>

#include <filesystem>

#include "attacks/runs.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

struct Home {
    TempDir dir;
    std::string sweep = dir / "s.json";
    Home() {
        make_corpus(dir / "data", 1);
        put(dir / "tiny.json", tiny_config(dir.path()));
        sweep_of("[1]");
    }
    void sweep_of(const std::string& seeds) const {
        put(sweep, fmt::format(R"({{"name": "s", "dir": "{}/runs", "seeds": {}, "baseline": "a",
                                   "variants": [{{"name": "a", "config": "tiny.json"}}]}})",
                               dir.path(), seeds));
    }
    void change_data() const {
        fs::remove_all(dir / "data");
        make_corpus(dir / "data", 2);
    }
    std::string losses(int seed) const {
        return get(dir / fmt::format("runs/s/a.seed{}/metrics.jsonl", seed));
    }
};

}  // namespace

TEST_CASE("a sweep whose data changed is refused with 3; --retrain trains what it had again") {
    const Home home;
    REQUIRE(target().run({"sweep", home.sweep}).code == 0);
    const std::string first = home.losses(1);
    home.change_data();
    home.sweep_of("[1, 2]");
    const Finished refused = target().run({"sweep", home.sweep});
    CHECK(refused.code == 3);
    CHECK(contains(refused.err,
                   "a.seed1: the training data and data.val changed since it was trained: --retrain"));
    CHECK_FALSE(fs::exists(home.dir / "runs/s/a.seed2"));
    const Finished retrained = target().run({"sweep", home.sweep, "--retrain"});
    CAPTURE(retrained.err);
    CHECK(retrained.code == 0);
    CHECK(contains(retrained.out, "starts over: its data changed"));
    CHECK(home.losses(1) != first);
    CHECK(contains(target().run({"sweep", home.sweep, "--retrain"}).out, "a.seed1  trained already"));
    // Data that is gone counts as unchanged: a finished sweep outlives it.
    fs::remove_all(home.dir / "data");
    CHECK(target().run({"sweep", home.sweep}).code == 0);
}

TEST_CASE("init_from refuses weights of another tokenizer with 3 unless the config accepts them") {
    const Home home;
    REQUIRE(target().run({"train", home.dir / "tiny.json"}).code == 0);
    copy_with_other_tokenizer(home.dir / "run", home.dir / "foreign");
    std::vector<std::string> command{"train", home.dir / "tiny.json",
                                     "--set", "run.name=next",
                                     "--set", "run.init_from=" + home.dir / "foreign"};
    const Finished refused = target().run(command);
    CHECK(refused.code == 3);
    CHECK(contains(refused.err, "was trained on tokens of the tokenizer"));
    CHECK(contains(refused.err, "run.init_other_tokenizer=true"));
    command.insert(command.end(), {"--set", "run.init_other_tokenizer=true"});
    CHECK(target().run(command).code == 0);
}

TEST_CASE("a report shows runs apart that read different data under the same paths") {
    const Home home;
    const auto train = [&](const std::string& name) {
        REQUIRE(target()
                    .run({"train", home.dir / "tiny.json", "--set", "run.name=" + name, "--set",
                          "data.val=[\"" + home.dir / "val_*.bin" + "\"]"})
                    .code == 0);
    };
    fs::copy(home.dir / "data/val_000000.bin", home.dir / "val_0.bin");
    train("a");
    train("b");
    home.change_data();
    train("c");
    const Finished shown = target().run(
        {"report", home.dir / "a", home.dir / "b", home.dir / "c", "--html", home.dir / "page.html"});
    CAPTURE(shown.out);
    CAPTURE(shown.err);
    CHECK(shown.code == 0);
    CHECK(contains(shown.out, "of c is of a model trained on other data under the same paths"));
}
