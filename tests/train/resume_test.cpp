// An interrupted run ends with the bytes of an uninterrupted one; what a run may and may not resume from.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>

#include "measure/probe.h"
#include "eval/tables.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "model/registry.h"
#include "train/interpose.h"
#include "sweep/sweep_plan.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 12;

// The uninterrupted run everything is compared with, and the corpus all runs share.
struct Home {
    TempDir dir;
    Results whole;
    Home() {
        make_corpus(dir / "data");
        const ExitCode code = run_training(load_tiny(tiny_config(dir.path(), "whole")));
        check(code == ExitCode::ok, "the reference run ended with {}", static_cast<int>(code));
        whole = results_of(dir / "whole", steps);
    }
    std::string config(const std::string& name) const { return tiny_config(dir.path(), name); }
    std::string log(const std::string& name) const { return get(dir / (name + "/log.txt")); }
};

const Home& home() {
    static const Home h;
    return h;
}

ExitCode stop_after(const config::LoadedConfig<train::Experiment>& config, int64_t step,
                    int signal = SIGTERM) {
    raise_at_step(step, signal);
    const ExitCode code = run_training(config);
    raise_at_step(0, 0);
    return code;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
}

// Seals a checkpoint anew with changed files.
void rewrite_files(const std::string& run, int64_t step,
                   const std::function<void(const std::string& name, std::string& text)>& change) {
    const std::string root = run + "/checkpoints";
    const io::Checkpoint saved = io::verify_checkpoint(root, step);
    io::CheckpointWriter writer(root, step);
    for (const io::ManifestEntry& entry : saved.files) {
        std::string text = get(saved.file(entry.name));
        change(entry.name, text);
        writer.add_text(entry.name, text);
    }
    writer.commit({2, {}}, [](const std::string&) {});
}

void rewrite_state(const std::string& run, int64_t step, const std::function<void(std::string&)>& change) {
    rewrite_files(run, step, [&](const std::string& name, std::string& text) {
        if (name == "state.json") change(text);
    });
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        lines.push_back(text.substr(at, end - at));
    return lines;
}

void flip_a_bit(const std::string& path) {
    std::string bytes = get(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    put(path, bytes);
}

}  // namespace

TEST_CASE("resume: the run is what the test needs: two contexts, and more than one epoch") {
    const train::Experiment e = load_tiny(home().config("whole")).value;
    const data::TokenStream stream =
        data::TokenStream::open(e.data.train, e.data.stream_options(e.model.vocab_size));
    const data::BatchPlan plan(stream.tokens(), e.block_tokens(), e.data_seed(), e.data.shuffle);
    CHECK(plan.epoch_tokens() < 12 * 128);
    CHECK(e.resolved_stages().size() == 2);
    CHECK(e.resolved_stages()[1].first_step == 5);
    CHECK(e.total_steps() == steps);
}

TEST_CASE("resume: stopped after any step and resumed, the bytes are those of the whole run") {
    for (int64_t k = 1; k < steps; ++k) {
        CAPTURE(k);
        const std::string name = fmt::format("stopped{}", k);
        const auto config = load_tiny(home().config(name));
        const int signal =
            std::vector<int>{SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT}[static_cast<size_t>(k % 5)];
        REQUIRE(stop_after(config, k, signal) == ExitCode::stopped);
        CHECK(io::checkpoint_steps(home().dir / (name + "/checkpoints")).front() == k);
        CHECK(contains(home().log(name), fmt::format("after step {}; the same command resumes", k)));
        REQUIRE(run_training(config) == ExitCode::ok);
        CHECK(contains(home().log(name), fmt::format("resuming after step {}", k)));
        CHECK(differing(home().whole, results_of(home().dir / name, steps)) == "");
    }
}

