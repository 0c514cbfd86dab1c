// Contradictions between attention variants, and knobs that a variant does not have: what is said about each.
#include "config/field_info.h"
#include "model/registry.h"
#include "train/wrong.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("wrong variants: positions, queries and keys") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "rerope"}}})",
         "model.attention.angle (c.json:1:61): rerope changes another angle: see angle_scaling, or after "
         "training eval.angle"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "rop"}}})",
         "model.attention.angle (c.json:1:61): no angle is named rop: did you mean rope or nope?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": null}}})",
         "model.attention.angle (c.json:1:61): expected a formula, the name of an angle, or an object of near "
         "and growth"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"window": 64, "chunk": 64}}})",
         "model.attention.chunk (c.json:1:75): a layer has a window or chunks, not both; see "
         "model.attention.window (c.json:1:62)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "cosa"}}}})",
         "model.attention.qk.kind (c.json:1:67): cosines need a law of dot: gammalogn, cosa_const, "
         "cosa_logn, qknorm_g or a formula; see model.attention.score "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "cosa"}, "score": "logn"}}})",
         "model.attention.qk.kind (c.json:1:67): cosines need a law of dot: gammalogn, cosa_const, "
         "cosa_logn, qknorm_g or a formula; see model.attention.score "
         "(c.json:1:85)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "cosa"}, "score": "gammalogn"}}})",
         "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "qk_l2", "eps": 0.1}}}})",
         "model.attention.qk.eps (c.json:1:83): has no effect: qk.kind is qk_l2; see "
         "model.attention.qk.kind (c.json:1:67)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "none", "eps": 0.1}}}})",
         "model.attention.qk.eps (c.json:1:82): has no effect: qk.kind is none; see model.attention.qk.kind "
         "(c.json:1:67)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"eps_per_head": true}}}})",
         "model.attention.qk.eps_per_head (c.json:1:75): has no effect: qk.kind is not qk_rms_eps; see "
         "model.attention.qk.kind (default)"},
    });
}

TEST_CASE("wrong variants: factors of the number of keys") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "llama4", "params": {"scale": {"init": "parity"}}}}})",
         "model.attention.params.scale.init (c.json:1:100): parity: the factor of z at n = 512 (half of L) does "
         "not grow with scale; no value makes it that of the unscaled model: [parity]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "sqrt_abc", "params": {"b": {"init": 0.1}, "c": {"init": 0.5}}}}})",
         "model.attention.score (c.json:1:61): the factor of z is not a number at n = 1; scores and derivatives "
         "must be finite in f32 at every n and t up to 16384"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "cosa"}, "score": "cosa_logn", "score_base": 0.12}}})",
         "model.attention.score_base (c.json:1:112): has no effect: a law of dot has no base; see "
         "model.attention.score (c.json:1:85)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "cosa"}, "score": "gammalogn", "score_base": 0.12}}})",
         "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score_base": 0.12}}})", "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score_count": "visible"}}})",
         "model.attention.score_count (c.json:1:67): has no effect: nothing depends on n; see "
         "model.attention.score (default)"},
        {R"({"stages": [{"steps": 1}], "data": {"document_mask": false}, "model": {"attention": {"score": "logn", "score_count": "document"}}})",
         "model.attention.score_count (c.json:1:118): document needs the document mask; see "
         "data.document_mask (c.json:1:54)"},
    });
}

TEST_CASE("wrong variants: laws of the distance") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"params": {"tau": {"init": 5}}}}})",
         "model.attention.params.tau (c.json:1:70): has no effect: score is null; see model.attention.score "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "nope", "score": "alibi", "params": {"tau": {"init": 5}}}}})",
         "model.attention.params.tau (c.json:1:105): has no effect: neither angle nor score has this parameter, "
         "only slope; see model.attention.score (c.json:1:78)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "scale_invariant", "params": {"tau": {"init": 0}}}}})",
         "model.attention.score (c.json:1:61): the factor of z is not a number at t = 0; scores and derivatives "
         "must be finite in f32 at every n and t up to 16384"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "si_interp", "params": {"kappa": {"init": 1}, "b": {"init": 0.1}, "c": {"init": 0.1}}}}})",
         "model.attention.score (c.json:1:61): the factor of z is the root of -2.21888 at n = 1; scores and "
         "derivatives must be finite in f32 at every n and t up to 16384"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ["sqrt2logn", "si_interp"], "params": {"r": {"init": 1}}}}})",
         "no problem"},
    });
}

