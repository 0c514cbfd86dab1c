// CudaOps as a run sees it: recordings, order and schedules, errors of the runtime, memory that is too small,
// and which device a run gets.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/progress.h"
#include "kernels/cuda_device.h"
#include "simt/simt.h"
#include "train/device.h"
#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Options of the harness for the length of a test.
struct HarnessOptions {
    HarnessOptions() { simt::options() = {}; }
    ~HarnessOptions() { simt::options() = {}; }
};

std::string config_text(const std::string& directory, const std::string& name) {
    std::string text = tiny_config(directory, name);
    const std::string cpu = "\"device\": \"cpu\"";
    return text.replace(text.find(cpu), cpu.size(), "\"device\": \"cuda\"");
}

std::vector<std::string> few_steps() {
    return {"stages=[{\"steps\":2,\"context\":16},{\"steps\":2,\"context\":32}]", "batch.tokens=64"};
}
constexpr int64_t short_steps = 4;
// Every variant that touches the device in a way of its own.
std::vector<std::string> short_run() {
    std::vector<std::string> overrides = many_variants();
    for (const std::string& o : few_steps()) overrides.push_back(o);
    return overrides;
}

std::vector<float> numbers(Ops& ops, const Tensor& t) {
    std::vector<float> host(static_cast<size_t>(t.count()));
    ops.download(host.data(), t);
    return host;
}

// Exit code and standard error of `work` in a process of its own, which has to end by itself.
std::pair<int, std::string> in_child(const std::function<void()>& work) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        ::alarm(60);
        work();
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    char piece[512];
    for (ssize_t n; (n = ::read(ends[0], piece, sizeof piece)) > 0;)
        text.append(piece, static_cast<size_t>(n));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

}  // namespace

TEST_CASE("a device that hangs: the process ends with code 12 and names the operation") {
    const HarnessOptions options;
    for (const bool lazy : {false, true})
        for (const bool downloads : {false, true}) {
            CAPTURE(lazy);
            CAPTURE(downloads);
            const auto [code, said] = in_child([&] {
                const auto ops = make_cuda_ops({.timeout = 0.3});
                const Tensor sum(ops->allocate(32), DType::f32, {8});
                ops->zero(sum);
                ops->synchronize();
                simt::options().lazy_streams = lazy;
                simt::options().hang_at = 3;
                for (int i = 0; i < 5; ++i) ops->add(sum, sum);
                float values[8];
                if (downloads)
                    ops->download(values, sum);
                else
                    ops->synchronize();
            });
            CAPTURE(said);
            CHECK(code == 12);
            CHECK(said.find("the device has ended no operation for 0 s (wait for the device); running: add "
                            "(operation 4 of 6 queued); the last to end: add") != std::string::npos);
        }
}

TEST_CASE("a device that hangs behind a long queue: every operation has an event, so its name is known") {
    const HarnessOptions options;
    const auto [code, said] = in_child([&] {
        const auto ops = make_cuda_ops({.timeout = 0.3});
        const Tensor sum(ops->allocate(32), DType::f32, {8});
        ops->zero(sum);
        ops->synchronize();
        simt::options().lazy_streams = true;
        simt::options().hang_at = 400;
        for (int i = 0; i < 2000; ++i) ops->add(sum, sum);  // more than Progress has events
        ops->synchronize();
    });
    CAPTURE(said);
    CHECK(code == 12);
    CHECK(said.find("running: add (operation 401 of ") != std::string::npos);
}

TEST_CASE("a device that hangs is left soon after a signal, one that goes on is not") {
    const HarnessOptions options;
    for (const bool hangs : {true, false}) {
        CAPTURE(hangs);
        const auto [code, said] = in_child([&] {
            const auto ops = make_cuda_ops({});
            const Tensor sum(ops->allocate(32), DType::f32, {8});
            ops->zero(sum);
            ops->synchronize();
            cuda::Progress progress(static_cast<cudaStream_t>(ops->native_queue().stream),
                                    {.seconds = 0, .stop_asked = [] { return true; }, .grace = 0.2});
            simt::options().hang_at = hangs ? 1 : 0;
            ops->add(sum, sum);
            progress.queued("add");
            progress.wait("the test");
        });
        CAPTURE(said);
        CHECK(code == (hangs ? 12 : 0));
        CHECK((said.find("running: add") != std::string::npos) == hangs);
    }
}

TEST_CASE("replay: the work runs once as it is, is recorded once, and repeated from then on") {
    const HarnessOptions options;
    const auto ops = make_cuda_ops({});
    void* memory = ops->allocate(16 * 4);
    const Tensor sum(memory, DType::f32, {8}), term(static_cast<float*>(memory) + 8, DType::f32, {8});
    int asked = 0;
    for (int i = 1; i <= 5; ++i) {
        const std::vector<float> value(8, static_cast<float>(i));
        ops->upload(term, value.data());
        ops->replay("sum", [&] {
            ++asked;
            ops->add(sum, term);
        });
    }
    CHECK(asked == 2);
    CHECK(numbers(*ops, sum) == std::vector<float>(8, 15.0f));
    // What the host does between operations is done in every replay, at its place.
    std::vector<float> seen;
    for (int i = 0; i < 4; ++i)
        ops->replay("host", [&] {
            ops->add(sum, sum);
            ops->host_step([&] { seen.push_back(numbers(*ops, sum)[0]); });
            ops->add(sum, sum);
        });
    CHECK(seen == std::vector<float>{30, 120, 480, 1920});
    ops->zero(sum);
    for (int i = 0; i < 3; ++i) ops->add(sum, term);
    // Another key is other work.
    ops->replay("twice", [&] { ops->add(sum, sum); });
    CHECK(numbers(*ops, sum) == std::vector<float>(8, 30.0f));
    ops->release(memory, 16 * 4);
}

