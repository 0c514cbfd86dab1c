// Key tokens: which tokens are, the losses on them, and whose losses decide.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/hash.h"
#include "eval/bench.h"
#include "measure/key_tokens.h"
#include "eval/selection.h"
#include "eval/tables.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

const float nan_loss = std::numeric_limits<float>::quiet_NaN();

eval::LengthResult result(int64_t length, std::vector<float> losses) {
    eval::LengthResult r;
    r.length = length;
    r.token_losses = std::move(losses);
    r.documents = 3;
    r.fingerprint = 7;
    return r;
}

// Eight tokens of three documents. Gains and losses at 64: exactly at both thresholds, just below the gain, loss too
// large, gained at 32 and lost at 64, unscored, a key token, two others.
std::vector<eval::LengthResult> results() {
    return {result(16, {4, 3.5f, 9, 5, nan_loss, 6, 1, 2}), result(32, {3, 3, 7, 1, nan_loss, 3, 1, 2}),
            result(64, {2, 1.75f, 2.5f, 4, nan_loss, 0.5f, 1, 1})};
}
const std::vector<int32_t> documents{0, 0, 0, 1, -1, 1, 1, 2};

std::string refusal(const std::string& path, const eval::ScoredTokens& scored,
                    const std::vector<int32_t>& slots) {
    try {
        measure::read_judge(path, scored, slots);
    } catch (const Error& e) {
        CHECK(e.code() == ExitCode::data);
        return e.what();
    }
    return "";
}

}  // namespace

TEST_CASE("a key token's loss falls from the shortest length to the longest by two nats, to two or less") {
    const measure::JudgeLosses judge = measure::judge_of(results());
    CHECK(judge.short_length == 16);
    CHECK(judge.long_length == 64);
    using enum measure::TokenPart;
    CHECK(measure::parts_of(judge, {}) ==
          std::vector<measure::TokenPart>{key, other, other, other, unscored, key, other, other});
    CHECK(measure::parts_of(judge, {.gain = 1, .loss = 4}) ==
          std::vector<measure::TokenPart>{key, key, key, key, unscored, key, other, key});
}

TEST_CASE("losses of both parts at every length, with errors over documents") {
    const auto all = results();
    const measure::JudgeLosses judge = measure::judge_of(all);
    const auto parts = measure::parts_of(judge, {});
    const auto rows = measure::split_losses(all, {judge, parts, documents, false, 11}, 5);
    REQUIRE(rows.size() == 6);
    CHECK(rows[0].part == "key");
    CHECK(rows[0].loss == Approx(5.0));  // (4 + 6) / 2
    CHECK(rows[2].loss == Approx(3.0));
    CHECK(rows[4].loss == Approx(1.25));
    CHECK(rows[4].scored == 2);
    CHECK(rows[5].part == "other");
    CHECK(rows[5].loss == Approx((1.75 + 2.5 + 4 + 1 + 1) / 5));
    CHECK(rows[5].standard_error == eval::bootstrap_errors({{{4.25, 2}}, {{5, 2}}, {{1, 1}}}, 11).loss);
    for (const measure::KeyTokenRow& row : rows) {
        CHECK(row.step == 5);
        CHECK(row.from == 16);
        CHECK(row.to == 64);
        CHECK(row.judge == "self");
        CHECK(row.fingerprint == format_hash64(7));
        CHECK(row.parts == format_hash64(measure::fingerprint_of(parts)));
    }
    // Read back as written, an empty part with empty cells.
    std::vector<measure::TokenPart> none(8, measure::TokenPart::other);
    CHECK(measure::fingerprint_of(none) != measure::fingerprint_of(parts));
    const auto empty = measure::split_losses(all, {judge, none, documents, true, 11}, 5);
    CHECK(std::isnan(empty[0].loss));
    const TempDir dir;
    io::write_file_atomically(dir / "key_tokens.csv", measure::key_tokens_file.header() + "\n" +
                                                          measure::key_tokens_file.lines(empty)[0] + "\n");
    const auto read = measure::key_tokens_file.read(dir.path());
    REQUIRE(read.size() == 1);
    CHECK(std::isnan(read[0].loss));
    CHECK(read[0].judge == "file");
    CHECK(measure::key_tokens_table(rows, {}).starts_with(
        "key tokens: 2 of 7 (28.57%), whose loss by this model falls from 16 to 64 tokens by 2 or more, to 2 "
        "or less\n"));
}

TEST_CASE("a judge's file is of the same tokens, and refused with the reason where it is not") {
    const Corpus corpus(document_lengths(12, 30, 90));
    eval::EvalRequest request;
    request.lengths = {8, 16, 64};
    request.tokens = 512;
    request.batch_tokens = 64;
    request.keep_token_losses = true;
    const eval::Selection selection = eval::select(corpus.stream, request);
    const auto judged = evaluate(last_token_model(), corpus, request);
    const TempDir dir;
    const std::string path = dir / "judge.safetensors";
    eval::write_token_losses(path, judged, "referee");
    const measure::JudgeLosses judge = measure::read_judge(path, selection.scope, selection.document);
    CHECK(judge.short_length == 8);
    CHECK(judge.long_length == 64);
    CHECK(judge.name == "referee");
    CHECK(judge.at_short == judged.front().token_losses);
    CHECK(judge.at_long == judged.back().token_losses);

    eval::ScoredTokens others = selection.scope;
    others.fingerprint ^= 1;
    CHECK(refusal(path, others, selection.document).find("losses of other tokens") != std::string::npos);
    CHECK(refusal(path, selection.scope, {0, 0, 0}).find("is not a list of 3 losses in F32") !=
          std::string::npos);
    auto broken = judged;
    const auto slot = std::find_if(selection.document.begin(), selection.document.end(),
                                   [](int32_t document) { return document >= 0; }) -
                      selection.document.begin();
    broken.back().token_losses[static_cast<size_t>(slot)] = NAN;
    eval::write_token_losses(path, broken, "referee");
    CHECK(refusal(path, selection.scope, selection.document)
              .find(fmt::format("entry {} of loss.64 is nan", slot)) != std::string::npos);
    eval::write_token_losses(path, {judged[1]}, "referee");
    CHECK(refusal(path, selection.scope, selection.document).find("the losses of one length") !=
          std::string::npos);
}