TEST_CASE("wrong variants: modules and the residual stream") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"conv": {"queries": false}}}})",
         "model.attention.conv.queries (c.json:1:72): has no effect: conv.size is 0; see "
         "model.attention.conv.size (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"conv": {"size": 3, "queries": false, "keys": false, "values": false}}}})",
         "model.attention.conv.size (c.json:1:69): nothing is convolved; see model.attention.conv.queries "
         "(c.json:1:83)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"output_norm": {"gain": true}}}})",
         "model.attention.output_norm.gain (c.json:1:76): has no effect: output_norm.kind is none; see "
         "model.attention.output_norm.kind (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"output_norm": {"kind": "position"}}}, "data": {"document_mask": false}})",
         "model.attention.output_norm.factor (default): position needs a formula of p; see "
         "model.attention.output_norm.kind (c.json:1:76)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"output_norm": {"kind": "head", "factor": "p"}}}})",
         "model.attention.output_norm.factor (c.json:1:94): has no effect: output_norm.kind is not position; "
         "see model.attention.output_norm.kind (c.json:1:76)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"output_norm": {"kind": "position", "factor": "1/p"}}}, "data": {"document_mask": false}})",
         "model.attention.output_norm.factor (c.json:1:98): inf at position 0"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"output_norm": {"kind": "position", "factor": "p"}}}})",
         "model.attention.output_norm.kind (c.json:1:76): position counts from the start of the sequence, "
         "where a document mask hides tokens; see data.document_mask (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"gate": {"doubled": false}}}})",
         "model.attention.gate.doubled (c.json:1:72): has no effect: gate.kind is none; see "
         "model.attention.gate.kind (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking", "sink": "zero"}}})",
         "model.attention.sink (c.json:1:92): stick-breaking needs no sink: it may leave weight unassigned; "
         "see model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking", "score": "forgetting"}}})",
         "model.attention.score (c.json:1:93): stick-breaking has no biases by token"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking", "score": "si_interp"}}})",
         "model.attention.score (c.json:1:93): si_interp defines scores up to a constant per query, "
         "which stick-breaking does not ignore; see model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k": 64}, "system": {"device": "auto"}})",
         "eval.top_k (c.json:1:46): no GPU computes it: system.device must be cpu; see system.device "
         "(c.json:1:72)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k": 64, "top_k_block": 24}, "system": {"device": "cpu"}})",
         "eval.top_k_block (c.json:1:65): 24 does not divide top_k, 64; see eval.top_k (c.json:1:46)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k": 64, "top_k_by": "index"}, "system": {"device": "cpu"}})",
         "eval.top_k_by (c.json:1:62): no layer has an index of keys; see model.attention.index_heads "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k_by": "index"}, "model": {"attention": {"index_heads": 2}}, "system": {"device": "cpu"}})",
         "eval.top_k_by (c.json:1:49): has no effect: eval.top_k is 0; see eval.top_k (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k": 8, "top_k_block": 4, "top_k_by": "index"}, "model": {"attention": {"index_heads": 2}}, "system": {"device": "cpu"}})",
         "eval.top_k_by (c.json:1:79): an index chooses keys one by one: top_k_block must be 0; see "
         "eval.top_k_block (c.json:1:64)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"index_heads": 2}}, "system": {"device": "auto"}})",
         "model.attention.index_heads (c.json:1:67): no GPU trains an index of keys: system.device must be "
         "cpu; see system.device (c.json:1:93)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking", "index_heads": 2}}, "system": {"device": "cpu"}})",
         "model.attention.index_heads (c.json:1:99): an index of keys learns from the softmax; see "
         "model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"only": ["*.mlp.*"], "qk_clip": {"limit": 1}}, "model": {"attention": {"qk": {"kind": "none"}}}})",
         "optimizer.only (c.json:1:50): qk_clip changes queries and keys, whether they are trained or not; "
         "see optimizer.qk_clip.limit (c.json:1:84)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k_block": 8}})",
         "eval.top_k_block (c.json:1:52): has no effect: eval.top_k is 0; see eval.top_k (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k": 64}, "system": {"device": "cpu"}, "model": {"attention": {"normaliser": "stick_breaking"}}})",
         "eval.top_k (c.json:1:46): only a softmax is computed over the largest scores; see "
         "model.attention.normaliser (c.json:1:118)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"latent": {"shared": 16}}}})",
         "model.attention.latent.shared (c.json:1:73): has no effect: latent.width is 0; see "
         "model.attention.latent.width (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "none"}, "latent": {"width": 64}}}})",
         "model.attention.latent.shared (default): positions turn the shared channels alone: without any, "
         "angle must be nope; see model.attention.angle (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"latent": {"width": 64, "shared": 16}}}})",
         "model.attention.qk.kind (default): with a latent it must be none: a generation keeps latents, and "
         "the norm of a key cannot be had from its latent without the key (optimizer.qk_clip bounds scores "
         "instead); see model.attention.latent.width (c.json:1:72)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"kv_heads": 2, "qk": {"kind": "none"}, "latent": {"width": 64, "shared": 16}}}})",
         "model.attention.kv_heads (c.json:1:64): with a latent every head has a key and a value of its own; "
         "see model.attention.latent.width (c.json:1:111)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"bias": "qkv", "qk": {"kind": "none"}, "latent": {"width": 64, "shared": 16}}}})",
         "model.attention.bias (c.json:1:60): projections of a latent have no biases; see "
         "model.attention.latent.width (c.json:1:111)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"conv": {"size": 3}, "qk": {"kind": "none"}, "latent": {"width": 64, "shared": 16}}}})",
         "model.attention.conv.size (c.json:1:69): a generation keeps latents, not the keys and values that "
         "a convolution reads; see model.attention.latent.width (c.json:1:117)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "none"}, "latent": {"width": 64, "shared": 64}}}})",
         "model.attention.latent.shared (c.json:1:110): 64 of 64 channels leave none for the latent; see "
         "model.attention.head_dim (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "none"}, "latent": {"width": 640, "shared": 4}}}})",
         "model.attention.latent.width (c.json:1:96): 640 and 4 shared channels are more than the 640 that a "
         "generation can read; see model.attention.latent.shared (c.json:1:111)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"qk": {"kind": "none"}, "latent": {"width": 64, "shared": 10}}}})",
         "model.attention.latent.shared (c.json:1:110): 10 is not a multiple of 4"},
        {R"({"stages": [{"steps": 1}], "model": {"residual": {"values": "first"}, "attention": {"qk": {"kind": "none"}, "latent": {"width": 64, "shared": 16}}}})",
         "model.attention.latent.width (c.json:1:129): a generation keeps latents, not the values that a "
         "value residual mixes; see model.residual.values (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gdn", "window": 8}}})",
         "model.attention.window (c.json:1:78): has no effect: mixer gdn does not read it; see "
         "model.attention.mixer (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gdn"}, "residual": {"values": "first"}}})",
         "model.attention.mixer (c.json:1:61): value residuals mix the values of attention, which this layer "
         "has not; see model.residual.values (c.json:1:92)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gau", "gate": {"kind": "headwise"}}}})",
         "model.attention.gate.kind (c.json:1:85): a gated attention unit has a gate of its own; see "
         "model.attention.mixer (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gau", "kv_heads": 2}}})",
         "model.attention.kv_heads (c.json:1:80): a gated attention unit has values for each of its "
         "heads; see model.attention.mixer (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gau", "bias": "all"}}})",
         "model.attention.bias (c.json:1:76): the matrices of a gated attention unit have no biases; "
         "see model.attention.mixer (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gau", "conv": {"size": 3}}}})",
         "model.attention.conv.size (c.json:1:85): a gated attention unit has no convolution; see "
         "model.attention.mixer (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gau"}, "mlp": {"hidden": 64}}})",
         "model.mlp.hidden (c.json:1:87): has no effect: no layer has an MLP; see "
         "model.attention.mixer (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gau", "qk": {"kind": "qkv_rms_w"}}, "norm": {"placement": "hybrid"}}})",
         "model.attention.mixer (c.json:1:61): placement hybrid norms the stream for the MLP, which a gated "
         "attention unit has not; see model.norm.placement (c.json:1:120)"},
        {R"({"stages": [{"steps": 1}], "model": {"loops": 2, "residual": {"unet": true}}})",
         "model.residual.unet (c.json:1:71): takes one output of a layer, which has one in every pass; see "
         "model.loops (c.json:1:47)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking", "window": 1}}})",
         "model.attention.window (c.json:1:94): a stick-breaking query does not see its own key, so a window "
         "of 1 holds none; see model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking", "chunk": 1}}})",
         "model.attention.chunk (c.json:1:93): a stick-breaking query does not see its own key, so a chunk "
         "of 1 holds none; see model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "stick_breaking"}}, "eval": {"rope": {"kind": "rerope"}, "lengths": [4096]}})",
         "eval.rope.kind (c.json:1:112): stick-breaking attention has no far pairs with angles of their own; "
         "see model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"post_norm": true}}})",
         "model.attention.post_norm (c.json:1:65): a norm after a module needs output matrices that do not "
         "start at zero; see model.init.zero_projections (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"placement": "peri"}}})",
         "model.norm.placement (c.json:1:60): a norm after a module needs output matrices that do not start "
         "at zero; see model.init.zero_projections (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"placement": "peri"}, "init": {"zero_projections": false}, "attention": {"post_norm": true}}})",
         "model.attention.post_norm (c.json:1:133): has no effect: placement peri has a norm after every "
         "module; see model.norm.placement (c.json:1:60)"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"placement": "hybrid"}}})",
         "model.attention.qk.kind (default): placement hybrid has no norm before attention; qk.kind must be "
         "qkv_rms_w or qkv_ln; see model.norm.placement (c.json:1:60)"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"placement": "hybrid"}, "attention": {"qk": {"kind": "qkv_ln"}, "pre_norm": false}}})",
         "model.attention.pre_norm (c.json:1:123): has no effect: placement hybrid has no norm before "
         "attention; see model.norm.placement (c.json:1:60)"},
        {R"({"stages": [{"steps": 1}], "model": {"norm": {"out_gain": 0.5}}})",
         "model.norm.out_gain (c.json:1:59): has no effect: there is no norm after a module; see "
         "model.norm.placement (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"width": 8, "attention": {"gate": {"kind": "sparse"}}}})",
         "model.attention.gate.kind (c.json:1:81): reads 12 channels; width is 8; see model.width "
         "(c.json:1:47)"},
        {R"({"stages": [{"steps": 1}], "model": {"width": 8, "residual": {"smear": true}}})",
         "model.residual.smear (c.json:1:72): reads 12 channels; width is 8; see model.width (c.json:1:47)"},
        {R"({"stages": [{"steps": 1}], "model": {"residual": {"backout": 4}}})",
         "model.residual.backout (c.json:1:62): there is no layer 4; see model.layers (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"residual": {"value_embeddings": 3}}})",
         "model.residual.value_embeddings (c.json:1:71): 3 tables serve the first 3 and the last 3 layers; "
         "there are 4; see model.layers (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"residual": {"value_embeddings": 1}, "layouts": {"wide": {"heads": 8}}, "last": "wide"}})",
         "model.residual.value_embeddings (c.json:1:71): layer 3 has 512 value channels, layer 0 has 256; "
         "they must be equal to be mixed"},
        {R"({"stages": [{"steps": 1}], "model": {"train_context": 512}})",
         "model.train_context (c.json:1:55): has no effect: no formula uses it; see "
         "model.attention.score (default)"},
    });
}

