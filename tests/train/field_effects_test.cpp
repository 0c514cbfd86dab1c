// Every config field changes something observable: a field without an entry fails, and an entry without effect.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "train/laboratory.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Effect {
    std::string path;
    Overrides change;  // what is set; the path itself is the first
    Seen seen = Seen::metrics;
    Overrides context = {};  // what makes the field matter; also set in the run compared with
};

const Overrides raw{"data.train=[\"@/raw.bin\"]", "data.val=[\"@/raw.bin\"]", "data.document_mask=false"};
const Overrides mixture_b{"data.train=[]", "data.mixture.b.paths=[\"@/data/val_*.bin\"]"};
const Overrides mixture{mixture_b[0], mixture_b[1], "data.mixture.a.paths=[\"@/data/train_*.bin\"]"};
const Overrides raw_u16{raw[0], raw[1], raw[2], "data.format=raw", "data.width=2"};
const Overrides layouts{"model.layers=3", "model.layouts={\"a\":{\"window\":4},\"b\":{}}",
                        "model.pattern=[\"a\",\"b\"]"};
const Overrides tanh{"model.head.softcap.kind=tanh"};
const Overrides sigmoid{"model.head.softcap.kind=sigmoid"};
const Overrides adam{"optimizer.matrices=adam"};
const Overrides needle{"data.task.kind=needle", "data.document_mask=false", "data.task.digits=3",
                       "stages=[{\"steps\":2,\"context\":64}]", "batch.micro_tokens=64"};
const Overrides needle_ids{needle[0],          needle[1], needle[3], needle[4], "data.task.form=ids",
                           "data.task.ids=128"};
const Overrides niah{"data.task.kind=niah_single",
                     "data.document_mask=false",
                     "data.task.form=ids",
                     "data.task.ids=128",
                     "stages=[{\"steps\":2,\"context\":128}]",
                     "batch.micro_tokens=128"};
const Overrides spiky{"stages=[{\"steps\":12,\"context\":16}]", "train.spike.threshold=0.1",
                      "train.spike.window=4", "train.spike.min_steps=2"};
const Overrides skipping{spiky[0], spiky[1], spiky[2], spiky[3], "train.spike.action=skip"};
const Overrides overflow{"optimizer.adam.embedding_lr=1000", "optimizer.adam.head_lr=1000",
                         "optimizer.muon.lr=1000",           "model.embedding_norm=false",
                         "model.head.z_loss=1e26",           "stages.0.lr=1000"};

// "model.attention.score=logn", by its last part.
Overrides attention(std::initializer_list<const char*> settings) {
    Overrides all;
    for (const char* setting : settings) all.push_back(std::string("model.attention.") + setting);
    return all;
}

const Overrides formula = attention({"score=z - c*t/8", "params.c.init=1"});
const Overrides by_position{"model.attention.output_norm.kind=position",
                            "model.attention.output_norm.factor=p+1", "data.document_mask=false"};
const Overrides learned_formula = attention({"score=z - c*t/8", "params.c.init=1", "params.c.learn=head"});
const Overrides vector_formula =
    attention({"score=z - lookup(c, t/4)", "params.c.init=1", "params.c.learn=head", "params.c.size=2"});

Effect attention_effect(const std::string& key, const std::string& value, Seen seen = Seen::metrics,
                        Overrides context = {}) {
    const std::string path = "model.attention." + key;
    return {path, {path + "=" + value}, seen, std::move(context)};
}

// Of the parameter c of a formula.
Effect parameter_effect(const std::string& key, const std::string& value, Seen seen, Overrides context) {
    return {"model.attention.params.*." + key,
            {"model.attention.params.c." + key + "=" + value},
            seen,
            std::move(context)};
}

void add_terms(std::vector<Effect>& all) {
    const Overrides term = attention({"score=z*u_q", "terms.u.value=x*x"});
    for (const auto& [key, value] : {std::pair("value", "sin(x)"), {"init", "1"}, {"zero_init", "true"}})
        all.push_back({std::string("model.attention.terms.*.") + key,
                       {std::string("model.attention.terms.u.") + key + "=" + value},
                       Seen::metrics,
                       term});
}

