// A run's event files say what its other records say; a resumed run opens a new one.
#include "train/event_log.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>

#include "io/event_reader.h"
#include "train/interpose.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// The event files of a run, oldest first.
std::vector<std::vector<Event>> event_files(const std::string& run) {
    std::vector<std::vector<Event>> files;
    for (const std::string& name : io::list_directory(run + "/events"))
        files.push_back(events_of(get(run + "/events/" + name)));
    return files;
}

// "step value" of one scalar.
std::vector<std::pair<int64_t, float>> points(const std::vector<Event>& events, const std::string& tag) {
    std::vector<std::pair<int64_t, float>> out;
    for (const Event& e : events)
        if (e.tag == tag) out.emplace_back(e.step, e.scalar());
    return out;
}

// The same from metrics.jsonl.
std::vector<std::pair<int64_t, float>> logged(const std::string& run, const char* member) {
    std::vector<std::pair<int64_t, float>> out;
    const std::string text = get(run + "/metrics.jsonl");
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
        const json::Value v = json::parse(text.substr(at, end - at), "metrics.jsonl");
        out.emplace_back(v.find("step")->as_int64(), static_cast<float>(v.find(member)->as_number()));
    }
    return out;
}

const Event& only(const std::vector<Event>& events, const std::string& tag) {
    const Event* found = nullptr;
    for (const Event& e : events)
        if (e.tag == tag) {
            check(found == nullptr, "two events with tag {}", tag);
            found = &e;
        }
    check(found != nullptr, "no event with tag {}", tag);
    return *found;
}

ExitCode stop_after(const config::LoadedConfig<train::Experiment>& config, int64_t step) {
    raise_at_step(step, SIGTERM);
    const ExitCode code = run_training(config);
    raise_at_step(0, 0);
    return code;
}

}  // namespace

TEST_CASE("events: a run writes what metrics.jsonl and val.csv say, its config and what distinguishes it") {
    const TempDir dir;
    make_corpus(dir / "data");
    const auto config = load_tiny(tiny_config(dir.path()), many_variants());
    REQUIRE(run_training(config) == ExitCode::ok);
    const std::string run = dir / "run";
    const auto files = event_files(run);
    REQUIRE(files.size() == 1);
    const std::vector<Event>& events = files[0];
    CHECK(events.at(0).version == "brain.Event:2");
    CHECK(events.at(1).session == 1);
    CHECK(events.at(1).step == 0);
    CHECK(points(events, "train/loss") == logged(run, "loss"));
    CHECK(points(events, "train/grad_norm") == logged(run, "grad_norm"));
    CHECK(points(events, "train/lr") == logged(run, "lr"));
    CHECK(points(events, "train/loss").size() == 12);
    CHECK(points(events, "timing/tokens_per_second").size() == 12);
    for (const auto& [step, rate] : points(events, "timing/tokens_per_second")) CHECK(rate > 0);

    std::map<std::string, float> val;  // "step,length"
    for (const char* length : {"16", "64"})
        for (const auto& [step, loss] : points(events, std::string("val/") + length))
            val[fmt::format("{},{}", step, length)] = loss;
    const std::string csv = get(run + "/val.csv");
    size_t rows = 0;
    for (size_t at = csv.find('\n') + 1, end; (end = csv.find('\n', at)) != std::string::npos; at = end + 1) {
        std::vector<std::string> cells{""};
        for (const char c : csv.substr(at, end - at)) {
            if (c == ',') {
                cells.emplace_back();
            } else {
                cells.back() += c;
            }
        }
        ++rows;
        CHECK(val.at(cells.at(0) + "," + cells.at(2)) == static_cast<float>(std::stod(cells.at(3))));
    }
    CHECK(rows == 6);
    CHECK(val.size() == rows);

    std::string code = "    ";  // config.json as Markdown
    for (const char c : get(run + "/config.json")) {
        code += c;
        if (c == '\n') code += "    ";
    }
    const std::string text = only(events, "config").tensor().text(8);
    CHECK(code.starts_with(text));
    CHECK(code.size() <= text.size() + 4);
    CHECK(contains(text, "    }\n"));

    CHECK(contains(only(events, "custom_scalars__config__").tensor().text(8), "val/[0-9]+$"));
    const Decoded session = Decoded(only(events, "_hparams_/session_start_info").content()).message(3);
    std::map<std::string, Decoded> values;
    for (const std::string& e : session.all(1)) values.emplace(Decoded(e).text(1), Decoded(e).message(2));
    CHECK(values.at("model.width").float64(2) == 16);
    CHECK(values.at("stages.1.context").float64(2) == 32);
    CHECK(values.at("eval.lengths").text(3) == "[16,64]");
    CHECK(values.at("model.attention.sink").text(3) == "learned");
    CHECK(values.at("model.residual.smear").integer(4) == 1);
    CHECK(values.count("model.norm.eps") == 0);  // as nobody wrote it
    const Decoded end = Decoded(only(events, "_hparams_/session_end_info").content()).message(4);
    CHECK(end.integer(1) == 1);

    // Scales of two layers, at each of three validations.
    size_t histograms = 0;
    for (const Event& e : events) {
        if (e.tag != "weights/attention.sink") continue;
        ++histograms;
        const std::string table = e.tensor().text(4);
        double total = 0;
        for (size_t at = 0; at < table.size(); at += 3 * sizeof(double)) {
            CHECK(number_at<double>(table, at) < number_at<double>(table, at + sizeof(double)));
            total += number_at<double>(table, at + 2 * sizeof(double));
        }
        CHECK(total == 4);  // two heads in each of two layers
    }
    CHECK(histograms == 3);
}

