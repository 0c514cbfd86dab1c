// A probe of whole models: what is counted where, that nothing depends on threads, and what it takes.
#include <doctest/doctest.h>

#include <map>

#include "ranks/thread_comm.h"
#include "eval/bench.h"
#include "measure/probe_sums.h"
#include "tasks/generator.h"
#include "mixers/delta_layer.h"
#include "io/temp_dir.h"
#include "model/fixture.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Weights = std::function<void(const model::ParamTable&, std::vector<float>&)>;

measure::ProbeResult probe_on(ranks::Comm& comm, const model::ModelConfig& config, const Corpus& corpus,
                              const measure::ProbeRequest& request, int threads = 1,
                              const Weights& change = {}) {
    const auto ops = make_cpu_ops({.threads = threads});
    model::Arena arena(*ops);
    model::Transformer model(config, request.lengths.back());
    eval::LengthEvaluator evaluator;
    measure::Probe probe;
    model::FlatParams weights;
    weights = model::plan_weights(arena, model.params());
    model.plan_tables(arena);
    const int64_t tokens = request.batch_tokens(request.lengths.back());
    evaluator.plan(arena, tokens, request.document_mask || request.piece > 0, comm.rank(), comm.ranks());
    model.plan_evaluation(arena, *ops,
                          {.tokens = tokens,
                           .lengths = request.lengths,
                           .piece = request.piece,
                           .room = request.lengths.back()},
                          request.document_mask);
    probe.plan(arena, config, tokens, request.document_mask);
    arena.commit();
    model.fill_tables(*ops);
    std::vector<float> host;
    model::initialise(model.params(), Bench::seed, host);
    if (change) change(model.params(), host);
    ops->upload(weights.flat, host.data());
    weights.round(*ops);
    return probe.run(*ops, comm, model, weights, evaluator, corpus.stream, request);
}
measure::ProbeResult probe(const model::ModelConfig& config, const Corpus& corpus,
                           const measure::ProbeRequest& request, int threads = 1) {
    ranks::SingleComm comm;
    return probe_on(comm, config, corpus, request, threads);
}

model::ModelConfig varied_model() {
    model::ModelConfig m = tiny_model(3);
    m.init.zero_projections = false;
    m.attention.heads = 4;
    m.attention.kv_heads = 2;
    m.attention.sink = model::SinkKind::learned;
    m.attention.gate.kind = model::GateKind::headwise;
    add_law(m.attention, "logn");
    add_law(m.attention, "scale_invariant", {{"tau", starts(10, model::Learning::layer, true)}});
    m.attention.window = 20;
    return m;
}

// A layer of every mixer with the delta rule's states, and one of attention.
model::ModelConfig model_of_states() {
    model::ModelConfig m = varied_model();
    m.layouts = {{"all", m.attention}};
    for (const model::MixerType& type : model::delta_mixers()) {
        const std::string name(type.name());
        m.layouts[name] = m.attention;
        m.layouts[name].mixer = name;
        m.pattern.push_back(name);
    }
    m.pattern.push_back("all");
    m.layers = static_cast<int64_t>(m.pattern.size());
    return m;
}

// Whether the table of statistics has a name, up to the number at its end.
bool documented(const std::string& statistic) {
    static const std::string page = get(LONGREACH_ROOT "/data/formats/records.md");
    if (statistic.starts_with("scalar.")) return page.find("| `scalar.<name>` |") != page.npos;
    const std::string name = statistic.substr(0, statistic.find_last_not_of("0123456789") + 1);
    return page.find(name == statistic ? "`" + name + "`" : "`" + name) != page.npos;
}

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;
std::map<Key, measure::ProbeRow> by_key(const measure::ProbeResult& result) {
    std::map<Key, measure::ProbeRow> rows;
    for (const measure::ProbeRow& r : result.rows) {
        const bool fresh = rows.insert({{r.length, r.layer, r.head, r.bin, r.statistic}, r}).second;
        CHECK_MESSAGE(fresh, r.statistic);
        CHECK_MESSAGE(documented(r.statistic), r.statistic);
    }
    return rows;
}

}  // namespace