TEST_CASE("wrong variants: fields that a mixer does not read, and mixers that no GPU computes") {
    const json::Value defaults = config::to_json(config::describe<model::AttentionConfig>());
    const auto said = [](std::string_view mixer, const std::string& fields, const char* device) {
        return problems(
            {fmt::format(R"({{"stages": [{{"steps": 1}}], "model": {{"attention": {{"mixer": "{}"{}}}}}, )"
                         R"("system": {{"device": "{}"}}}})",
                         mixer, fields, device),
             ""});
    };
    for (const model::MixerType& type : model::mixer_types()) {
        model::AttentionConfig layout;
        layout.mixer = type.name();
        for (const model::MixerType& other : model::mixer_types())
            for (const std::string_view field : other.reads) {
                if (model::reads(layout, field)) continue;
                const std::string path(field.substr(1)), name = path.substr(0, path.find('.'));
                json::Value value = *defaults.find(name);
                if (name != path) {
                    const std::string inner = path.substr(name.size() + 1);
                    value = json::Value().set(inner, *value.find(inner));
                }
                const std::string message =
                    said(type.name(),
                         fmt::format(", \"{}\": {}", name, json::write(value, json::Style::compact)), "cpu");
                CAPTURE(message);
                CHECK(message.find("model.attention." + path + " (c.json") != message.npos);
                CHECK(message.find(fmt::format("has no effect: mixer {} does not read it", type.name())) !=
                      message.npos);
            }
        const std::string on_gpu = said(type.name(), "", "cuda");
        CAPTURE(on_gpu);
        CHECK((on_gpu == "no problem") == type.part.no_gpu.empty());
        CHECK(on_gpu.find(type.part.no_gpu) != on_gpu.npos);
    }
}

