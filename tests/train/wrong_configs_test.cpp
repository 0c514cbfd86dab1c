// Wrong experiments and exactly what is said about each: path, place, reason, and where the other half
// of a contradiction stands.
#include <doctest/doctest.h>

#include "train/wrong.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("wrong experiments: unknown keys and where they belong") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"widht": 64}})",
         "model.widht (c.json:1:38): unknown key: did you mean model.width?"},
        {R"({"stages": [{"steps": 1}], "modle": {}})",
         "modle (c.json:1:28): unknown key: did you mean model?"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"adam": {"lr": 0.001}}})",
         "optimizer.adam.lr (c.json:1:51): unknown key: did you mean optimizer.muon.lr, stages.*.lr or "
         "model.attention.params.*.lr?"},
        {R"({"stages": [{"steps": 1}], "window": 128})",
         "window (c.json:1:28): unknown key: did you mean window_warmup, model.attention.window, "
         "stages.*.window or train.spike.window?"},
        {R"({"stages": [{"steps": 1}], "batch": {"size": 8}})",
         "batch.size (c.json:1:38): unknown key: did you mean model.attention.conv.size, "
         "model.attention.params.*.size or model.layouts.*.conv.size?"},
        {R"({"stages": [{"steps": 1}], "data": {"seed": 3}})",
         "data.seed (c.json:1:37): unknown key: did you mean data.task.seed, seed or run.seed?"},
        {R"({"stages": [{"steps": 1}], "eval": {"length": [1024]}})",
         "eval.length (c.json:1:37): unknown key: did you mean eval.lengths?"},
        {R"({"stages": [{"steps": 1, "ctx": 512}]})",
         "stages.0.ctx (c.json:1:26): unknown key: known here are steps, tokens, context, batch_tokens, "
         "window, lr, mixture"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"rope": {"base": 500}}}})",
         "model.attention.rope (c.json:1:52): unknown key: did you mean model.attention.angle or eval.rope?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"scale": {"kind": "logn"}}}})",
         "model.attention.scale (c.json:1:52): unknown key: did you mean model.attention.score, "
         "optimizer.muon.scale or eval.rope.scale?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"distance": {"kind": "alibi"}}}})",
         "model.attention.distance (c.json:1:52): unknown key: did you mean model.attention.score?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"softcap": 50}}})",
         "model.attention.softcap (c.json:1:52): unknown key: did you mean model.attention.score or "
         "model.head.softcap?"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"g": {"position": {"kind": "nope"}}}, "last": "g"}})",
         "model.layouts.g.position (c.json:1:56): unknown key: did you mean model.layouts.g.angle or "
         "model.layouts.g.angle_scaling?"},
        {R"({"stages": [{"steps": 1}], "system": {"dtype": "bf16"}})",
         "system.dtype (c.json:1:39): unknown key: known here are device, precision, threads, recompute, "
         "device_timeout"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"local": {"windw": 64}}, "pattern": ["local"]}})",
         "model.layouts.local.windw (c.json:1:60): unknown key: did you mean model.layouts.local.window?"},
        {R"({"stages": [{"steps": 1}], "stages": [{"steps": 2}]})",
         "stages (c.json:1:28): the key is given twice; first c.json:1:2"},
        {R"({"stages": [{"steps": 1}], "run": {"seed": 1, "name": "a", "seed": 2}})",
         "run.seed (c.json:1:60): the key is given twice; first c.json:1:36"},
        {R"({"stages": [{"steps": 1}], "batch.tokens": 8192})",
         "\"batch.tokens\" (c.json:1:28): unknown key: dotted paths are for --set; in a file, write one "
         "object inside the other"},
    });
}