// Every field of attention again, as a field of a layout.
void add_layouts(std::vector<Effect>& all) {
    const std::string from = "model.attention.", to = "model.layouts.l.";
    const auto moved = [&](std::string setting) {
        if (setting.starts_with(from)) setting.replace(0, from.size(), to);
        return setting;
    };
    for (size_t i = 0, end = all.size(); i < end; ++i) {
        Effect e = all[i];
        if (!e.path.starts_with(from)) continue;
        e.path = "model.layouts.*." + e.path.substr(from.size());
        for (std::string& setting : e.change) setting = moved(setting);
        for (std::string& setting : e.context) setting = moved(setting);
        e.context.insert(e.context.begin(), {"model.layouts={\"l\":{}}", "model.last=l"});
        all.push_back(e);
    }
}

std::vector<Effect> delta_effects() {
    return {
        attention_effect("delta.value_dim", "16", Seen::weights, attention({"mixer=gdn"})),
        attention_effect("delta.conv", "2", Seen::weights, attention({"mixer=kda"})),
        attention_effect("delta.additive", "true", Seen::weights, attention({"mixer=gdn"})),
        attention_effect("delta.negative_eigenvalues", "true", Seen::weights, attention({"mixer=gdn"})),
        attention_effect("delta.start", "previous", Seen::metrics, attention({"mixer=gdn"})),
    };
}

std::vector<Effect> system_effects() {
    return {
        {"system.device", {"system.device=auto"}, Seen::device_line},
        {"system.precision", {"system.precision=bf16"}, Seen::device_line},
        {"system.threads", {"system.threads=2"}, Seen::device_line},
        {"system.recompute", {"system.recompute=true"}, Seen::plan},
        {"system.device_timeout", {"system.device_timeout=5"}, Seen::patience},
    };
}

std::vector<Effect> output_effects() {
    return {
        attention_effect("source", "Doe 2026", Seen::methods, formula),
        attention_effect("differential", "true", Seen::weights, attention({"kv_heads=1"})),
        attention_effect("output_norm.kind", "head"),
        attention_effect("output_norm.gain", "true", Seen::weights, attention({"output_norm.kind=all"})),
        attention_effect("output_norm.factor", "p+2", Seen::metrics, by_position),
        attention_effect("gate.kind", "sparse", Seen::weights),
        attention_effect("gate.doubled", "false", Seen::metrics, attention({"gate.kind=headwise"})),
        attention_effect("gate.zero_init", "false", Seen::metrics, attention({"gate.kind=elementwise"})),
    };
}

std::vector<Effect> eval_effects() {
    return {
        {"eval.pick", {"eval.pick=head"}, Seen::validation},
        {"eval.align", {"eval.align=suffix"}, Seen::validation},
        {"eval.suffix_tokens", {"eval.suffix_tokens=3"}, Seen::validation, {"eval.align=suffix"}},
        {"eval.min_document", {"eval.min_document=120"}, Seen::validation, {"eval.final_tokens=512"}},
        {"eval.batch_tokens", {"eval.batch_tokens=256"}, Seen::plan},
        {"eval.piece",
         {"eval.piece=512"},
         Seen::plan,
         {"eval.lengths=[64,1024]", "eval.final_tokens=1024",
          "data.val=[\"@/data/train_*.bin\",\"@/data/val_*.bin\"]"}},
    };
}

