// Runs the fuzz targets without a fuzzer, so that every commit is checked in seconds with any compiler: each
// target over its seeds (seeds.cpp) and the inputs that once broke it (corpus/TARGET/), then over mutations
// of them that are the same everywhere and each time.
//
//   test_fuzz_replay [--corpus DIRECTORY] [--iterations N] [TARGET...]
//   test_fuzz_replay TARGET FILE             one input, of a fuzzer's finding
//   test_fuzz_replay --write-seeds DIRECTORY
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/hash.h"
#include "fuzz/mutation.h"
#include "fuzz/seeds.h"
#include "fuzz/target.h"
#include "fuzz/target_list.h"
#include "io/file.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

constexpr uint64_t largest_input = 1 << 20;

// The input under way, for the handler of a crash.
struct Current {
    const char* target = nullptr;
    const std::string* input = nullptr;
};
Current& current() {
    static Current now;
    return now;
}

std::string save_current() {
    const std::string path =
        fmt::format("fuzz-crash-{}-{}", current().target, format_hash64(xxh64(*current().input)));
    test::put(path, *current().input);
    return path;
}

// The process is lost, and what is called here is not made for signal handlers; it works nearly always.
void on_crash(int signal) {
    ::signal(signal, SIG_DFL);
    const std::string path = save_current();
    fmt::print(stderr, "{}: signal {}; the input is in {}\n", current().target, signal, path);
    ::raise(signal);
}

// True if the target took it well.
bool run(const FuzzTarget& target, const std::string& input) {
    current() = {target.name, &input};
    // A copy of its own, so that AddressSanitizer sees reads beyond the end.
    const std::vector<uint8_t> bytes(input.begin(), input.end());
    try {
        target.run(bytes.data(), bytes.size());
        return true;
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: {}; the input is in {}\n", target.name, error.what(), save_current());
        return false;
    }
}

std::vector<std::string> inputs_of(const FuzzTarget& target, const std::string& corpus) {
    std::vector<std::string> inputs;
    for (const Seed& seed : seeds_of(target.name)) inputs.push_back(seed.bytes);
    const std::string directory = io::join_path(corpus, target.name);
    if (!corpus.empty() && io::kind_of(directory, io::Links::follow) == io::PathKind::directory)
        for (const std::string& name : io::list_directory(directory))
            inputs.push_back(io::read_file(io::join_path(directory, name), largest_input, io::Links::follow));
    return inputs;
}

bool replay(const FuzzTarget& target, const std::string& corpus, int iterations) {
    const std::vector<std::string> inputs = inputs_of(target, corpus);
    bool good = true;
    for (const std::string& input : inputs) good = run(target, input) && good;
    Mutator mutator(xxh64(target.name));
    const int count = iterations / target.slowness;
    for (int i = 0; good && i < count; ++i)
        good = run(target, mutator.mutate(inputs, static_cast<size_t>(i) % inputs.size()));
    fmt::print("{:<18} {} inputs, {} mutations{}\n", target.name, inputs.size(), count,
               good ? "" : ": FAILED");
    return good;
}

void write_seeds(const std::string& directory) {
    for (const FuzzTarget& target : fuzz_targets()) {
        const std::string own = io::join_path(directory, target.name);
        std::filesystem::create_directories(own);
        for (const Seed& seed : seeds_of(target.name)) test::put(io::join_path(own, seed.name), seed.bytes);
        const std::string dictionary = dictionary_of(target.name);
        if (!dictionary.empty()) test::put(own + ".dict", dictionary);
    }
}

const FuzzTarget& find_target(const std::string& name) {
    for (const FuzzTarget& target : fuzz_targets())
        if (name == target.name) return target;
    fail(ExitCode::usage, "there is no fuzz target '{}'", name);
}

int replay_all(const std::vector<std::string>& words) {
    std::string corpus;
    std::vector<std::string> names;
    int iterations = 5000;
    for (size_t i = 0; i < words.size(); ++i) {
        const bool more = i + 1 < words.size();
        if (words[i] == "--write-seeds" && more) return write_seeds(words[i + 1]), 0;
        if (words[i] == "--corpus" && more) {
            corpus = words[++i];
        } else if (words[i] == "--iterations" && more) {
            iterations = std::stoi(words[++i]);
        } else {
            names.push_back(words[i]);
        }
    }
    if (names.size() == 2 && io::kind_of(names[1], io::Links::follow) == io::PathKind::file)
        return run(find_target(names[0]), io::read_file(names[1], largest_input, io::Links::follow)) ? 0 : 1;
    bool good = true;
    for (const FuzzTarget& target : fuzz_targets())
        if (names.empty() || std::find(names.begin(), names.end(), target.name) != names.end())
            good = replay(target, corpus, iterations) && good;
    return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    ::setvbuf(stdout, nullptr, _IOLBF, 0);
    ::signal(SIGABRT, on_crash);
    ::signal(SIGFPE, on_crash);
    ::signal(SIGSEGV, on_crash);
    try {
        return replay_all({argv + 1, argv + argc});
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 2;
    }
}
