// Which tokens are scored, the fingerprint that identifies them, and what is unknown about their error.
#include <doctest/doctest.h>

#include <cmath>

#include "base/hash.h"
#include "eval/bench.h"
#include "eval/tables.h"

using namespace longreach;
using namespace longreach::test;

namespace {

eval::EvalRequest request(std::vector<int64_t> lengths, int64_t tokens,
                          eval::EvalPick pick = eval::EvalPick::spread) {
    eval::EvalRequest r;
    r.lengths = std::move(lengths);
    r.tokens = tokens;
    r.batch_tokens = 64;
    r.pick = pick;
    r.keep_token_losses = true;
    return r;
}

uint64_t fingerprint(const Corpus& corpus, const eval::EvalRequest& r) {
    const eval::ScoredTokens scored = eval::LengthEvaluator::check_request(corpus.stream, r);
    for (const eval::LengthResult& result : evaluate(last_token_model(), corpus, r)) {
        CHECK(result.fingerprint == scored.fingerprint);
        CHECK(result.documents == scored.documents);
        CHECK(result.loss.count == scored.tokens);
    }
    return scored.fingerprint;
}

// By the definition in data/formats/token-losses.md.
uint64_t fingerprint_of(const data::TokenStream& stream, uint64_t align, const std::vector<uint64_t>& spans) {
    std::vector<uint64_t> words{stream.fingerprint(), align};
    words.insert(words.end(), spans.begin(), spans.end());
    return xxh64(words.data(), 8 * words.size());
}

// Losses of all positions, for a model that only reads the last token.
std::vector<float> losses_by_position(const Corpus& corpus) {
    return evaluate(last_token_model(), corpus, request({1}, 1 << 20))[0].token_losses;
}

const Corpus& corpus_of_40() {
    static const Corpus corpus(document_lengths(40, 3, 60));
    return corpus;
}

}  // namespace

TEST_CASE("eval.pick: spread takes the middles of equal parts, head the first cells") {
    using Cells = std::vector<uint64_t>;
    CHECK(eval::pick_cells(eval::EvalPick::spread, 3, 10) == Cells{1, 5, 8});  // 10/6, 30/6, 50/6
    CHECK(eval::pick_cells(eval::EvalPick::spread, 1, 7) == Cells{3});
    CHECK(eval::pick_cells(eval::EvalPick::spread, 2, 4) == Cells{1, 3});
    CHECK(eval::pick_cells(eval::EvalPick::spread, 4, 4) == Cells{0, 1, 2, 3});
    CHECK(eval::pick_cells(eval::EvalPick::spread, 3, 4) == Cells{0, 2, 3});  // 4/6, 12/6, 20/6
    CHECK(eval::pick_cells(eval::EvalPick::spread, 0, 4) == Cells{});
    CHECK(eval::pick_cells(eval::EvalPick::head, 3, 10) == Cells{0, 1, 2});
    constexpr uint64_t huge = uint64_t{1} << 62;
    CHECK(eval::pick_cells(eval::EvalPick::spread, 2, huge) == Cells{huge / 4, 3 * (huge / 4)});
    for (uint64_t cells = 1; cells <= 40; ++cells)
        for (uint64_t count = 1; count <= cells; ++count) {
            const Cells picked = eval::pick_cells(eval::EvalPick::spread, count, cells);
            REQUIRE(picked.size() == count);
            for (uint64_t i = 0; i < count; ++i) {
                // The cell that holds the point (i + 1/2) / count of the row.
                CHECK(picked[i] * 2 * count <= (2 * i + 1) * cells);
                CHECK((picked[i] + 1) * 2 * count > (2 * i + 1) * cells);
                if (i > 0) CHECK(picked[i] > picked[i - 1]);
            }
        }
}

TEST_CASE("eval.pick: windows of chunk alignment are spread over the stream, in its order") {
    const Corpus& corpus = corpus_of_40();
    const std::vector<float> all = losses_by_position(corpus);
    const uint64_t cells = (corpus.tokens.size() - 1) / 64;
    REQUIRE(cells >= 15);
    for (const eval::EvalPick pick : {eval::EvalPick::spread, eval::EvalPick::head})
        for (const int64_t windows : {1, 3, 7, 1000}) {
            CAPTURE(windows);
            std::vector<float> expected;
            const uint64_t count = std::min<uint64_t>(static_cast<uint64_t>(windows), cells);
            for (uint64_t i = 0; i < count; ++i) {
                const uint64_t cell = pick == eval::EvalPick::head ? i : (2 * i + 1) * cells / (2 * count);
                const auto from = all.begin() + static_cast<std::ptrdiff_t>(64 * cell);
                expected.insert(expected.end(), from, from + 64);
            }
            for (const eval::LengthResult& r :
                 evaluate(last_token_model(), corpus, request({8, 32, 64}, windows * 64 + 63, pick)))
                CHECK(r.token_losses == expected);
        }
    // Other tokens than those of the head, from more documents than its first ones.
    CHECK(evaluate(last_token_model(), corpus, request({64}, 192))[0].token_losses !=
          evaluate(last_token_model(), corpus, request({64}, 192, eval::EvalPick::head))[0].token_losses);
}

