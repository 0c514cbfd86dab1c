// Scores of tasks: what counts as right, and that losses and margins are those of the model itself.
#include <doctest/doctest.h>

#include <cmath>

#include "base/hash.h"
#include "ranks/thread_comm.h"
#include "measure/tasks.h"
#include "model/fixture.h"
#include "model/small_models.h"
#include "tasks/haystack.h"
#include "tasks/task_batches.h"

using namespace longreach;
using namespace longreach::test;

namespace {

model::ModelConfig byte_model() {
    model::ModelConfig m = tiny_model(1);
    m.vocab_size = text_vocab;
    return m;
}

// A model with random weights and everything a task evaluation needs.
struct Lab {
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena{*ops};
    model::Transformer model;
    measure::TaskEvaluator evaluator;
    model::FlatParams weights;
    Tensor tokens, targets;

    Lab(const model::ModelConfig& config, int64_t longest, int64_t batch, const std::vector<int64_t>& lengths,
        bool mask = false, int rank = 0, int ranks = 1)
        : model(config, longest) {
        weights = model::plan_weights(arena, model.params());
        model.plan_tables(arena);
        evaluator.plan(arena, batch, mask, rank, ranks);
        tokens = arena.reserve("tokens", DType::i32, {longest});
        targets = arena.reserve("targets", DType::i32, {longest});
        model.plan_evaluation(arena, *ops, {batch, lengths}, mask);
        arena.commit();
        model.fill_tables(*ops);
        std::vector<float> host;
        model::initialise(model.params(), 3, host);
        ops->upload(weights.flat, host.data());
        weights.round(*ops);
    }
    std::vector<measure::TaskRow> run(ranks::Comm& comm, const measure::TaskRequest& request) {
        return evaluator.run(*ops, comm, model, weights, haystack(), request);
    }
    std::vector<measure::TaskRow> run(const measure::TaskRequest& request) {
        ranks::SingleComm comm;
        return run(comm, request);
    }
    // Sum of -log p over the targets of one sequence.
    double loss_of(const tasks::Sample& sample) {
        const int64_t length = static_cast<int64_t>(sample.tokens.size());
        std::vector<int32_t> wanted(sample.tokens.size());
        tasks::answer_targets(sample, wanted);
        ops->upload(tokens.first(length), sample.tokens.data());
        ops->upload(targets.first(length), wanted.data());
        model.use_length(*ops, length);
        model.forward(*ops, weights, {1, length, tokens.first(length), targets.first(length), Tensor()});
        std::vector<float> losses(sample.tokens.size());
        ops->download(losses.data(), model.evaluation_losses(length));
        double sum = 0;
        for (size_t i = 0; i < losses.size(); ++i)
            if (wanted[i] >= 0) sum += losses[i];
        return sum;
    }
};

measure::TaskRequest request_of(std::vector<data::TaskKind> tasks, std::vector<int64_t> lengths,
                                int64_t samples, int64_t batch_tokens) {
    measure::TaskRequest r;
    r.tasks = std::move(tasks);
    r.lengths = std::move(lengths);
    r.samples = samples;
    r.batch_tokens = batch_tokens;
    r.seed = 1;
    return r;
}

}  // namespace

TEST_CASE("the right answer scores one, the decoy nothing, on every task") {
    for (const bool text : {true, false})
        for (const data::TaskKind task : data::all_tasks()) {
            CAPTURE(data::name_of(task));
            const tasks::Sample s = generator(task, text).make(512, 4);
            const std::vector<int32_t> answer(s.tokens.begin() + s.answer_begin, s.tokens.end());
            CHECK(measure::share_right(s, answer) == 1);
            const double wrong = measure::share_right(s, s.decoy);
            // The decoy of these is another random string; of the letters of the text one in 26 agrees by chance.
            const bool drawn = task == data::TaskKind::copy || task == data::TaskKind::reverse ||
                               task == data::TaskKind::sort || task == data::TaskKind::two_back;
            CHECK(wrong <= (drawn ? 0.15 : 0));
        }
}

