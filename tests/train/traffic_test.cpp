// When weights are needed and gradients are complete: what the ranks' traffic relies on in the model.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A model of a tiny config with three layers, one batch, and a pass whose traffic is watched.
struct Pass {
    config::LoadedConfig<train::Experiment> config;
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena{*ops};
    model::Transformer model;
    model::FlatParams weights, gradients;
    model::Batch batch;
    static constexpr int64_t length = 32, tokens = 64;

    explicit Pass(const std::vector<std::string>& overrides)
        : config(load_tiny(tiny_config("/nowhere"), overrides)), model(config.value.model, 64) {
        weights = model::plan_weights(arena, model.params());
        gradients.flat = arena.reserve("gradients", DType::f32, {model.params().size()});
        model.plan_tables(arena);
        batch = {tokens / length, length, arena.reserve("tokens", DType::i32, {tokens}),
                 arena.reserve("targets", DType::i32, {tokens}), Tensor()};
        model.plan_training(arena, *ops, {tokens, {length}}, false);
        arena.commit();
        model.fill_tables(*ops);
        std::vector<int32_t> ids(tokens);
        const Rng rng(1, Purpose::test);
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(rng.below(i, 256));
        ops->upload(batch.tokens, ids.data());
        ops->upload(batch.targets, ids.data());
    }
    std::vector<float> initial_weights() const {
        std::vector<float> host;
        model::initialise(model.params(), 1, host);
        // No tensor may stay at zero, or its gradient's other factor may be.
        const Rng rng(2, Purpose::test);
        for (size_t i = 0; i < host.size(); ++i) host[i] += static_cast<float>(0.05 * rng.normal(i));
        return host;
    }
    std::vector<float> host(const model::FlatParams& params) const {
        std::vector<float> out(static_cast<size_t>(model.params().size()));
        ops->download(out.data(), params.flat);
        return out;
    }
    std::vector<float> run(model::ParameterTraffic* traffic) {
        ops->zero(gradients.flat);
        model.forward_backward(*ops, weights, gradients, batch, 1.0f / tokens, traffic);
        return host(gradients);
    }
};

// Rank 0 of two, whose peer answers at once with whatever is there; says what is begun and waited for.
class RecordingComm final : public ranks::Comm {
  public:
    explicit RecordingComm(std::vector<std::string>& events) : ranks::Comm(0, 2, nullptr), events_(events) {}
    std::string describe() const override { return "a record"; }

  protected:
    void post(Ticket ticket, std::span<const ranks::Transfer>, std::span<const ranks::Transfer>) override {
        events_.push_back(fmt::format("begin {}", ticket));
    }
    void post_all_reduce(Ticket, Tensor) override {}
    void finish(Ticket ticket) override { events_.push_back(fmt::format("wait {}", ticket)); }

  private:
    std::vector<std::string>& events_;
};

std::vector<std::vector<std::string>> models() {
    std::vector<std::string> many = many_variants();
    std::replace(many.begin(), many.end(), std::string("model.layers=2"), std::string("model.layers=3"));
    return {{"model.layers=3"},
            {"model.layers=3", "model.head.tied=true"},
            {"model.layers=3", "model.residual.x0=true", "model.residual.unet=true"},
            {"model.layers=3", "model.attention.score=logn_bias", "model.attention.params.s.learn=layout",
             "model.attention.params.b.learn=layout"},
            many};
}

}  // namespace

TEST_CASE("traffic: segments cover the table in order, one before the layers, one each, one after") {
    const Pass pass({"model.layers=3"});
    const std::vector<model::Segment>& segments = pass.model.segments();
    REQUIRE(segments.size() == 5);
    CHECK(segments.front().begin == 0);
    CHECK(segments.back().end == pass.model.params().size());
    for (size_t s = 1; s < segments.size(); ++s) CHECK(segments[s].begin == segments[s - 1].end);
    for (const model::Param& p : pass.model.params().params()) {
        size_t s = 0;
        while (p.offset >= segments[s].end) ++s;
        CHECK(p.offset + p.count() <= segments[s].end);
        if (p.name.starts_with("layers.")) CHECK(s == static_cast<size_t>(p.name[7] - '0') + 1);
    }
}