TEST_CASE("wrong experiments: types") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"layers": "4"}})",
         "model.layers (c.json:1:48): expected an integer, got the string \"4\""},
        {R"({"stages": [{"steps": 1}], "model": {"layers": 4.0}})",
         "model.layers (c.json:1:48): expected an integer, got the real number 4: write 4"},
        {R"({"stages": [{"steps": 1}], "model": {"embedding_norm": 1}})",
         "model.embedding_norm (c.json:1:56): expected true or false, got the integer 1"},
        {R"({"stages": [{"steps": 1}], "run": {"name": 7}})",
         "run.name (c.json:1:44): expected a string, got the integer 7"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": 1024}})",
         "eval.lengths (c.json:1:48): expected a list of integers, got the integer 1024"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": [1024, "4096"]}})",
         "eval.lengths.1 (c.json:1:55): expected an integer or a count like \"2K\", got the string "
         "\"4096\""},
        {R"({"stages": [{"steps": 1}], "data": {"train": 5}})",
         "data.train (c.json:1:46): expected a list of strings, got the integer 5"},
        {R"({"stages": {"steps": 1}})", "stages (c.json:1:12): expected a list of objects, got an object"},
        {R"({"stages": [100]})", "stages.0 (c.json:1:13): expected an object, got the integer 100"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"muon": 0.02}})",
         "optimizer.muon (c.json:1:50): expected an object, got the real number 0.02"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"adam": {"eps": "1e-8"}}})",
         "optimizer.adam.eps (c.json:1:58): expected a number, got the string \"1e-8\""},
        {R"({"stages": [{"steps": 1}], "run": {"init_from": null}})",
         "run.init_from (c.json:1:49): expected a string, got null"},
    });
}

TEST_CASE("wrong experiments: ranges") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"layers": 0}})",
         "model.layers (c.json:1:48): must be 1 to 1024, got 0"},
        {R"({"stages": [{"steps": 1}], "model": {"width": 2}})",
         "model.width (c.json:1:47): must be 4 to 65536, got 2"},
        {R"({"stages": [{"steps": 1}], "model": {"vocab_size": 1}})",
         "model.vocab_size (c.json:1:52): must be 2 to 16777216, got 1"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"eps": 0}}})",
         "model.norm.eps (c.json:1:54): must be above 0 and at most 1e+30, got 0"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"head_dim": 512}}})",
         "model.attention.head_dim (c.json:1:64): must be 4 to 256, got 512"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"window": -1}}})",
         "model.attention.window (c.json:1:62): must be 0 to 1099511627776, got -1"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle_scaling": {"kind": "pi", "factor": -1}}}})",
         "model.attention.angle_scaling.factor (c.json:1:94): must be 0 to 1000000, got -1"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score_base": -1}}})",
         "model.attention.score_base (c.json:1:66): must be 0 to 1e+30, got -1"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"muon": {"momentum": 1}}})",
         "optimizer.muon.momentum (c.json:1:63): must be at least 0 and below 1, got 1"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"muon": {"iterations": 0}}})",
         "optimizer.muon.iterations (c.json:1:65): must be 1 to 20, got 0"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"adam": {"beta2": 1.0}}})",
         "optimizer.adam.beta2 (c.json:1:60): must be at least 0 and below 1, got 1"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"schedule": {"decay_fraction": -0.1}}})",
         "optimizer.schedule.decay_fraction (c.json:1:73): must be 0 to 1, got -0.1"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"clip_norm": -1}})",
         "optimizer.clip_norm (c.json:1:55): must be 0 to 1e+30, got -1"},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 0}})",
         "batch.tokens (c.json:1:48): must be 1 to 2147483648, got 0"},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 2147483649}})",
         "batch.tokens (c.json:1:48): must be 1 to 2147483648, got 2147483649"},
        {R"({"stages": [{"steps": 1}], "checkpoint": {"keep": 0}})",
         "checkpoint.keep (c.json:1:51): must be at least 1, got 0"},
        {R"({"stages": [{"steps": 1}], "run": {"seed": -1}})",
         "run.seed (c.json:1:44): must be at least 0, got -1"},
        {R"({"stages": [{"steps": 1}], "run": {"log_every": 0}})",
         "run.log_every (c.json:1:49): must be at least 1, got 0"},
        {R"({"stages": [{"steps": 1}], "seed": {"init": -2}})",
         "seed.init (c.json:1:45): must be at least -1, got -2"},
        {R"({"stages": [{"steps": 1}], "system": {"threads": 2000}})",
         "system.threads (c.json:1:50): must be 0 to 1024, got 2000"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": [0]}})",
         "eval.lengths.0 (c.json:1:49): must be 1 to 2147483648, got 0"},
        {R"({"stages": [{"steps": -5}]})", "stages.0.steps (c.json:1:23): must be at least 0, got -5"},
        {R"({"stages": [{"steps": 1, "context": 0}]})",
         "stages.0.context (c.json:1:37): must be 1 to 2147483648, got 0"},
        {R"({"stages": [{"steps": 1}], "model": {"head": {"z_loss": -0.1}}})",
         "model.head.z_loss (c.json:1:57): must be 0 to 1e+30, got -0.1"},
        {R"({"stages": [{"steps": 1}], "data": {"boundary": {"token": -2}}})",
         "data.boundary.token (c.json:1:59): must be -1 to 2147483647, got -2"},
    });
}

