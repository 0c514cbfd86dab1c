// Which tensor goes to which optimiser, at which rate, under which name; clipping; and what is not touched
// when a gradient is not finite.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "base/rng.h"
#include "model/transformer.h"
#include "optim/optimizer.h"

using namespace longreach;

namespace {

model::ModelConfig model_config(bool tied) {
    model::ModelConfig m;
    m.layers = 2;
    m.width = 16;
    m.vocab_size = 19;
    m.mlp.hidden = 24;
    m.attention.heads = 2;
    m.attention.head_dim = 8;
    m.norm.gain = true;
    m.residual.x0 = true;
    m.head.tied = tied;
    return m;
}

using Flat = std::vector<float>;

struct Machine {
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena{*ops};
    model::Transformer model;
    optim::Optimizer optimizer;
    model::FlatParams weights, gradients;

    explicit Machine(const optim::OptimizerConfig& config, bool tied = false)
        : model(model_config(tied), 16), optimizer(config, model.params()) {
        weights.flat = arena.reserve("weights", DType::f32, {model.params().size()});
        gradients.flat = arena.reserve("gradients", DType::f32, {model.params().size()});
        optimizer.plan(arena, *ops);
        arena.commit();
        set(weights.flat, random(1));
        set(gradients.flat, random(2));
    }
    // Random numbers in every parameter, zeros in the padding.
    Flat random(uint32_t stream) const {
        const Rng rng(3, Purpose::test, stream);
        Flat v(static_cast<size_t>(model.params().size()));
        for (const model::Param& p : model.params().params())
            for (int64_t i = p.offset; i < p.offset + p.count(); ++i)
                v[static_cast<size_t>(i)] = static_cast<float>(rng.normal(static_cast<uint64_t>(i)));
        return v;
    }
    void set(const Tensor& to, const Flat& host) { ops->upload(to, host.data()); }
    Flat get(const Tensor& from) const {
        Flat host(static_cast<size_t>(from.count()));
        ops->download(host.data(), from);
        return host;
    }
    Flat state(const std::string& name) const {
        for (const optim::Optimizer::Named& n : optimizer.state())
            if (n.name == name) return get(n.tensor);
        FAIL("no state " << name);
        return {};
    }
    optim::Optimizer::Result step(double multiplier = 1, int64_t number = 0) {
        optimizer.measure(*ops, gradients);
        return optimizer.step(*ops, weights, gradients, multiplier, number);
    }
    // Names of the parameters that a step with these settings changes.
    std::set<std::string> moved(double multiplier = 1) {
        const Flat before = get(weights.flat);
        step(multiplier);
        const Flat after = get(weights.flat);
        std::set<std::string> names;
        for (const model::Param& p : model.params().params())
            if (std::memcmp(before.data() + p.offset, after.data() + p.offset,
                            static_cast<size_t>(p.count()) * sizeof(float)) != 0)
                names.insert(p.name);
        return names;
    }
    std::set<std::string> group(model::ParamGroup wanted) const {
        std::set<std::string> names;
        for (const model::Param& p : model.params().params())
            if (p.group == wanted) names.insert(p.name);
        return names;
    }
};

optim::OptimizerConfig still() {
    optim::OptimizerConfig c;
    c.muon.lr = 0;
    c.adam.matrix_lr = c.adam.embedding_lr = c.adam.head_lr = c.adam.scalar_lr = 0;
    return c;
}

bool contains(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

bool same_bits(const Flat& a, const Flat& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("optimizer: every rate moves its own group and nothing else") {
    CHECK(Machine(still()).moved().empty());
    {
        optim::OptimizerConfig c = still();
        c.muon.lr = 0.01;
        Machine m(c);
        CHECK(m.group(model::ParamGroup::matrix).size() ==
              12);  // q, k, v, output, two of the MLP in each of two layers
        CHECK(m.moved() == m.group(model::ParamGroup::matrix));
    }
    {
        optim::OptimizerConfig c = still();
        c.matrices = optim::MatrixOptimizer::adam;
        c.adam.matrix_lr = 0.01;
        Machine m(c);
        CHECK(m.moved() == m.group(model::ParamGroup::matrix));
    }
    {
        optim::OptimizerConfig c = still();
        c.adam.embedding_lr = 0.01;
        Machine m(c);
        CHECK(m.group(model::ParamGroup::embedding).size() == 1);
        CHECK(m.moved() == m.group(model::ParamGroup::embedding));
    }
    {
        optim::OptimizerConfig c = still();
        c.adam.head_lr = 0.01;
        Machine m(c);
        CHECK(m.group(model::ParamGroup::head).size() == 1);
        CHECK(m.moved() == m.group(model::ParamGroup::head));
    }
    {
        optim::OptimizerConfig c = still();
        c.adam.scalar_lr = 0.01;
        Machine m(c);
        CHECK(!m.group(model::ParamGroup::scalar).empty());
        CHECK(m.moved() == m.group(model::ParamGroup::scalar));
    }
}

TEST_CASE("optimizer: a tied head is the embedding's tensor and moves at the embedding's rate") {
    optim::OptimizerConfig c = still();
    c.adam.head_lr = 0.01;
    Machine head(c, true);
    CHECK(head.group(model::ParamGroup::head).empty());
    CHECK(head.moved().empty());
    c.adam.embedding_lr = 0.01;
    Machine embedding(c, true);
    CHECK(embedding.moved() == embedding.group(model::ParamGroup::embedding));
}

TEST_CASE("optimizer: state is named after optimiser, moment and parameter, with the parameter's shape") {
    for (const optim::MatrixOptimizer matrices :
         {optim::MatrixOptimizer::muon, optim::MatrixOptimizer::adam}) {
        optim::OptimizerConfig c;
        c.matrices = matrices;
        const Machine m(c);
        std::map<std::string, std::vector<int64_t>> expected, found;
        for (const model::Param& p : m.model.params().params()) {
            if (p.group == model::ParamGroup::matrix && matrices == optim::MatrixOptimizer::muon) {
                expected["muon.momentum/" + p.name] = p.shape;
            } else {
                expected["adam.first/" + p.name] = p.shape;
                expected["adam.second/" + p.name] = p.shape;
            }
        }
        for (const optim::Optimizer::Named& n : m.optimizer.state()) {
            found[n.name] = n.shape;
            int64_t count = 1;
            for (int64_t d : n.shape) count *= d;
            CHECK(n.tensor.count() == count);
        }
        CHECK(found == expected);
        CHECK(found.size() == m.optimizer.state().size());
    }
}

TEST_CASE(
    "optimizer: the first Adam step moves every number by the rate times the multiplier, against the "
    "gradient") {
    optim::OptimizerConfig c = still();
    c.adam.embedding_lr = 0.25;
    Machine m(c);
    const model::Param& p = *m.model.params().find("embedding.weight");
    const Flat before = m.get(m.weights.view(p)), gradient = m.get(m.gradients.view(p));
    m.step(0.5);
    const Flat after = m.get(m.weights.view(p));
    for (size_t i = 0; i < before.size(); ++i) {
        // Both bias corrections cancel at step 1; a few operations in single precision remain.
        const double g = gradient[i], expected = before[i] - 0.125 * g / (std::abs(g) + c.adam.eps);
        CHECK(std::abs(after[i] - expected) < 8 * 0x1p-24 * (std::abs(expected) + 0.125));
    }
    CHECK(m.optimizer.updates() == 1);
}

TEST_CASE("optimizer: bias correction counts applied updates, and a resumed count continues") {
    optim::OptimizerConfig c = still();
    c.adam.embedding_lr = 0.25;
    Machine straight(c), resumed(c);
    straight.step();
    const Flat weights = straight.get(straight.weights.flat);
    std::vector<Flat> moments;
    for (const optim::Optimizer::Named& n : straight.optimizer.state())
        moments.push_back(straight.get(n.tensor));
    straight.step();
    resumed.set(resumed.weights.flat, weights);
    for (size_t i = 0; i < moments.size(); ++i) resumed.set(resumed.optimizer.state()[i].tensor, moments[i]);
    resumed.optimizer.set_updates(1);
    resumed.step();
    CHECK(same_bits(straight.get(straight.weights.flat), resumed.get(resumed.weights.flat)));
    CHECK(resumed.optimizer.updates() == 2);
}

TEST_CASE("optimizer: the gradient norm of every layer's parameters, and what belongs to no layer") {
    for (const optim::MatrixOptimizer matrices :
         {optim::MatrixOptimizer::muon, optim::MatrixOptimizer::adam}) {
        optim::OptimizerConfig c;  // decides into which pieces the gradient is cut
        c.matrices = matrices;
        Machine m(c);
        const Flat gradient = m.random(2);
        double squares[3] = {};  // layer 0, layer 1, the rest
        for (const model::Param& p : m.model.params().params())
            for (int64_t i = p.offset; i < p.offset + p.count(); ++i)
                squares[p.name.starts_with("layers.0.")   ? 0
                        : p.name.starts_with("layers.1.") ? 1
                                                          : 2] +=
                    std::pow(double{gradient[static_cast<size_t>(i)]}, 2);
        m.optimizer.measure(*m.ops, m.gradients);
        const optim::Optimizer::GradientNorms norms = m.optimizer.gradient_norms(*m.ops);
        REQUIRE(norms.layers.size() == 2);
        for (size_t l = 0; l < 2; ++l)  // sums of squares in f64: some thousand roundings of 2^-53
            CHECK(norms.layers[l] == doctest::Approx(std::sqrt(squares[l])).epsilon(1e-12));
        CHECK(squares[2] > 0);
        CHECK(norms.whole == doctest::Approx(std::sqrt(squares[0] + squares[1] + squares[2])).epsilon(1e-12));
        CHECK(m.optimizer.gradient_norm(*m.ops) == norms.whole);
    }
}

TEST_CASE("optimizer: clipping multiplies all gradients by clip_norm / norm, and only above clip_norm") {
    // Also for a gradient so small that anything added to its norm would show.
    const auto scaled = [](Machine& m, float scale) {
        Flat g = m.random(2);
        for (float& x : g) x *= scale;
        m.set(m.gradients.flat, g);
    };
    for (const float scale : {1.0f, 0x1p-20f}) {
        optim::OptimizerConfig c;
        Machine unclipped(c);
        scaled(unclipped, scale);
        double squares = 0;
        for (float g : unclipped.get(unclipped.gradients.flat)) squares += static_cast<double>(g) * g;
        const double norm = std::sqrt(squares);
        CHECK(unclipped.step().gradient_norm == doctest::Approx(norm).epsilon(1e-12));
        for (const auto& [clip, factor] : std::vector<std::pair<double, double>>{
                 {norm / 4, 0.25}, {norm * 2, 1.0}, {norm * (1 + 1e-9), 1.0}}) {
            c.clip_norm = clip;
            Machine m(c);
            scaled(m, scale);
            CHECK(m.step().gradient_norm ==
                  doctest::Approx(norm).epsilon(1e-12));  // reported before clipping
            for (const optim::Optimizer::Named& n : m.optimizer.state()) {
                const double power = n.name.starts_with("adam.second") ? factor * factor : factor;
                const Flat with = m.get(n.tensor), without = unclipped.state(n.name);
                double worst = 0;
                for (size_t i = 0; i < with.size(); ++i)
                    worst = std::max(worst, std::abs(with[i] - power * without[i]) /
                                                (std::abs(power * without[i]) + 1e-30));
                CHECK_MESSAGE(worst <= (factor == 1 ? 0 : 4 * 0x1p-24), n.name);
            }
        }
    }
}

TEST_CASE("optimizer: the momentum of a step is that of the warmup") {
    optim::OptimizerConfig c;
    c.muon.warmup_from = 0.5;
    c.muon.momentum = 0.9;
    c.muon.warmup_steps = 4;
    for (int64_t number : {0, 2, 4}) {
        Machine m(c);
        const std::string name = "muon.momentum/" + *m.group(model::ParamGroup::matrix).begin();
        m.step(1, number);
        const Flat first = m.state(name);  // = G
        m.step(1, number);
        const Flat second = m.state(name);  // = mu G + G
        const double mu = optim::muon_momentum(c.muon, number);
        for (size_t i = 0; i < first.size(); ++i)
            CHECK(std::abs(second[i] - (1 + mu) * first[i]) <= 4 * 0x1p-24 * std::abs(2.0 * first[i]));
    }
}

TEST_CASE("optimizer: `only` names what moves, decays, has moments and counts in the norm") {
    optim::OptimizerConfig c;
    c.muon.weight_decay = c.adam.weight_decay = 0.5;
    c.only = {"*.mlp.up.*", "layers.1.attention.q.weight", "embedding.weight"};
    Machine m(c), all(optim::OptimizerConfig{});
    const std::set<std::string> trained{"embedding.weight", "layers.0.mlp.up.weight",
                                        "layers.1.attention.q.weight", "layers.1.mlp.up.weight"};
    // Gradients of other parameters may be anything.
    Flat gradients = m.random(2);
    double squares = 0;
    for (const model::Param& p : m.model.params().params())
        for (int64_t i = p.offset; i < p.offset + p.count(); ++i) {
            float& g = gradients[static_cast<size_t>(i)];
            if (trained.count(p.name) == 0)
                g = std::numeric_limits<float>::quiet_NaN();
            else
                squares += double{g} * double{g};
        }
    m.set(m.gradients.flat, gradients);
    CHECK(m.moved() == trained);
    CHECK(m.step().gradient_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
    std::set<std::string> with_state;
    for (const optim::Optimizer::Named& n : m.optimizer.state())
        with_state.insert(n.name.substr(n.name.find('/') + 1));
    CHECK(with_state == trained);
    CHECK(m.optimizer.state_bytes() < all.optimizer.state_bytes());

    c.only = {"*.mlp.up.*", "*.mpl.*"};
    CHECK_THROWS_WITH(Machine{c}, "optimizer.only: no tensor is named \"*.mpl.*\"");
}

TEST_CASE("optimizer: the factor of the MLP's matrices with rows and columns exchanged") {
    optim::OptimizerConfig c = still();
    c.muon.lr = 0.01;
    Machine plain(c);
    c.muon.swapped_mlp = true;
    Machine swapped(c);
    const Flat start = plain.get(plain.weights.flat);
    plain.step();
    swapped.step();
    const Flat a = plain.get(plain.weights.flat), b = swapped.get(swapped.weights.flat);
    for (const model::Param& p : plain.model.params().params()) {
        CAPTURE(p.name);
        // Up is 24 x 16, down 16 x 24: the factor sqrt(24 / 16) goes from the one to the other.
        const double ratio = contains(p.name, "mlp.up")     ? std::sqrt(16.0 / 24)
                             : contains(p.name, "mlp.down") ? std::sqrt(24.0 / 16)
                                                            : 1;
        for (int64_t n = p.offset; n < p.offset + p.count(); ++n) {
            const size_t i = static_cast<size_t>(n);
            const double moved = double{a[i]} - start[i];
            // Two subtractions of weights below 8 that are rounded to 2^-24 of themselves.
            REQUIRE(std::abs(double{b[i]} - start[i] - ratio * moved) < 32 * 0x1p-24);
        }
    }
}

TEST_CASE("optimizer: queries, keys and values orthogonalised as one matrix") {
    optim::OptimizerConfig c = still();
    c.muon.lr = 0.01;
    Machine apart(c);
    c.muon.joined_qkv = true;
    Machine joined(c);
    const auto names = [](const Machine& m) {
        std::set<std::string> all;
        for (const optim::Optimizer::Named& n : m.optimizer.state()) all.insert(n.name);
        return all;
    };
    CHECK(names(joined) == names(apart));  // a checkpoint does not know of it
    const Flat start = joined.get(joined.weights.flat);
    apart.step();
    joined.step();
    const Flat a = apart.get(apart.weights.flat), b = joined.get(joined.weights.flat);
    for (const model::Param& p : joined.model.params().params()) {
        if (p.group != model::ParamGroup::matrix) continue;
        CAPTURE(p.name);
        CHECK(same_bits(joined.state("muon.momentum/" + p.name), apart.state("muon.momentum/" + p.name)));
        const bool of_qkv = contains(p.name, ".q.") || contains(p.name, ".k.") || contains(p.name, ".v.");
        const size_t at = static_cast<size_t>(p.offset), count = static_cast<size_t>(p.count());
        CHECK((std::memcmp(a.data() + at, b.data() + at, count * sizeof(float)) == 0) != of_qkv);
    }
    // One slot of three times the rows gives the same bits.
    const model::Param& q = *joined.model.params().find("layers.1.attention.q.weight");
    Tensor weight = joined.weights.flat.range(q.offset, 3 * q.count()).shaped({48, 16});
    joined.set(joined.weights.flat, start);
    model::Arena arena(*joined.ops);
    const Tensor momentum = arena.reserve("momentum", DType::f32, {48, 16});
    std::vector<MuonSlot> slots{
        {.param = weight,
         .gradient = joined.gradients.flat.range(q.offset, 3 * q.count()).shaped({48, 16}),
         .momentum = momentum,
         .learning_rate = static_cast<float>(0.01 * std::sqrt(3.0))}};
    const Tensor workspace =
        arena.reserve("workspace", DType::f32, {joined.ops->muon_workspace(slots) / 4 + 1});
    arena.commit();
    joined.set(momentum, Flat(48 * 16, 0.0f));
    joined.ops->muon(slots, workspace, {.momentum = 0.95f, .nesterov = true});
    CHECK(same_bits(joined.get(weight),
                    Flat(b.begin() + q.offset, b.begin() + q.offset + static_cast<int64_t>(3 * q.count()))));
    // Of a layer in which not all are trained the others stay as they are.
    c.only = {"layers.1.attention.k.weight", "layers.1.attention.v.weight"};
    Machine some(c);
    CHECK(some.moved() == std::set<std::string>(c.only.begin(), c.only.end()));
    c.only = {"*.mlp.*"};
    CHECK_THROWS_WITH(Machine{c},
                      "optimizer.muon.joined_qkv: no layer trains queries, keys and values of its own");
}

TEST_CASE("optimizer: weight decay shrinks matrices and an untied head, and neither embedding nor scalars") {
    optim::OptimizerConfig c = still();
    c.adam.embedding_lr = c.adam.head_lr = c.adam.scalar_lr = 0.5;
    c.muon.lr = 0.5;
    c.adam.weight_decay = c.muon.weight_decay = 0.25;
    Machine m(c);
    m.set(m.gradients.flat, Flat(static_cast<size_t>(m.model.params().size()), 0.0f));
    const Flat before = m.get(m.weights.flat);
    m.step();
    const Flat after = m.get(m.weights.flat);
    for (const model::Param& p : m.model.params().params()) {
        CAPTURE(p.name);
        const bool shrinks = p.group == model::ParamGroup::matrix || p.group == model::ParamGroup::head;
        for (int64_t i = p.offset; i < p.offset + p.count(); ++i) {
            const float w = before[static_cast<size_t>(i)];
            REQUIRE(after[static_cast<size_t>(i)] == doctest::Approx(shrinks ? w * 0.875f : w).epsilon(1e-6));
        }
    }
}

TEST_CASE("optimizer: a gradient that is not finite changes no weight, no moment and no count") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        for (const optim::MatrixOptimizer matrices :
             {optim::MatrixOptimizer::muon, optim::MatrixOptimizer::adam}) {
            optim::OptimizerConfig c;
            c.matrices = matrices;
            c.clip_norm = 1;
            c.muon.weight_decay = c.adam.weight_decay = 0.1;
            Machine m(c);
            m.step();  // so that moments are not zero
            const Flat weights = m.get(m.weights.flat);
            std::vector<Flat> moments;
            for (const optim::Optimizer::Named& n : m.optimizer.state()) moments.push_back(m.get(n.tensor));
            for (const model::Param& p : m.model.params().params()) {
                CAPTURE(p.name);
                Flat gradient = m.random(5);
                gradient[static_cast<size_t>(p.offset + p.count() - 1)] = bad;  // one number of one tensor
                m.set(m.gradients.flat, gradient);
                const optim::Optimizer::Result result = m.step();
                CHECK(!result.applied);
                CHECK(!std::isfinite(result.gradient_norm));
                CHECK(m.optimizer.updates() == 1);
                CHECK(same_bits(m.get(m.weights.flat), weights));
                for (size_t i = 0; i < moments.size(); ++i)
                    CHECK(same_bits(m.get(m.optimizer.state()[i].tensor), moments[i]));
            }
            m.set(m.gradients.flat, m.random(6));
            CHECK(m.step().applied);
            CHECK(m.optimizer.updates() == 2);
        }
    }
}