TEST_CASE("probe: every query of every head is in one bin, and bin 0 is all of them") {
    const Corpus corpus(document_lengths(40, 3, 40));
    measure::ProbeRequest request{.lengths = {8, 64}, .tokens = 192};
    for (const bool documents : {true, false}) {
        request.document_mask = documents;
        const auto rows = by_key(probe(varied_model(), corpus, request));
        for (const int64_t length : {8, 64})
            for (int64_t layer = 0; layer < 3; ++layer)
                for (int64_t head = 0; head < 4; ++head) {
                    int64_t count = 0, bins = 0;
                    double entropy = 0, top = -1e30;
                    for (const auto& [key, row] : rows) {
                        if (row.length != length || row.layer != layer || row.head != head || row.bin == 0)
                            continue;
                        if (row.statistic == "entropy")
                            count += row.count, entropy += row.value * double(row.count), ++bins;
                        if (row.statistic == "max_logit") top = std::max(top, row.value);
                    }
                    CHECK(count == 192);
                    // Windows of 20: bins 1 .. 16. Without documents a sequence of 64 has 64 - 15
                    // queries in the last.
                    CHECK(bins == (length == 8 ? 4 : 5));
                    if (!documents && length == 64)
                        CHECK(rows.at({length, layer, head, 16, "entropy"}).count == 3 * 49);
                    const measure::ProbeRow& all = rows.at({length, layer, head, 0, "entropy"});
                    CHECK(all.count == 192);
                    CHECK(all.value == doctest::Approx(entropy / 192));
                    CHECK(rows.at({length, layer, head, 0, "max_logit"}).value == top);
                    CHECK(rows.at({length, layer, head, 0, "mass_100"}).value +
                              rows.at({length, layer, head, 0, "learned_sink_mass"}).value ==
                          doctest::Approx(1).epsilon(1e-5));
                    double masses = rows.at({length, layer, head, 0, "learned_sink_mass"}).value;
                    for (const int64_t nearest : {0, 1, 10})
                        if (nearest < length)
                            masses +=
                                rows.at({length, layer, head, 0, fmt::format("decade_mass_{}", nearest)})
                                    .value;
                    CHECK(masses == doctest::Approx(1).epsilon(1e-5));
                    const double gate = rows.at({length, layer, head, 0, "gate_mean"}).value;
                    CHECK((gate > 0 && gate < 1));
                }
    }
}

TEST_CASE("probe: learned numbers are named by layer and head, logarithms undone") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const auto rows = by_key(probe(varied_model(), corpus, {.lengths = {16}}));
    for (int64_t layer = 0; layer < 3; ++layer) {
        CHECK(rows.at({0, layer, -1, 0, "scalar.tau"}).value == doctest::Approx(10));
        for (int64_t head = 0; head < 4; ++head) {
            CHECK(rows.at({0, layer, head, 0, "scalar.sink"}).value == 0);
            CHECK(rows.count({0, layer, head, 0, "scalar.s"}) == 1);
        }
    }
    for (const auto& [key, row] : rows) CHECK(row.statistic.find("gain") == std::string::npos);
}

TEST_CASE("probe: a model that attends to nothing of itself adds nothing to the residual stream") {
    const Corpus corpus(document_lengths(40, 3, 40));
    model::ModelConfig model = tiny_model(2);
    model.init.zero_projections = true;
    const auto rows = by_key(probe(model, corpus, {.lengths = {32}, .tokens = 320}));
    CHECK(rows.at({32, 1, -1, 0, "projected_norm"}).value == 0);
    CHECK(rows.count({32, 1, -1, 0, "angle_ratio"}) == 0);
    // Nothing happens to the embedding: the same pairs at the same angles after both blocks.
    const measure::ProbeRow &first = rows.at({32, 0, -1, 0, "pair_cosine"}),
                            &second = rows.at({32, 1, -1, 0, "pair_cosine"});
    CHECK(first.count == 4100);  // 4096 spread over ten sequences
    CHECK(first.value == second.value);
    CHECK((first.value > -1 && first.value < 1));
}

TEST_CASE("probe: neither threads nor looking twice change a digit") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const measure::ProbeRequest request{.lengths = {8, 64}, .tokens = 128};
    const auto expected = measure::probe_lines(probe(varied_model(), corpus, request).rows, 1);
    CHECK(!expected.empty());
    for (int threads : {1, 2, 3})
        CHECK(measure::probe_lines(probe(varied_model(), corpus, request, threads).rows, 1) == expected);
}

