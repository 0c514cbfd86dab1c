// longreach laws: what it refuses, and how.
#include <doctest/doctest.h>

#include "commands/process.h"

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