TEST_CASE("wrong experiments: words") {
    check_all({
        {R"({"stages": [{"steps": 1}], "system": {"device": "npu"}})",
         "system.device (c.json:1:49): expected cpu, gpu, auto or cuda, got the string \"npu\": did you mean "
         "cpu?"},
        {R"({"stages": [{"steps": 1}], "system": {"precision": "fp16"}})",
         "system.precision (c.json:1:52): expected fp32, bf16 or auto, got the string \"fp16\": did you "
         "mean fp32?"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"schedule": {"kind": "cosin"}}})",
         "optimizer.schedule.kind (c.json:1:63): expected cosine, constant or linear, got the string "
         "\"cosin\": did you mean cosine?"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"matrices": "adamw"}})",
         "optimizer.matrices (c.json:1:54): expected adam or muon, got the string \"adamw\": did you mean "
         "adam?"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"kind": "layernorm"}}})",
         "model.norm.kind (c.json:1:55): expected layer or rms, got the string \"layernorm\": did you "
         "mean layer?"},
        {R"({"stages": [{"steps": 1}], "model": {"mlp": {"kind": "ReLU2"}}})",
         "model.mlp.kind (c.json:1:54): expected relu2, gelu, gelu_tanh, swiglu or geglu_tanh, got the "
         "string \"ReLU2\""},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score_count": "visable"}}})",
         "model.attention.score_count (c.json:1:67): expected visible, auto, sequence or document, got the "
         "string \"visable\": did you mean visible?"},
        {R"({"stages": [{"steps": 1}], "eval": {"align": true}})",
         "eval.align (c.json:1:46): expected chunk or suffix, got true"},
        {R"({"stages": [{"steps": 1}], "data": {"shuffle": "yes"}})",
         "data.shuffle (c.json:1:48): expected random or none, got the string \"yes\""},
    });
}

TEST_CASE("wrong experiments: stages and batch") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"mlp": {"bias": true}}})",
         "model.mlp.bias (c.json:1:54): relu2 is one with its matrix product and has no bias; see "
         "model.mlp.kind (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"positions": 512}})",
         "model.positions (c.json:1:51): 512 learned positions are fewer than the 16384 tokens of the "
         "longest sequence; see stages (c.json:1:12)"},
        {R"({})", "stages (default): at least one stage is needed"},
        {R"({"stages": []})", "stages (c.json:1:12): at least one stage is needed"},
        {R"({"stages": [{}]})", "stages.0 (c.json:1:13): needs exactly one of steps and tokens, above zero"},
        {R"({"stages": [{"steps": 10, "tokens": 65536}]})",
         "stages.0 (c.json:1:13): needs exactly one of steps and tokens, above zero"},
        {R"({"stages": [{"steps": 0}]})",
         "stages.0 (c.json:1:13): needs exactly one of steps and tokens, above zero"},
        {R"({"stages": [{"steps": 1, "context": 1000}]})",
         "stages.0.context (c.json:1:37): 1000 does not divide the 65536 tokens of a step; see batch.tokens "
         "(default)"},
        {R"({"stages": [{"steps": 1, "batch_tokens": 1536}]})",
         "stages.0.context (default): 1024 does not divide the 1536 tokens of a step; see "
         "stages.0.batch_tokens (c.json:1:42)"},
        {R"({"stages": [{"steps": 1}], "batch": {"micro_tokens": 3072}})",
         "batch.micro_tokens (c.json:1:54): 3072 does not divide the 65536 tokens of a step; see "
         "batch.tokens (default)"},
        {R"({"stages": [{"steps": 1}], "batch": {"micro_tokens": 512}})",
         "batch.micro_tokens (c.json:1:54): 512 is not a multiple of the context 1024; see stages.0.context "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 4096, "micro_tokens": 8192}})",
         "batch.micro_tokens (c.json:1:70): 8192 does not divide the 4096 tokens of a step; see batch.tokens "
         "(c.json:1:48)"},
        {R"({"stages": [{"steps": 1, "context": 1024}, {"steps": 1, "context": 512, "batch_tokens": 16384}, {"steps": 1, "context": 3072, "batch_tokens": 3072}]})",
         "stages.2.context (c.json:1:121): the stages before consume 81920 tokens, not a multiple of this "
         "context 3072; choose their steps so that they do"},
        {R"({"stages": [{"steps": 3, "context": 512, "batch_tokens": 512}, {"steps": 4, "context": 1024}]})",
         "stages.1.context (c.json:1:88): the stages before consume 1536 tokens, not a multiple of this "
         "context 1024; choose their steps so that they do"},
        {R"({"stages": [{"steps": 1, "window": 256}]})",
         "stages.0.window (c.json:1:36): has no effect: no layer has a window; see model.attention.window "
         "(default)"},
        {R"({"stages": [{"steps": 1000000000000000}, {"tokens": 1152921504606846976}]})",
         "stages.0 (c.json:1:13): the stages up to here consume more than 1152921504606846976 tokens"},
        {R"({"stages": [{"steps": 9223372036854775807}]})",
         "stages.0 (c.json:1:13): the stages up to here consume more than 1152921504606846976 tokens"},
    });
}

