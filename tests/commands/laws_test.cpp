// longreach laws: what it refuses, and how.
#include <doctest/doctest.h>

#include <cmath>

#include "commands/process.h"
#include "law/gap_counts.h"
#include "measure/probe.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// What is printed instead of tables, and the exit code.
std::string refusal(const std::vector<std::string>& arguments) {
    const TempDir output;
    std::vector<std::string> all{"laws"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.insert(all.end(), {"--n", "16,64", "--samples", "2"});
    const Finished f = run(output, all);
    CHECK(f.code == 2);
    CHECK(f.out == "");
    return f.err;
}

}  // namespace

TEST_CASE("laws: names and formulas that are wrong") {
    CHECK(refusal({"logm"}) ==
          "error: no law is named logm: did you mean logn?\nhint: longreach laws lists those with a name\n");
    CHECK(refusal({"z * tua", "--param", "tau=1"}) ==
          "error: law: unknown name 'tua': did you mean tau or t?\nz * tua\n    ^^^\n"
          "hint: longreach laws lists those with a name\n");
    CHECK(refusal({"z * c", "--param", "c=1/0"}) == "error: parameter c: the first value is inf\n1/0\n^^^\n");
}

TEST_CASE("laws: what is not finite on the range shown") {
    CHECK(refusal({"z*log(log(n))"}) ==
          "error: law: the factor of z is -inf at n = 1; scores and derivatives must be finite in f32 at "
          "every n and t up to 64\n");
    CHECK(refusal({"z + log(50 - t)"}) ==
          "error: law: the bias is -inf at t = 50; scores and derivatives must be finite in f32 at every n "
          "and t up to 64\n");
    const TempDir output;
    CHECK(run(output, {"laws", "z + log(50 - t)", "--n", "16,50", "--samples", "2"}).code == 0);
}

TEST_CASE("laws: parameters of the command line") {
    CHECK(refusal({"z - t", "--param", "c=1"}) ==
          "error: --param \"c=1\": has no effect: no formula uses this parameter\n");
    CHECK(refusal({"z - t*max(0, c - c)", "--param", "c=1"}) ==
          "error: --param \"c=1\": has no effect: no score changes with it at any n and t up to 64\n");
    CHECK(refusal({"z*n", "--param", "n=1"}) ==
          "error: --param \"n=1\": this is the name of a variable: choose another\n");
    CHECK(refusal({"z*c", "--param", "c"}) == "error: --param c: write NAME=VALUE\n");
}

TEST_CASE("laws: angles") {
    const auto shown = [](const std::vector<std::string>& arguments) {
        const TempDir output;
        std::vector<std::string> all{"laws"};
        all.insert(all.end(), arguments.begin(), arguments.end());
        all.insert(all.end(), {"--head-dim", "8", "--context", "64", "--n", "256"});
        const Finished f = run(output, all);
        REQUIRE(f.code == 0);
        CHECK(f.err == "");
        return f.out.substr(f.out.find("\npair") + 1);
    };
    // Tokens per turn: 2 pi 100^(m/4).
    const std::string plain = "pair  tokens\n0      6.283\n1      19.87\n2      62.83\n";
    CHECK(shown({"rope", "--param", "base=100"}).starts_with(plain));
    CHECK(shown({"--angle", "p * b^(-2*m/d) * (m < 3)", "--param", "b=100"}).starts_with(plain));
    const std::string slowed = shown({"pi", "--param", "base=100"});
    CHECK(slowed.starts_with("pair  trained  changed\n0       6.283    25.13\n"));
    CHECK(shown({"--angle", "p*theta*L/T", "--param", "base=100"}) == slowed);
    CHECK(refusal({"--angle", "p*bse"}) ==
          "error: angle: unknown name 'bse': did you mean e?\np*bse\n  ^^^\n"
          "hint: longreach laws lists angles with a name\n");
}

TEST_CASE("laws: configs/README.md and configs/LANGUAGE.md hold the tables that it prints") {
    const auto in_page = [](const std::string& flag, const std::string& page) {
        const TempDir output;
        const Finished f = run(output, {"laws", flag});
        CHECK(f.code == 0);
        CHECK(f.out.size() > 1000);
        CHECK_MESSAGE(get(LONGREACH_CONFIGS + page).find("\n" + f.out + "\n") != std::string::npos, page);
    };
    in_page("--markdown", "/README.md");
    in_page("--language", "/LANGUAGE.md");
    CHECK(refusal({"--language", "logn"}).find("excludes") != std::string::npos);
}

