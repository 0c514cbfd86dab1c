// Parameters of written scores, and eval.score: what is said about wrong ones, and what is only warned of.
#include "train/wrong.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("wrong scores: parameters without effect") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - t", "params": {"c": {"init": 1}}}}})",
         "model.attention.params.c (c.json:1:86): has no effect: neither angle nor score has this parameter, "
         "only base; see model.attention.score (c.json:1:61)"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - t + c*log(n)", "params": {"c": {"init": 1}}}}})j",
         "model.attention.params.c (c.json:1:97): has no effect: c*log(n) is equal for all keys of a query "
         "and cancels in the softmax; see model.attention.score (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - 0*c*t", "params": {"c": {"init": 1}}}}})",
         "model.attention.params.c (c.json:1:90): has no effect: no score changes with it at any n and t up "
         "to 16384; see model.attention.score (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - 0*c*t", "params": {"c": {"init": 1, "learn": "head"}}}}})",
         "model.attention.params.c (c.json:1:90): has no effect: no score changes with it at any n and t up "
         "to 16384; see model.attention.score (c.json:1:61)"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*log1p(t/tau)", "params": {"c": {"init": 0}, "tau": {"init": 10}}}}})j",
         "model.attention.params.tau (c.json:1:119): has no effect: no score changes with it at any n and t "
         "up to 16384; see model.attention.score (c.json:1:61)"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*log1p(t/tau)", "params": {"c": {"init": 0, "learn": "head"}, "tau": {"init": 10}}}}})j",
         "no problem"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*max(0, t - 5000)", "params": {"c": {"init": 1}}}}})j",
         "no problem"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*t*(l > 9)", "params": {"c": {"init": 1}}}}})j",
         "model.attention.params.c (c.json:1:96): has no effect: no score changes with it at any n and t up "
         "to 16384; see model.attention.score (c.json:1:61)"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*t*(l > 2)", "params": {"c": {"init": 1, "learn": "layer"}}}}})j",
         "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"heads": 1, "score": "half_heads_logn", "params": {"r": {"init": 2}}}}})",
         "model.attention.params.r (c.json:1:108): has no effect: no score changes with it at any n and t up "
         "to 16384; see model.attention.score (c.json:1:73)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "llama4", "params": {"scale": {"init": 0.2}}}}})",
         "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "llama4", "params": {"scale": {"init": 0.2}}}}, "eval": {"lengths": [4096]}})",
         "model.attention.params.scale (c.json:1:91): has no effect: no score changes with it at any n and t "
         "up to 4096; see model.attention.score (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*t", "params": {"c": {"init": 5, "range": [1, 1]}}}}})",
         "model.attention.params.c (c.json:1:88): has no effect: no score changes with it at any n and t up "
         "to 16384; see model.attention.score (c.json:1:61)"},
    });
}

