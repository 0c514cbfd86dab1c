// Tiny models whose scores read tokens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dice.h"
#include "model/laws.h"
#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> term_models() {
    std::vector<SmallModel> all;
    const auto attend = [&](const std::string& name, auto change, bool documents = false) {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;
        change(small.config.attention);
        all.push_back(std::move(small));
    };
    attend(
        "distances that the tokens make, documents", [](model::AttentionConfig& a) { add_law(a, "cable"); },
        true);
    attend(
        "a factor whose power the query chooses, grouped, documents",
        [](model::AttentionConfig& a) {
            a.heads = 4;
            a.kv_heads = 2;
            a.params["delta"].init = json::Value(0.5);
            a.terms["gamma"].init = json::Value("0.3*h");
            add_law(a, "adaptive_logn");
        },
        true);
    attend("two terms, a bias of the key, a learned slope of the sums", [](model::AttentionConfig& a) {
        a.terms["b"] = {"softplus(x)", json::Value(-1), false};
        a.terms["u"] = {"s*tanh(x)", json::Value("h - 1"), true};
        a.params["s"] = {.init = json::Value(0.7), .learn = model::Learning::layer};
        a.params["m"] = {.init = json::Value("2^-h"), .learn = model::Learning::head, .positive = true};
        add_law(a, "(1 + 0.5*tanh(u_q))*z*sqrt(log(n + 1)) - m*(between(b) + 0.1*t) + 2*u_k*s");
    });
    attend(
        "one term in all places, chunks, distance, softcap",
        [](model::AttentionConfig& a) {
            a.chunk = 6;
            a.terms["f"].value = "log_sigmoid(x)";
            add_law(a, "3*tanh(z/3)");
            add_law(a, "z*exp(f_q/8) + between(f)/2 - f_k*f_k");
            add_law(a, "z - t/16");
        },
        true);
    attend("turns that the tokens make", [](model::AttentionConfig& a) {
        a.terms["step"].value = "softplus(x)";
        a.angle = json::Value("between(step) * 100^(-2*m/d)");
    });
    attend(
        "turns of grouped heads, whose gain is learned, next to a bias by token, documents, window",
        [](model::AttentionConfig& a) {
            a.heads = 4;
            a.kv_heads = 2;
            a.window = 9;
            a.qk.kind = model::QkKind::qk_rms_w;
            a.terms["step"] = {"1 + tanh(x)", json::Value("h/2"), true};
            a.angle = json::Value("(m < d/4) * between(step) / (m + 1)");
            a.terms["f"].value = "log_sigmoid(x)";
            add_law(a, "z + between(f)");
        },
        true);
    attend("turns of heads without a norm", [](model::AttentionConfig& a) {
        a.kv_heads = 1;
        a.qk.kind = model::QkKind::none;
        a.terms["w"] = {"tanh(x)", json::Value(1), false};
        a.angle = json::Value("(d - 2*m) / d * between(w)");
    });
    attend(
        "Wall attention, grouped, documents",
        [](model::AttentionConfig& a) {
            a.heads = 4;
            a.kv_heads = 2;
            a.terms["w"].init = json::Value(1.5);
            add_law(a, "wall");
        },
        true);
    attend("channels that fade by channel, next to a gate by head, turns, a slope, a window and a sink",
           [](model::AttentionConfig& a) {
               a.window = 9;
               a.sink = model::SinkKind::learned;
               a.terms["c"] = {"-softplus(x)/(1 + h/4)", json::Value("h/8 - 1"), true};
               a.terms["f"].value = "log_sigmoid(x)";
               add_law(a, "z_between(c)*log(n + 1) + between(f) - t/16");
           });
    return all;
}

// A score made at random of factors of the query, sums between key and query and biases of the key.
inline SmallModel random_term_model(uint64_t seed) {
    Dice dice(seed);
    const auto one_of = [&](std::initializer_list<const char*> all) {
        return std::string(all.begin()[dice.below(all.size())]);
    };
    SmallModel small{"", tiny_model(1), dice.flip()};
    small.config.train_context = 8;
    model::AttentionConfig& a = small.config.attention;
    const auto term = [&] {
        return model::TermConfig{
            .value =
                one_of({"tanh(x)", "-softplus(x)", "log_sigmoid(x)", "x*sigmoid(x)/2", "sin(x + h)",
                        "s*tanh(x/2)", "sqrt(1 + x^2) - 1", "exp(-x^2)*(l + 1)/layers", "x/(1 + abs(x))"}),
            .init = one_of({"0.3", "h/2", "-1", "1/(h + 1)"}),
            .zero_init = dice.below(4) == 0};
    };
    a.terms["u"] = term();
    a.terms["w"] = term();
    a.params["s"] = {.init = json::Value(0.7),
                     .learn = dice.flip() ? model::Learning::head : model::Learning::no};
    std::string score = one_of({"z", "z*s", "z*(1 + 0.3*tanh(u_q))", "z*exp(w_q/4)", "z*log(n + 1)^(u_q/4)",
                                "z*(s + u_q*w_q)", "(1 + log(n)/8)*z*sigmoid(u_q + w_q)"});
    const bool fades = dice.below(4) == 0;
    if (fades) {
        score.replace(score.find('z'), 1, "z_between(c)");
        a.terms["c"] = {
            .value = one_of({"log_sigmoid(x)", "-softplus(x)/(h + 1)", "-x^2/8", "tanh(x)/2 - 1/2"}),
            .init = json::Value(one_of({"2", "(h - 4)/4"})),
            .zero_init = dice.flip()};
    }
    // Each term and the parameter somewhere.
    score += one_of({" + between(u)", " - 0.5*between(u)", " + s*between(u)", " + (h + 1)*between(u)/H"});
    score += one_of(
        {" + s*w_k", " - s*tanh(w_k)", " + s*(between(w) - w_k)", " + w_k*u_k*s", " + s*sqrt(1 + w_k^2)"});
    score += fades ? one_of({"", " - t/16", " - log1p(t/3)"})
                   : one_of({"", " - t/16", " - log1p(t/3)", " - s*t/8"});
    a.score = score;
    if (dice.flip()) a.angle = "nope";
    if (dice.below(3) == 0) a.window = 5;
    if (dice.below(3) == 0) a.kv_heads = 1;
    small.name = score;
    return small;
}

}  // namespace longreach::test