TEST_CASE("a pass that sets gradients gives the bits of one that adds them to zeros") {
    for (const auto& overrides : models()) {
        CAPTURE(overrides.back());
        Pass pass(overrides);
        pass.ops->upload(pass.weights.flat, pass.initial_weights().data());
        const std::vector<float> added = pass.run(nullptr);
        const std::vector<float> nan(added.size(), std::numeric_limits<float>::quiet_NaN());
        pass.ops->upload(pass.gradients.flat, nan.data());
        pass.gradients.write = Write::set;
        pass.model.forward_backward(*pass.ops, pass.weights, pass.gradients, pass.batch, 1.0f / Pass::tokens);
        const std::vector<float> set = pass.host(pass.gradients);
        CHECK(std::memcmp(set.data(), added.data(), set.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("traffic: nothing adds to a segment's gradients once it is done, and all are, the last first") {
    for (const auto& overrides : models()) {
        CAPTURE(overrides.back());
        Pass pass(overrides);
        pass.ops->upload(pass.weights.flat, pass.initial_weights().data());
        struct Watch final : model::ParameterTraffic {
            Pass& pass;
            std::vector<int64_t> order;
            std::vector<float> at_done;
            explicit Watch(Pass& p) : pass(p), at_done(static_cast<size_t>(p.model.params().size())) {}
            void need(int64_t) override {}
            void done(int64_t s) override {
                order.push_back(s);
                const std::vector<float> now = pass.host(pass.gradients);
                const model::Segment& segment = pass.model.segments()[static_cast<size_t>(s)];
                std::copy(now.begin() + segment.begin, now.begin() + segment.end,
                          at_done.begin() + segment.begin);
            }
        } watch(pass);
        const std::vector<float> gradients = pass.run(&watch);
        CHECK(watch.order == std::vector<int64_t>{4, 3, 2, 1, 0});
        CHECK(watch.at_done == gradients);
        CHECK(pass.run(nullptr) == gradients);
    }
}

TEST_CASE("traffic: no weight is read before its segment is needed") {
    for (const auto& overrides : models()) {
        CAPTURE(overrides.back());
        Pass pass(overrides);
        const std::vector<float> host = pass.initial_weights();
        pass.ops->upload(pass.weights.flat, host.data());
        const std::vector<float> expected = pass.run(nullptr);
        // Weights that have not arrived are NaN.
        std::vector<float> missing(host.size(), std::numeric_limits<float>::quiet_NaN());
        pass.ops->upload(pass.weights.flat, missing.data());
        struct Arrive final : model::ParameterTraffic {
            Pass& pass;
            const std::vector<float>& host;
            int64_t arrived = 0;
            Arrive(Pass& p, const std::vector<float>& h) : pass(p), host(h) {}
            void need(int64_t s) override {
                CHECK(s == arrived++);
                const model::Segment& segment = pass.model.segments()[static_cast<size_t>(s)];
                pass.ops->upload(pass.weights.flat.range(segment.begin, segment.end - segment.begin),
                                 host.data() + segment.begin);
            }
            void done(int64_t) override {}
        } arrive(pass, host);
        CHECK(pass.run(&arrive) == expected);
        CHECK(arrive.arrived == 5);
    }
}

TEST_CASE(
    "traffic: gradients leave while earlier layers compute, and a layer waits for its own weights only") {
    Pass pass({"model.layers=3", "batch.leaves=2"});
    pass.ops->upload(pass.weights.flat, pass.initial_weights().data());
    std::vector<std::string> events;
    RecordingComm comm(events);
    const optim::Optimizer optimizer(pass.config.value.optimizer, pass.model.params(), {0, 2, true});
    train::RankTraffic traffic(train::ParallelConfig(), optimizer.ownership(), pass.model.segments(), 0,
                               1);  // no bundling
    train::GradientTree tree(2, 0, 2);
    model::Arena arena(*pass.ops);
    traffic.plan(arena);
    tree.plan(arena, pass.model.params().size(), 2);
    arena.commit();
    traffic.connect(*pass.ops, comm, pass.weights, tree);
    // Tells when the model gets to a segment, and passes it on.
    struct Marked final : model::ParameterTraffic {
        train::RankTraffic& traffic;
        std::vector<std::string>& events;
        Marked(train::RankTraffic& t, std::vector<std::string>& e) : traffic(t), events(e) {}
        void need(int64_t s) override {
            events.push_back(fmt::format("need {}", s));
            traffic.need(s);
        }
        void done(int64_t s) override {
            events.push_back(fmt::format("done {}", s));
            traffic.done(s);
        }
    } marked(traffic, events);
    tree.begin_step(2);
    const auto step = [&] {
        pass.gradients = tree.begin(0);
        traffic.completes(0);
        pass.model.forward_backward(*pass.ops, pass.weights, pass.gradients, pass.batch, 1, &marked);
        tree.advance(0);
        traffic.finish_gradients();
        traffic.send_weights();
    };
    step();
    const std::vector<std::string> first{"need 0",  "need 1",  "need 2",  "need 3",  "need 4",  //
                                         "done 4",  "begin 1", "done 3",  "begin 2", "done 2",
                                         "begin 3", "done 1",  "begin 4",                       //
                                         "done 0",  "begin 5",                                  //
                                         "wait 1",  "wait 2",  "wait 3",  "wait 4",  "wait 5",  //
                                         "begin 6", "begin 7", "begin 8", "begin 9", "begin 10"};
    CHECK(events == first);
    events.clear();
    tree.begin_step(2);
    step();
    const std::vector<std::string> arrivals{"need 0", "wait 6", "need 1", "wait 7", "need 2",
                                            "wait 8", "need 3", "wait 9", "need 4", "wait 10"};
    REQUIRE(events.size() > arrivals.size());
    CHECK(std::vector<std::string>(events.begin(), events.begin() + 10) == arrivals);
    traffic.settle();
}