TEST_CASE("wrong scores: parameters") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {}}}}})",
         "model.attention.params.r.init (default): needs a first value: a number, a formula, parity or "
         "uniform(a, b)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": true}}}}})",
         "model.attention.params.r.init (c.json:1:93): expected a number, a formula, parity or uniform(a, "
         "b)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "2*"}}}}})",
         "model.attention.params.r.init (c.json:1:93): the formula ends where an operand is expected: 2*[]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "log(h)"}}}}})j",
         "model.attention.params.r.init (c.json:1:93): the first value is -inf in head 0: [log(h)]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "n"}}}}})",
         "model.attention.params.r.init (c.json:1:93): unknown name 'n'; known are h, H, l, layers, d, L, "
         "pi, e, egamma: [n]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "uniform(0, 1)"}}}}})j",
         "model.attention.params.r.learn (default): a first value drawn at random must learn: set learn to "
         "layer or head"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "uniform(1, 0)", "learn": "head"}}}}})j",
         "model.attention.params.r.init (c.json:1:93): uniform takes the smaller number first: [uniform(1, "
         "0)]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "uniform(0)", "learn": "head"}}}}})j",
         "model.attention.params.r.init (c.json:1:93): uniform takes 2 arguments: [uniform(0)]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - r*t", "params": {"r": {"init": "parity"}}}}})",
         "model.attention.params.r.init (c.json:1:97): parity: r is not in the factor of z; give its first "
         "value: [parity]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*log(n)^r", "params": {"r": {"init": "parity"}}}}})",
         "model.attention.params.r.init (c.json:1:100): parity: the factor of z at n = 512 (half of L) is "
         "not linear in r; give its first value: [parity]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "h", "learn": "layer"}}}}})",
         "model.attention.params.r.init (c.json:1:93): differs by head, but all heads share this parameter: "
         "set learn to head"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "l + 1", "learn": "model"}}}}})",
         "model.attention.params.r.init (c.json:1:93): differs by layer, but layers share this parameter: "
         "set learn to layer or head"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "range": [2, 1]}}}}})",
         "model.attention.params.r.range (c.json:1:105): expected two numbers, the smaller first"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "range": [2]}}}}})",
         "model.attention.params.r.range (c.json:1:105): expected two numbers, the smaller first"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "range": 2}}}}})",
         "model.attention.params.r.range (c.json:1:105): expected two numbers, the smaller first"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "learn": "heads"}}}}})",
         "model.attention.params.r.learn (c.json:1:105): expected head, by_law, no, model, layout or layer, "
         "got the string \"heads\": did you mean head?"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - floor(t/r)", "params": {"r": {"init": 2, "learn": "head"}}}}})j",
         "model.attention.params.r (c.json:1:95): cannot learn: its gradient is 0, because it stands only "
         "inside floor, ceil or a comparison"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*gaussian_scale(n, r)", "params": {"r": {"init": 4, "learn": "head"}}}}})j",
         "model.attention.score (c.json:1:61): gaussian_scale needs a number above 1 for C, the keys that "
         "attention spreads over: z*gaussian_scale(n, [r])"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "si_interp", "params": {"tau": {"learn": "layer"}}}}})",
         "model.attention.params.tau (c.json:1:92): cannot learn: the kernels have no gradient of sqrt of a "
         "sum over n and t"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + lookup(w, t)", "params": {"w": {"init": 0, "size": 8}}}}})j",
         "model.attention.params.w.learn (default): a vector that does not learn is one number: let it "
         "learn"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + w*t", "params": {"w": {"init": 0, "size": 8, "learn": "head"}}}}})",
         "model.attention.score (c.json:1:61): w has 8 elements: lookup(w, index) reads one: z + [w]*t"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + lookup(w, t) + lookup(w, 2*t)", "params": {"w": {"init": 0, "size": 8, "learn": "head"}}}}})j",
         "model.attention.score (c.json:1:61): a table reads a vector at one index only; this is a second "
         "one"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + lookup(w, r*t)", "params": {"w": {"init": 0, "size": 8, "learn": "head"}, "r": {"init": 1, "learn": "head"}}}}})j",
         "model.attention.score (c.json:1:61): an index cannot learn: it jumps from one element to the next"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "size": 5000, "learn": "head"}}}}})",
         "model.attention.params.r.size (c.json:1:104): must be 0 to 4096, got 5000"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "lr": 2}}}}})",
         "model.attention.params.r.lr (c.json:1:102): has no effect: this parameter does not learn; see "
         "model.attention.params.r.learn (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "lr": 0}}}}})",
         "model.attention.params.r.lr (c.json:1:102): must be above 0 and at most 1000000, got 0"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 1, "positive": true}}}}})",
         "model.attention.params.r.positive (c.json:1:108): has no effect: this parameter does not learn"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": 0, "positive": true, "learn": "head"}}}}})",
         "model.attention.params.r.init (c.json:1:93): its logarithm is learned, so the first value must be "
         "above 0, not 0: [0]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "h", "positive": true, "learn": "head"}}}}})",
         "model.attention.params.r.init (c.json:1:93): its logarithm is learned, so the first value must be "
         "above 0, not 0 in head 0: [h]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*r", "params": {"r": {"init": "uniform(0, 1)", "positive": true, "learn": "head"}}}}})j",
         "model.attention.params.r.positive (c.json:1:122): what starts at random cannot be learned as a "
         "logarithm"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*n", "params": {"n": {"init": 1}}}}})",
         "model.attention.params.n (c.json:1:84): this is the name of a variable: choose another"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*log", "params": {"log": {"init": 1}}}}})",
         "model.attention.params.log (c.json:1:88): this is the name of a function: choose another"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*pi", "params": {"pi": {"init": 1}}}}})",
         "model.attention.params.pi (c.json:1:86): this is the name of a constant: choose another"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*2r", "params": {"2r": {"init": 1}}}}})",
         "model.attention.params.2r (c.json:1:86): a name has letters, digits and _, does not begin with a "
         "digit, and is at most 40 long"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "scale_invariant", "params": {"tua": {"init": 1}}}}})",
         "model.attention.params.tua (c.json:1:98): has no effect: neither angle nor score has this "
         "parameter: did you mean tau?; see model.attention.score (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "scale_invariant", "params": {"x": {"init": 1}}}}})",
         "model.attention.params.x (c.json:1:96): has no effect: neither angle nor score has this parameter, "
         "only base, tau, c; see model.attention.score (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "entinv", "params": {"tau": {"init": 1}}}}})",
         "model.attention.params.tau (c.json:1:89): has no effect: neither angle nor score has this parameter, "
         "only base; see model.attention.score (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ["scale_invariant", "log_bias"]}}})",
         "model.attention.score.1 (c.json:1:81): two laws have a parameter tau: write one of them as a "
         "formula"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"params": {"r": {"init": 1}}}}})",
         "model.attention.params.r (c.json:1:68): has no effect: score is null; see model.attention.score "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z", "scale": {"kind": "logn"}}}})",
         "model.attention.scale (c.json:1:66): unknown key: did you mean model.attention.score, "
         "optimizer.muon.scale or eval.rope.scale?"},
    });
}

