// Loss by context length: which tokens are scored, with which context, and in which bucket each one counts.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ranks/thread_comm.h"
#include "eval/bench.h"
#include "model/fixture.h"

using namespace longreach;
using namespace longreach::test;

namespace {

eval::EvalRequest request(std::vector<int64_t> lengths, int64_t tokens) {
    eval::EvalRequest r;
    r.lengths = std::move(lengths);
    r.tokens = tokens;
    r.batch_tokens = 48;
    r.pick = eval::EvalPick::head;  // selection_test.cpp has the others
    r.keep_token_losses = true;
    return r;
}

// Equal bit for bit, NaN (not scored) equal to itself.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

size_t bucket(int64_t context) {
    return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(context))) - 1;
}

std::vector<int64_t> counts(const std::vector<eval::LossSum>& buckets) {
    std::vector<int64_t> n;
    for (const eval::LossSum& b : buckets) n.push_back(b.count);
    while (!n.empty() && n.back() == 0) n.pop_back();
    return n;
}

// What rank 0 gets of this number of ranks.
std::vector<eval::LengthResult> evaluate_on(int ranks, const model::ModelConfig& config, const Corpus& corpus,
                                            const eval::EvalRequest& request) {
    std::vector<eval::LengthResult> results;
    run_ranks(ranks, [&](ranks::Comm& comm) {
        eval::EvalRequest own = request;
        int told = 0;
        own.progress = [&](const std::string&) { ++told; };
        Bench bench(config, own, comm.rank(), comm.ranks());
        std::vector<eval::LengthResult> mine = bench.run(comm, corpus.stream, own);
        const bool silent = mine.empty() && told == 0;
        check(silent == (comm.rank() != 0), "rank {} returns {} results and reports {} times", comm.rank(),
              mine.size(), told);
        if (comm.rank() == 0) results = std::move(mine);
    });
    return results;
}

bool same(const eval::LossSum& a, const eval::LossSum& b) {
    return a.sum == b.sum && a.count == b.count;
}
bool same(const std::vector<eval::LossSum>& a, const std::vector<eval::LossSum>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const eval::LossSum& x, const eval::LossSum& y) { return same(x, y); });
}

void check_same(const std::vector<eval::LengthResult>& many, const std::vector<eval::LengthResult>& one) {
    REQUIRE(many.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) {
        CHECK(many[i].length == one[i].length);
        CHECK(many[i].loss.count > 0);
        CHECK(same(many[i].loss, one[i].loss));
        CHECK(same(many[i].hits, one[i].hits));
        CHECK(many[i].standard_error == one[i].standard_error);
        CHECK(many[i].top1_error == one[i].top1_error);
        CHECK(many[i].documents == one[i].documents);
        CHECK(many[i].fingerprint == one[i].fingerprint);
        CHECK(same(many[i].by_sequence, one[i].by_sequence));
        CHECK(same(many[i].by_document, one[i].by_document));
        CHECK(same_bits(many[i].token_losses, one[i].token_losses));
    }
}

}  // namespace

TEST_CASE("eval: how many ranks share the batches changes no bit of any result") {
    const Corpus corpus(document_lengths(40, 3, 40));
    model::ModelConfig config = tiny_model(2);
    config.attention.window = 20;
    struct Case {
        int64_t tokens, batch_tokens;
    };
    // Five batches at every length; seven, the last one smaller, and five; one batch, or fewer than four.
    for (const Case& c : {Case{320, 64}, Case{320, 48}, Case{64, 64}, Case{192, 4096}})
        for (const eval::EvalAlign align : {eval::EvalAlign::chunk, eval::EvalAlign::suffix}) {
            eval::EvalRequest r = request({8, 32, 64}, c.tokens);
            r.batch_tokens = c.batch_tokens;
            r.align = align;
            r.min_document = 10;
            const std::vector<eval::LengthResult> one = evaluate_on(1, config, corpus, r);
            REQUIRE(one.size() == 3);
            for (int ranks : {2, 3, 4}) {
                CAPTURE(ranks);
                check_same(evaluate_on(ranks, config, corpus, r), one);
            }
        }
}