TEST_CASE("wrong variants: the delta rule") {
    const auto passed = [](const std::string& more) {
        return R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "kda", "delta": {"start": "previous"}}}, )" +
               more + "}";
    };
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gdn", "delta": {"value_dim": 6}}}})",
         "model.attention.delta.value_dim (c.json:1:91): 6 is not a multiple of 4"},
        {passed(R"("system": {"device": "cpu"})"), "no problem"},
        {passed(R"("system": {"device": "cpu"}, "batch": {"micro_tokens": 1024})"),
         "model.attention.delta.start (c.json:1:87): has no effect: a micro-batch is one sequence; see "
         "batch.micro_tokens (c.json:1:157)"},
        {passed(R"("system": {"device": "cuda"})"),
         "model.attention.delta.start (c.json:1:87): no GPU passes states on: system.device must be cpu; "
         "see system.device (c.json:1:123)"},
    });
}

TEST_CASE("wrong variants: positions scaled in training") {
    const auto scaling = [](const std::string& keys, const std::string& more = "") {
        return R"({"stages": [{"steps": 1}], "model": {"attention": {"angle_scaling": {)" + keys + "}}}" +
               more + "}";
    };
    check_all({
        {scaling(R"("factor": 4)"),
         "model.attention.angle_scaling.factor (c.json:1:80): has no effect: angle_scaling.kind is "
         "none; see model.attention.angle_scaling.kind (default)"},
        {scaling(R"("kind": "rerope")"),
         "model.attention.angle_scaling.kind (c.json:1:78): expected none, pi, ntk, yarn or llama3, got "
         "the string \"rerope\""},
        {scaling(R"("kind": "pi")"),
         "model.attention.angle_scaling.kind (c.json:1:78): needs factor or original_context; see "
         "model.attention.angle_scaling.factor (default)"},
        {scaling(R"("kind": "pi", "factor": 0.5)"),
         "model.attention.angle_scaling.factor (c.json:1:94): 0.5 is below 1: it would shorten the "
         "range"},
        {scaling(R"("kind": "pi", "original_context": 4096)"),
         "model.attention.angle_scaling.original_context (c.json:1:104): 4096 is above the 1024 tokens "
         "trained on: it would shorten the range"},
        {scaling(R"("kind": "ntk", "factor": 4, "fast": 8)"),
         "model.attention.angle_scaling.fast (c.json:1:106): has no effect: angle_scaling.kind is not yarn or "
         "llama3; see model.attention.angle_scaling.kind (c.json:1:78)"},
        {scaling(R"("kind": "llama3", "factor": 4, "truncate": false)"),
         "model.attention.angle_scaling.truncate (c.json:1:113): has no effect: angle_scaling.kind is not yarn; see "
         "model.attention.angle_scaling.kind (c.json:1:78)"},
        {scaling(R"("kind": "yarn", "factor": 4, "slow": 40)"),
         "model.attention.angle_scaling.slow (c.json:1:107): 40 is not below fast, 32"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "nope", "angle_scaling": {"kind": "pi", "factor": 4}}}})",
         "model.attention.angle_scaling.kind (c.json:1:95): has no effect: angle is nope; see "
         "model.attention.angle (c.json:1:61)"},
        {scaling(R"("kind": "pi", "factor": 4)", R"(, "eval": {"rope": {"kind": "yarn"}})"),
         "eval.rope.kind (c.json:1:126): yarn counts the turns of pairs over the context before scaling, and "
         "the angles are trained with pi: choose pi"},
        {scaling(R"("kind": "pi", "factor": 4)", R"(, "eval": {"rope": {"kind": "ntk"}})"), "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "log1p(p)*1", "angle_scaling": {"kind": "pi", "factor": 4}}}})",
         "model.attention.angle_scaling.kind (c.json:1:101): theta: the trained angle is not proportional "
         "to p: [p * (theta/k)]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "p*500^(-2*m/d)*1", "angle_scaling": {"kind": "pi", "factor": 4}}}})",
         "no problem"},
    });
}