std::vector<Effect> listed_effects() {
    const auto kind = [](const char* section, const char* name) {
        return attention({(std::string(section) + ".kind=" + name).c_str()});
    };
    const Overrides half = attention({"angle_scaling.kind=pi", "angle_scaling.factor=2"});
    const Overrides yarn =
        attention({"angle_scaling.kind=yarn", "angle_scaling.original_context=16", "angle_scaling.fast=2",
                   "angle_scaling.slow=0.25", "params.base.init=30"});
    const Overrides windowed = attention({"window=8"});
    const Overrides warmup{windowed[0], "window_warmup.to=8", "window_warmup.from=1",
                           "window_warmup.multiple=1"};
    const Overrides latent = attention({"qk.kind=none", "latent.width=8", "latent.shared=4"});
    const Overrides long_eval{"eval.lengths=[16,64]"};
    const auto rope = [](std::initializer_list<const char*> settings) {
        Overrides all;
        for (const char* setting : settings) all.push_back(std::string("eval.rope.") + setting);
        return all;
    };
    Overrides some_windowed = layouts;
    some_windowed.push_back("eval.rope.kind=pi");
    std::vector<Effect> all{
        {"run.name", {"run.name=another"}, Seen::directory},
        {"run.dir", {"run.dir=@/elsewhere"}, Seen::directory},
        {"run.seed", {"run.seed=2"}},
        {"run.init_from", {"run.init_from=@/source"}},
        {"run.init_other_tokenizer",
         {"run.init_other_tokenizer=true"},
         Seen::outcome,
         {"run.init_from=@/foreign"}},
        {"run.log_every", {"run.log_every=2"}},
        {"run.events", {"run.events=false"}, Seen::events},
        {"seed.init", {"seed.init=2"}},
        {"seed.data", {"seed.data=2"}},
        {"model.layers", {"model.layers=3"}, Seen::weights},
        {"model.loops", {"model.loops=2"}},
        {"model.width", {"model.width=20"}, Seen::weights},
        {"model.vocab_size", {"model.vocab_size=300"}, Seen::weights},
        {"model.embedding_norm", {"model.embedding_norm=false"}},
        {"model.positions", {"model.positions=64"}, Seen::weights},
        {"model.mlp.bias", {"model.mlp.bias=true"}, Seen::weights, {"model.mlp.kind=gelu"}},
        attention_effect("bias", "qkv", Seen::weights),
        {"model.norm.kind", {"model.norm.kind=layer"}},
        {"model.norm.gain", {"model.norm.gain=true"}, Seen::weights},
        {"model.norm.eps", {"model.norm.eps=0.1"}},
        {"model.mlp.kind", {"model.mlp.kind=gelu"}},
        {"model.mlp.hidden", {"model.mlp.hidden=32"}, Seen::weights},
        {"model.residual.x0", {"model.residual.x0=true"}, Seen::weights},
        {"model.residual.unet", {"model.residual.unet=true"}, Seen::weights},
        {"model.residual.values", {"model.residual.values=first"}},
        {"model.head.tied", {"model.head.tied=true"}, Seen::weights},
        {"model.head.z_loss", {"model.head.z_loss=0.1"}},
        {"model.head.softcap.kind", {"model.head.softcap.kind=tanh"}},
        {"model.head.softcap.cap", {"model.head.softcap.cap=3"}, Seen::metrics, tanh},
        {"model.head.softcap.shift", {"model.head.softcap.shift=1"}, Seen::metrics, sigmoid},
        {"model.head.softcap.temperature", {"model.head.softcap.temperature=2"}, Seen::metrics, sigmoid},
        {"model.init.matrix_bound", {"model.init.matrix_bound=0.5"}},
        {"model.init.embedding_std", {"model.init.embedding_std=0.1"}, Seen::weights},
        {"model.init.zero_projections", {"model.init.zero_projections=true"}},
        {"model.init.zero_head", {"model.init.zero_head=true"}},
        {"model.attention.heads", {"model.attention.heads=1"}, Seen::weights},
        {"model.attention.kv_heads", {"model.attention.kv_heads=1"}, Seen::weights},
        {"model.attention.head_dim", {"model.attention.head_dim=12"}, Seen::weights},
        {"model.attention.window", {"model.attention.window=4"}},
        attention_effect("angle_scaling.kind", "ntk", Seen::metrics, half),
        attention_effect("angle_scaling.factor", "3", Seen::metrics, half),
        attention_effect("angle_scaling.original_context", "4", Seen::metrics, yarn),
        attention_effect("angle_scaling.fast", "0.5", Seen::metrics, yarn),
        attention_effect("angle_scaling.slow", "0.5", Seen::metrics, yarn),
        attention_effect("angle_scaling.attention_factor", "2", Seen::metrics, yarn),
        attention_effect("angle_scaling.truncate", "false", Seen::metrics, yarn),
        {"model.attention.qk.kind", {"model.attention.qk.kind=none"}},
        {"model.attention.qk.eps", {"model.attention.qk.eps=0.1"}},
        attention_effect("qk.eps_per_head", "true", Seen::weights, kind("qk", "qk_rms_eps")),
        attention_effect("chunk", "4"),
        attention_effect("sink", "learned"),
        attention_effect("index_heads", "2", Seen::weights),
        attention_effect("normaliser", "stick_breaking"),
        attention_effect("entmax_alpha", "2", Seen::metrics, attention({"normaliser=entmax"})),
        attention_effect("entmax_learned", "true", Seen::weights, attention({"normaliser=entmax"})),
        attention_effect("latent.width", "12", Seen::weights, latent),
        attention_effect("latent.shared", "4", Seen::weights,
                         attention({"angle=nope", "qk.kind=none", "latent.width=8"})),
        attention_effect("latent.queries", "8", Seen::weights, latent),
        attention_effect("mixer", "gdn", Seen::weights),
        attention_effect("simplicial.window", "2", Seen::weights, attention({"mixer=simplicial"})),
        attention_effect("simplicial.second_window", "2", Seen::weights, attention({"mixer=simplicial"})),
        attention_effect("pre_norm", "false"),
        attention_effect("post_norm", "true"),
        attention_effect("conv.size", "3", Seen::weights),
        attention_effect("conv.queries", "false", Seen::weights, attention({"conv.size=3"})),
        attention_effect("conv.keys", "false", Seen::weights, attention({"conv.size=3"})),
        attention_effect("conv.values", "false", Seen::weights, attention({"conv.size=3"})),
        attention_effect("score_base", "0.9"),
        attention_effect("score_count", "sequence", Seen::metrics, attention({"score=logn"})),
        {"model.train_context", {"model.train_context=64"}, Seen::metrics, attention({"score=entinv"})},
        {"model.norm.placement", {"model.norm.placement=peri"}, Seen::weights},
        {"model.norm.out_gain", {"model.norm.out_gain=0.5"}, Seen::metrics, {"model.norm.placement=peri"}},
        {"model.residual.value_embeddings", {"model.residual.value_embeddings=1"}, Seen::weights},
        {"model.residual.smear", {"model.residual.smear=true"}, Seen::weights},
        {"model.residual.backout", {"model.residual.backout=0"}},
        attention_effect("score", "z*log(n + 1)"),
        attention_effect("angle", "p*30^(-2*m/d)"),
        parameter_effect("init", "3", Seen::metrics, formula),
        parameter_effect("learn", "head", Seen::weights, formula),
        parameter_effect("positive", "true", Seen::weights, learned_formula),
        parameter_effect("range", "[0.1,0.5]", Seen::metrics, formula),
        parameter_effect("size", "4", Seen::weights, vector_formula),
        parameter_effect("lr", "10", Seen::weights, learned_formula),
        {"model.pattern", {"model.pattern=[\"b\",\"a\"]"}, Seen::metrics, layouts},
        {"model.last", {"model.last=b"}, Seen::metrics, layouts},
        {"data.train", {"data.train=[\"@/data/val_*.bin\"]"}},
        {"data.mixture.*.paths", {"data.mixture.b.paths=[\"@/data/train_*.bin\"]"}, Seen::metrics, mixture_b},
        {"data.mixture.*.weight", {"data.mixture.b.weight=9"}, Seen::metrics, mixture},
        {"data.val", {"data.val=[\"@/data/train_*.bin\"]"}, Seen::validation},
        {"data.val_sets.*.paths",
         {"data.val_sets.b.paths=[\"@/data/train_*.bin\"]"},
         Seen::validation,
         {"data.val_sets.b.paths=[\"@/data/val_*.bin\"]"}},
        {"data.format", {"data.format=raw", "data.width=2"}, Seen::outcome, raw},
        {"data.width", {"data.width=4"}, Seen::outcome, raw_u16},
        {"data.document_mask", {"data.document_mask=false"}},
        {"data.boundary.token", {"data.boundary.token=32"}},
        {"data.boundary.side", {"data.boundary.side=after"}, Seen::metrics, {"data.boundary.token=32"}},
        {"data.shuffle", {"data.shuffle=none"}},
        {"data.blocks", {"data.blocks=documents"}},
        {"data.task.kind", needle, Seen::metrics, {needle[1], needle[3], needle[4]}},
        {"data.task.seed", {"data.task.seed=5"}, Seen::metrics, needle},
        {"data.task.haystack", {"data.task.haystack=noise"}, Seen::metrics, needle},
        {"data.task.keys", {"data.task.keys=uuids"}, Seen::metrics, niah},
        {"data.task.values", {"data.task.values=words"}, Seen::metrics, niah},
        {"data.task.form", {"data.task.form=ids", needle_ids.back()}, Seen::metrics, needle},
        {"data.task.phrase", {"data.task.phrase=key:"}, Seen::metrics, needle},
        {"data.task.digits", {"data.task.digits=5"}, Seen::metrics, needle},
        {"data.task.ids_first", {"data.task.ids_first=20"}, Seen::metrics, needle_ids},
        {"data.task.ids", {"data.task.ids=140"}, Seen::metrics, needle_ids},
        {"data.task.samples", {"data.task.samples=7"}, Seen::validation, needle},
        {"stages.*.steps", {"stages.1.steps=3"}},
        {"stages.*.tokens",
         {"stages=[{\"tokens\":512,\"context\":32}]"},
         Seen::metrics,
         {"stages=[{\"tokens\":256,\"context\":32}]"}},
        {"stages.*.context", {"stages.1.context=16"}},
        {"stages.*.batch_tokens", {"stages.1.batch_tokens=256"}},
        {"stages.*.window", {"stages.1.window=2"}, Seen::metrics, {"model.attention.window=8"}},
        {"stages.*.lr", {"stages.1.lr=0.5"}},
        {"stages.*.mixture", {"stages.1.mixture={\"a\":1}"}, Seen::metrics, mixture},
        {"window_warmup.to",
         {"window_warmup.to=8", "window_warmup.from=1", "window_warmup.multiple=1"},
         Seen::metrics,
         windowed},
        {"window_warmup.from", {"window_warmup.from=4"}, Seen::metrics, warmup},
        {"window_warmup.multiple", {"window_warmup.multiple=3"}, Seen::metrics, warmup},
        {"batch.tokens", {"batch.tokens=256"}},
        {"batch.micro_tokens", {"batch.micro_tokens=64"}, Seen::plan, {"eval.batch_tokens=64"}},
        {"optimizer.matrices", adam, Seen::moments},
        {"optimizer.qk_clip.limit", {"optimizer.qk_clip.limit=0.01"}, Seen::weights, kind("qk", "none")},
        {"optimizer.qk_clip.measure",
         {"optimizer.qk_clip.measure=absolute"},
         Seen::metrics,
         {kind("qk", "none")[0], "optimizer.qk_clip.limit=0.01"}},
        {"optimizer.clip_norm", {"optimizer.clip_norm=0.001"}, Seen::moments},
        {"train.spike.action", {"train.spike.action=skip"}, Seen::weights, spiky},
        {"train.spike.threshold", {"train.spike.threshold=1e9"}, Seen::metrics, spiky},
        {"train.spike.window", {"train.spike.window=12"}, Seen::moments, skipping},
        {"train.spike.min_steps", {"train.spike.min_steps=4"}, Seen::metrics, spiky},
        {"optimizer.only", {"optimizer.only=[\"*.mlp.*\"]"}, Seen::weights},
        {"optimizer.max_bad_steps", {"optimizer.max_bad_steps=0"}, Seen::outcome, overflow},
        {"optimizer.muon.lr", {"optimizer.muon.lr=0.01"}, Seen::weights},
        {"optimizer.muon.momentum", {"optimizer.muon.momentum=0.5"}, Seen::weights},
        {"optimizer.muon.nesterov", {"optimizer.muon.nesterov=false"}, Seen::weights},
        {"optimizer.muon.form", {"optimizer.muon.form=averaged"}, Seen::moments},
        {"optimizer.muon.warmup_from",
         {"optimizer.muon.warmup_from=0.5"},
         Seen::weights,
         {"optimizer.muon.warmup_steps=3"}},
        {"optimizer.muon.warmup_steps", {"optimizer.muon.warmup_steps=3"}, Seen::weights},
        {"optimizer.muon.scale", {"optimizer.muon.scale=moonshot"}, Seen::weights},
        {"optimizer.muon.swapped_mlp", {"optimizer.muon.swapped_mlp=true"}, Seen::weights},
        {"optimizer.muon.joined_qkv", {"optimizer.muon.joined_qkv=true"}, Seen::weights},
        {"optimizer.muon.weight_decay", {"optimizer.muon.weight_decay=0.5"}, Seen::weights},
        {"optimizer.muon.iterations", {"optimizer.muon.iterations=3"}, Seen::weights},
        {"optimizer.adam.matrix_lr", {"optimizer.adam.matrix_lr=0.01"}, Seen::weights, adam},
        {"optimizer.adam.embedding_lr", {"optimizer.adam.embedding_lr=0.1"}, Seen::weights},
        {"optimizer.adam.head_lr", {"optimizer.adam.head_lr=0.1"}, Seen::weights},
        {"optimizer.adam.scalar_lr",
         {"optimizer.adam.scalar_lr=0.1"},
         Seen::weights,
         {"model.norm.gain=true"}},
        {"optimizer.adam.beta1", {"optimizer.adam.beta1=0.5"}, Seen::weights},
        {"optimizer.adam.beta2", {"optimizer.adam.beta2=0.5"}, Seen::weights},
        {"optimizer.adam.eps", {"optimizer.adam.eps=0.1"}, Seen::weights},
        {"optimizer.adam.weight_decay", {"optimizer.adam.weight_decay=0.5"}, Seen::weights},
        {"optimizer.schedule.kind", {"optimizer.schedule.kind=constant"}},
        {"optimizer.schedule.warmup_steps", {"optimizer.schedule.warmup_steps=2"}},
        {"optimizer.schedule.decay_fraction", {"optimizer.schedule.decay_fraction=1"}},
        {"optimizer.schedule.final", {"optimizer.schedule.final=0.5"}},
        {"eval.every", {"eval.every=2"}, Seen::validation},
        {"eval.lengths", {"eval.lengths=[32,64]"}, Seen::validation},
        {"eval.tokens", {"eval.tokens=256"}, Seen::validation, {"eval.every=2", "eval.tokens=128"}},
        {"eval.final_tokens", {"eval.final_tokens=128"}, Seen::validation},
        {"probe.every", {"probe.every=2"}, Seen::validation},
        {"probe.lengths", {"probe.lengths=[32]"}, Seen::validation, {"probe.every=2"}},
        {"probe.tokens", {"probe.tokens=128"}, Seen::validation, {"probe.every=2"}},
        {"batch.leaves", {"batch.leaves=1"}, Seen::weights},
        {"loss.weight", {"loss.weight=tanh(p/10)"}},
        {"positions.range", {"positions.range=64"}},
        {"parallel.shard_optimizer", {"parallel.shard_optimizer=false"}, Seen::rank_plan},
        {"parallel.reduction", {"parallel.reduction=all_reduce"}, Seen::rank_plan},
        {"parallel.timeout", {"parallel.timeout=30"}, Seen::patience},
        {"parallel.first_timeout", {"parallel.first_timeout=30"}, Seen::patience},
        {"eval.top_k", {"eval.top_k=2"}, Seen::validation},
        {"eval.top_k_block", {"eval.top_k_block=2"}, Seen::validation, {"eval.top_k=4"}},
        {"eval.top_k_by",
         {"eval.top_k_by=index"},
         Seen::validation,
         {"eval.top_k=4", "model.attention.index_heads=2"}},
        {"eval.score", {"eval.score=2*z"}, Seen::validation, long_eval},
        {"eval.angle", {"eval.angle=p*theta/2"}, Seen::validation, long_eval},
        {"eval.rope.kind", rope({"kind=yarn"}), Seen::validation, long_eval},
        {"eval.rope.factor", rope({"factor=8"}), Seen::validation, rope({"kind=pi"})},
        {"eval.rope.window", rope({"window=4"}), Seen::validation, rope({"kind=rerope"})},
        {"eval.rope.leak", rope({"leak=8"}), Seen::validation, rope({"kind=leaky_rerope"})},
        {"eval.rope.exponent", rope({"exponent=0.9"}), Seen::validation, rope({"kind=ntk_mixed"})},
        {"eval.rope.scale", rope({"scale=clip_logn"}), Seen::validation, {}},
        {"eval.rope.layers", rope({"layers=all"}), Seen::validation, some_windowed},
        {"checkpoint.every", {"checkpoint.every=3"}, Seen::checkpoints},
        {"checkpoint.keep", {"checkpoint.keep=3"}, Seen::checkpoints, {"checkpoint.every=1"}},
        {"checkpoint.at_start", {"checkpoint.at_start=true"}, Seen::checkpoints},
        {"checkpoint.keep_optimizer", {"checkpoint.keep_optimizer=false"}, Seen::moments},
    };
    add_terms(all);
    for (const std::vector<Effect>& more :
         {delta_effects(), eval_effects(), output_effects(), system_effects()})
        all.insert(all.end(), more.begin(), more.end());
    add_layouts(all);
    return all;
}