TEST_CASE("each reference counts by itself, and one wrong token spoils its own") {
    const tasks::Sample s = generator(data::TaskKind::needle_s3, true).make(512, 4);
    std::vector<int32_t> best(s.tokens.begin() + s.answer_begin, s.tokens.end());
    REQUIRE(s.reference_ends.size() == 3);
    best[static_cast<size_t>(s.reference_ends[0]) + 3] = '?';
    CHECK(measure::share_right(s, best) == doctest::Approx(2.0 / 3));
    best.back() = '?';
    CHECK(measure::share_right(s, best) == doctest::Approx(1.0 / 3));
    best[0] = '?';
    CHECK(measure::share_right(s, best) == 0);
}

TEST_CASE("loss and margin are those of the answer and of the decoy in the model's own losses") {
    const int64_t length = 300, samples = 7;
    Lab lab(byte_model(), length, 3 * length, {length});
    for (const data::TaskKind task : {data::TaskKind::needle, data::TaskKind::niah_multivalue}) {
        const measure::TaskRow row = lab.run(request_of({task}, {length}, samples, 3 * length)).at(0);
        const tasks::TaskGenerator g = generator(task, true);
        double loss = 0, margin = 0, squares = 0;
        for (uint64_t i = 0; i < static_cast<uint64_t>(samples); ++i) {
            const tasks::Sample sample = g.make(length, tasks::first_evaluation_sample + i);
            tasks::Sample decoy = sample;
            std::copy(sample.decoy.begin(), sample.decoy.end(), decoy.tokens.begin() + sample.answer_begin);
            const double right = lab.loss_of(sample), wrong = lab.loss_of(decoy);
            loss += right / static_cast<double>(sample.answer_tokens());
            margin += wrong - right;
            squares += (wrong - right) * (wrong - right);
        }
        const double n = static_cast<double>(samples);
        // Both sum the same 32-bit losses; the batch may change their last bits: 1e-5 is 80 times 2^-23.
        CHECK(row.loss == doctest::Approx(loss / n).epsilon(1e-5));
        CHECK(*row.margin == doctest::Approx(margin / n).epsilon(1e-4));
        const double deviation = std::sqrt((squares - margin * margin / n) / (n - 1));
        CHECK(*row.margin_error == doctest::Approx(deviation / std::sqrt(n)).epsilon(1e-3));
        CHECK(row.samples == samples);
        CHECK(row.length == length);
        CHECK_FALSE(row.depth.has_value());
    }
}

TEST_CASE("rows cover tasks, lengths and depths; batches and the document mask change nothing") {
    const std::vector<int64_t> lengths{256, 512};
    measure::TaskRequest request =
        request_of({data::TaskKind::needle, data::TaskKind::needle_s3}, lengths, 3, 512);
    request.depths = {0, 50, 100};
    Lab small(byte_model(), 512, 512, lengths), large(byte_model(), 512, 2048, lengths, true);
    const std::vector<measure::TaskRow> rows = small.run(request);
    request.batch_tokens = 2048;
    const std::vector<measure::TaskRow> others = large.run(request);
    // needle at two lengths and three depths; needle_s3, which has no single place, once per length.
    REQUIRE(rows.size() == 8);
    CHECK(rows[1].depth == 50);
    CHECK(rows[3].length == 512);
    CHECK(rows[6].task == "needle_s3");
    CHECK_FALSE(rows[6].depth.has_value());
    for (size_t i = 0; i < rows.size(); ++i) {
        CHECK(others[i].loss == doctest::Approx(rows[i].loss).epsilon(1e-5));
        CHECK(others[i].accuracy == rows[i].accuracy);
        CHECK(others[i].fingerprint == rows[i].fingerprint);
        for (size_t other = 0; other < i; ++other) CHECK(rows[i].fingerprint != rows[other].fingerprint);
    }
    CHECK(rows[0].loss != rows[1].loss);  // depth moves the needle
    const std::string grid = measure::depth_grid(rows, "needle");
    CHECK(grid.find("100%") != std::string::npos);
    CHECK(grid.find("512") != std::string::npos);
    CHECK(measure::depth_grid(rows, "needle_s3").empty());
}