TEST_CASE("eval: sequences read in pieces give the bits of whole ones") {
    const Corpus corpus(document_lengths(20, 100, 900));
    model::ModelConfig config = tiny_model(2);
    config.residual.smear = true;
    model::AttentionConfig local = config.attention, state = local;
    local.window = 300;
    state.mixer = "gdn";
    config.layouts = {{"local", local}, {"state", state}};
    config.pattern = {"state", "local"};
    for (const eval::EvalAlign align : {eval::EvalAlign::chunk, eval::EvalAlign::suffix})
        for (const bool mask : {true, false}) {
            eval::EvalRequest r = request({64, 512, 2048}, 6144);
            r.align = align;
            r.min_document = 150;
            r.document_mask = mask;
            const std::vector<eval::LengthResult> whole = evaluate_on(1, config, corpus, r);
            REQUIRE(whole.size() == 3);
            for (const int64_t piece : {256, 512, 768, 1024, 4096}) {
                CAPTURE(piece);
                r.piece = piece;
                for (const int ranks : {1, 2}) check_same(evaluate_on(ranks, config, corpus, r), whole);
            }
        }
}

TEST_CASE("eval: a head of zeros gives log V at every length and in every bucket") {
    const Corpus corpus(document_lengths(40, 3, 40));
    model::ModelConfig config = tiny_model(2);
    config.init.zero_head = true;
    // All logits are 0: the sum of V ones is exact, its logarithm is within an ulp in single precision.
    const double log_v = std::log(19.0), ulp = 0x1p-22;
    for (const eval::EvalAlign align : {eval::EvalAlign::chunk, eval::EvalAlign::suffix}) {
        eval::EvalRequest r = request({4, 16, 64}, 512);
        r.align = align;
        for (const eval::LengthResult& result : evaluate(config, corpus, r)) {
            CHECK(result.loss.count > 0);
            CHECK(std::abs(result.loss.mean() - log_v) <= ulp);
            for (const auto& buckets : {result.by_sequence, result.by_document})
                for (const eval::LossSum& b : buckets)
                    if (b.count > 0) CHECK(std::abs(b.mean() - log_v) <= ulp);
            CHECK(result.standard_error <= 1e-7);  // nothing varies but the rounding of sums
        }
    }
}

TEST_CASE("eval: the error of top-1 is that of the hits in each document") {
    const Corpus corpus(document_lengths(300, 10, 60));
    model::ModelConfig config = tiny_model(1);
    config.init.zero_head = true;  // all logits are equal: token 0, the first, is the most likely one
    const int64_t scored = (static_cast<int64_t>(corpus.tokens.size()) - 1) / 64 * 64;
    std::vector<double> hits(corpus.begins.size()), tokens(corpus.begins.size());
    double all = 0;
    for (int64_t p = 0; p < scored; ++p) {
        const auto document = static_cast<size_t>(corpus.document_of(p));
        const bool hit = corpus.tokens[static_cast<size_t>(p + 1)] == 0;
        hits[document] += hit;
        tokens[document] += 1;
        all += hit;
    }
    // Linearised, as in bootstrap_test.cpp.
    const double top1 = all / static_cast<double>(scored);
    double squares = 0;
    for (size_t d = 0; d < hits.size(); ++d) squares += std::pow(hits[d] - top1 * tokens[d], 2);
    const double expected = std::sqrt(squares) / static_cast<double>(scored);
    for (const eval::LengthResult& r : evaluate(config, corpus, request({16, 64}, scored))) {
        CHECK(r.loss.count == scored);
        CHECK(r.top1() == top1);
        CHECK(std::abs(r.top1_error / expected - 1) < 0.12);  // five standard deviations of 1000 resamples
    }
}

TEST_CASE("eval: chunk scores every token of the same stretch at every length") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const int64_t usable = static_cast<int64_t>(corpus.tokens.size()) - 1;
    for (int64_t tokens : {64, 100, 640, 1000000}) {
        CAPTURE(tokens);
        const int64_t expected = std::min(tokens, usable) / 64 * 64;
        for (const eval::LengthResult& r : evaluate(tiny_model(1), corpus, request({1, 4, 32, 64}, tokens))) {
            CAPTURE(r.length);
            CHECK(r.loss.count == expected);
            REQUIRE(static_cast<int64_t>(r.token_losses.size()) == expected);
            for (float loss : r.token_losses) CHECK(std::isfinite(loss));
        }
    }
}