TEST_CASE("wrong scores: of an evaluation") {
    check_all({
        {R"({"stages": [{"steps": 1}], "eval": {"score": "z * tua", "lengths": [4096]}})",
         "eval.score (c.json:1:46): unknown name 'tua': did you mean t?: z * [tua]"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "logm", "lengths": [4096]}})",
         "eval.score (c.json:1:46): no law is named logm: did you mean logn?"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": 3, "lengths": [4096]}})",
         "eval.score (c.json:1:46): expected a formula or the name of a law"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": ["logn", 3], "lengths": [4096]}})",
         "eval.score.1 (c.json:1:55): expected a formula or the name of a law"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "sqrt2logn", "lengths": [4096]}})",
         "eval.score (c.json:1:46): parameter r of sqrt2logn has to be trained: write the formula with a "
         "number for it"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "kerple_log", "lengths": [4096]}})",
         "eval.score (c.json:1:46): parameter p of kerple_log has to be trained: write the formula with a "
         "number for it"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "buckets", "lengths": [4096]}})",
         "eval.score (c.json:1:46): parameter w of buckets has to be trained: write the formula with a "
         "number for it"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "logn", "lengths": [4096]}})", "no problem"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "z*r", "lengths": [4096]}})",
         "eval.score (c.json:1:46): unknown name 'r'; known are z, dot, n, t, h, H, l, layers, d, L, T, pi, "
         "e, egamma: z*[r]"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "dot*2", "lengths": [4096]}})",
         "eval.score (c.json:1:46): only the first stage may use dot; z is the score of the stage before: "
         "[dot*2]"},
        {R"j({"stages": [{"steps": 1}], "eval": {"score": "z*log(n - 5)", "lengths": [4096]}})j",
         "eval.score (c.json:1:46): the factor of z is not a number at n = 1; scores and derivatives must be "
         "finite in f32 at every n and t up to 4096"},
        {R"j({"stages": [{"steps": 1}], "eval": {"score": "z*log(5000 - n)", "lengths": [4096]}})j",
         "no problem"},
        {R"j({"stages": [{"steps": 1}], "eval": {"score": "z*log(5000 - n)", "lengths": [8192]}})j",
         "eval.score (c.json:1:46): the factor of z is -inf at n = 5000; scores and derivatives must be "
         "finite in f32 at every n and t up to 8192"},
        {R"j({"stages": [{"steps": 1}], "eval": {"score": "z*log(n)", "lengths": [1024]}})j",
         "eval.score (c.json:1:46): has no effect: no length is above the training context 1024; see "
         "eval.lengths (c.json:1:69)"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": ["z*2", "logn", "t"], "lengths": [4096]}})",
         "eval.score.2 (c.json:1:62): the score does not depend on z: [t]"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn"}, "score": "t", "lengths": [4096]}})",
         "eval.score (c.json:1:78): the score does not depend on z: [t]"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn"}, "score": ["2*z", "t"], "lengths": [4096]}})",
         "eval.score.1 (c.json:1:86): the score does not depend on z: [t]"},
        {R"({"stages": [{"steps": 1}], "eval": {"score": "z - t/n", "lengths": [4096]}})",
         "eval.score (c.json:1:46): a summand without z may depend on t or on n, not on both: this mixes "
         "them: z - [t/n]"},
        {R"j({"stages": [{"steps": 1}], "eval": {"score": "z + log(n)", "lengths": [4096]}, "model": {"attention": {"sink": "zero"}}})j",
         "eval.score (c.json:1:46): remove log(n): it is equal for all keys of a query and cancels in the "
         "softmax, but not against a sink"},
    });
}