TEST_CASE("events: a resumed run opens a new file whose session starts after the steps that are kept") {
    const TempDir dir;
    make_corpus(dir / "data");
    const auto config = load_tiny(tiny_config(dir.path()));
    REQUIRE(stop_after(config, 5) == ExitCode::stopped);
    const std::string run = dir / "run", first = io::list_directory(run + "/events").at(0);
    // What a power cut may leave.
    const std::string torn = get(run + "/events/" + first) + "\x1a\x02";
    put(run + "/events/" + first, torn);
    REQUIRE(stop_after(config, 7) == ExitCode::stopped);
    REQUIRE(run_training(config) == ExitCode::ok);
    const std::vector<std::string> names = io::list_directory(run + "/events");
    REQUIRE(names.size() == 3);
    CHECK(names[0] == first);
    CHECK((get(run + "/events/" + first) == torn));  // nobody touched it
    const Records before = read_records(torn);
    CHECK(before.torn == 2);

    const auto resumed = events_of(get(run + "/events/" + names[1]));
    CHECK(resumed.at(0).version == "brain.Event:2");
    CHECK(resumed.at(1).session == 1);
    CHECK(resumed.at(1).step == 6);  // points up to the checkpoint's step 5 stay
    CHECK(points(resumed, "train/loss").front().first == 6);
    CHECK(points(resumed, "train/loss").back().first == 7);
    CHECK(only(resumed, "config").step == 5);
    for (const Event& e : resumed) CHECK(e.tag != "_hparams_/session_end_info");  // it may go on

    const auto last = events_of(get(run + "/events/" + names[2]));
    CHECK(last.at(1).step == 8);
    CHECK(points(last, "train/loss").back().first == 12);
    only(last, "_hparams_/session_end_info");

    REQUIRE(run_training(config) == ExitCode::ok);  // nothing to do
    CHECK(io::list_directory(run + "/events") == names);
    REQUIRE(run_training(config, true) == ExitCode::ok);  // --fresh
    REQUIRE(io::list_directory(run + "/events").size() == 1);
    CHECK(event_files(run).at(0).at(1).step == 0);
}