TEST_CASE("probe: how many ranks share the batches changes no digit and no sampled score") {
    const Corpus corpus(document_lengths(40, 3, 40));
    for (const bool documents : {true, false})
        for (const int64_t tokens : {64, 320}) {  // one batch, five
            const measure::ProbeRequest request{
                .lengths = {8, 64}, .tokens = tokens, .document_mask = documents};
            const measure::ProbeResult one = probe(varied_model(), corpus, request);
            const std::vector<std::string> expected = measure::probe_lines(one.rows, 1);
            REQUIRE(one.scores.size() == 3);
            CHECK(!one.scores[0].empty());
            for (int ranks : {2, 4}) {
                CAPTURE(ranks);
                measure::ProbeResult many;
                run_ranks(ranks, [&](ranks::Comm& comm) {
                    measure::ProbeResult mine = probe_on(comm, varied_model(), corpus, request);
                    check(mine.rows.empty() == (comm.rank() != 0), "{} rows on rank {}", mine.rows.size(),
                          comm.rank());
                    if (comm.rank() == 0) many = std::move(mine);
                });
                CHECK(measure::probe_lines(many.rows, 1) == expected);
                CHECK(many.scores == one.scores);
            }
        }
}

TEST_CASE("probe: states of the delta rule, of layers that have some, at any number of threads and ranks") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const model::ModelConfig m = model_of_states();
    const int64_t states = m.layers - 1;
    const measure::ProbeRequest request{.lengths = {8, 64}, .tokens = 128};
    const measure::ProbeResult one = probe(m, corpus, request);
    const auto rows = by_key(one);
    for (int64_t l = 0; l < states; ++l) CHECK(rows.at({64, l, 3, 4, "state_rank"}).value > 1);
    CHECK(rows.at({64, 1, 0, 0, "longest_half_life"}).value > rows.at({64, 1, 0, 0, "half_life"}).value);
    CHECK(rows.at({64, 1, 0, 0, "half_life"}).count == 128 * m.attention.head_dim);
    CHECK(rows.count({64, 0, 0, 0, "longest_half_life"}) == 0);
    CHECK(rows.count({64, states, 0, 0, "state_norm"}) == 0);
    CHECK(rows.count({64, 0, 0, 0, "entropy"}) == 0);
    const std::vector<std::string> expected = measure::probe_lines(one.rows, 1);
    CHECK(measure::probe_lines(probe(m, corpus, request, 3).rows, 1) == expected);
    run_ranks(2, [&](ranks::Comm& comm) {
        const measure::ProbeResult mine = probe_on(comm, m, corpus, request);
        if (comm.rank() == 0) CHECK(measure::probe_lines(mine.rows, 1) == expected);
    });
    CHECK(contains(measure::probe_table(one.rows), "length 64, states\n"));
}

TEST_CASE("probe: a sequence in pieces has the states of one that is read as a whole") {
    const Corpus corpus(document_lengths(60, 3, 90));
    const model::ModelConfig m = model_of_states();
    measure::ProbeRequest request{.lengths = {64, 512}, .tokens = 1024};
    for (const bool documents : {false, true}) {
        CAPTURE(documents);
        request.document_mask = documents;
        request.piece = 0;
        const auto whole = by_key(probe(m, corpus, request));
        request.piece = 128;
        const auto pieces = by_key(probe(m, corpus, request));
        int64_t compared = 0;
        for (const auto& [key, row] : whole) {
            const auto& [length, layer, head, bin, statistic] = key;
            CAPTURE(statistic);
            const bool of_state = statistic.starts_with("state_") || statistic.ends_with("half_life");
            const auto found = pieces.find(key);
            REQUIRE((found != pieces.end()) == (of_state || length < 512));
            if (!of_state || length < 512) continue;
            CHECK(found->second.count == row.count);
            // A state that is carried from reading to reading rounds differently from one that was carried to the
            // end of a piece at once. Both are within 1e-5 of the recurrence (probe_states_test.cpp).
            CHECK(found->second.value == doctest::Approx(row.value).epsilon(2e-5));
            ++compared;
        }
        CHECK(compared > 100);
    }
}