TEST_CASE("replay: what waits or allocates in a recording is an error, and the operations stay usable") {
    const HarnessOptions options;
    const auto ops = make_cuda_ops({});
    void* memory = ops->allocate(8 * 4);
    const Tensor t(memory, DType::f32, {8});
    const auto waiting = [&] { numbers(*ops, t); };
    ops->replay("waits", waiting);
    CHECK_THROWS_AS(ops->replay("waits", waiting), Error);
    ops->zero(t);
    CHECK(numbers(*ops, t) == std::vector<float>(8, 0.0f));
    ops->release(memory, 8 * 4);
}

TEST_CASE("uploads larger than the pinned ring, and many in a row, arrive whole") {
    const HarnessOptions options;
    simt::options().lazy_streams = true;
    const auto ops = make_cuda_ops({.precision = Precision::fp32});
    const int64_t n = 3 * (int64_t{1} << 20) + 5;
    void* memory = ops->allocate(2 * n * 4);
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000003);
    const Tensor first(memory, DType::f32, {n}), second(static_cast<float*>(memory) + n, DType::f32, {n});
    for (int turn = 0; turn < 3; ++turn) {
        for (float& v : values) v += 1;
        ops->upload(first, values.data());
        for (float& v : values) v += 1;
        ops->upload(second, values.data());
    }
    const std::vector<float> back = numbers(*ops, second);
    CHECK(back == values);
    for (float& v : values) v -= 1;
    CHECK(numbers(*ops, first) == values);
    ops->release(memory, 2 * n * 4);
}

TEST_CASE("a run's bytes depend neither on schedules, nor on landings, nor on the order of streams") {
    const HarnessOptions options;
    const TempDir dir;
    make_corpus(dir / "data");
    Results expected;
    for (int schedule : {0, 4, 9, 14}) {
        CAPTURE(schedule);
        simt::options() = simt::schedule(schedule);
        simt::options().watch_memory = false;
        simt::options().lazy_streams = schedule % 2 == 0;
        const std::string name = fmt::format("run{}", schedule);
        REQUIRE(run_training(load_tiny(config_text(dir.path(), name), short_run())) == ExitCode::ok);
        const Results results = results_of(dir / name, short_steps);
        if (expected.empty()) expected = results;
        CHECK(differing(expected, results) == "");
    }
}

TEST_CASE(
    "an error of the runtime, at calls spread over a run, ends it with its name, and the run resumes to the "
    "same bytes") {
    const HarnessOptions options;
    const TempDir dir;
    make_corpus(dir / "data");
    simt::options().watch_memory = false;
    const auto config = [&](const std::string& name) {
        return load_tiny(config_text(dir.path(), name), few_steps());
    };
    const uint64_t before = simt::runtime_calls();
    REQUIRE(run_training(config("whole")) == ExitCode::ok);
    const uint64_t calls = simt::runtime_calls() - before;
    const Results whole = results_of(dir / "whole", short_steps);
    // Launches are most of the calls: a walk over all would take minutes.
    const uint64_t walked = simt::long_tests() ? 25 : 10;
    const uint64_t stride = std::max<uint64_t>(1, calls / walked);
    for (uint64_t k = 1; k <= calls; k += stride) {
        simt::options().fail_call = k;
        CAPTURE(k);
        const std::string name = fmt::format("failed{}", k);
        bool refused = false;
        try {
            run_training(config(name));
        } catch (const Error& e) {
            refused = true;
            CAPTURE(std::string(e.what()));
            CHECK(e.code() == ExitCode::device);
        }
        CAPTURE(simt::failed_call());
        simt::options().fail_call = 0;
        // Only what is given back at the end, waiting for it included, and what doctor shows may fail unseen.
        const std::string call = simt::failed_call();
        const bool at_the_end = call.find("Synchronize") != std::string::npos && calls - k < 32;
        CHECK((refused || at_the_end || call.find("Free") != std::string::npos ||
               call.find("Destroy") != std::string::npos || call.find("Version") != std::string::npos));
        REQUIRE(run_training(config(name)) == ExitCode::ok);
        CHECK(differing(whole, results_of(dir / name, short_steps)) == "");
    }
}