TEST_CASE("resume: records begun by an earlier version keep their columns and their tokens") {
    REQUIRE(run_training(load_tiny(home().config("head"), {"eval.pick=head"})) == ExitCode::ok);
    for (const char* last : {"top1", "bits_per_byte"}) {
        CAPTURE(last);
        const std::string name = fmt::format("earlier-{}", last), run = home().dir / name;
        const auto config = load_tiny(home().config(name));
        REQUIRE(stop_after(config, 3) == ExitCode::stopped);  // before the first validation
        // The checkpoints of earlier versions hold no record files.
        io::Checkpoint saved = io::verify_checkpoint(io::join_path(run, "checkpoints"), 3);
        std::erase_if(saved.files, [](const io::ManifestEntry& e) {
            return e.name.ends_with(".csv") || e.name.ends_with(".jsonl");
        });
        put(saved.file(io::manifest_name), io::format_manifest(3, saved.files));
        std::map<std::string, std::string> headers;
        for (const char* file : {"val.csv", "positions.csv"}) {
            const std::string newest = get(io::join_path(run, file));
            const char* column = std::string(file) == "val.csv" ? last : "scored";
            headers[file] = newest.substr(0, newest.find(column) + std::strlen(column)) + "\n";
            put(io::join_path(run, file), headers[file]);
        }
        rewrite_state(run, 3, [&](std::string& text) {
            replace(text, ",\n  \"fingerprints\": true", "");
            replace(text, fmt::format("\"val.csv\": {}", eval::val_file.header().size() + 1),
                    fmt::format("\"val.csv\": {}", headers["val.csv"].size()));
            replace(text, fmt::format("\"positions.csv\": {}", eval::positions_file.header().size() + 1),
                    fmt::format("\"positions.csv\": {}", headers["positions.csv"].size()));
        });
        // Stopped once more, so that a checkpoint of this version carries the mark on.
        REQUIRE(stop_after(config, 6) == ExitCode::stopped);
        CHECK(contains(home().log(name), "validation keeps scoring the head of the stream"));
        // All ranks score the same tokens. The kernels' harness runs one.
        REQUIRE(run_training(config, false, std::string_view(device) == "cpu" ? 2 : 1) == ExitCode::ok);
        for (const auto& [file, header] : headers) {
            std::vector<size_t> columns;
            for (size_t c = 0; c <= static_cast<size_t>(std::count(header.begin(), header.end(), ',')); ++c)
                columns.push_back(c);
            std::string expected;
            for (const std::string& line : lines_of(get(home().dir / "head/" + file)))
                expected += io::cells_at(line, columns) + "\n";
            CHECK(get(io::join_path(run, file)) == expected);
            CHECK(!contains(get(home().dir / "whole/" + file), expected));  // spread over the stream
        }
    }
}

TEST_CASE("resume: a val.csv begun without the error of top-1 goes on without it") {
    const std::string run = home().dir / "without-error", val = run + "/val.csv";
    const auto config = load_tiny(home().config("without-error"));
    REQUIRE(stop_after(config, 6) == ExitCode::stopped);  // after the first validation
    const std::string newest = get(val);
    REQUIRE(newest.starts_with(eval::val_file.header() + "\n4,"));
    const auto without = [](const std::string& text) {
        std::string out;
        for (const std::string& line : lines_of(text))
            out += io::cells_at(line, {0, 1, 2, 3, 4, 5, 6, 7, 8, 10}) + "\n";
        return out;
    };
    const std::string earlier = without(newest);
    CHECK(!contains(earlier, "top1_error"));
    put(val, earlier);
    rewrite_files(run, 6, [&](const std::string& name, std::string& text) {
        if (name == "val.csv") text = earlier;
        if (name == "state.json")
            replace(text, fmt::format("\"val.csv\": {}", newest.size()),
                    fmt::format("\"val.csv\": {}", earlier.size()));
    });
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(!contains(home().log("without-error"), "restored from"));
    CHECK(get(val) == without(get(home().dir / "whole/val.csv")));
    CHECK(get(run + "/positions.csv") == get(home().dir / "whole/positions.csv"));
}