TEST_CASE("eval.pick: documents of suffix alignment are spread over those that qualify") {
    const std::vector<int64_t> lengths = document_lengths(40, 3, 60);
    const Corpus& corpus = corpus_of_40();
    const std::vector<float> all = losses_by_position(corpus);
    eval::EvalRequest r = request({8, 64}, 45);
    r.align = eval::EvalAlign::suffix;
    r.suffix_tokens = 5;
    r.min_document = 20;
    std::vector<int64_t> last_targets;
    for (size_t d = 0; d < lengths.size(); ++d) {
        const int64_t last = corpus.begins[d] + lengths[d] - 1;
        if (lengths[d] >= 20 && last >= 64) last_targets.push_back(last);
    }
    REQUIRE(last_targets.size() > 18);
    std::vector<float> expected;
    for (size_t i = 0; i < 9; ++i)
        for (int64_t back = 4; back >= 0; --back)
            expected.push_back(
                all[static_cast<size_t>(last_targets[(2 * i + 1) * last_targets.size() / 18] - back - 1)]);
    for (const eval::LengthResult& result : evaluate(last_token_model(), corpus, r)) {
        CHECK(result.token_losses == expected);
        CHECK(result.documents == 9);
    }
}

TEST_CASE("fingerprint: of the stream, the alignment and the stretches that are scored") {
    const Corpus corpus({100, 30, 70, 60, 41});  // 301 tokens: 4 windows of 64
    CHECK(fingerprint(corpus, request({64}, 128)) ==
          fingerprint_of(corpus.stream, 0, {64, 128, 192, 256}));  // 4/4 and 12/4
    CHECK(fingerprint(corpus, request({64}, 128, eval::EvalPick::head)) ==
          fingerprint_of(corpus.stream, 0, {0, 128}));  // adjacent windows are one stretch
    CHECK(fingerprint(corpus, request({64}, 1000)) == fingerprint_of(corpus.stream, 0, {0, 256}));
    eval::EvalRequest filtered = request({64}, 1000);
    filtered.min_document = 60;  // leaves out the second document
    CHECK(fingerprint(corpus, filtered) == fingerprint_of(corpus.stream, 0, {0, 100, 130, 256}));
    eval::EvalRequest suffix = request({8, 64}, 1000);
    suffix.align =
        eval::EvalAlign::suffix;  // all five documents, the 4 positions before the last token of each
    CHECK(fingerprint(corpus, suffix) ==
          fingerprint_of(corpus.stream, 1, {95, 99, 125, 129, 195, 199, 255, 259, 296, 300}));
}

TEST_CASE("fingerprint: equal for equal tokens, another for any others") {
    const Corpus corpus(document_lengths(40, 3, 60));
    const eval::EvalRequest base = request({8, 64}, 256);
    const uint64_t expected = fingerprint(corpus, base);
    const auto with = [&](const auto& change) {
        eval::EvalRequest r = base;
        change(r);
        return fingerprint(corpus, r);
    };
    // Not what decides how tokens are seen, which lengths there are or how many sequences run at once.
    CHECK(with([](eval::EvalRequest& r) { r.lengths = {2, 16, 64}; }) == expected);
    CHECK(with([](eval::EvalRequest& r) { r.lengths = {64}; }) == expected);
    CHECK(with([](eval::EvalRequest& r) { r.document_mask = false; }) == expected);
    CHECK(with([](eval::EvalRequest& r) { r.batch_tokens = 512; }) == expected);
    CHECK(with([](eval::EvalRequest& r) { r.tokens = 256 + 63; }) == expected);
    CHECK(with([](eval::EvalRequest& r) { r.min_document = 3; }) == expected);
    CHECK(fingerprint(Corpus(document_lengths(40, 3, 60)), base) == expected);  // wherever the file is
    // The head of the stream is the same in windows of any size.
    CHECK(fingerprint(corpus, request({64}, 256, eval::EvalPick::head)) ==
          fingerprint(corpus, request({16, 128}, 256, eval::EvalPick::head)));

    std::vector<uint64_t> others{with([](eval::EvalRequest& r) { r.tokens = 320; }),
                                 with([](eval::EvalRequest& r) { r.pick = eval::EvalPick::head; }),
                                 with([](eval::EvalRequest& r) {
                                     r.lengths = {8, 128};
                                 }),  // spread over other cells
                                 with([](eval::EvalRequest& r) { r.min_document = 20; }),
                                 with([](eval::EvalRequest& r) { r.align = eval::EvalAlign::suffix; }),
                                 with([](eval::EvalRequest& r) {
                                     r.align = eval::EvalAlign::suffix;
                                     r.suffix_tokens = 3;
                                 }),
                                 fingerprint(Corpus(document_lengths(40, 3, 60, 1)), base),
                                 expected};
    std::sort(others.begin(), others.end());
    CHECK(std::adjacent_find(others.begin(), others.end()) == others.end());
}