TEST_CASE("eval: a stretch that needs the very last token as target is used, one more is not") {
    for (int64_t extra : {0, 1, 2}) {
        const Corpus corpus({64 + extra});
        if (extra == 0) {
            CHECK(error_of([&] { evaluate(tiny_model(1), corpus, request({64}, 1000)); }) ==
                  "3: the validation stream has 64 tokens; a sequence of 64 needs one more than its length");
        } else {
            CHECK(evaluate(tiny_model(1), corpus, request({64}, 1000))[0].loss.count == 64);
        }
    }
}

TEST_CASE("eval: a chunk's losses are those of a forward pass over that chunk alone, bit for bit") {
    const Corpus corpus(document_lengths(30, 3, 40));
    model::ModelConfig config = tiny_model(2);
    config.attention.window = 20;
    for (const bool documents : {true, false}) {
        CAPTURE(documents);
        eval::EvalRequest r = request({8, 32, 96}, 288);
        r.document_mask = documents;
        for (const eval::LengthResult& result : evaluate(config, corpus, r)) {
            const int64_t length = result.length;
            CAPTURE(length);
            ModelFixture fixture(
                config, {.sequences = 1, .length = length, .document_mask = documents, .table_rows = 96},
                {.threads = 1}, Bench::seed);
            std::vector<float> expected;
            for (int64_t at = 0; at < 288; at += length) {
                Example e{1, length, {}, {}, {}};
                for (int64_t i = 0; i < length; ++i) {
                    e.tokens.push_back(corpus.tokens[static_cast<size_t>(at + i)]);
                    e.targets.push_back(corpus.tokens[static_cast<size_t>(at + i + 1)]);
                    if (documents)
                        e.doc_start.push_back(
                            static_cast<int32_t>(std::max<int64_t>(0, corpus.begin_of(at + i) - at)));
                }
                const std::vector<float> losses = fixture.evaluate(e);
                expected.insert(expected.end(), losses.begin(), losses.end());
            }
            CHECK(same_bits(result.token_losses, expected));
        }
    }
}

TEST_CASE("eval: the batch changes no bit") {
    const Corpus corpus(document_lengths(30, 3, 40));
    for (const eval::EvalAlign align : {eval::EvalAlign::chunk, eval::EvalAlign::suffix}) {
        eval::EvalRequest r = request({8, 32}, 256);
        r.align = align;
        std::vector<eval::LengthResult> first;
        for (int64_t batch : {1, 40, 96, 4096}) {
            r.batch_tokens = batch;
            const std::vector<eval::LengthResult> results = evaluate(tiny_model(2), corpus, r);
            if (first.empty()) first = results;
            for (size_t i = 0; i < results.size(); ++i) {
                CHECK(same_bits(results[i].token_losses, first[i].token_losses));
                CHECK(results[i].loss.sum == first[i].loss.sum);
                CHECK(results[i].standard_error == first[i].standard_error);
            }
        }
    }
}