TEST_CASE("resume: many variants at once, validated with changed positions between steps") {
    REQUIRE(run_training(load_tiny(home().config("variants"), many_variants())) == ExitCode::ok);
    const auto config = load_tiny(home().config("stopped-variants"), many_variants());
    for (int64_t k : {2, 5, 8, 11}) REQUIRE(stop_after(config, k) == ExitCode::stopped);
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(differing(results_of(home().dir / "variants", steps),
                    results_of(home().dir / "stopped-variants", steps)) == "");
}

TEST_CASE("resume: a mixture whose weights change with the stage, at any number of ranks") {
    const auto config = [&](const std::string& name) {
        return load_tiny(
            home().config(name),
            {"data.train=[]", fmt::format("data.mixture.a.paths=[\"{}\"]", home().dir / "data/train_*.bin"),
             fmt::format("data.mixture.b.paths=[\"{}\"]", home().dir / "data/val_*.bin"),
             "data.mixture.b.weight=0.25", "stages.1.mixture={\"b\":2,\"a\":1}"});
    };
    REQUIRE(run_training(config("mixed")) == ExitCode::ok);
    const Results whole = results_of(home().dir / "mixed", steps);
    REQUIRE(run_training(config("mixed-ranks"), false, 2) == ExitCode::ok);
    CHECK(differing(whole, results_of(home().dir / "mixed-ranks", steps)) == "");
    for (const int64_t k : {3, 5, 8}) {
        const std::string name = fmt::format("mixed{}", k);
        REQUIRE(stop_after(config(name), k) == ExitCode::stopped);
        REQUIRE(run_training(config(name)) == ExitCode::ok);
        CHECK(differing(whole, results_of(home().dir / name, steps)) == "");
    }
}

TEST_CASE(
    "resume: layers of latents and of every mixer that the device computes, beyond the training context") {
    int layers = 2;
    std::string pattern = R"("all","latent")", layouts =
                                                   R"("all":{"angle":"nope"},"latent":{"qk":{"kind":"none"},)"
                                                   R"("latent":{"width":8,"shared":4,"queries":12}})";
    for (const model::MixerType& type : model::mixer_types()) {
        if (type.name() == "attention") continue;
        if (std::string_view(device) != "cpu" && !type.part.no_gpu.empty()) continue;
        ++layers;
        pattern += fmt::format(R"(,"{}")", type.name());
        layouts += fmt::format(R"(,"{0}":{{"mixer":"{0}"}})", type.name());
    }
    const std::vector<std::string> settings{
        fmt::format("model.layers={}", layers), "model.loops=2",
        "model.layouts={" + layouts + "}",      "model.pattern=[" + pattern + "]",
        "model.init.zero_projections=false",    "optimizer.qk_clip.limit=0.01"};
    REQUIRE(run_training(load_tiny(home().config("mixers"), settings)) == ExitCode::ok);
    const auto config = load_tiny(home().config("stopped-mixers"), settings);
    for (int64_t k : {3, 7}) REQUIRE(stop_after(config, k) == ExitCode::stopped);
    REQUIRE(run_training(config) == ExitCode::ok);
    const Results whole = results_of(home().dir / "mixers", steps);
    CHECK(differing(whole, results_of(home().dir / "stopped-mixers", steps)) == "");
    REQUIRE(run_training(load_tiny(home().config("mixers-ranks"), settings), false, 2) == ExitCode::ok);
    CHECK(differing(whole, results_of(home().dir / "mixers-ranks", steps)) == "");
}