TEST_CASE("wrong experiments: weights of losses") {
    const auto weight = [](const char* formula) {
        return fmt::format(R"({{"loss": {{"weight": "{}"}}, "stages": [{{"steps": 1, "context": 64}}]}})",
                           formula);
    };
    check_all({
        {weight("tanh(p/10)"), "no problem"},
        {weight("max_normal(8)*n"), "no problem"},
        {weight("tanh(t/10)"),
         "loss.weight (c.json:1:21): unknown name 't'; known are p, n, L, T, pi, e, egamma: tanh([t]/10)"},
        {weight("p +"), "loss.weight (c.json:1:21): the formula ends where an operand is expected: p +[]"},
        {weight("max_normal(n)"),
         "loss.weight (c.json:1:21): max_normal takes a number here: max_normal([n])"},
        {weight("1 - p/40"),
         "loss.weight (c.json:1:21): -0.025 at position 41: expected a number of at least 0, within f32; see "
         "stages (c.json:1:44)"},
        {weight("1/(p - 3)^2"),
         "loss.weight (c.json:1:21): inf at position 3: expected a number of at least 0, within f32; see "
         "stages (c.json:1:47)"},
        {weight("exp(2*p)"),
         "loss.weight (c.json:1:21): 1.2204e+39 at position 45: expected a number of at least 0, within f32; "
         "see stages (c.json:1:44)"},
        {weight("p > 100"),
         "loss.weight (c.json:1:21): 0 at every position below 64; see stages (c.json:1:43)"},
    });
}