// The first layer sees two tokens and looks for another one than the query's: the previous token, whose name it
// writes into the upper half of the stream. The second looks for keys with the query's token there.
TEST_CASE(
    "probe: a model of a previous-token layer and an induction layer, built by hand, scores 1 in each role") {
    const Corpus corpus(document_lengths(40, 3, 40));
    constexpr int64_t vocab = 19, half = 20;
    model::ModelConfig m = tiny_model(2);
    m.width = 2 * half;
    m.norm.gain = false;
    m.attention.heads = m.attention.kv_heads = 1;
    m.attention.head_dim = half;
    m.attention.angle = "nope";
    m.attention.qk.kind = model::QkKind::none;
    m.layouts["near"] = m.layouts["far"] = m.attention;
    m.layouts["near"].window = 2;
    m.pattern = {"near", "far"};
    const Weights by_hand = [](const model::ParamTable& table, std::vector<float>& flat) {
        for (const model::Param& p : table.params()) {
            if (p.group == model::ParamGroup::scalar) continue;
            const auto at = [&](int64_t row, int64_t col) -> float& {
                return flat[static_cast<size_t>(p.offset + row * p.cols() + col)];
            };
            std::fill_n(flat.begin() + p.offset, p.count(), 0.0f);
            for (int64_t c = 0; c < vocab; ++c) {
                if (p.name == "embedding.weight") at(c, c) = 1;
                if (p.name == "layers.0.attention.q.weight") at(c, c) = -10;
                if (p.name == "layers.0.attention.k.weight") at(c, c) = 1;
                if (p.name == "layers.0.attention.v.weight") at(c, c) = 1;
                if (p.name == "layers.0.attention.o.weight") at(half + c, c) = 1;
                if (p.name == "layers.1.attention.q.weight") at(c, c) = 100;
                if (p.name == "layers.1.attention.k.weight") at(c, half + c) = 1;
            }
        }
    };
    ranks::SingleComm comm;
    for (const bool documents : {true, false}) {
        const auto rows = by_key(probe_on(
            comm, m, corpus, {.lengths = {16, 128}, .tokens = 128, .document_mask = documents}, 1, by_hand));
        // Two copies of 19 tokens, three times. The key at 0 has its own name in the upper half, since nothing
        // is before it: it takes half of the weight of the query at 19, which has the same token.
        const auto row = [&](int64_t layer, const char* name) { return rows.at({0, layer, 0, 0, name}); };
        CHECK(row(0, "previous_score").value == doctest::Approx(1).epsilon(1e-6));
        CHECK(row(0, "previous_score").count == 3 * 37);
        CHECK(rows.count({0, 0, 0, 0, "induction_score"}) == 0);  // beyond the window
        CHECK(row(1, "induction_score").value == doctest::Approx(18.5 / 19).epsilon(1e-6));
        CHECK(row(1, "induction_score").count == 3 * 19);
        CHECK(row(1, "previous_score").value < 0.2);
    }
}

TEST_CASE(
    "probe: a head that weighs all keys alike gives the needle the weight of one key, a near one nothing") {
    const Corpus corpus(document_lengths(40, 3, 40));
    constexpr int64_t context = 128;
    model::ModelConfig m = tiny_model(2);
    m.vocab_size = 257;
    m.train_context = context;
    m.layouts["all"] = m.layouts["near"] = m.attention;
    m.layouts["near"].window = 4;
    m.pattern = {"all", "near"};
    const Weights alike = [](const model::ParamTable& table, std::vector<float>& flat) {
        for (const model::Param& p : table.params())
            if (p.name.ends_with("attention.q.weight")) std::fill_n(flat.begin() + p.offset, p.count(), 0.0f);
    };
    double sum = 0;
    int64_t count = 0;
    const tasks::TaskGenerator needle(data::TaskKind::needle, {}, m.vocab_size, 0, &corpus.stream);
    for (uint64_t i = 0; i < 16; ++i) {
        const tasks::Sample sample = needle.make(context, tasks::first_evaluation_sample + i);
        for (int64_t at = sample.answer_begin - 1; at + 1 < context; ++at, ++count)
            sum += 1 / static_cast<double>(at + 1);
    }
    ranks::SingleComm comm;
    for (const int64_t longest : {context, 4 * context}) {  // one needle at once, and four
        const auto rows =
            by_key(probe_on(comm, m, corpus, {.lengths = {16, longest}, .tokens = longest}, 1, alike));
        for (int64_t head = 0; head < 2; ++head) {
            const measure::ProbeRow& row = rows.at({0, 0, head, 0, "retrieval_score"});
            CHECK(row.count == count);
            CHECK(row.value == doctest::Approx(sum / static_cast<double>(count)).epsilon(1e-5));
            CHECK(rows.count({0, 1, head, 0, "retrieval_score"}) == 0);
        }
    }
    // Too short for the needle, and a vocabulary without reserved tokens.
    m.train_context = 16;
    CHECK(by_key(probe_on(comm, m, corpus, {.lengths = {16, 128}, .tokens = 128}, 1, alike))
              .count({0, 0, 0, 0, "retrieval_score"}) == 0);
    m.train_context = context;
    m.vocab_size = 19;
    CHECK(by_key(probe_on(comm, m, corpus, {.lengths = {16, 128}, .tokens = 128}, 1, alike))
              .count({0, 0, 0, 0, "retrieval_score"}) == 0);
}