TEST_CASE(
    "resume: an index of keys alone, on the weights of another run, which stay as they are; at any number of "
    "ranks") {
    if (std::string_view(device) != "cpu") return;  // no GPU trains one
    home();
    const std::vector<std::string> settings{"run.init_from=" + (home().dir / "whole"),
                                            "model.attention.index_heads=2", "optimizer.only=[\"*.index.*\"]",
                                            "eval.top_k=4", "eval.top_k_by=index"};
    REQUIRE(run_training(load_tiny(home().config("indexed"), settings)) == ExitCode::ok);
    const Results whole = results_of(home().dir / "indexed", steps);
    const auto config = load_tiny(home().config("stopped-index"), settings);
    for (int64_t k : {3, 7}) REQUIRE(stop_after(config, k) == ExitCode::stopped);
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(differing(whole, results_of(home().dir / "stopped-index", steps)) == "");
    REQUIRE(run_training(load_tiny(home().config("index-ranks"), settings), false, 2) == ExitCode::ok);
    CHECK(differing(whole, results_of(home().dir / "index-ranks", steps)) == "");

    const auto weights = [&](const std::string& run) {
        return io::SafetensorsFile::open(
            home().dir / (run + "/checkpoints/" + io::checkpoint_name(steps) + "/model.safetensors"));
    };
    const io::SafetensorsFile dense = weights("whole"), indexed = weights("indexed");
    CHECK(indexed.tensors().size() > dense.tensors().size());
    for (const io::StoredTensor& tensor : dense.tensors()) {
        CAPTURE(tensor.name);
        const io::StoredTensor* kept = indexed.find(tensor.name);
        REQUIRE(kept != nullptr);
        std::string before(tensor.bytes(), '\0'), after(kept->bytes(), '\0');
        dense.read(tensor, before.data(), before.size());
        indexed.read(*kept, after.data(), after.size());
        CHECK(before == after);
    }
    CHECK(contains(whole.at("metrics.jsonl"), "\"index_loss\":"));
    CHECK(contains(home().log("indexed"), "  index "));
    CHECK(!contains(home().whole.at("metrics.jsonl"), "index_loss"));
    const std::string moments = whole.at("optimizer.safetensors");
    CHECK((contains(moments, ".index.q.weight") && !contains(moments, "mlp")));
}

TEST_CASE(
    "resume: probe.csv is rewound with the rest, whether a probe stops the run, follows or is switched off") {
    std::vector<std::string> probing = many_variants();
    probing.insert(probing.end(), {"probe.every=3", "probe.lengths=[8,32]", "probe.tokens=64"});
    REQUIRE(run_training(load_tiny(home().config("probes"), probing)) == ExitCode::ok);
    const std::string whole = get(home().dir / "probes/probe.csv");
    CHECK(whole.starts_with(measure::probe_file.header() + "\n3,8,0,"));
    for (const char* step : {"\n6,", "\n9,", "\n12,"}) CHECK(contains(whole, step));
    CHECK(!contains(whole, "\n4,"));
    CHECK(contains(whole, "scalar.tau"));

    const auto config = load_tiny(home().config("stopped-probes"), probing);
    for (int64_t k : {2, 3, 8, 9, 11}) {
        REQUIRE(stop_after(config, k) == ExitCode::stopped);
        // What was written after the checkpoint must go.
        put(home().dir / "stopped-probes/probe.csv",
            get(home().dir / "stopped-probes/probe.csv") + "13,8,0,0,0,entropy,1,1\n");
    }
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(get(home().dir / "stopped-probes/probe.csv") == whole);
    CHECK(differing(results_of(home().dir / "probes", steps),
                    results_of(home().dir / "stopped-probes", steps)) == "");

    // Probing changes nothing but probe.csv, and a pause in it keeps what is there.
    std::vector<std::string> pausing = probing;
    for (std::string& change : pausing)
        if (change == "probe.every=3") change = "probe.every=0";
    std::erase_if(pausing,
                  [](const std::string& c) { return c.starts_with("probe.") && !c.ends_with("=0"); });
    REQUIRE(stop_after(load_tiny(home().config("pauses"), probing), 4) == ExitCode::stopped);
    REQUIRE(stop_after(load_tiny(home().config("pauses"), pausing), 8) == ExitCode::stopped);
    REQUIRE(run_training(load_tiny(home().config("pauses"), probing)) == ExitCode::ok);
    std::string expected = whole;
    const size_t from = expected.find("\n6,") + 1;
    expected.erase(from, expected.find("\n9,") + 1 - from);
    CHECK(get(home().dir / "pauses/probe.csv") == expected);
    auto without = results_of(home().dir / "probes", steps),
         paused = results_of(home().dir / "pauses", steps);
    for (Results* r : {&without, &paused}) r->erase("state.json");  // the lengths of probe.csv differ
    CHECK(differing(without, paused) == "");
}