TEST_CASE("wrong variants: layers that an evaluation changes") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "log1p(p)*1"}}, "eval": {"rope": {"kind": "yarn"}}})",
         "eval.rope.kind (c.json:1:103): theta: the trained angle is not proportional to p: "
         "[p * (theta*ramp/k + theta*(1 - ramp))]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "p*zzz"}}})",
         "model.attention.angle (c.json:1:61): unknown name 'zzz'; known are p, m, d, l, layers, L, pi, e, "
         "egamma: p*[zzz]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "log(p)*1"}}})",
         "model.attention.angle (c.json:1:61): not a finite number: near(0) of pair 0 is -inf"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "nope", "params": {"base": {"init": 500}}}}})",
         "model.attention.params.base (c.json:1:88): has no effect: the angle has no such parameter; see "
         "model.attention.angle (c.json:1:61)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "logn", "params": {"fraction": {"init": 1}}}}})",
         "model.attention.params.fraction (c.json:1:92): has no effect: the angle has no such parameter; see "
         "model.attention.angle (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"angle": "p", "params": {"b": {"init": 1}}}}})",
         "model.attention.params.b (c.json:1:82): has no effect: score is null; see model.attention.score "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"angle": "p*thta"}})",
         "eval.angle (c.json:1:46): unknown name 'thta': did you mean theta?: p*[thta]"},
        {R"({"stages": [{"steps": 1}], "eval": {"angle": "pi", "rope": {"kind": "pi"}}})",
         "eval.angle (c.json:1:46): the angles are changed twice: leave one of them out; see eval.rope.kind "
         "(c.json:1:69)"},
        {R"({"stages": [{"steps": 1}], "eval": {"angle": "theta/(p - 5)*1"}})",
         "eval.angle (c.json:1:46): not a finite number at length 4096: near(5) of pair 0 is inf"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "layers": ["gobal"]}}, "model": {"layouts": {"global": {}, "local": {"window": 64}}, "pattern": ["local", "global"]}})",
         "eval.rope.layers (c.json:1:72): no layout is named 'gobal': did you mean global or local?; see "
         "model.layouts (c.json:1:106)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "layers": "ful"}}})",
         "eval.rope.layers (c.json:1:72): no layout is named 'ful': did you mean full or all?; see "
         "model.layouts (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "layers": ["x"]}}})",
         "eval.rope.layers (c.json:1:72): no layout is named 'x': known are attention; see model.layouts "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "layers": [1]}}})",
         "eval.rope.layers (c.json:1:72): expected \"full\", \"all\" or a list of layout names"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"layers": "all"}}})",
         "eval.rope.layers (c.json:1:56): has no effect: kind and scale are none, eval.angle and eval.score "
         "null, so nothing is changed; see eval.rope.kind (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn"}}, "model": {"attention": {"window": 64}}})",
         "eval.rope.layers (default): no layer attends to a whole sequence above the training context: all, "
         "or layout names, choose others; see model.pattern (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "layers": []}}})",
         "eval.rope.layers (c.json:1:72): no layer is of these layouts; see model.pattern (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "layers": ["g"]}}, "model": {"layouts": {"g": {"angle": "nope"}}, "last": "g"}})",
         "eval.rope.layers (c.json:1:72): no layer of those chosen (3) has rotary positions; see "
         "eval.rope.kind (c.json:1:54)"},
        // The layer that clip_logn does not touch may have a scale of its own.
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn"}}, "model": {"layouts": {"l": {"window": 64, "score": "logn"}}, "last": "l"}})",
         "no problem"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn", "layers": "all"}}, "model": {"layouts": {"l": {"window": 64, "score": "logn"}}, "last": "l"}})",
         "eval.rope.scale (c.json:1:55): clip_logn is for models whose scores do not already grow with n; "
         "see model.layouts.l.score (c.json:1:138)"},
    });
}