TEST_CASE(
    "probe: entmax over scores that are all alike gives every key a weight; of a softmax nothing is counted") {
    const Corpus corpus(document_lengths(40, 3, 40));
    model::ModelConfig m = tiny_model(2);
    m.vocab_size = 257;
    m.layouts["sparse"] = m.layouts["all"] = m.attention;
    m.layouts["sparse"].normaliser = Normaliser::entmax;
    m.pattern = {"sparse", "all"};
    const Weights alike = [](const model::ParamTable& table, std::vector<float>& flat) {
        for (const model::Param& p : table.params())
            if (p.name.ends_with("attention.q.weight")) std::fill_n(flat.begin() + p.offset, p.count(), 0.0f);
    };
    ranks::SingleComm comm;
    const auto rows =
        by_key(probe_on(comm, m, corpus, {.lengths = {64}, .tokens = 128, .document_mask = false}, 1, alike));
    const measure::ProbeRow& all = rows.at({64, 0, 0, 0, "support"});
    CHECK(all.value == 32.5);  // of 1 to 64 keys
    CHECK(all.count == 128);
    CHECK(rows.at({64, 0, 0, 64, "support"}).value == 64);
    CHECK(rows.count({64, 1, 0, 0, "support"}) == 0);
}

TEST_CASE("sums of a layer travel as numbers and come back the same; a list that breaks off is refused") {
    const Rng rng(4, Purpose::test);
    uint64_t next = 0;
    const auto mean = [&] { return measure::Mean{rng.normal(next++), static_cast<int64_t>(next)}; };
    std::vector<measure::LayerSums> layers(3);
    layers[1].heads.resize(2);
    layers[1].heads[1].scores = {0.5, -1};
    layers[1].gated = true;
    layers[2].sink = true;
    layers[2].projected_norm = {mean(), mean()};
    layers[2].pair_cosine = mean();
    layers[2].angle_ratio = mean();
    measure::HeadBin& bin = layers[1].heads[0].bin(5);
    for (measure::Mean* m : {&bin.inverse_top_weight, &bin.entropy, &bin.participation, &bin.mass_100,
                             &bin.sink_mass, &bin.learned_sink_mass, &bin.output_norm, &bin.gate,
                             &bin.gate_below, &bin.log_top_ratio, &bin.previous_mass, &bin.induction_mass})
        *m = mean();
    for (measure::Mean& m : bin.decade_entropy) m = mean();
    for (measure::Mean& m : bin.decade_mass) m = mean();
    bin.entropy.count = 9;
    bin.max_score = 7;
    bin.logits = {3, 1, 2, -1, 5};
    const auto moments = [&] { return measure::Moments{3, rng.normal(next++), 2, 0, 1}; };
    for (measure::Moments& m : layers[1].heads[1].cosines) m = moments();
    layers[1].heads[1].gaps.resize(3);
    measure::GapBin& gaps = layers[1].heads[1].gaps[2];
    gaps.visible = mean();
    for (measure::Mean& m : gaps.keys) m = mean();
    for (measure::DocumentMean& m : gaps.others)
        for (int64_t rows = 1; rows < 4; ++rows) m.add(rng.normal(next++), rows);
    layers[2].states.resize(2);
    layers[2].states[1] = {{{mean(), mean(), mean()}, {mean(), mean(), mean()}}, {mean(), mean()}};
    layers[1].keys = {{}, {{moments(), moments()}, {moments(), moments()}}};
    const auto rows_of = [](const std::vector<measure::LayerSums>& of) {
        std::vector<measure::ProbeRow> rows;
        for (size_t l = 0; l < of.size(); ++l) measure::append_rows(rows, of[l], 8, static_cast<int64_t>(l));
        return measure::probe_lines(rows, 0);
    };
    std::vector<double> numbers = measure::numbers_of(layers);
    const std::vector<measure::LayerSums> back = measure::layers_of(numbers);
    CHECK(measure::numbers_of(back) == numbers);
    CHECK(rows_of(back) == rows_of(layers));
    CHECK(rows_of(back).size() > 80);
    CHECK(back[1].heads[1].scores == layers[1].heads[1].scores);
    CHECK(back[1].gated);
    CHECK(back[2].sink);
    numbers.pop_back();
    CHECK_THROWS(measure::layers_of(numbers));
    numbers.insert(numbers.end(), {0, 0});
    CHECK_THROWS(measure::layers_of(numbers));
}