TEST_CASE("resume: stopped after every single step") {
    const auto config = load_tiny(home().config("stutter"));
    for (int64_t k = 1; k < steps; ++k) REQUIRE(stop_after(config, k) == ExitCode::stopped);
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(differing(home().whole, results_of(home().dir / "stutter", steps)) == "");
    CHECK(run_training(config) == ExitCode::ok);  // nothing to do, nothing changes
    CHECK(contains(home().log("stutter"), "nothing to do: all 12 steps are done"));
    CHECK(differing(home().whole, results_of(home().dir / "stutter", steps)) == "");
}

TEST_CASE("resume: a signal during the last step leaves the final validation to the next start") {
    const auto config = load_tiny(home().config("last"));
    CHECK(stop_after(config, steps) == ExitCode::stopped);
    CHECK(sweep::look_at_run(home().dir / "last", config.value).state == sweep::RunState::begun);
    CHECK(!contains(get(home().dir / "last/val.csv"), "\n12,"));
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(sweep::look_at_run(home().dir / "last", config.value).state == sweep::RunState::trained);
    CHECK(contains(home().log("last"), "resuming after step 12"));
    CHECK(differing(home().whole, results_of(home().dir / "last", steps)) == "");
}

TEST_CASE("resume: timing.jsonl is rewound with the rest, one line per step") {
    const auto config = load_tiny(home().config("timing"));
    REQUIRE(stop_after(config, 4) == ExitCode::stopped);
    put(home().dir / "timing/timing.jsonl",
        get(home().dir / "timing/timing.jsonl") + "{\"step\":5,\"seconds\":1}\n{");
    REQUIRE(run_training(config) == ExitCode::ok);
    const std::string text = get(home().dir / "timing/timing.jsonl");
    size_t line = 0, at = 0;
    while (at < text.size()) {
        const size_t end = text.find('\n', at);
        REQUIRE(end != std::string::npos);
        const json::Value v = json::parse(text.substr(at, end - at), "timing.jsonl");
        ++line;
        CHECK(v.find("step")->as_int64() == static_cast<int64_t>(line));
        at = end + 1;
    }
    CHECK(line == steps);
}

TEST_CASE(
    "resume: a damaged newest checkpoint gives way to the older one, which is said, and the bytes stay") {
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}) {
        CAPTURE(file);
        const std::string name = fmt::format("damaged.{}", file);
        const auto config = load_tiny(home().config(name));
        REQUIRE(stop_after(config, 8) == ExitCode::stopped);
        const std::string checkpoints = home().dir / (name + "/checkpoints");
        REQUIRE(io::checkpoint_steps(checkpoints) == std::vector<int64_t>{8, 6});
        flip_a_bit(io::join_path(checkpoints, "step_00000008/" + std::string(file)));
        REQUIRE(run_training(config) == ExitCode::ok);
        CHECK(contains(home().log(name), "step_00000008"));
        CHECK(contains(home().log(name), "resuming after step 6"));
        CHECK(io::kind_of(io::join_path(checkpoints, "step_00000008.bad"), io::Links::refuse) ==
              io::PathKind::directory);
        CHECK(differing(home().whole, results_of(home().dir / name, steps)) == "");
    }
}

