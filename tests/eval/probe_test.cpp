// A probe of whole models: what is counted where, that nothing depends on threads, and what it takes.
#include <doctest/doctest.h>

#include <map>

#include "eval/bench.h"
#include "eval/probe_sums.h"
#include "model/fixture.h"

using namespace longreach;
using namespace longreach::test;

namespace {

ProbeResult probe(const ModelConfig& config, const Corpus& corpus, const ProbeRequest& request,
                  int threads = 1) {
    const auto ops = make_cpu_ops({.threads = threads});
    Arena arena(*ops);
    Transformer model(config, request.lengths.back());
    LengthEvaluator evaluator;
    Probe probe;
    FlatParams weights;
    for (int pass = 0; pass < 2; ++pass) {
        weights = plan_weights(arena, model.params());
        model.plan_tables(arena);
        evaluator.plan(arena, request.lengths.back(), request.document_mask);
        model.plan_evaluation(arena, *ops, {request.lengths.back(), request.lengths}, request.document_mask);
        probe.plan(arena, config, request.lengths.back());
        if (pass == 0) arena.commit();
    }
    model.fill_tables(*ops);
    std::vector<float> host;
    initialise(model.params(), Bench::seed, host);
    ops->upload(weights.flat, host.data());
    weights.round(*ops);
    return probe.run(*ops, model, weights, evaluator, corpus.stream, request);
}

ModelConfig varied_model() {
    ModelConfig m = tiny_model(3);
    m.init.zero_projections = false;
    m.attention.heads = 4;
    m.attention.kv_heads = 2;
    m.attention.sink = SinkKind::learned;
    m.attention.gate.kind = GateKind::headwise;
    m.attention.scale.kind = ScaleKind::logn;
    m.attention.distance.kind = DistanceKind::scale_invariant;
    m.attention.distance.learn_tau = true;
    m.attention.window = 20;
    return m;
}

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;
std::map<Key, ProbeRow> by_key(const ProbeResult& result) {
    std::map<Key, ProbeRow> rows;
    for (const ProbeRow& r : result.rows) {
        const bool fresh = rows.insert({{r.length, r.layer, r.head, r.bin, r.statistic}, r}).second;
        CHECK_MESSAGE(fresh, r.statistic);
    }
    return rows;
}

}  // namespace

TEST_CASE("probe: every query of every head is in one bin, and bin 0 is all of them") {
    const Corpus corpus(document_lengths(40, 3, 40));
    ProbeRequest request{.lengths = {8, 64}, .tokens = 192};
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
                    // Windows of 20: bins 1 .. 16. Without documents a sequence of 64 has 64 - 15 queries in
                    // the last.
                    CHECK(bins == (length == 8 ? 4 : 5));
                    if (!documents && length == 64)
                        CHECK(rows.at({length, layer, head, 16, "entropy"}).count == 3 * 49);
                    const ProbeRow& all = rows.at({length, layer, head, 0, "entropy"});
                    CHECK(all.count == 192);
                    CHECK(all.value == doctest::Approx(entropy / 192));
                    CHECK(rows.at({length, layer, head, 0, "max_logit"}).value == top);
                    CHECK(rows.at({length, layer, head, 0, "mass_100"}).value +
                              rows.at({length, layer, head, 0, "learned_sink_mass"}).value ==
                          doctest::Approx(1).epsilon(1e-5));
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
            CHECK(rows.count({0, layer, head, 0, "scalar.r"}) == 1);
        }
    }
    for (const auto& [key, row] : rows) CHECK(row.statistic.find("gain") == std::string::npos);
}

TEST_CASE("probe: a model that attends to nothing of itself adds nothing to the residual stream") {
    const Corpus corpus(document_lengths(40, 3, 40));
    ModelConfig model = tiny_model(2);
    model.init.zero_projections = true;
    const auto rows = by_key(probe(model, corpus, {.lengths = {32}, .tokens = 320}));
    CHECK(rows.at({32, 1, -1, 0, "projected_norm"}).value == 0);
    CHECK(rows.count({32, 1, -1, 0, "angle_ratio"}) == 0);
    // Nothing happens to the embedding: the same pairs at the same angles behind both blocks.
    const ProbeRow &first = rows.at({32, 0, -1, 0, "pair_cosine"}),
                   &second = rows.at({32, 1, -1, 0, "pair_cosine"});
    CHECK(first.count == 4100);  // 4096 spread over ten sequences
    CHECK(first.value == second.value);
    CHECK((first.value > -1 && first.value < 1));
}

TEST_CASE("probe: neither threads nor looking twice change a digit") {
    const Corpus corpus(document_lengths(40, 3, 40));
    const ProbeRequest request{.lengths = {8, 64}, .tokens = 128};
    const auto expected = probe_lines(probe(varied_model(), corpus, request).rows, 1);
    CHECK(!expected.empty());
    for (int threads : {1, 2, 3})
        CHECK(probe_lines(probe(varied_model(), corpus, request, threads).rows, 1) == expected);
}

TEST_CASE("probe: looking changes no loss") {
    const Corpus corpus(document_lengths(40, 3, 40));
    struct Nothing final : ForwardObserver {
        int attentions = 0, blocks = 0;
        void attention(const StepContext&, const AttentionView&) override { ++attentions; }
        void block(const StepContext&, int64_t layer, const Tensor&) override {
            CHECK(layer == blocks++ % 3);
        }
    } observer;
    EvalRequest request;
    request.lengths = {16};
    request.tokens = 64;
    request.batch_tokens = 32;
    request.keep_token_losses = true;
    const auto plain = evaluate(varied_model(), corpus, request);
    request.observer = &observer;
    CHECK(evaluate(varied_model(), corpus, request)[0].token_losses == plain[0].token_losses);
    CHECK(observer.attentions == 6);
    CHECK(observer.blocks == 6);
}

TEST_CASE("probe: memory grows with the length, not with its square") {
    const auto ops = make_cpu_ops({.threads = 1});
    const auto bytes = [&](int64_t length) {
        Arena arena(*ops);
        const ModelConfig config = varied_model();
        Transformer model(config, length);
        Probe probe;
        LengthEvaluator evaluator;
        evaluator.plan(arena, length, true);
        model.plan_evaluation(arena, *ops, {length, {length}}, true);
        probe.plan(arena, config, length);
        return static_cast<double>(arena.bytes());
    };
    // Alignment and chunks of logits apart.
    CHECK(bytes(65536) <= 1.01 * 32 * bytes(2048));
}

TEST_CASE("moments of parts are the moments of the whole") {
    const Rng rng(3, Purpose::test);
    Moments joined;
    std::vector<double> all;
    uint64_t next = 0;
    for (const int size : {1, 0, 2, 30, 7, 500}) {
        Moments part;
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