const std::vector<Effect>& effects() {
    static const std::vector<Effect> all = listed_effects();
    return all;
}

}  // namespace

TEST_CASE("every field has an entry that says what it changes, and no entry is for a field that is gone") {
    std::set<std::string> listed, known;
    for (const Effect& e : effects()) {
        CHECK_MESSAGE(listed.insert(e.path).second, e.path);
        std::string path = e.change.front().substr(0, e.change.front().find('='));
        CHECK(config::find_field(config::describe<train::Experiment>(), path) != nullptr);
    }
    for (const std::string& path : config::all_paths(config::describe<train::Experiment>())) {
        known.insert(path);
        CHECK_MESSAGE(listed.count(path), path << ": say in the table above what this field changes");
    }
    for (const std::string& path : listed) CHECK_MESSAGE(known.count(path), path);
}

TEST_CASE("changing a field changes what its entry says") {
    Laboratory laboratory;
    std::map<Overrides, std::map<Seen, std::string>> plain;  // runs compared with, by their overrides
    for (const Effect& e : effects()) {
        CAPTURE(e.path);
        if (!plain.count(e.context)) plain[e.context] = laboratory.observe(e.context);
        Overrides changed = e.change;
        const auto key = [](const std::string& setting) { return setting.substr(0, setting.find('=') + 1); };
        for (const std::string& setting : e.context)
            if (key(setting) != key(e.change.front())) changed.push_back(setting);
        const std::map<Seen, std::string> with = laboratory.observe(changed), without = plain[e.context];
        if (e.seen != Seen::outcome && e.seen != Seen::device_line)  // those may be an error
            for (const auto& seen : {with, without})
                REQUIRE_MESSAGE(seen.at(Seen::outcome) == "0", seen.at(Seen::outcome));
        const bool changes = with.at(e.seen) != without.at(e.seen);
        CHECK(changes);
    }
}