namespace {

// A probe of two heads for which C(n, s) - 1 = (c f(n) / s)^2: every level has the scale f(n) times a constant.
std::string probe_of(int64_t longest, const std::function<double(double)>& f, bool errors) {
    std::string csv = measure::probe_file.header() + "\n";
    for (int64_t head = 0; head < 2; ++head)
        for (int64_t bin = 2; bin <= longest; bin *= 2) {
            const double n = 1.5 * double(bin), c = 1 + 0.1 * double(head);
            const auto put = [&](const std::string& name, double value) {
                csv += measure::probe_file.line({longest, 3, head, bin, name, value, 64, 12}) + "\n";
            };
            put("gap_visible", n);
            for (const double s : law::gap_scales) {
                const double others = std::min(n - 1, std::pow(c * f(n) / s, 2));
                put(fmt::format("gap_others_{}", s), others);
                if (errors) put(fmt::format("gap_error_{}", s), 0.01 * others);
            }
        }
    return csv;
}

}  // namespace

TEST_CASE("laws --from: the exponents of a probe, and a score that eval takes") {
    const TempDir dir, output;
    make_corpus(dir / "data");
    put(dir / "config.json", tiny_config(dir.path(), "done"));
    REQUIRE(run(output, {"train", dir / "config.json", "--set", "model.train_context=32"}).code == 0);
    const auto from = [&](const std::string& path) { return run(output, {"laws", "--from", dir / path}); };
    Finished f = from("done");
    CHECK(f.code == 3);
    CHECK(contains(
        f.err, "hold no gap counts in probe.csv\nhint: longreach probe " + (dir / "done") + " --lengths"));
    CHECK(from("nowhere").code == 3);

    REQUIRE(
        run(output, {"probe", dir / "done", "--lengths", "128", "--set", "data.document_mask=false"}).code ==
        0);
    CHECK(contains(get(dir / "done/eval/plain/probe.csv"), ",gap_others_0.125,"));

    io::make_directories(dir / "done/eval/made");
    const auto root = [](double n) { return std::sqrt(2 * std::log(n)); };
    put(dir / "done/eval/made/probe.csv", probe_of(4096, root, true));
    f = from("done/eval/made");
    CAPTURE(f.out);
    CAPTURE(f.err);
    REQUIRE(f.code == 0);
    CHECK(contains(f.out, "step 12, in contexts of 4,096 tokens, trained at 32\n"));
    CHECK(contains(f.out, "kept: p = 0.50 [0.50, 0.50], mean of 2 heads\ncritical: p = 0.50 ["));
    const size_t at = f.out.find("\"score\": \"") + 10;
    const std::string score = f.out.substr(at, f.out.find('"', at) - at);
    CHECK(score == "z * max(1, (log(n)/log(L))^0.5)");
    CHECK(run(output, {"eval", dir / "done", "--lengths", "64", "--set", "eval.score=" + score}).code == 0);
    // A probe of changed scores measured other exponents.
    put(dir / "done/eval/made/request.json", R"({"set": ["eval.score=z*2", "eval.pick=head"]})");
    f = from("done/eval/made");
    CHECK(f.code == 3);
    CHECK(contains(f.err, "was measured with scores or angles that the evaluation changes"));
    put(dir / "done/eval/made/request.json", R"({"set": ["eval.pick=head"]})");
    CHECK(from("done/eval/made").code == 0);
    // Less and less attention to the largest keys is needed where their number falls with n.
    put(dir / "done/eval/made/probe.csv", probe_of(
                                              4096, [](double n) { return 6 / std::log(n); }, false));
    f = from("done/eval/made");
    CHECK(f.code == 0);
    CHECK(contains(f.out, "\"score\": \"z * min(1, (log(n)/log(L))^-1)\""));
    // Contexts too short for a kept exponent, and for any.
    put(dir / "done/eval/made/probe.csv", probe_of(128, root, true));
    CHECK(from("done/eval/made").code == 0);
    put(dir / "done/eval/made/probe.csv", probe_of(64, root, true));
    f = from("done/eval/made");
    CHECK(f.code == 3);
    CHECK(contains(f.err, "no head has counts at three numbers of keys"));
    CHECK(contains(refusal({"--from", dir / "done", "logn"}), "excludes"));
}