TEST_CASE("resume: with every checkpoint damaged the run does not silently begin anew") {
    const auto config = load_tiny(home().config("ruined"));
    REQUIRE(stop_after(config, 5) == ExitCode::stopped);
    for (const char* step : {"step_00000003", "step_00000005"})
        flip_a_bit(home().dir / fmt::format("ruined/checkpoints/{}/model.safetensors", step));
    CHECK(contains(error_of([&] { run_training(config); }), "4: "));
    CHECK(run_training(config, true) == ExitCode::ok);  // --fresh
    CHECK(differing(home().whole, results_of(home().dir / "ruined", steps)) == "");
}

TEST_CASE("resume: other training data are refused") {
    const TempDir dir;
    make_corpus(dir / "data", 1);
    const auto config = load_tiny(tiny_config(dir.path()));
    REQUIRE(stop_after(config, 4) == ExitCode::stopped);
    std::filesystem::remove_all(dir / "data");
    make_corpus(dir / "data", 2);
    const auto refused = [&](const std::string& what) {
        CHECK(error_of([&] { run_training(config); }) ==
              "3: " + what + " changed since step 4: a resumed run would mix two texts");
    };
    refused("the training data and data.val");
    // The same files for training, another text to validate on.
    const std::string val = get(dir / "data/val_000000.bin");
    std::filesystem::remove_all(dir / "data");
    make_corpus(dir / "data", 1);
    const std::string own = get(dir / "data/val_000000.bin");
    put(dir / "data/val_000000.bin", val);
    refused("data.val");
    put(dir / "data/val_000000.bin", own);
    CHECK(run_training(config) == ExitCode::ok);
}

TEST_CASE("resume: fields that a resumed run may not change are listed; the others are taken over") {
    REQUIRE(stop_after(load_tiny(home().config("changed")), 5) == ExitCode::stopped);
    const std::string before = get(home().dir / "changed/config.json");
    const auto changed = [&](const std::vector<std::string>& overrides) {
        return error_of([&] { run_training(load_tiny(home().config("changed"), overrides)); });
    };
    for (const auto& [field, value] : std::map<std::string, std::string>{{"run.seed", "2"},
                                                                         {"model.mlp.hidden", "32"},
                                                                         {"optimizer.muon.lr", "0.01"},
                                                                         {"data.document_mask", "false"},
                                                                         {"batch.micro_tokens", "64"},
                                                                         {"stages.1.lr", "0.5"}}) {
        CAPTURE(field);
        const std::string message = changed({field + "=" + value});
        CHECK(contains(message, "2: " + (home().dir / "changed") + " was started with another config:\n"));
        CHECK(contains(message, field));
        CHECK(get(home().dir / "changed/config.json") == before);
    }
    const std::string both = changed({"run.seed=7", "optimizer.clip_norm=1", "eval.every=3"});
    for (const char* field : {"run.seed", "optimizer.clip_norm", "eval.every"}) CHECK(contains(both, field));

    // More steps, other intervals, threads: the same weights as a run that had them from the beginning.
    const std::vector<std::string> longer{"stages.1.steps=9", "eval.every=7",       "eval.lengths=[32,64]",
                                          "run.log_every=2",  "checkpoint.every=4", "checkpoint.keep=3"};
    const std::vector<std::string> constant{"optimizer.schedule.kind=constant"};
    auto all = longer;
    all.insert(all.end(), constant.begin(), constant.end());
    REQUIRE(stop_after(load_tiny(home().config("short"), constant), 5) == ExitCode::stopped);
    REQUIRE(run_training(load_tiny(home().config("long"), all)) == ExitCode::ok);
    all.push_back("system.threads=2");
    REQUIRE(run_training(load_tiny(home().config("short"), all)) == ExitCode::ok);
    const Results resumed = results_of(home().dir / "short", 14),
                  straight = results_of(home().dir / "long", 14);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
        CHECK((resumed.at(file) == straight.at(file)));
    CHECK(io::checkpoint_steps(home().dir / "short/checkpoints") == std::vector<int64_t>{14, 12, 8});
}

