// longreach theory from outside: what it prints, the files it leaves, what it refuses.
#include <doctest/doctest.h>

#include "commands/process.h"
#include "io/file.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("tables on the terminal and as CSV") {
    const TempDir dir;
    const std::string out = dir / "tables";
    const Finished f = run(dir, {"theory", "extreme", "gradient", "--n", "16,64", "--d", "16", "--samples",
                                 "20", "--seed", "3", "--out", out});
    CHECK(f.code == 0);
    CHECK(f.err.empty());
    CHECK(f.out.find("E[1/w_max] of n normal scores") != std::string::npos);
    CHECK(f.out.find("6.8218") != std::string::npos);  // n = 16, r = 0.25
    CHECK(f.out.find("1.5494") != std::string::npos);  // scale of most gradient at n = 64
    CHECK(io::list_directory(out) ==
          std::vector<std::string>{"extreme.csv", "extreme_limit.csv", "extreme_rules.csv",
                                   "extreme_sampled.csv", "extreme_scale_ratios.csv", "extreme_scales.csv",
                                   "gradient.csv", "gradient_cosine.csv"});
}

TEST_CASE("everything at once, small: the phase diagram says how long it takes and leaves two diagrams") {
    const TempDir dir;
    const std::string out = dir / "all";
    const Finished f =
        run(dir, {"theory", "all", "--n", "16", "--d", "8", "--samples", "20", "--grid", "4", "--out", out});
    CHECK(f.code == 0);
    CHECK(f.out.find("will take about") != std::string::npos);
    CHECK(io::list_directory(out) == std::vector<std::string>{"cosine_contexts.csv",
                                                              "cosine_sampled.csv",
                                                              "cosine_scales.csv",
                                                              "entropy.csv",
                                                              "entropy_limit.csv",
                                                              "entropy_sampled.csv",
                                                              "extreme.csv",
                                                              "extreme_limit.csv",
                                                              "extreme_rules.csv",
                                                              "extreme_sampled.csv",
                                                              "extreme_scale_ratios.csv",
                                                              "extreme_scales.csv",
                                                              "gradient.csv",
                                                              "gradient_cosine.csv",
                                                              "participation.csv",
                                                              "participation_limit.csv",
                                                              "participation_sampled.csv",
                                                              "phase_n16_d8.csv",
                                                              "phase_n16_d8_eta.svg",
                                                              "phase_n16_d8_lambda.svg"});
}

TEST_CASE("without --out nothing is written; the same seed prints the same") {
    const TempDir dir;
    const std::vector<std::string> command = {"theory", "entropy", "--n", "16", "--samples", "20"};
    const Finished first = run(dir, command), again = run(dir, command);
    CHECK(first.code == 0);
    CHECK(first.out == again.out);
    CHECK(io::list_directory(dir.path()) == std::vector<std::string>{"stderr.txt", "stdout.txt"});
}

TEST_CASE("what cannot be computed is refused before anything is") {
    const TempDir dir;
    const std::string out = dir / "none";
    const std::vector<std::vector<std::string>> refused = {
        {"no_such_table"},        {},
        {"phase", "--n", "5000"}, {"all", "--n", "16,65536"},
        {"cosine", "--d", "3"},   {"gradient", "--d", "8,2"},
        {"extreme", "--n", "1"},  {"extreme", "--samples", "1"},
        {"phase", "--grid", "1"}};
    for (std::vector<std::string> arguments : refused) {
        arguments.insert(arguments.begin(), "theory");
        arguments.insert(arguments.end(), {"--out", out});
        const Finished f = run(dir, arguments);
        CAPTURE(f.err);
        CHECK(f.code == 2);
        CHECK(f.out.empty());
    }
    CHECK(io::kind_of(out, io::Links::follow) == io::PathKind::missing);
}