TEST_CASE("the error of a single document is unknown: NaN, an empty cell, a dash, never 0") {
    const Corpus corpus({500});
    std::vector<eval::LengthResult> results = evaluate(tiny_model(1), corpus, request({16, 64}, 256));
    for (const eval::LengthResult& r : results) {
        CHECK(r.documents == 1);
        CHECK(std::isnan(r.standard_error));
        CHECK(std::isnan(r.top1_error));
    }
    const std::string end = fmt::format(",{}", format_hash64(results[0].fingerprint));
    CHECK(eval::val_lines(results, 3, 0, 0)[0] ==
          fmt::format("3,0,16,{},,256,1,,{},{}", results[0].loss.mean(), results[0].top1(), end));
    const std::string table = eval::results_table(results, 0);
    CHECK(table.find(" - ") != std::string::npos);
    CHECK(table.find("0.0000  ") == std::string::npos);
    for (const std::string& line : eval::positions_lines(results, 3)) CHECK(line.ends_with(end));
    results[0].documents = 0;  // unknown
    CHECK(eval::val_lines(results, 3, 0, 0)[0].find(",,256,,,") != std::string::npos);
    // A document that windows cut into pieces is one cluster.
    const Corpus two({250, 250});
    const eval::LengthResult r = evaluate(tiny_model(1), two, request({64}, 256))[0];
    CHECK(r.documents == 2);
    CHECK(r.standard_error > 0);
}

TEST_CASE("a line says which tokens an evaluation scored") {
    const Corpus corpus({100, 30, 70, 60, 41});
    const auto line = [&](eval::EvalRequest r) {
        const eval::ScoredTokens scored = eval::LengthEvaluator::check_request(corpus.stream, r);
        const std::string text = eval::scored_line(scored),
                          end = fmt::format("; fingerprint {}", format_hash64(scored.fingerprint));
        REQUIRE(text.ends_with(end));
        return text.substr(0, text.size() - end.size());
    };
    CHECK(line(request({64}, 128)) == "scored: 2 windows of 64 tokens spread over 256; 4 documents");
    CHECK(line(request({64}, 64, eval::EvalPick::head)) ==
          "scored: the first 1 window of 64 tokens of 256; 1 document");
    CHECK(line(request({64}, 512)) == "scored: all 4 windows of 64 tokens; 4 documents");
    eval::EvalRequest r = request({64}, 512);
    r.min_document = 60;
    CHECK(line(r) ==
          "scored: all 4 windows of 64 tokens, 226 of them in documents of at least 60; 3 documents");
    r.min_document = 0;
    r.align = eval::EvalAlign::suffix;
    r.suffix_tokens = 4;
    CHECK(line(r) == "scored: the last 4 tokens of all 5 documents; 5 documents");
    r.tokens = 8;
    CHECK(line(r) == "scored: the last 4 tokens of 2 documents spread over 5 that qualify; 2 documents");
    r.pick = eval::EvalPick::head;
    CHECK(line(r) == "scored: the last 4 tokens of 2 documents, the first of 5 that qualify; 2 documents");
    eval::ScoredTokens large;
    large.windows = 16;
    large.window_tokens = 4096;
    large.choices = 256;
    large.documents = 1234;
    large.fingerprint = 0x0123456789abcdef;
    CHECK(eval::scored_line(large) ==
          "scored: 16 windows of 4,096 tokens spread over 1,048,576; 1,234 documents; fingerprint "
          "0123456789abcdef");
    large.documents = 0;
    CHECK(eval::scored_line(large).find("; documents unknown;") != std::string::npos);
}

TEST_CASE("headers of record files: those of earlier versions lack some columns after the first ones") {
    using Places = std::vector<size_t>;
    const std::string header = eval::val_file.header(), first = header.substr(0, header.find(",top1"));
    CHECK(eval::val_file.known(header) == Places{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(eval::val_file.known(first + ",top1,fingerprint") == Places{0, 1, 2, 3, 4, 5, 6, 7, 8, 10});
    CHECK(eval::val_file.known(first + ",top1") == Places{0, 1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(eval::val_file.known(first) == Places{0, 1, 2, 3, 4, 5, 6, 7});
    for (const std::string& other :
         {std::string(), std::string("step,tokens,length,loss"), first.substr(0, first.size() - 1),
          first.substr(0, first.rfind(',')), header.substr(header.find(',') + 1), header + ",more",
          first + ",fingerprint,top1", first + ",top1,top1", first + ",", "," + header}) {
        CAPTURE(other);
        CHECK(eval::val_file.known(other).empty());
    }
    CHECK(io::cells_at("1,2,,4", {0, 1, 2}) == "1,2,");
    CHECK(io::cells_at("1,2,,4", {0, 1, 2, 3}) == "1,2,,4");
    CHECK(io::cells_at("1,2,,4", {0, 3}) == "1,4");
    CHECK(io::cells_at(",2", {0, 1}) == ",2");
}