TEST_CASE("wrong experiments: model contradictions") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"heads": 6, "kv_heads": 4}}})",
         "model.attention.kv_heads (c.json:1:76): 4 key/value heads do not divide 6 heads; see "
         "model.attention.heads (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"head_dim": 30}}})",
         "model.attention.head_dim (c.json:1:64): 30 is not a multiple of 4"},
        {R"({"stages": [{"steps": 1}], "model": {"pattern": ["local"]}})",
         "model.pattern (c.json:1:49): no layout is named 'local'; see model.layouts (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"local": {"window": 64}}, "pattern": ["loacl", "loacl"]}})",
         "model.pattern (c.json:1:87): no layout is named 'loacl': did you mean local?; see model.layouts "
         "(c.json:1:49)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"heads": 6, "kv_heads": 4}, "layouts": {"l": {}}, "last": "l"}})",
         "model.attention.kv_heads (c.json:1:76): 4 key/value heads do not divide 6 heads; see "
         "model.attention.heads (c.json:1:61)"},
        {R"({"stages": [{"steps": 1, "context": 96}], "batch": {"tokens": 1024, "micro_tokens": 128}})",
         "stages.0.context (c.json:1:37): 96 does not divide the 1024 tokens of a step; see batch.tokens "
         "(c.json:1:63)"},
        {R"({"stages": [{"steps": 1}], "model": {"last": "global"}})",
         "model.last (c.json:1:46): no layout is named 'global'; see model.layouts (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"local": {"window": 64}}}})",
         "model.layouts.local (c.json:1:59): no layer uses this layout; see model.pattern (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"layers": 1, "layouts": {"l": {"window": 64}, "g": {}}, "pattern": ["l", "g"]}})",
         "model.layouts.g (c.json:1:89): no layer uses this layout; see model.pattern (c.json:1:105)"},
        {R"({"stages": [{"steps": 1}], "model": {"layers": 1, "residual": {"unet": true, "values": "first"}}})",
         "model.residual.unet (c.json:1:72): needs at least two layers; see model.layers (c.json:1:48)\n"
         "model.residual.values (c.json:1:88): needs at least two layers; see model.layers (c.json:1:48)"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"thin": {"heads": 2}}, "last": "thin", "residual": {"values": "first"}}})",
         "model.residual.values (c.json:1:112): layer 3 has 128 value channels, layer 0 has 256; they must "
         "be equal to be mixed"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"odd": {"heads": 3, "kv_heads": 2, "head_dim": 6}}, "last": "odd"}})",
         "model.layouts.odd.kv_heads (c.json:1:82): 2 key/value heads do not divide 3 heads; see "
         "model.layouts.odd.heads (c.json:1:67)\n"
         "model.layouts.odd.head_dim (c.json:1:97): 6 is not a multiple of 4"},
    });
}

TEST_CASE("wrong experiments: knobs without effect") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "none", "eps": 0.001}}}})",
         "model.attention.qk.eps (c.json:1:82): has no effect: qk.kind is none; see model.attention.qk.kind "
         "(c.json:1:67)"},
        {R"({"stages": [{"steps": 1}], "model": {"head": {"softcap": {"cap": 30}}}})",
         "model.head.softcap.cap (c.json:1:66): has no effect: softcap.kind is none; see "
         "model.head.softcap.kind (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"head": {"softcap": {"kind": "tanh", "shift": 1, "temperature": 2}}}})",
         "model.head.softcap.shift (c.json:1:84): has no effect: softcap.kind is not sigmoid; see "
         "model.head.softcap.kind (c.json:1:67)\n"
         "model.head.softcap.temperature (c.json:1:102): has no effect: softcap.kind is not sigmoid; see "
         "model.head.softcap.kind (c.json:1:67)"},
        {R"({"stages": [{"steps": 1}], "model": {"head": {"tied": true}, "init": {"zero_head": false}}})",
         "model.init.zero_head (c.json:1:84): has no effect: head.tied is true; see "
         "model.head.tied (c.json:1:55)"},
        {R"({"stages": [{"steps": 1}], "model": {"layouts": {"g": {"params": {"tau": {"init": 5}}}}, "last": "g"}})",
         "model.layouts.g.params.tau (c.json:1:74): has no effect: score is null; see model.layouts.g.score "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"matrices": "adam", "muon": {"lr": 0.1}}})",
         "optimizer.muon.lr (c.json:1:77): has no effect: optimizer.matrices is not muon; see optimizer.matrices "
         "(c.json:1:54)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"adam": {"matrix_lr": 0.1}}})",
         "optimizer.adam.matrix_lr (c.json:1:64): has no effect: optimizer.matrices is not adam; see "
         "optimizer.matrices (default)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"muon": {"warmup_from": 0.5}}})",
         "optimizer.muon.warmup_from (c.json:1:66): has no effect: muon.warmup_steps is 0; see "
         "optimizer.muon.warmup_steps (default)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"schedule": {"kind": "cosine", "decay_fraction": 0.5}}})",
         "optimizer.schedule.decay_fraction (c.json:1:91): has no effect: schedule.kind is not linear; see "
         "optimizer.schedule.kind (c.json:1:63)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"schedule": {"kind": "constant", "final": 0.1}}})",
         "optimizer.schedule.final (c.json:1:84): has no effect: schedule.kind is constant; see "
         "optimizer.schedule.kind (c.json:1:63)"},
        {R"({"stages": [{"steps": 1}], "data": {"width": 2}})",
         "data.width (c.json:1:46): has no effect: data.format is not raw; see data.format "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "data": {"boundary": {"side": "after"}}})",
         "data.boundary.side (c.json:1:58): has no effect: boundary.token is -1; see "
         "data.boundary.token (default)"},
        {R"({"stages": [{"steps": 1}], "run": {"seed": 3}, "seed": {"init": 1, "data": 2}})",
         "run.seed (c.json:1:44): has no effect: seed.init and seed.data are both set; see seed.init "
         "(c.json:1:65)"},
        {R"({"stages": [{"steps": 1}], "eval": {"suffix_tokens": 64}})",
         "eval.suffix_tokens (c.json:1:54): has no effect: eval.align is not suffix; see eval.align (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"every": 0, "tokens": 65536}})",
         "eval.tokens (c.json:1:59): has no effect: eval.every is 0; see eval.every (c.json:1:46)"},
        {R"({"stages": [{"steps": 1}], "model": {"head": {"tied": true}}, "optimizer": {"adam": {"head_lr": 0.01, "weight_decay": 0.1}}})",
         "optimizer.adam.head_lr (c.json:1:97): has no effect: head.tied is true; see "
         "model.head.tied (c.json:1:55)\n"
         "optimizer.adam.weight_decay (c.json:1:119): has no effect: Muon has the matrices and the head is "
         "tied to the embedding; see model.head.tied (c.json:1:55)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"schedule": {"decay_fraction": 0, "final": 0.1}}})",
         "optimizer.schedule.final (c.json:1:85): has no effect: schedule.decay_fraction is 0; see "
         "optimizer.schedule.decay_fraction (c.json:1:73)"},
        {R"({"stages": [{"steps": 1, "batch_tokens": 8192}], "batch": {"tokens": 4096}})",
         "batch.tokens (c.json:1:70): has no effect: every stage has its own batch_tokens; see "
         "stages.0.batch_tokens (c.json:1:42)"},
    });
}