TEST_CASE("resume: a stage that has been trained may not be given another length") {
    const std::vector<std::string> big{"stages.1.batch_tokens=64", "batch.micro_tokens=32"};
    REQUIRE(stop_after(load_tiny(home().config("stages"), big), 8) == ExitCode::stopped);
    auto other = big;
    other.push_back("stages.0.steps=7");
    CHECK(
        error_of([&] { run_training(load_tiny(home().config("stages"), other)); }) ==
        "2: 832 tokens were consumed in the 8 steps done; the stages of this config would have consumed 960");
}

TEST_CASE("init_from: weights arrive, leftovers are named, another shape names the tensor") {
    const std::string source = home().dir / "whole";
    const auto weights = [&](const std::string& run, int64_t step) {
        return get(home().dir /
                   fmt::format("{}/checkpoints/{}/model.safetensors", run, io::checkpoint_name(step)));
    };
    // Without a learning rate and at step 0 the weights are those of the source.
    for (const std::string& from : {source, source + "/", source + "/checkpoints/step_00000012",
                                    source + "/checkpoints/step_00000012/"}) {
        CAPTURE(from);
        const auto config = load_tiny(home().config("tuned"),
                                      {"run.init_from=" + from, "stages=[{\"steps\":1,\"context\":32}]",
                                       "checkpoint.at_start=true", "checkpoint.keep=5"});
        REQUIRE(run_training(config, true) == ExitCode::ok);
        CHECK((weights("tuned", 0) == weights("whole", 12)));
        CHECK((weights("tuned", 1) != weights("whole", 12)));
        CHECK(contains(home().log("tuned"),
                       "starting from the weights of " + source + "/checkpoints/step_00000012"));
        CHECK(!contains(home().log("tuned"), "kept as initialised"));
        // Resuming continues this run and does not load the source again.
        CHECK(run_training(config) == ExitCode::ok);
        CHECK(contains(home().log("tuned"), "nothing to do"));
    }
    REQUIRE(run_training(load_tiny(home().config("partial"),
                                   {"run.init_from=" + source, "model.norm.gain=true", "model.head.tied=true",
                                    "run.log_every=5"})) == ExitCode::ok);
    CHECK(contains(home().log("partial"), "kept as initialised: layers.0."));
    CHECK(contains(home().log("partial"), "not used by this model: "));
    CHECK(contains(home().log("partial"), "norm"));

    const std::string shape = error_of([&] {
        run_training(load_tiny(home().config("wide"), {"run.init_from=" + source, "model.mlp.hidden=40"}));
    });
    CHECK(contains(shape, "4: "));
    CHECK(contains(shape, "layers.0.mlp."));
    CHECK(contains(shape, "has shape [24, 16], this model needs [40, 16]"));
    CHECK(error_of([&] {
              run_training(load_tiny(home().config("nothing"),
                                     {"run.init_from=" + home().dir.path() + "/no run at all"}));
          }) == "4: " + home().dir.path() + "/no run at all is neither a run directory nor a checkpoint");
}

TEST_CASE("checkpoint.at_start saves the initial weights, which stay whatever `keep` says") {
    const auto config = load_tiny(home().config("at_start"),
                                  {"checkpoint.at_start=true", "checkpoint.every=2", "checkpoint.keep=1"});
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(io::checkpoint_steps(home().dir / "at_start/checkpoints") == std::vector<int64_t>{12, 0});
    // Resuming from it is a run from the beginning.
    std::filesystem::remove_all(home().dir / "at_start/checkpoints/step_00000012");
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("at_start"), "resuming after step 0"));
    CHECK(differing(home().whole, results_of(home().dir / "at_start", steps)) == "");
}