TEST_CASE("events: may be switched off, also for the rest of a run") {
    const TempDir dir;
    make_corpus(dir / "data");
    REQUIRE(stop_after(load_tiny(tiny_config(dir.path())), 5) == ExitCode::stopped);
    REQUIRE(run_training(load_tiny(tiny_config(dir.path()), {"run.events=false"})) == ExitCode::ok);
    CHECK(event_files(dir / "run").size() == 1);
    REQUIRE(run_training(load_tiny(tiny_config(dir.path(), "quiet"), {"run.events=false"})) == ExitCode::ok);
    CHECK(io::kind_of(dir / "quiet/events", io::Links::refuse) == io::PathKind::missing);
    CHECK(differing(results_of(dir / "run", 12), results_of(dir / "quiet", 12)) == "");
}

TEST_CASE("events: what cannot be written is said once and ends nothing") {
    const TempDir dir;
    make_corpus(dir / "data");
    REQUIRE(run_training(load_tiny(tiny_config(dir.path(), "plain"), {"run.events=false"})) == ExitCode::ok);
    std::filesystem::create_directories(dir / "run");
    put(dir / "run/events", "in the way");
    const auto config = load_tiny(tiny_config(dir.path()));
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(get(dir / "run/events") == "in the way");
    CHECK(differing(results_of(dir / "plain", 12), results_of(dir / "run", 12)) == "");
    const std::string log = get(dir / "run/log.txt"), warning = "warning: no events for TensorBoard: ";
    CHECK(contains(log, warning));
    CHECK(log.find(warning) == log.rfind(warning));

    std::filesystem::remove_all(dir / "run");
    refuse_event_bytes(true);  // the file can be made, then the disk is full
    CHECK(run_training(config) == ExitCode::ok);
    refuse_event_bytes(false);
    CHECK(differing(results_of(dir / "plain", 12), results_of(dir / "run", 12)) == "");
    const std::string full = get(dir / "run/log.txt"), no_more = "warning: no more events for TensorBoard: ";
    CHECK(contains(full, no_more));
    CHECK(full.find(no_more) == full.rfind(no_more));
    CHECK(contains(full, "No space left on device"));
}

TEST_CASE("events: a run that gives up says that it failed") {
    const TempDir dir;
    make_corpus(dir / "data");
    const auto config = load_tiny(
        tiny_config(dir.path()),
        {"optimizer.adam.embedding_lr=1000", "optimizer.adam.head_lr=1000", "optimizer.muon.lr=1000",
         "stages.0.lr=1000", "model.embedding_norm=false", "optimizer.max_bad_steps=3",
         "model.head.z_loss=1e20", "eval.every=100", "optimizer.schedule.kind=constant",
         "checkpoint.every=0"});  // the weights are not finite by step 3, and would not be saved
    REQUIRE(run_training(config) == ExitCode::numerics);
    const auto files = event_files(dir / "run");
    REQUIRE(files.size() == 1);
    CHECK(Decoded(only(files[0], "_hparams_/session_end_info").content()).message(4).integer(1) == 2);
    // Every step has a loss, finite or not; skipped ones have no gradient norm.
    CHECK(points(files[0], "train/grad_norm").size() + 4 == points(files[0], "train/loss").size());
}

TEST_CASE("events: histograms hold every value between their edges") {
    const train::Histogram one = train::histogram_of({2, 2, 2});
    CHECK(one.edges == std::vector<double>{1.5, 2.5});
    CHECK(one.counts == std::vector<double>{3});
    std::vector<double> values;
    for (int i = 0; i < 1000; ++i) values.push_back(-3 + 0.01 * ((i * 37) % 1000));
    const train::Histogram h = train::histogram_of(values);
    REQUIRE(h.edges.size() == h.counts.size() + 1);
    CHECK(h.edges.front() == -3);
    CHECK(h.edges.back() == *std::max_element(values.begin(), values.end()));
    double total = 0;
    for (size_t i = 0; i < h.counts.size(); ++i) {
        total += h.counts[i];
        // 1000 values evenly over 30 buckets: 33 or 34 in each, one more or less where rounding moves an end.
        CHECK(h.counts[i] >= 32);
        CHECK(h.counts[i] <= 35);
    }
    CHECK(total == 1000);
}