TEST_CASE("wrong experiments: data, evaluation and names") {
    check_all({
        {R"({"stages": [{"steps": 1}], "data": {"format": "raw", "document_mask": false}})",
         "data.width (default): raw shards need 2 or 4 bytes per token, not 0; see data.format "
         "(c.json:1:47)"},
        {R"({"stages": [{"steps": 1}], "data": {"format": "raw", "width": 3, "document_mask": false}})",
         "data.width (c.json:1:63): raw shards need 2 or 4 bytes per token, not 3; see data.format "
         "(c.json:1:47)"},
        {R"({"stages": [{"steps": 1}], "data": {"format": "raw", "width": 2}})",
         "data.boundary.token (default): raw shards do not say where documents begin: name the marker, or "
         "switch the document mask off; see data.document_mask (default)"},
        {R"({"stages": [{"steps": 1}], "data": {"boundary": {"token": 50256}}})",
         "data.boundary.token (c.json:1:59): token 50256 is outside the vocabulary of 257; see "
         "model.vocab_size (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": []}})",
         "eval.lengths (c.json:1:48): needs at least one length"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": [4096, 1024]}})",
         "eval.lengths (c.json:1:48): lengths must rise"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": [1024, 1024]}})",
         "eval.lengths (c.json:1:48): lengths must rise"},
        {R"({"stages": [{"steps": 1}], "eval": {"lengths": [1024, 3072, 4096]}})",
         "eval.lengths (c.json:1:48): 3072 does not divide the largest length 4096, so the two cannot "
         "score the same tokens"},
        {R"({"stages": [{"steps": 1}], "eval": {"tokens": 8192}})",
         "eval.tokens (c.json:1:47): 8192 tokens are fewer than one sequence of the largest length 16384; "
         "see eval.lengths (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"final_tokens": 16383}})",
         "eval.final_tokens (c.json:1:53): 16383 tokens are fewer than one sequence of the largest length "
         "16384; see eval.lengths (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"align": "suffix", "suffix_tokens": 2048}})",
         "eval.suffix_tokens (c.json:1:73): 2048 tokens do not fit the smallest length 1024; see "
         "eval.lengths (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"piece": 1000}})",
         "eval.piece (c.json:1:46): 1000 is not a multiple of 512"},
        {R"({"stages": [{"steps": 1}], "eval": {"piece": 512, "top_k": 64}, "system": {"device": "cpu"}})",
         "eval.piece (c.json:1:46): the keys with the highest scores are chosen in whole sequences: "
         "top_k must be 0; see eval.top_k (c.json:1:60)"},
        {R"({"stages": [{"steps": 1}], "eval": {"piece": 512}, "system": {"device": "cuda"}})",
         "eval.piece (c.json:1:46): a GPU reads whole sequences; see system.device "
         "(c.json:1:73)"},
        {R"({"stages": [{"steps": 1}], "run": {"name": ""}})",
         "run.name (c.json:1:44): '' is not a plain directory name"},
        {R"({"stages": [{"steps": 1}], "run": {"name": "a/b"}})",
         "run.name (c.json:1:44): 'a/b' is not a plain directory name"},
        {R"({"stages": [{"steps": 1}], "run": {"name": ".."}})",
         "run.name (c.json:1:44): '..' is not a plain directory name"},
    });
}