TEST_CASE("clip_logn counts keys: score_count has an effect where it acts, and only there") {
    check_all({
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn"}}, "model": {"attention": {"score_count": "visible"}}})",
         "no problem"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn"}}, "model": {"layouts": {"l": {"window": 64, "score_count": "visible"}}, "last": "l"}})",
         "model.layouts.l.score_count (c.json:1:127): has no effect: nothing depends on n; see "
         "model.layouts.l.score (default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn", "layers": "all"}}, "model": {"layouts": {"l": {"window": 64, "score_count": "visible"}}, "last": "l"}})",
         "no problem"},
    });
}

TEST_CASE("wrong variants: entmax") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"entmax_alpha": 1.2}}})",
         "model.attention.entmax_alpha (c.json:1:68): has no effect: attention.normaliser is not entmax; see "
         "model.attention.normaliser (default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "entmax", "entmax_alpha": 1}}, "system": {"device": "cpu"}})",
         "model.attention.entmax_alpha (c.json:1:92): must be 1.01 to 2, got 1"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "entmax", "entmax_alpha": 2, "entmax_learned": true}}, "system": {"device": "cpu"}})",
         "model.attention.entmax_alpha (c.json:1:92): a learned alpha starts between 1.02 and 1.98; see "
         "model.attention.entmax_learned (c.json:1:113)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "entmax"}}, "system": {"device": "auto"}})",
         "model.attention.normaliser (c.json:1:66): no GPU computes entmax: system.device must be cpu; see "
         "system.device (c.json:1:99)"},
        {R"({"stages": [{"steps": 1}], "eval": {"top_k": 64}, "system": {"device": "cpu"}, "model": {"attention": {"normaliser": "entmax"}}})",
         "eval.top_k (c.json:1:46): only a softmax is computed over the largest scores; see "
         "model.attention.normaliser (c.json:1:118)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "entmax", "index_heads": 2}}, "system": {"device": "cpu"}})",
         "model.attention.index_heads (c.json:1:91): an index of keys learns from the softmax; see "
         "model.attention.normaliser (c.json:1:66)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"normaliser": "entmax", "sink": "learned", "score": "forgetting", "window": 1}}, "system": {"device": "cpu"}})",
         "no problem"},
    });
}