TEST_CASE("the fingerprint of a row is that of its samples' tokens and targets") {
    const int64_t length = 300;
    Lab lab(byte_model(), length, 2 * length, {length});
    measure::TaskRequest request = request_of({data::TaskKind::needle}, {length}, 3, 2 * length);
    const measure::TaskRow row = lab.run(request).at(0);
    const tasks::TaskGenerator g = generator(data::TaskKind::needle, true);
    Xxh64 all;
    for (uint64_t i = 0; i < 3; ++i) {
        tasks::Sample sample = g.make(length, tasks::first_evaluation_sample + i);
        for (const bool decoy : {false, true}) {
            if (decoy)
                std::copy(sample.decoy.begin(), sample.decoy.end(),
                          sample.tokens.begin() + sample.answer_begin);
            std::vector<int32_t> targets(sample.tokens.size());
            tasks::answer_targets(sample, targets);
            Xxh64 one;
            one.update(sample.tokens.data(), sample.tokens.size() * sizeof(int32_t));
            one.update(targets.data(), targets.size() * sizeof(int32_t));
            const uint64_t digest = one.digest();
            all.update(&digest, sizeof digest);
        }
    }
    CHECK(row.fingerprint == format_hash64(all.digest()));
    // Another number of samples, other samples.
    request.samples = 2;
    CHECK(lab.run(request).at(0).fingerprint != row.fingerprint);
    request.samples = 3;
    request.seed = 2;
    CHECK(lab.run(request).at(0).fingerprint != row.fingerprint);
}

TEST_CASE("one sample has no standard error: empty cells, never 0") {
    const int64_t length = 300;
    Lab lab(byte_model(), length, 2 * length, {length});
    const std::vector<measure::TaskRow> rows =
        lab.run(request_of({data::TaskKind::needle}, {length}, 1, 2 * length));
    CHECK_FALSE(rows.at(0).accuracy_error.has_value());
    CHECK_FALSE(rows[0].margin_error.has_value());
    CHECK(measure::task_lines(rows, 7).at(0) == fmt::format("7,needle,300,,1,{},,{},,{},{}", rows[0].accuracy,
                                                            *rows[0].margin, rows[0].loss,
                                                            rows[0].fingerprint));
    CHECK(measure::tasks_table(rows).find(" - ") != std::string::npos);
}

TEST_CASE("tasks: how many ranks share the batches changes no bit of any row") {
    const std::vector<int64_t> lengths{256, 512};
    measure::TaskRequest request =
        request_of({data::TaskKind::needle, data::TaskKind::needle_s3}, lengths, 5, 0);
    request.depths = {0, 100};
    haystack();  // made by the first who asks
    // Batches of ten sequences, two of each sample: an answer and its decoy are in different batches;
    // one batch for all.
    for (const int64_t batch : {512, 768, 8192}) {
        request.batch_tokens = batch;
        Lab alone(byte_model(), 512, batch, lengths);
        const std::vector<std::string> expected = measure::task_lines(alone.run(request), 1);
        REQUIRE(expected.size() == 6);
        for (int ranks : {2, 4}) {
            CAPTURE(ranks);
            std::vector<std::string> lines;
            run_ranks(ranks, [&](ranks::Comm& comm) {
                Lab lab(byte_model(), 512, batch, lengths, false, comm.rank(), comm.ranks());
                const std::vector<measure::TaskRow> rows = lab.run(comm, request);
                check(rows.empty() == (comm.rank() != 0), "{} rows on rank {}", rows.size(), comm.rank());
                if (comm.rank() == 0) lines = measure::task_lines(rows, 1);
            });
            CHECK(lines == expected);
        }
    }
}