TEST_CASE("a plan that does not fit names the largest micro-batch that does") {
    const HarnessOptions options;
    const TempDir dir;
    make_corpus(dir / "data");
    const auto config = load_tiny(config_text(dir.path(), "run"),
                                  {"stages=[{\"steps\":1,\"context\":32}]", "batch.tokens=512",
                                   "batch.micro_tokens=512", "eval.lengths=[32]", "eval.batch_tokens=32"});
    simt::options().watch_memory = false;
    const auto message = [&](size_t device_bytes) {
        simt::options().device_bytes = device_bytes;
        try {
            run_training(config, true);
        } catch (const Error& e) {
            CHECK(e.code() == ExitCode::device);
            return std::string(e.what());
        }
        return std::string("it fits");
    };
    CHECK(message(size_t{64} << 20) == "it fits");
    // The smallest device on which the advice changes, by halving.
    size_t fits = size_t{64} << 20, too_small = size_t{1} << 20;
    while (fits - too_small > 4096) {
        const size_t middle = (fits + too_small) / 2;
        (message(middle) == "it fits" ? fits : too_small) = middle;
    }
    const std::string advice = message(too_small);
    CAPTURE(advice);
    CHECK(advice.find("the largest micro-batch that fits: batch.micro_tokens=256") != std::string::npos);
    // The advice is right.
    simt::options().device_bytes = too_small;
    const auto smaller = load_tiny(config_text(dir.path(), "smaller"),
                                   {"stages=[{\"steps\":1,\"context\":32}]", "batch.tokens=512",
                                    "batch.micro_tokens=256", "eval.lengths=[32]", "eval.batch_tokens=32"});
    CHECK(run_training(smaller) == ExitCode::ok);
}

TEST_CASE("a plan for a GPU that is not here is that of the GPU itself") {
    const HarnessOptions options;
    const TempDir dir;
    make_corpus(dir / "data");
    for (const auto& [precision, matrices] :
         {std::pair{Precision::bf16, "adam"}, {Precision::fp32, "muon"}}) {
        const auto config = load_tiny(
            config_text(dir.path(), "run"),
            {fmt::format("optimizer.matrices={}", matrices), "model.attention.score=scale_invariant",
             "model.attention.params.tau.learn=layer", "model.attention.params.tau.positive=true"});
        const auto plan = [&](std::unique_ptr<Ops> ops, const std::string& log) {
            train::Console console(true);
            console.open_log(dir / log);
            const train::Trainer trainer(config.value, console, *ops, 0, 1, {.memory = int64_t{1} << 40});
            const std::string text = get(dir / log);
            const size_t begin = text.find("memory plan"), end = text.find("planned ", begin);
            std::string lines = text.substr(begin, text.find('\n', end) - begin);
            // Without the time of day in front.
            for (size_t at = 0; (at = lines.find('\n', at)) != std::string::npos; ++at)
                lines.erase(at + 1, 19);
            return lines;
        };
        const std::string real = plan(make_cuda_ops({.precision = precision}), "real.txt");
        CHECK(plan(make_cuda_plan(precision), "planned.txt") == real);
        CHECK(contains(real, "planned"));
        CHECK(plan(make_cpu_ops({}), "cpu.txt") != real);
    }
}

TEST_CASE("the device: auto takes the GPU that answers, cpu does not ask, and the first line says which") {
    const HarnessOptions options;
    std::string note;
    train::SystemConfig system;
    CHECK(train::open_device(system, note)->traits().activations == DType::bf16);
    CHECK(note == "device: cuda SIMT harness, 1 multiprocessors, bf16 (a GPU answered)");
    system.precision = train::PrecisionChoice::fp32;
    CHECK(train::open_device(system, note)->traits().activations == DType::f32);
    system.device = train::Device::cpu;
    train::open_device(system, note);
    CHECK(note.starts_with("device: cpu "));
    CHECK(note.find("GPU") == std::string::npos);
    // A GPU that is too old is not used by auto, and refused by name.
    simt::options().architecture = 75;
    system.device = train::Device::automatic;
    train::open_device(system, note);
    CHECK(note.starts_with("device: cpu "));
    CHECK(note.find("\nno GPU is used, although a driver for CUDA ") != std::string::npos);
    system.device = train::Device::cuda;
    CHECK_THROWS_WITH_AS(train::open_device(system, note),
                         "system.device is cuda, but SIMT harness is older than compute capability 8.0; use "
                         "system.device=cpu",
                         Error);
}

TEST_CASE("the quickstart's two models, shortened, on the backend") {
    const HarnessOptions options;
    simt::options().watch_memory = false;
    const TempDir dir;
    const std::string data = make_long_corpus(dir / "data");
    for (const char* file : {"quickstart/rope.json", "quickstart/scale_invariant.json"}) {
        CAPTURE(file);
        const auto config =
            load({.file = io::join_path(LONGREACH_CONFIGS, file),
                  .overrides = {"system.device=cuda", "stages.0.steps=3", "batch.tokens=512",
                                "eval.lengths=[256,512]", "eval.final_tokens=512", "eval.batch_tokens=512"}},
                 data, dir / "runs");
        REQUIRE(run_training(config) == ExitCode::ok);
        const std::vector<double> losses =
            training_losses(io::join_path(config.value.run.dir, config.value.run.name));
        CHECK(losses.size() == 3);
        CHECK(losses.back() < losses.front());
    }
}
