// Training losses weighted by position: the weights, what they change in a run, and what they leave as it is.
#include <doctest/doctest.h>

#include <cmath>

#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::vector<double> gradient_norms(const std::string& run) {
    std::vector<double> norms;
    const std::string text = get(run + "/metrics.jsonl");
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        norms.push_back(
            json::parse(text.substr(at, end - at), "metrics.jsonl").find("grad_norm")->as_number());
    return norms;
}

}  // namespace

TEST_CASE("loss weights: the formula by position, divided by its mean over the sequence") {
    const auto check_weights = [](const std::string& formula, int64_t context, auto exact) {
        CAPTURE(formula);
        const std::vector<float> weights = train::LossConfig{formula}.weights(context, 8);
        REQUIRE(weights.size() == static_cast<size_t>(context));
        double sum = 0;
        for (int64_t p = 0; p < context; ++p) sum += exact(static_cast<double>(p));
        for (int64_t p = 0; p < context; ++p) {
            const double expected = exact(static_cast<double>(p)) * static_cast<double>(context) / sum;
            // The formula and the quotient are each rounded to f32; the mean of the former errs by no more.
            CHECK(std::abs(weights[static_cast<size_t>(p)] - expected) <= 3 * 0x1p-24 * expected);
        }
    };
    check_weights("tanh(p/10)", 100, [](double p) { return std::tanh(p / 10); });
    check_weights("sqrt(n)/T", 33, [](double p) { return std::sqrt(p + 1) / 33; });
    check_weights("1 + 2*(n > L)", 32, [](double p) { return p >= 8 ? 3.0 : 1.0; });
    CHECK(train::LossConfig{}.weights(100, 8).empty());
    for (const char* constant : {"1", "0.1", "3e38", "1e-44"})
        for (const float w : train::LossConfig{constant}.weights(1000, 8)) CHECK(w == 1.0f);
}

TEST_CASE(
    "loss weights: a constant changes nothing, and no weight changes the reported loss of the same model") {
    const TempDir dir;
    make_corpus(dir / "data");
    const auto train = [&](const std::string& name, const std::vector<std::string>& overrides) {
        REQUIRE(run_training(load_tiny(tiny_config(dir.path(), name), overrides)) == ExitCode::ok);
        return results_of(dir / name, 12);
    };
    const Results plain = train("plain", {});
    CHECK(differing(plain, train("constant", {R"(loss.weight="0.3")"})) == "");
    train("late", {"loss.weight=tanh(p/10)"});
    const std::vector<double> a = training_losses(dir / "plain"), b = training_losses(dir / "late");
    CHECK(a[0] == b[0]);  // before the first update
    CHECK(a != b);
    CHECK(gradient_norms(dir / "plain")[0] != gradient_norms(dir / "late")[0]);
}

TEST_CASE("loss weights: positions are those in the document, and without a document mask in the sequence") {
    const TempDir dir;
    std::string tokens;  // documents of 16 tokens that begin with a 0
    for (int i = 0; i < 2000; ++i) {
        tokens += static_cast<char>(i % 16 == 0 ? 0 : 1 + i * i % 250);
        tokens += '\0';
    }
    put(dir / "raw.bin", tokens);
    const auto norm = [&](const std::string& name, std::vector<std::string> overrides) {
        overrides.insert(
            overrides.end(),
            {"data.train=[\"" + dir / "raw.bin" + "\"]", "data.val=[\"" + dir / "raw.bin" + "\"]",
             "data.format=raw", "data.width=2", "data.boundary.token=0", "model.init.zero_head=false",
             "stages=[{\"steps\":1,\"context\":32}]"});
        REQUIRE(run_training(load_tiny(tiny_config(dir.path(), name), overrides)) == ExitCode::ok);
        return gradient_norms(dir / name)[0];
    };
    // Half of the 32 positions: every token of a document of 16 counts twice, which rounds nothing.
    const double plain = norm("plain", {});
    CHECK(norm("first_half", {"loss.weight=p < 16"}) == 2 * plain);
    CHECK(norm("first_half_of_sequences", {"loss.weight=p < 16", "data.document_mask=false"}) !=
          2 * norm("sequences", {"data.document_mask=false"}));
}
