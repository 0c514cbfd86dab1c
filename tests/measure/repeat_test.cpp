// Repeated text: which tokens are asked for, how hits are counted, and that the unrepeated text
// is the ordinary evaluation.
#include <doctest/doctest.h>

#include <cmath>

#include "base/hash.h"
#include "eval/bench.h"
#include "measure/repeat.h"
#include "model/fixture.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::vector<measure::TaskRow> repeat(const model::ModelConfig& config, const Corpus& corpus,
                                     const measure::RepeatRequest& request) {
    const auto ops = make_cpu_ops({.threads = 1});
    model::Arena arena(*ops);
    model::Transformer model(config, request.lengths.back());
    measure::RepeatEvaluator evaluator;
    model::FlatParams weights;
    const int64_t batch = std::max(request.batch_tokens, request.lengths.back());
    weights = model::plan_weights(arena, model.params());
    model.plan_tables(arena);
    evaluator.plan(arena, batch, request.document_mask);
    model.plan_evaluation(arena, *ops, {batch, request.lengths}, request.document_mask);
    arena.commit();
    model.fill_tables(*ops);
    std::vector<float> host;
    model::initialise(model.params(), Bench::seed, host);
    ops->upload(weights.flat, host.data());
    weights.round(*ops);
    return evaluator.run(*ops, model, weights, corpus.stream, request);
}

}  // namespace

TEST_CASE("repeat: the text returns after its period, and hits are counted per sequence") {
    // Logits of zeros: the most likely token is the first, 0.
    model::ModelConfig config = tiny_model(1);
    config.init.zero_head = true;
    const Corpus corpus(document_lengths(40, 3, 40));
    const int64_t period = 10;
    const uint64_t cells = (corpus.tokens.size() - 1) / 64;
    REQUIRE(cells > 10);
    for (const int64_t batch : {64, 200})
        for (const eval::EvalPick pick : {eval::EvalPick::spread, eval::EvalPick::head}) {
            const std::vector<measure::TaskRow> rows =
                repeat(config, corpus, {{7, 10, 24, 64}, period, 320, batch, true, pick});
            REQUIRE(rows.size() == 8);
            const std::vector<uint64_t> picked = eval::pick_cells(pick, 5, cells);
            for (size_t r = 0; r < rows.size(); ++r) {
                const bool repeated = r < 4;
                CHECK(rows[r].task == (repeated ? "repeat" : "non_repeat"));
                CHECK(rows[r].samples == 5);
                CHECK(!rows[r].depth);
                const int64_t length = rows[r].length;
                std::vector<double> shares;
                for (const uint64_t cell : picked) {
                    double hits = 0;
                    for (int64_t i = 1; i <= length; ++i)
                        hits +=
                            corpus.tokens[64 * cell + static_cast<size_t>(repeated ? i % period : i)] == 0;
                    shares.push_back(hits / static_cast<double>(length));
                }
                double mean = 0, variance = 0;
                for (const double x : shares) mean += x / 5;
                for (const double x : shares) variance += (x - mean) * (x - mean) / 4;
                CHECK(rows[r].accuracy == doctest::Approx(mean).epsilon(1e-12));
                CHECK(rows[r].accuracy_error.value() ==
                      doctest::Approx(std::sqrt(variance / 5)).epsilon(1e-9));
                CHECK(rows[r].loss == doctest::Approx(std::log(19.0)).epsilon(1e-6));
            }
        }
}

TEST_CASE("repeat: what depends on the last token alone is as good in every copy") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const std::vector<measure::TaskRow> rows = repeat(last_token_model(), corpus, {{8, 16, 64}, 8, 256, 64});
    // Equal losses in another order and number: sums of at most 256 in double.
    for (size_t r = 1; r < 3; ++r) {
        CHECK(rows[r].accuracy == doctest::Approx(rows[0].accuracy).epsilon(1e-12));
        CHECK(rows[r].loss == doctest::Approx(rows[0].loss).epsilon(1e-12));
    }
}

TEST_CASE("repeat: the unrepeated text is the ordinary evaluation, its documents too") {
    const Corpus corpus(document_lengths(40, 3, 40));
    for (const bool mask : {true, false}) {
        eval::EvalRequest ordinary;
        ordinary.lengths = {64};
        ordinary.tokens = 256;
        ordinary.batch_tokens = 128;
        ordinary.document_mask = mask;
        const eval::LengthResult expected = evaluate(tiny_model(2), corpus, ordinary)[0];
        const std::vector<measure::TaskRow> rows = repeat(tiny_model(2), corpus, {{64}, 16, 256, 128, mask});
        CHECK(rows[1].loss == doctest::Approx(expected.loss.mean()).epsilon(1e-12));
        CHECK(rows[1].accuracy == doctest::Approx(expected.top1()).epsilon(1e-12));
        CHECK(rows[0].loss != rows[1].loss);
        CHECK(rows[0].fingerprint != rows[1].fingerprint);
    }
}