TEST_CASE("wrong experiments: overrides") {
    check_all({
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "model.width (--set model.width=wide): expected an integer, got the string \"wide\"",
         {"model.width=wide"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "model.heads (--set model.heads=8): unknown key: did you mean model.head, model.attention.heads or "
         "model.layouts.*.heads?",
         {"model.heads=8"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "stages.1.steps (--set stages.1.steps=4): stages is a list and has no element 1: its indices are 0 "
         "to 0",
         {"stages.1.steps=4"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "batch.micro_tokens (--set batch.micro_tokens=3072): 3072 does not divide the 8192 tokens of a "
         "step; see batch.tokens (c.json:1:48)",
         {"batch.micro_tokens=3072"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "stages.0.context (default): 1024 does not divide the 1000 tokens of a step; see batch.tokens "
         "(--set batch.tokens=1000)",
         {"batch.tokens=1000"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "eval.lengths (--set eval.lengths=[1024,1536]): 1024 does not divide the largest length 1536, so "
         "the two cannot score the same tokens",
         {"eval.lengths=[1024,1536]"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "config (--set model): expected path=value, such as model.width=256",
         {"model"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "config (--set =3): expected path=value, such as model.width=256",
         {"=3"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "model.attention (--set model.attention=4): expected an object, got the integer 4",
         {"model.attention=4"}},
        {R"({"stages": [{"steps": 1}], "batch": {"tokens": 8192}})",
         "system.device (--set system.device=tpu): expected cpu, gpu, auto or cuda, got the string \"tpu\": did "
         "you mean cpu?",
         {"system.device=tpu"}},
    });
}

TEST_CASE("wrong experiments: files") {
    check_all({
        {R"()", "c.json:1:1: expected a value, found the end of the text"},
        {R"({"stages": [{"steps": 1}],,})", "c.json:1:27: expected a key in double quotes, found ','"},
        {R"({"base": "missing.json"})", "base (c.json:1:10): there is no file missing.json"},
        {R"([1, 2])", "config (c.json:1:1): expected an object: a file begins with {"},
    });
}

TEST_CASE("a key without effect is a warning where --set gives it or selects the combination") {
    const auto warnings = [](const std::string& text, const std::vector<std::string>& overrides) {
        return config::load_config<train::Experiment>(
                   {.file = "c.json", .overrides = overrides, .text = text},
                   [](train::Experiment& e, config::Problems& p) { e.check(p); })
            .warnings;
    };
    using Lines = std::vector<std::string>;
    CHECK(
        warnings(R"({"stages": [{"steps": 1}]})", {"model.attention.params.tau.init=5"}) ==
        Lines{"model.attention.params.tau (--set model.attention.params.tau.init=5): has no effect: score is "
              "null; see model.attention.score (default)"});
    CHECK(
        warnings(
            R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "p_rope", "params": {"fraction": {"init": 0.25}}}}})",
            {"model.attention.angle=nope"}) ==
        Lines{
            "model.attention.params.fraction (c.json:1:94): has no effect: the angle has no such parameter; "
            "see model.attention.angle (--set model.attention.angle=nope)"});
    CHECK(
        warnings(R"({"stages": [{"steps": 1}]})", {"eval.rope.kind=yarn", "eval.lengths=[1K]"}) ==
        Lines{"eval.rope (--set eval.rope.kind=yarn): has no effect: no length is above the training context "
              "1024; see eval.lengths (--set eval.lengths=[1K])"});
    CHECK(warnings(R"({"stages": [{"steps": 1}]})", {"optimizer.qk_clip.limit=30"}).size() == 1);
    // A run's resolved config as the base of one that continues it at a longer context.
    const TempDir dir;
    const auto run = config::load_config<train::Experiment>(
        {.file = "r.json", .text = R"({"stages": [{"steps": 1, "context": 1024}]})"},
        [](train::Experiment& e, config::Problems& p) { e.check(p); });
    put(dir / "run.json", config::write_resolved(run.value));
    const std::string base = R"(], "base": ")" + (dir / "run.json") + "\"}";
    CHECK(warnings(R"({"stages": [{"steps": 1, "context": 1024})" + base, {}).empty());
    const Lines lines = warnings(R"({"stages": [{"steps": 1, "context": 4096})" + base, {});
    CHECK(lines ==
          Lines{"stages (c.json:1:12): the last stage trains at 4096 tokens, but model.train_context, the "
                "L_train of formulas, is inherited as 1024: set it, to 0 for the last stage's context"});
    CHECK(warnings(R"({"stages": [{"steps": 1, "context": 4096})" + base, {"model.train_context=0"}).empty());
}

TEST_CASE("wrong experiments: mixtures of sources") {
    check_all({
        {R"({"stages": [{"steps": 1}], "data": {"train": ["a"], "mixture": {"w": {"paths": ["b"]}}}})",
         "data.train (c.json:1:46): training tokens come from `train` or from `mixture`, not both; see "
         "data.mixture (c.json:1:64)"},
        {R"({"stages": [{"steps": 1}], "data": {"mixture": {"w": {"weight": 2}}}})",
         "data.mixture.w (c.json:1:54): a source needs `paths`"},
        {R"({"stages": [{"steps": 1}], "data": {"mixture": {"w": {"paths": ["b"], "weight": 0}}}})",
         "data.mixture (c.json:1:48): every source has weight 0"},
        {R"({"stages": [{"steps": 1}], "data": {"mixture": {"w": {"paths": ["b"]}, "x": {"paths": ["c"], "weight": 1e-4}}}})",
         "data.mixture (c.json:1:48): the weight 0.0001 is less than 1/4096 of the sum 1.0001"},
        {R"({"stages": [{"steps": 1, "mixture": {"w": 1}}]})",
         "stages.0.mixture (c.json:1:37): data.mixture has no sources to weigh; see data.mixture (default)"},
        {R"({"stages": [{"steps": 1, "mixture": [1]}], "data": {"mixture": {"w": {"paths": ["b"]}}}})",
         "stages.0.mixture (c.json:1:37): expected an object of names and weights"},
        {R"({"stages": [{"steps": 1, "mixture": {"v": 1, "w": -1}}], "data": {"mixture": {"w": {"paths": ["b"]}}}})",
         "stages.0.mixture.v (c.json:1:43): data.mixture has no source of this name, only w\n"
         "stages.0.mixture.w (c.json:1:51): expected a weight from 0 to 1e6"},
        {R"({"stages": [{"steps": 1, "mixture": {"w": 0}}], "data": {"mixture": {"w": {"paths": ["b"]}}}})",
         "stages.0.mixture (c.json:1:37): every source has weight 0"},
    });
}

TEST_CASE("wrong experiments: validation sets") {
    check_all({
        {R"({"stages": [{"steps": 1}], "data": {"val_sets": {"w": {}}}})",
         "data.val_sets.w (c.json:1:55): a validation set needs `paths`"},
        {R"({"stages": [{"steps": 1}], "data": {"val_sets": {"a/b": {"paths": ["c"]}}}})",
         "data.val_sets.\"a/b\" (c.json:1:50): a name is made of letters, digits, '_' and '-'"},
        {R"({"stages": [{"steps": 1}], "data": {"val_sets": {"w": {"paths": ["c"], "weight": 1}}}})",
         "data.val_sets.w.weight (c.json:1:72): unknown key: did you mean data.mixture.*.weight or loss.weight?"},
        {R"({"stages": [{"steps": 1}], "data": {"val_sets": ["c"]}})",
         "data.val_sets (c.json:1:49): expected an object of named variations, got a list"},
    });
}