TEST_CASE("a learned factor may start at any value, over any base") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * r", "params": {"r": {"init": 0.12, "learn": "layer"}}, "score_base": 1}}})",
         "no problem"},
    });
}

TEST_CASE("wrong variants: training and evaluation") {
    check_all({
        {R"({"stages": [{"steps": 1}], "optimizer": {"qk_clip": {"limit": 30}}})",
         "optimizer.qk_clip.limit (c.json:1:63): has no effect: every layer norms its queries or keys, fades its channels, or "
         "has no softmax; see model.attention.qk.kind (default)"},
        {R"({"stages": [{"steps": 1}], "optimizer": {"qk_clip": {"measure": "absolute"}}})",
         "optimizer.qk_clip.measure (c.json:1:65): has no effect: qk_clip.limit is 0; see optimizer.qk_clip.limit "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn"}, "lengths": [1024]}})",
         "eval.rope (c.json:1:45): has no effect: no length is above the training context 1024; see "
         "eval.lengths (c.json:1:74)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "ntk"}}, "model": {"attention": {"angle": "nope"}}})",
         "eval.rope.kind (c.json:1:54): has no effect: no layer has rotary positions; see "
         "model.attention.angle (c.json:1:96)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "ntk", "window": 64}}})",
         "eval.rope.window (c.json:1:71): has no effect: rope.kind is not rerope or leaky_rerope; see "
         "eval.rope.kind (c.json:1:54)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"kind": "yarn", "scale": "yarn_temp"}}})",
         "eval.rope.scale (c.json:1:71): has no effect: yarn already carries yarn_temp; see eval.rope.kind "
         "(c.json:1:54)"},
        {R"({"stages": [{"steps": 1}], "eval": {"rope": {"scale": "clip_logn"}}, "model": {"attention": {"score": "logn"}}})",
         "eval.rope.scale (c.json:1:55): clip_logn is for models whose scores do not already grow with n; "
         "see model.attention.score (c.json:1:103)"},
        {R"({"stages": [{"steps": 1}], "positions": {"range": 512}})",
         "positions.range (c.json:1:51): a sequence has 1024 positions, more than 512; see stages (c.json:1:12)"},
        {R"({"stages": [{"steps": 1}], "positions": {"range": 4096}, "model": {"attention": {"angle": "nope"}}})",
         "positions.range (c.json:1:51): has no effect: no layer has an angle; see model.attention.angle (c.json:1:91)"},
        {R"({"stages": [{"steps": 1}], "positions": {"range": 4096}, "model": {"attention": {"angle": "xpos"}}})",
         "model.attention.angle (c.json:1:91): lengths that grow with the position need positions that follow each "
         "other; see positions.range (c.json:1:51)"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"terms": {"s": "softplus(x)"}, "angle": "p + between(s)*10^(-m)"}}})x",
         "model.attention.angle (c.json:1:92): the position p has no place next to between(s)"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"terms": {"s": "softplus(x)"}, "angle": "between(s)^2"}}})x",
         "model.attention.angle (c.json:1:92): an angle of between(s) is between(s) times a number for each pair"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"terms": {"s": "x"}, "angle": "0*between(s)"}}})x",
         "model.attention.angle (c.json:1:82): turns nothing"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"terms": {"s": "softplus(x)"}, "angle": "between(s)*2^-m", "score": "z + between(s)"}}})x",
         "model.attention.score (c.json:1:120): the term s turns heads: give the score a term of its own"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"terms": {"s": "2"}, "angle": "between(s)*2^-m"}}})x",
         "model.attention.terms.s (c.json:1:67): a term is a formula of x: [2]"},
        {R"x({"stages": [{"steps": 1}], "positions": {"range": 4096}, "model": {"attention": {"terms": {"s": "softplus(x)"}, "angle": "between(s)*2^-m"}}})x",
         "model.attention.angle (c.json:1:122): the tokens decide how far it turns, not their positions; see positions.range (c.json:1:51)"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"terms": {"s": "softplus(x)"}, "angle": "between(s)*2^-m"}}, "eval": {"rope": {"kind": "rerope"}, "lengths": [4096]}})x",
         "eval.rope.kind (c.json:1:139): an angle of between(s) is between(s) times a number for each pair"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"terms": {"s": "softplus(x)"}, "angle": "between(s)*2^-m", "index_heads": 2}}})x",
         "model.attention.index_heads (c.json:1:155): an index of keys turns by positions, not by sums of tokens; see model.attention.angle (c.json:1:121)"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z_between(w)"}}})x",
         "model.attention.score (c.json:1:90): z_between takes the name of a term: terms.w is missing"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z_between(2*w)", "terms": {"w": "log_sigmoid(x)"}}}})x",
         "model.attention.score (c.json:1:90): z_between takes the name of a term alone; write what is summed into the term: z_between([2]*w)"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z + z_between(w)", "terms": {"w": "log_sigmoid(x)"}}}})x",
         "model.attention.score (c.json:1:90): z next to z_between(w): a score has one of them"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z_between(w) + between(w)", "terms": {"w": "log_sigmoid(x)"}}}})x",
         "model.attention.score (c.json:1:90): the term w fades channels: give the score a term of its own"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z_between(w) + z_between(v)", "terms": {"w": "log_sigmoid(x)", "v": "log_sigmoid(x)"}}}})x",
         "model.attention.score (c.json:1:90): channels fade by one term: z_between(w) and z_between(v)"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": ["logn", "z_between(w)"], "terms": {"w": "log_sigmoid(x)"}}}})x",
         "model.attention.score.1 (c.json:1:99): z is the score so far: z_between(w) belongs into the first formula"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z_between(w)", "terms": {"w": "softplus(x)"}}}})x",
         "model.attention.terms.w (c.json:1:121): what fades channels is at most 0 for every x, as log_sigmoid(x) is; at x = 0 it is 0.6931"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "20*tanh(z_between(w)/20)", "terms": {"w": "log_sigmoid(x)"}}}})x",
         "model.attention.score (c.json:1:90): z_between(w) has no softcap"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z_between(w) - m*t", "terms": {"w": "log_sigmoid(x)"}, "params": {"m": {"init": 0.1, "learn": "head"}}}}})x",
         "model.attention.score (c.json:1:90): z_between(w) stands next to tables by distance that do not learn"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "wall", "normaliser": "entmax"}}})x",
         "model.attention.score (c.json:1:90): z_between(w) needs the softmax"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "wall", "index_heads": 2}}})x",
         "model.attention.index_heads (c.json:1:113): an index of keys learns from scores whose channels do not fade; see model.attention.score (c.json:1:90)"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "z", "terms": {"z_between": "log_sigmoid(x)"}}}})x",
         "model.attention.terms.z_between (c.json:1:118): this is the name of a function: choose another"},
        {R"x({"stages": [{"steps": 1}], "eval": {"score": "z_between(w)", "lengths": [4096]}})x",
         "eval.score (c.json:1:46): z is the score so far: z_between(w) belongs into the first formula"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "wall"}}, "eval": {"top_k": 64}})x",
         "eval.top_k (c.json:1:118): not over scores whose channels fade; see model.attention.score (c.json:1:90)"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cpu"}, "model": {"attention": {"score": "wall"}}, "eval": {"rope": {"kind": "rerope"}, "lengths": [4096]}})x",
         "eval.rope.kind (c.json:1:126): keys whose channels fade have no far pairs with angles of their own; see model.attention.score (c.json:1:90)"},
        {R"x({"stages": [{"steps": 1}], "system": {"device": "cuda"}, "model": {"attention": {"score": "wall"}}})x",
         "model.attention.score (c.json:1:91): no GPU fades channels: system.device must be cpu; see system.device (c.json:1:49)"},
        {R"x({"stages": [{"steps": 1}], "model": {"attention": {"differential": true}}})x",
         "model.attention.differential (c.json:1:68): each of the 4 key/value heads needs an even number of the 4 heads; see model.attention.kv_heads (default)"},
        {R"({"stages": [{"steps": 1}], "window_warmup": {"to": 256}})",
         "window_warmup.to (c.json:1:52): has no effect: no layer has a window; see model.attention.window "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "window_warmup": {"from": 256}})",
         "window_warmup.from (c.json:1:54): has no effect: window_warmup.to is 0; see window_warmup.to "
         "(default)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"window": 512}}, "window_warmup": {"to": 64}})",
         "window_warmup.from (default): is above the last window; see window_warmup.to (c.json:1:93)"},
        {R"({"stages": [{"steps": 1, "window": 64}], "model": {"attention": {"window": 512}}, "window_warmup": {"to": 256}})",
         "stages.0.window (c.json:1:36): windows follow the stages or the warmup, not both; see "
         "window_warmup.to (c.json:1:107)"},
    });
}

TEST_CASE("biases that a mixer has not were taken without a word") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"mixer": "gdn", "bias": "qkv"}}})",
         "model.attention.bias (c.json:1:76): has no effect: mixer gdn does not read it; see "
         "model.attention.mixer (c.json:1:61)"},
    });
}