TEST_CASE("eval: suffix scores the last tokens of documents, the same ones after every prefix") {
    const std::vector<int64_t> lengths = document_lengths(40, 3, 60);
    const Corpus corpus(lengths);
    const eval::EvalRequest chunk = request({1}, 1 << 20);
    const std::vector<float> by_position = evaluate(last_token_model(), corpus, chunk)[0].token_losses;
    for (int64_t suffix : {0, 1, 5, 8}) {
        CAPTURE(suffix);
        eval::EvalRequest r = request({8, 16, 64}, 100);
        r.align = eval::EvalAlign::suffix;
        r.suffix_tokens = suffix;
        const int64_t scored = suffix > 0 ? suffix : 4;  // default: half the smallest length
        // By the definition: documents long enough, with enough stream before their end,
        // until the tokens run out.
        std::vector<float> expected;
        for (size_t d = 0; d < lengths.size(); ++d) {
            const int64_t last = corpus.begins[d] + lengths[d] - 1;  // the last target
            if (lengths[d] < scored + 1 || last < 64) continue;
            if (static_cast<int64_t>(expected.size()) + scored > 100) break;
            for (int64_t target = last - scored + 1; target <= last; ++target) {
                CHECK(corpus.begin_of(target) == corpus.begins[d]);
                REQUIRE(target - 1 < static_cast<int64_t>(by_position.size()));
                expected.push_back(by_position[static_cast<size_t>(target - 1)]);
            }
        }
        REQUIRE(expected.size() > 30);
        for (const eval::LengthResult& result : evaluate(last_token_model(), corpus, r)) {
            CAPTURE(result.length);
            // Only the last token matters to this model, so a longer prefix changes not one bit.
            CHECK(same_bits(result.token_losses, expected));
            CHECK(result.documents == static_cast<int64_t>(expected.size()) / scored);
            // Context is at least the prefix: every scored token sits at the end of its sequence.
            for (size_t k = 0; k < result.by_sequence.size(); ++k)
                if (result.by_sequence[k].count > 0) CHECK(k >= bucket(result.length - scored + 1));
        }
    }
    // And a model that reads its context does notice the prefix.
    eval::EvalRequest r = request({8, 64}, 100);
    r.align = eval::EvalAlign::suffix;
    r.document_mask = false;
    const std::vector<eval::LengthResult> seeing = evaluate(tiny_model(2), corpus, r);
    CHECK(!same_bits(seeing[0].token_losses, seeing[1].token_losses));
}

TEST_CASE("eval: min_document leaves out the tokens of shorter documents, at every length the same") {
    const std::vector<int64_t> lengths = document_lengths(40, 3, 40);
    for (const data::BoundarySide side : {data::BoundarySide::before, data::BoundarySide::after}) {
        const Corpus sided(lengths, side);
        for (int64_t least : {3, 20, 35}) {
            CAPTURE(least);
            eval::EvalRequest r = request({8, 64}, 512);
            r.min_document = least;
            int64_t expected = 0;
            for (int64_t p = 0; p < 512; ++p) expected += sided.end_of(p) - sided.begin_of(p) >= least;
            for (const eval::LengthResult& result : evaluate(tiny_model(1), sided, r)) {
                CHECK(result.loss.count == expected);
                for (int64_t p = 0; p < 512; ++p)
                    CHECK(std::isfinite(result.token_losses[static_cast<size_t>(p)]) ==
                          (sided.end_of(p) - sided.begin_of(p) >= least));
            }
        }
    }
    const Corpus corpus(lengths);
    eval::EvalRequest r = request({64}, 512);
    r.min_document = 41;
    CHECK(error_of([&] { evaluate(tiny_model(1), corpus, r); }) ==
          "3: none of the 512 validation tokens looked at is in a document of at least 41 tokens "
          "(eval.min_document)");
    r.align = eval::EvalAlign::suffix;
    CHECK(error_of([&] { evaluate(tiny_model(1), corpus, r); }) ==
          "3: no document of at least 41 tokens has 64 tokens of stream before its end");
}

TEST_CASE(
    "eval: every token is in the bucket of the tokens it can see, at both sides of a document's marker") {
    for (const data::BoundarySide side : {data::BoundarySide::before, data::BoundarySide::after}) {
        // Boundaries just before, at and just after every kind of place: the sequence's start, its end,
        // a power of two.
        const Corpus corpus({1, 1, 2, 3, 4, 5, 15, 1, 16, 17, 7, 8, 9, 31, 1, 32, 33, 63, 64, 65, 5}, side);
        for (const eval::LengthResult& r : evaluate(tiny_model(1), corpus, request({1, 16, 32, 64}, 320))) {
            CAPTURE(r.length);
            std::vector<eval::LossSum> sequence(8), document(8);
            for (int64_t p = 0; p < 320; ++p) {
                const int64_t i = p % r.length, in_document = p - corpus.begin_of(p);
                const float loss = r.token_losses[static_cast<size_t>(p)];
                sequence[bucket(i + 1)].add(loss);
                document[bucket(std::min(i, in_document) + 1)].add(loss);
            }
            CHECK(counts(r.by_sequence) == counts(sequence));
            CHECK(counts(r.by_document) == counts(document));
            for (size_t k = 0; k < r.by_document.size(); ++k)
                CHECK(r.by_document[k].sum == doctest::Approx(document[k].sum).epsilon(1e-12));
            for (size_t k = 0; k < r.by_sequence.size(); ++k)
                CHECK(r.by_sequence[k].sum == doctest::Approx(sequence[k].sum).epsilon(1e-12));
        }
    }
}