TEST_CASE("probe: looking changes no loss") {
    const Corpus corpus(document_lengths(40, 3, 40));
    struct Nothing final : eval::BatchObserver {
        int attentions = 0, blocks = 0;
        std::vector<int64_t> batches;
        std::vector<double> added;
        void begin(int64_t first_sequence) override { batches.push_back(first_sequence); }
        std::vector<double> take() override { return {static_cast<double>(attentions), 0.5}; }
        void add(int64_t length, std::span<const double> seen) override {
            CHECK(length == 16);
            added.insert(added.end(), seen.begin(), seen.end());
        }
        void attention(const model::StepContext&, const model::AttentionView&) override { ++attentions; }
        void block(const model::StepContext&, int64_t layer, const Tensor&) override {
            CHECK(layer == blocks++ % 3);
        }
    } observer;
    eval::EvalRequest request;
    request.lengths = {16};
    request.tokens = 64;
    request.batch_tokens = 32;
    request.keep_token_losses = true;
    const auto plain = evaluate(varied_model(), corpus, request);
    request.observer = &observer;
    CHECK(evaluate(varied_model(), corpus, request)[0].token_losses == plain[0].token_losses);
    CHECK(observer.attentions == 6);
    CHECK(observer.blocks == 6);
    CHECK(observer.batches == std::vector<int64_t>{0, 2});
    CHECK(observer.added == std::vector<double>{3, 0.5, 6, 0.5});
}

TEST_CASE("probe: memory grows with the length, not with its square") {
    const auto ops = make_cpu_ops({.threads = 1});
    const auto bytes = [&](int64_t length) {
        model::Arena arena(*ops);
        const model::ModelConfig config = varied_model();
        model::Transformer model(config, length);
        measure::Probe probe;
        eval::LengthEvaluator evaluator;
        evaluator.plan(arena, length, true);
        model.plan_evaluation(arena, *ops, {length, {length}}, true);
        probe.plan(arena, config, length, true);
        return static_cast<double>(arena.bytes());
    };
    // Alignment and chunks of logits apart.
    CHECK(bytes(65536) <= 1.01 * 32 * bytes(2048));
}

TEST_CASE("moments of parts are the moments of the whole") {
    const Rng rng(3, Purpose::test);
    measure::Moments joined;
    std::vector<double> all;
    uint64_t next = 0;
    for (const int size : {1, 0, 2, 30, 7, 500}) {
        measure::Moments part;
        std::vector<double> x;
        for (int i = 0; i < size; ++i) x.push_back(40 + (i % 5 == 0 ? 9 : 1) * rng.normal(next++));
        part.count = size;
        for (const double v : x) part.mean += v / size;
        for (const double v : x) {
            const double d = v - part.mean;
            part.second += d * d, part.third += d * d * d, part.fourth += d * d * d * d;
        }
        joined.add(part);
        all.insert(all.end(), x.begin(), x.end());
    }
    double mean = 0, power[5] = {};
    for (const double v : all) mean += v / double(all.size());
    for (const double v : all)
        for (int k = 2; k <= 4; ++k) power[k] += std::pow(v - mean, k);
    CHECK(joined.count == double(all.size()));
    CHECK(joined.mean == doctest::Approx(mean).epsilon(1e-13));
    CHECK(joined.second == doctest::Approx(power[2]).epsilon(1e-11));
    CHECK(joined.third == doctest::Approx(power[3]).epsilon(1e-9));
    CHECK(joined.fourth == doctest::Approx(power[4]).epsilon(1e-11));
    CHECK(joined.kurtosis() ==
          doctest::Approx(power[4] / double(all.size()) / std::pow(power[2] / double(all.size()), 2)));
}