namespace {

std::vector<std::string> warnings(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return config::load_config<train::Experiment>(
               {.file = "c.json", .overrides = overrides, .text = text},
               [](train::Experiment& e, config::Problems& p) { e.check(p); })
        .warnings;
}
std::string score(const std::string& formula, const std::string& more = "") {
    return R"({"stages": [{"steps": 1}], "eval": {"lengths": [4096]}, "model": {"attention": {"score": ")" +
           formula + "\"" + more + "}}}";
}
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("scores: a term that overflows at a length that is not evaluated is a warning") {
    const std::string terms = R"x(, "terms": {"f": "exp(x)"})x";
    CHECK(
        warnings(score("z*2^(f_q*n/500)", terms)) ==
        Lines{
            "model.attention.score (c.json:1:90): the factor of z is 3.40282e+38 at n = 64000 with the terms at their "
            "first values: an evaluation there fails"});
    CHECK(warnings(score("z + between(f)", terms)).empty());
}

TEST_CASE("scores: warnings about biases that f32 holds coarsely") {
    const std::string coarse =
        "from t = 205 on, f32 holds the bias only to multiples of 0.00049 (4100 at t = 205), and the weights "
        "to that relative error";
    CHECK(warnings(score("z + 20*t")) == Lines{"model.attention.score (c.json:1:90): " + coarse});
    CHECK(warnings(score("z"), {"model.attention.score=z+20*t"}) ==
          Lines{"model.attention.score (--set model.attention.score=z+20*t): " + coarse});
    CHECK(warnings(score("z"), {"eval.score=z+20*t"}) ==
          Lines{"eval.score (--set eval.score=z+20*t): " + coarse});
    for (const char* lengths : {"eval.lengths=[4096]", "eval.lengths=[65536]"})
        for (const char* law : {"z - 20*t", "scale_invariant", "logn"})
            CHECK(warnings(score(law), {lengths}).empty());
    CHECK(warnings(score("alibi", R"(, "angle": "nope")"), {"eval.lengths=[65536]"}).empty());
}

TEST_CASE("scores: a parameter without effect is a warning where --set gives it, or where a law has it") {
    CHECK(warnings(score("z - 0*c*t"), {"model.attention.params.c.init=1"}) ==
          Lines{"model.attention.params.c (--set model.attention.params.c.init=1): has no effect: no score "
                "changes with it at any n and t up to 4096; see model.attention.score (c.json:1:90)"});
    CHECK(
        warnings(score("llama4")) ==
        Lines{
            "model.attention.score (c.json:1:90): parameter scale of the law has no effect: no score changes "
            "with it at any n and t up to 4096"});
    CHECK(warnings(score("llama4"), {"eval.lengths=[16384]"}).empty());
}

TEST_CASE("scores: one layer that needs a parameter is enough") {
    const auto said = [](const std::string& formula, const std::string& layouts) {
        return problems({R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ")" + formula +
                             R"(", "params": {"c": {"init": 1, "learn": "layer"}}})" + layouts + "}}",
                         ""});
    };
    CHECK(said("z - c*t*(l == 3)", "") == "no problem");
    CHECK(said("z - c*t*(l == 4)", "") ==
          "model.attention.params.c (c.json:1:97): has no effect: no score changes with it at any n and t up "
          "to 16384; see model.attention.score (c.json:1:61)");
    CHECK(said("z - c*t*(l == 3)", R"(, "layouts": {"g": {"window": 64}}, "last": "g")") == "no problem");
    CHECK(said("z*log(3 - l)", "") ==
          "model.attention.score (c.json:1:61): the factor of z is -inf at n = 1 in layer 3; scores and "
          "derivatives must be finite in f32 at every n and t up to 16384");
    // A first value that is wrong in the last layer only.
    check_all({
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*c", "params": {"c": {"init": "log(3 - l)"}}}}})j",
         "model.attention.params.c.init (c.json:1:93): in layer 3: the first value is -inf: [log(3 - l)]"},
    });
}

TEST_CASE("scores: layouts keep the parameters that they inherit, with or without use") {
    const auto said = [](const std::string& layout) {
        return problems(
            {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - c*t", )"
             R"("params": {"c": {"init": 1, "learn": "layer"}}}, "last": "g", "layouts": {"g": {)" +
                 layout + "}}}}",
             ""});
    };
    CHECK(said(R"("window": 64)") == "no problem");
    CHECK(said(R"("score": "logn")") == "no problem");
    CHECK(said(R"("score": "z*n")") == "no problem");
    CHECK(said(R"("params": {"c": {"init": 2}})") == "no problem");
    // What is written of an inherited parameter changes only that.
    CHECK(said(R"("params": {"c": {"lr": 2}})") == "no problem");
    CHECK(said(R"("params": {"b": {"init": 2}})")
              .ends_with("has no effect: neither angle nor score has this parameter, only base, c; see "
                         "model.layouts.g.score (default)"));
}