TEST_CASE("repeat: the fingerprint is that of the sequences; a single one has no standard error") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const model::ModelConfig config = tiny_model(1);
    const std::vector<measure::TaskRow> rows = repeat(config, corpus, {{32, 64}, 16, 256, 64});
    const std::vector<measure::TaskRow> batches = repeat(config, corpus, {{32, 64}, 16, 256, 256});
    for (size_t r = 0; r < rows.size(); ++r) {
        CHECK(rows[r].fingerprint == batches[r].fingerprint);
        for (size_t other = 0; other < r; ++other) CHECK(rows[r].fingerprint != rows[other].fingerprint);
    }
    const measure::TaskRow one = repeat(config, corpus, {{64}, 16, 64, 64})[1];
    CHECK(one.samples == 1);
    CHECK_FALSE(one.accuracy_error.has_value());
    Xxh64 hash;
    const size_t begin = eval::pick_cells(eval::EvalPick::spread, 1, (corpus.tokens.size() - 1) / 64)[0] * 64;
    hash.update(corpus.tokens.data() + begin, 65 * sizeof(int32_t));
    CHECK(one.fingerprint == format_hash64(hash.digest()));
}

TEST_CASE("repeat: nothing to repeat and too short a stream are refused") {
    const Corpus corpus({20, 30});
    CHECK(error_of([&] {
              repeat(tiny_model(1), corpus, {{8}, 8, 64, 64});
          }) == "2: no evaluation length is above the 8 tokens of a text, so nothing would be repeated");
    CHECK(error_of([&] { repeat(tiny_model(1), corpus, {{50}, 8, 64, 64}); }).starts_with("3: "));
}

TEST_CASE("eval: hits are scored tokens equal to the most likely one") {
    model::ModelConfig config = tiny_model(2);
    config.init.zero_head = true;
    const Corpus corpus(document_lengths(40, 3, 40));
    eval::EvalRequest r;
    r.lengths = {16, 64};
    r.tokens = 512;
    r.batch_tokens = 48;
    r.pick = eval::EvalPick::head;
    for (const int64_t least : {0, 20}) {
        r.min_document = least;
        double expected = 0;
        for (int64_t p = 0; p < 512; ++p)
            expected += corpus.tokens[static_cast<size_t>(p + 1)] == 0 &&
                        corpus.end_of(p) - corpus.begin_of(p) >= least;
        for (const eval::LengthResult& result : evaluate(config, corpus, r)) {
            CHECK(result.hits.sum == expected);
            CHECK(result.hits.count == result.loss.count);
        }
    }
}

TEST_CASE("the most likely token is the one of the smallest loss") {
    const auto ops = make_cpu_ops({.threads = 1});
    model::ModelConfig config = tiny_model(2);
    config.head.softcap = {.kind = Softcap::tanh, .cap = 15};
    model::Transformer model(config, 24);
    model::Arena arena(*ops);
    model::FlatParams weights;
    Tensor tokens, targets;
    weights = model::plan_weights(arena, model.params());
    model.plan_tables(arena);
    tokens = arena.reserve("tokens", DType::i32, {24});
    targets = arena.reserve("targets", DType::i32, {24});
    model.plan_evaluation(arena, *ops, {24, {24}}, false);
    arena.commit();
    model.fill_tables(*ops);
    std::vector<float> host;
    model::initialise(model.params(), Bench::seed, host);
    ops->upload(weights.flat, host.data());
    weights.round(*ops);
    const Rng rng(5, Purpose::test);
    std::vector<int32_t> ids, best(24);
    for (uint64_t i = 0; i < 24; ++i) ids.push_back(static_cast<int32_t>(rng.below(i, 19)));
    ops->upload(tokens, ids.data());
    std::vector<std::vector<float>> losses;
    for (int32_t v = 0; v < 19; ++v) {
        const std::vector<int32_t> asked(24, v);
        ops->upload(targets, asked.data());
        model.forward(*ops, weights, {1, 24, tokens, targets, Tensor()});
        losses.emplace_back(24);
        ops->download(losses.back().data(), model.evaluation_losses(24));
        ops->download(best.data(), model.evaluation_best(24));
    }
    for (size_t i = 0; i < 24; ++i)
        for (size_t v = 0; v < 19; ++v) CHECK(losses[static_cast<size_t>(best[i])][i] <= losses[v][i]);
}