TEST_CASE("clip_logn: whether n counts positions or visible keys changes losses") {
    Laboratory laboratory;
    const Overrides clip{"eval.rope.scale=clip_logn", "eval.rope.layers=all", "model.attention.window=40",
                         "data.document_mask=false", "eval.lengths=[16,64]"};
    Overrides visible = clip;
    visible.push_back("model.attention.score_count=visible");
    CHECK(laboratory.observe(clip).at(Seen::validation) != laboratory.observe(visible).at(Seen::validation));
}

TEST_CASE("what is said to change no result changes none") {
    Laboratory laboratory;
    const auto plain = laboratory.observe({});
    for (const char* change :
         {"system.threads=2", "run.log_every=1", "checkpoint.every=1", "checkpoint.keep=5",
          "eval.batch_tokens=128", "run.name=other", "checkpoint.at_start=true", "run.events=false"}) {
        CAPTURE(change);
        const auto with = laboratory.observe({change});
        for (const Seen seen : {Seen::metrics, Seen::validation, Seen::weights, Seen::moments})
            CHECK((with.at(seen) == plain.at(seen)));
    }
}

TEST_CASE("every config under configs/ loads without a problem and plans a run") {
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(LONGREACH_CONFIGS)) {
        if (entry.path().extension() != ".json") continue;
        if (entry.path().parent_path().filename() == "reproduce") continue;  // sweeps, not experiments
        CAPTURE(entry.path().string());
        ++count;
        const auto config = config::load_config<train::Experiment>(
            {.file = entry.path().string(), .overrides = {}},
            [](train::Experiment& e, config::Problems& p) { e.check(p); });
        CHECK(config.value.total_steps() > 0);
        // What it resolves to reads back as itself.
        const std::string resolved = config::write_resolved(config.value);
        CHECK(config::write_resolved(load_tiny(resolved).value) == resolved);
    }
    CHECK(count > 0);
}