TEST_CASE("a full disk: a periodic save that fails is reported and training goes on") {
    const auto config = load_tiny(home().config("full"));
    refuse_space(2);  // the saves after steps 3 and 6
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("full"), "warning: no checkpoint at step 3: "));
    CHECK(contains(home().log("full"), "warning: no checkpoint at step 6: "));
    CHECK(contains(home().log("full"), "No space left on device"));
    CHECK(io::checkpoint_steps(home().dir / "full/checkpoints") == std::vector<int64_t>{12, 9});
    CHECK(differing(home().whole, results_of(home().dir / "full", steps)) == "");
}

TEST_CASE("a full disk: three saves in a row end the run, and it resumes from what there is") {
    const auto config = load_tiny(home().config("fuller"), {"checkpoint.every=2"});
    REQUIRE(stop_after(config, 4) == ExitCode::stopped);
    refuse_space(3);
    CHECK(contains(error_of([&] { run_training(config); }), "5: "));
    refuse_space(0);
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("fuller"), "resuming after step 4"));
    CHECK(differing(home().whole, results_of(home().dir / "fuller", steps)) == "");
}

TEST_CASE("a full disk: when a signal asks for a checkpoint, a failing one is an error") {
    const auto config = load_tiny(home().config("fullstop"));
    refuse_space(1);
    CHECK(contains(error_of([&] { stop_after(config, 2); }), "5: "));
    raise_at_step(0, 0);
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(differing(home().whole, results_of(home().dir / "fullstop", steps)) == "");
}

TEST_CASE("numerics: a good step ends a row of bad ones, also one that began before a resume") {
    const auto config = load_tiny(home().config("row"), {"optimizer.max_bad_steps=3"});
    REQUIRE(stop_after(config, 6) == ExitCode::stopped);
    // The checkpoint of a run that had just skipped three steps in a row.
    rewrite_state(home().dir / "row", 6,
                  [](std::string& text) { replace(text, "\"bad_in_a_row\": 0", "\"bad_in_a_row\": 3"); });
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("row"), "resuming after step 6"));
    CHECK(differing(home().whole, results_of(home().dir / "row", steps)) ==
          "");  // state.json counts from 0 again
}

TEST_CASE("numerics: steps that are not finite change nothing, and too many of them in a row end the run") {
    // Weight decay this large multiplies the matrices by -1e4 in each step, until the loss overflows;
    // they are finite yet.
    const std::vector<std::string> absurd{"optimizer.muon.lr=1000",
                                          "optimizer.muon.weight_decay=10",
                                          "optimizer.max_bad_steps=3",
                                          "checkpoint.every=1",
                                          "checkpoint.keep=20",
                                          "eval.every=100",
                                          "optimizer.schedule.kind=constant"};
    const auto config = load_tiny(home().config("absurd"), absurd);
    REQUIRE(run_training(config) == ExitCode::numerics);
    CHECK(contains(home().log("absurd"), "giving up: 4 steps in a row had a non-finite loss or gradient"));
    // Which step is the first bad one is the arithmetic's business; from it on no weight and no moment moves.
    const std::vector<int64_t> saved =
        io::checkpoint_steps(home().dir / "absurd/checkpoints");  // newest first
    REQUIRE(saved.size() >= 4);
    const auto file = [&](int64_t step, const char* name) {
        return get(home().dir / fmt::format("absurd/checkpoints/{}/{}", io::checkpoint_name(step), name));
    };
    for (const char* name : {"model.safetensors", "optimizer.safetensors"})
        for (int64_t step = saved[0] - 2; step <= saved[0]; ++step)
            CHECK((file(step, name) == file(saved[0] - 3, name)));  // bytes: not to be printed
    const json::Value state = json::parse(file(saved[0], "state.json"), "state.json");
    CHECK(state.find("bad_in_a_row")->as_int64() == 3);
    CHECK(state.find("skipped")->as_int64() == 3);
    CHECK(state.find("updates")->as_int64() == saved[0] - 3);
    CHECK(contains(get(home().dir / "absurd/metrics.jsonl"), "\"grad_norm\":null"));
    // Resuming comes to the same end.
    CHECK(run_training(config) == ExitCode::numerics);
}