TEST_CASE("eval: buckets add up to the total") {
    const Corpus corpus(document_lengths(40, 3, 40));
    for (const eval::EvalAlign align : {eval::EvalAlign::chunk, eval::EvalAlign::suffix}) {
        eval::EvalRequest r = request({16, 64}, 512);
        r.align = align;
        r.min_document = 10;
        for (const eval::LengthResult& result : evaluate(tiny_model(1), corpus, r))
            for (const auto& buckets : {result.by_sequence, result.by_document}) {
                eval::LossSum sum;
                for (const eval::LossSum& b : buckets) {
                    sum.sum += b.sum;
                    sum.count += b.count;
                }
                CHECK(sum.count == result.loss.count);
                CHECK(sum.sum == doctest::Approx(result.loss.sum).epsilon(1e-12));
            }
    }
}

TEST_CASE("eval: documents longer than one piece of the scan are found at their places") {
    // The stream is scanned in pieces of 65536 tokens; documents begin at the last token of one piece, at the
    // first and at the second of the next.
    const Corpus corpus({65535, 1, 65536, 1, 65534, 3, 70000});
    eval::EvalRequest r = request({64}, 1 << 30);
    r.min_document = 65535;
    const eval::LengthResult result = evaluate(last_token_model(), corpus, r)[0];
    int64_t expected = 0;
    const int64_t scored = (static_cast<int64_t>(corpus.tokens.size()) - 1) / 64 * 64;
    for (int64_t p = 0; p < scored; ++p) expected += corpus.end_of(p) - corpus.begin_of(p) >= 65535;
    CHECK(result.loss.count == expected);
    CHECK(result.documents == 3);
}

TEST_CASE("eval: memory grows linearly with the length and not with the depth") {
    const auto ops = make_cpu_ops({.threads = 1});
    const auto planned = [&](int64_t layers, int64_t length) {
        model::Transformer model(tiny_model(layers), length);
        eval::LengthEvaluator evaluator;
        model::Arena arena(*ops);
        model.plan_tables(arena);
        evaluator.plan(arena, length, true);
        model.plan_evaluation(arena, *ops, {length, {length}}, true);
        return arena.bytes();
    };
    CHECK(planned(2, 65536) <= 2 * planned(2, 32768));
    CHECK(planned(2, 65536) < 16 * planned(2, 4096) + 1);
    CHECK(planned(12, 65536) <= planned(2, 65536) + 4096);
}

TEST_CASE("eval: where nobody knows documents, every sequence counts as one and all is scored") {
    Corpus corpus({200, 120, 200});
    eval::EvalRequest r = request({16, 64}, 512);
    r.document_mask = false;
    const auto known = evaluate(tiny_model(1), corpus, r);
    data::StreamOptions options;
    options.shard = {true, 2};
    options.vocab = marker + 1;
    corpus.stream = data::TokenStream::open({corpus.dir / "val.bin"}, options);
    REQUIRE(!corpus.stream.knows_documents());
    const auto unknown = evaluate(tiny_model(1), corpus, r);
    for (size_t i = 0; i < known.size(); ++i) {
        CHECK(known[i].documents == 3);
        CHECK(unknown[i].documents == 0);
        CHECK(std::isfinite(known[i].standard_error));
        CHECK(std::isfinite(known[i].top1_error));
        CHECK(std::isnan(unknown[i].standard_error));
        CHECK(std::isnan(unknown[i].top1_error));
        CHECK(unknown[i].fingerprint == known[i].fingerprint);  // the same tokens of the same shard
        CHECK(same_bits(known[i].token_losses, unknown[i].token_losses));
        CHECK(counts(unknown[i].by_document) == counts(unknown[i].by_sequence));
    }
}
