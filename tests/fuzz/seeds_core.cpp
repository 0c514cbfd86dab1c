#include <cstring>

#include "base/json.h"
#include "config/sample.h"
#include "data/shard_fixtures.h"
#include "ranks/channel.h"
#include "ranks/control.h"
#include "eval/partial_sums.h"
#include "exchange/gguf_writer.h"
#include "fuzz/seeds.h"
#include "fuzz/target.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "train/train_state.h"

namespace longreach::fuzz {

namespace {

using test::bytes_of;
using test::get;
using test::put;
using test::TempDir;

class StringSink final : public io::ByteSink {
  public:
    using io::ByteSink::write;
    void write(const void* data, size_t size) override { text.append(static_cast<const char*>(data), size); }
    std::string text;
};

std::string safetensors() {
    std::vector<io::StoredTensor> tensors(3);
    tensors[0] = {"blocks.0.q", io::StoredType::f32, {2, 3}};
    tensors[1] = {"scale", io::StoredType::bf16, {}};
    tensors[2] = {"empty", io::StoredType::u8, {0, 4}};
    StringSink sink;
    io::SafetensorsWriter(tensors, {{"made by", "a test"}})
        .write(sink, [](const io::StoredTensor& t, io::ByteSink& out) {
            out.write(std::string(static_cast<size_t>(t.bytes()), '\1'));
        });
    return sink.text;
}

std::vector<Seed> shard_longreach() {
    std::vector<Seed> seeds;
    const TempDir directory;
    for (const int width : {2, 4})
        for (const int64_t boundary : {int64_t{-1}, int64_t{256}}) {
            const std::string path = directory / "shard.bin";
            test::write_documents(path, {.width = width, .vocab = 257, .boundary_token = boundary},
                                  {{256, 'a', 'b', 'c'}, {256, 'd'}, {256, 'e', 'f'}}, 6);
            // The target adds the magic.
            seeds.push_back({fmt::format("width_{}_boundary_{}", width, boundary), get(path).substr(8)});
        }
    return seeds;
}

std::vector<Seed> shard_foreign() {
    const test::Tokens tokens = {50256, 1, 2, 3, 50256, 4, 5};
    return {{"llmc_v1", test::llmc_v1(tokens)},
            {"llmc_v7", test::llmc_v7({128000, 1, 2, 128000, 3})},
            {"llmq_v1", test::llmq(tokens, 1, 50257, 0x2a2a2a2a)},
            {"llmq_v2_masks", test::llmq(tokens, 2, 50257, 1)},
            {"gzip", "\x1f\x8b\x08 and so on"},
            {"npy", "\x93NUMPY\x01"}};
}

std::vector<Seed> shard_megatron() {
    std::vector<Seed> seeds;
    const std::vector<std::pair<int, int>> types = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (const auto& [code, width] : types) {
        const std::string tokens(static_cast<size_t>(7 * width), '\1');
        seeds.push_back({fmt::format("type_{}", code),
                         bytes_of(static_cast<uint16_t>(tokens.size())) +
                             test::megatron_index(code, width, {{3, 2}, {}, {2}}) + tokens});
    }
    return seeds;
}

std::string beat() {
    ranks::CollectiveState state{3, 2, 1, {}, "saving a checkpoint"};
    state.recent = {{1, 2, ranks::CollectiveOp::all_reduce, ranks::ElementType::bf16, 1024, 0, 0},
                    {2, 3, ranks::CollectiveOp::barrier, ranks::ElementType::u8, 0, 0, 0}};
    return ranks::encode_beat(state, 0);
}

std::string collective_log() {
    const TempDir directory;
    const std::string path = directory / "rank_0.log";
    ranks::CollectiveLog log(path, 0, 2);
    log.finish(log.begin(ranks::CollectiveOp::all_gather, ranks::ElementType::f32, 7));
    log.begin(ranks::CollectiveOp::send, ranks::ElementType::i32, 1);
    return get(path);
}

// An action of the target `rendezvous`: which connection, then a message with its length.
std::string action(uint8_t connection, const std::string& message) {
    return bytes_of(connection) + bytes_of(static_cast<uint16_t>(message.size())) + message;
}

std::vector<Seed> rendezvous() {
    const auto message = [](ranks::Message kind) { return ranks::Writer(kind); };
    const std::string join =
        message(ranks::Message::meet).text("join").u32(1000).u32(1).text("build").text("0.1.0").str();
    const std::string set = message(ranks::Message::set).text("key").text("value").str();
    const std::string wait = message(ranks::Message::wait).text("key").u32(1000).str();
    const std::string barrier = message(ranks::Message::meet).text("start").u32(1000).u32(0).str();
    const std::string bye = message(ranks::Message::bye).u8(0).text("done").str();
    const std::string heartbeat = message(ranks::Message::beat).text(beat()).str();
    return {{"join", action(2, join) + action(3, join)},
            {"store", action(2, set) + action(3, wait)},
            {"wait", action(2, wait) + action(3, set)},
            {"barrier", action(2, barrier) + action(3, barrier)},
            {"goodbye", action(2, bye) + action(4, bye)},
            {"heartbeat", action(4, heartbeat) + action(5, heartbeat)},
            {"stranger", action(0, ranks::frame("\1hello")) + action(1, std::string(8, '\xff'))}};
}

std::vector<Seed> tokenizer_json() {
    const std::string letters =
        R"("vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120a": 4, "<unk>": 5})";
    const std::string merges = R"("merges": ["a b", ["\u0120", "a"]])";
    const std::string added =
        R"("added_tokens": [{"id": 6, "content": "<s>", "single_word": false, "lstrip": true,
        "rstrip": true, "normalized": true, "special": true}])";
    const std::string split = R"({"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|[^\\s\\p{L}]+"},
        "behavior": "MergedWithNext", "invert": true})";
    const std::string metaspace =
        R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"})";
    return {
        {"byte_level",
         fmt::format(
             R"({{"version": "1.0", {}, "normalizer": {{"type": "NFC"}}, "pre_tokenizer": {{"type": "Sequence",
                 "pretokenizers": [{}, {{"type": "ByteLevel", "use_regex": true}}]}}, "decoder": {{"type": "ByteLevel"}},
                 "model": {{"type": "BPE", "ignore_merges": true, "unk_token": "<unk>", {}, {}}}}})",
             added, split, letters, merges)},
        {"characters",
         fmt::format(
             R"({{"normalizer": {{"type": "Sequence", "normalizers": [{{"type": "Prepend", "prepend": "a"}},
                 {{"type": "Replace", "pattern": {{"String": " "}}, "content": "b"}}]}}, "pre_tokenizer": {},
                 "decoder": {{"type": "Sequence", "decoders": [{}, {{"type": "ByteFallback"}}, {{"type": "Fuse"}},
                 {{"type": "Strip", "content": " ", "start": 1, "stop": 0}}]}},
                 "model": {{"byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>", {}, {}}}}})",
             metaspace, metaspace, letters, merges)}};
}

// Two models, with every kind of value and several kinds of blocks.
std::vector<Seed> gguf_seeds() {
    test::GgufWriter llama = test::small_gguf();
    llama.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|endoftext|>"})
        .numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 3})
        .texts("tokenizer.ggml.merges", {"a b"})
        .u32("tokenizer.ggml.bos_token_id", 3)
        .text("tokenizer.chat_template", "{{ messages }}")
        .tensor("token_embd.weight", {4, 8}, std::vector<float>(32, 0.5f))
        .tensor("rope_freqs.weight", {2}, {1, 1})
        .tensor("blk.0.attn_q.weight", {8, 8}, std::vector<float>(64, 0.25f));
    test::GgufWriter gemma;
    gemma.version = 2;
    gemma.alignment = 8;
    gemma.text("general.architecture", "gemma3")
        .value("gemma3.block_count", 10, uint64_t{6})
        .value("gemma3.context_length", 11, int64_t{64})
        .value("gemma3.embedding_length", 2, uint16_t{256})
        .value("gemma3.feed_forward_length", 5, int32_t{32})
        .value("gemma3.attention.head_count", 0, uint8_t{2})
        .value("gemma3.attention.layer_norm_rms_epsilon", 12, 1e-6)
        .value("gemma3.attention.causal", 7, uint8_t{1})
        .text("gemma3.rope.scaling.type", "linear")
        .f32("gemma3.rope.scaling.factor", 8)
        .value("gemma3.attention.sliding_window", 3, int16_t{16})
        .tensor("token_embd.weight", {1, 256}, 12, std::string(144, '\1'))
        .tensor("blk.0.attn_norm.weight", {32}, 8, std::string(34, '\1'))
        .tensor("blk.0.ffn_up.weight", {256}, 14, std::string(210, '\1'));
    return {{"llama", llama.bytes()}, {"gemma3", gemma.bytes()}};
}

std::vector<Seed> exchange_seeds() {
    const std::string index =
        separator +
        std::string(R"({"metadata": {"total_size": 8}, "weight_map": {"a.b": "model-1.safetensors"}})");
    const std::string shape =
        R"("vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64)";
    const auto seed = [&](const char* type, const std::string& rest) {
        return Seed{type, fmt::format(R"({{"model_type": "{}", {}{}}})", type, shape, rest) + index};
    };
    return {
        seed("llama", R"(, "rope_theta": 1e4, "attention_bias": true, "rope_scaling": {"rope_type": "llama3",
                "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32})"),
        seed("qwen3",
             R"(, "head_dim": 4, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2,
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6})"),
        seed("olmo2", R"(, "rms_norm_eps": 1e-5)"),
        seed("gemma3_text",
             R"(, "sliding_window": 8, "query_pre_attn_scalar": 12, "sliding_window_pattern": 2,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})"),
        seed("gemma2", R"(, "final_logit_softcapping": 30.0, "attn_logit_softcapping": null)"),
        {"gpt2", R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 2, "n_head": 2,
                "n_positions": 64, "activation_function": "gelu_new"})" +
                     index}};
}

std::vector<Seed> chat_templates() {
    const std::string messages = std::string("\xff") + "h\u00e9 <b>\xff{{ x }}";
    return {
        {"turns",
         "{{- bos_token }}{% for m in messages[1:] if m.role != 'x' %}\n  {%- if loop.first and not loop.last -%}\n"
         "{{ '<|' ~ m['role'] + \"|>\\n\" + m.content | trim }}{% elif m.content is string %}{{ m.content[::-1] }}"
         "{% else %}{{ raise_exception('no') }}{% endif %}\n{% endfor %}{# why -#}\n" +
             messages},
        {"calls",
         "{% set ns = namespace(a=[1, {'k': none}], n=-3) %}{% set ns.n = ns.n // 2 + 7 % 4 %}{{ ns.a | tojson(indent=1) }}"
         "{% set t %}{{ messages | map(attribute='content') | join(', ') }}{% endset %}{{ t.split(' ', 1)[-1].replace('b', t) }}"
         "{% for k, v in {'a': 1}.items() %}{{ k if v is odd else v|default('d', true) }}{% break %}{% endfor %}"
         "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ 'a' in t and t.startswith('h') }}" +
             messages}};
}

std::vector<Seed> configs() {
    return {
        {"all",
         R"({"base": "base.json", "run": {"name": "a", "seed": 2, "shift": 0.5}, "model": {"width": 64, "attention": {"heads": 4,
 "gate": true, "window": {"size": 8, "tau": 1e3, "shape": "square"}}, "layouts": {"wide": {"heads": 8}}, "pattern": ["wide"]},
 "stages": [{"steps": 3, "context": "1K"}, {}], "eval": {"every": 5, "lengths": ["2K", 64]}})" +
             (separator + std::string(R"({"model": {"dropout": 0.1}, "eval": {"lengths": [32]}})")) +
             separator + "model.layouts.wide.gate=true" + separator + "stages.0.steps=4" + separator +
             "eval.lengths=2K,4K"},
        {"none", "{}"}};
}

std::vector<Seed> http_requests() {
    return {
        {"get",
         "\x10GET /v1/models/a%20b HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer k\r\n\r\nGET / HTTP/1.0\r\n\r\n"},
        {"length",
         "\x03POST http://h/v1 HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}GET / HTTP/1.1\r\n\r\n"},
        {"chunks",
         "\x7fPOST /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close, te\r\n\r\n2;a=b\r\n{}\r\nA\r\n"
         "0123456789\r\n0\r\nX: y\r\n\r\n"}};
}

}  // namespace

std::vector<Seed> seeds_of(std::string_view target) {
    if (target == "json")
        return {{"all", "\x01{\"a\": [1, -2.5e3, true, null, \"\\u00e9\\ud83d\\ude00\"], // why\n\"b\": {}}"},
                {"twice", "\x02{\"a\": 1, \"a\": 18446744073709551615}"},
                {"plain", std::string(1, '\0') + "[0.1, 1e-5, \"\\\\\\n\"]"}};
    if (target == "config") return configs();
    if (target == "safetensors") return {{"three", safetensors()}};
    if (target == "manifest")
        return {
            {"two", io::format_manifest(800, {{"model.safetensors", 4096, 0x1234}, {"state.json", 17, 1}})},
            {"none", io::format_manifest(0, {})}};
    if (target == "state") {
        train::TrainState state;
        state.step = 800;
        state.file_bytes = {{"metrics.jsonl", 4096}, {"val.csv", 17}};
        state.pending = true;
        state.spike_window.add(2.5, 0.5, 128);
        return {{"state", json::write(state.to_json(), json::Style::pretty)}};
    }
    if (target == "partial_sums") {
        const eval::LossSum sum{1.5, 2};
        const eval::PartialLength length{sum, sum, {sum}, {sum, sum}, {{sum, 1}, {}, {}, {sum}, {}}};
        return {{"two", eval::PartialSums{7, 3, {length, length}}.write()},
                {"none", eval::PartialSums{7, 0, {}}.write()}};
    }
    if (target == "shard_longreach") return shard_longreach();
    if (target == "shard_foreign") return shard_foreign();
    if (target == "shard_megatron") return shard_megatron();
    if (target == "shard_raw")
        return {{"u16", std::string(1, '\7') + test::packed<uint16_t>({1, 2, 0, 3})},
                {"u32", std::string(1, '\0') + test::packed<uint32_t>({1, 2, 0, 3})}};
    if (target == "formula")
        return {{"scale_invariant", "z*sqrt(1 + 2*log1p(t/tau)) - c*2*log1p(t/tau)"},
                {"where", "where(h < H/2, -z^1, 50*tanh(z/50)) + lookup(w, min(2, floor(log2(1 + t))))"},
                {"square", "z*sqrt(c*log1p(t/tau) + log(0.1*n + 1.9)) - (1 - c)*log1p(t/tau)"},
                {"wrong", "z * (log(n, t) + tua"}};
    if (target == "csv")
        return {
            {"losses",
             "step,tokens,length,loss,standard_error,top1\n100,819200,256,1.25,,0.5\n200,1,512,nan,1e-3,0\n"},
            {"unfinished", "step,length\n1,2\n3,"}};
    if (target == "text")
        return {{"plain", std::string("\x02/* Copyright */\n// SPDX-License-Identifier: MIT\n\nint x;\n")},
                {"lines", std::string("\x01{\"text\": \"one\"}\n\n{\"id\": 2, \"text\": \"two\\n\"}\n")},
                {"binary", std::string("\x04"
                                       "a\0b",
                                       4)}};
    if (target == "questions")
        return {{"list", "{\"context\":\"c\",\"question\":\"q\",\"answers\":[\"a\",\"b\"]}\n"},
                {"squad",
                 "{\"context\":\"c\",\"question\":\"q\",\"answers\":{\"text\":[\"a\"],"
                 "\"answer_start\":[0]}}\n"},
                {"one", "\n{\"id\":1,\"context\":\"c\",\"question\":\"q\",\"answer\":\"a\"}"}};
    if (target == "tokenizer_json") return tokenizer_json();
    if (target == "gguf") return gguf_seeds();
    if (target == "exchange") return exchange_seeds();
    if (target == "serve_request")
        return {
            {"text", R"({"prompt":["a","b"],"max_tokens":3,"stop":["\\n","x"],"echo":true,"logprobs":1})"},
            {"tokens", R"({"prompt":[[1,2],[3]],"n":2,"temperature":0.5,"top_p":0.9,"top_k":-1,"seed":7})"},
            {"tokenize", R"({"prompt":"a","add_special_tokens":false})"},
            {"chat",
             R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}],"name":"b"}],"logprobs":true,
                "top_logprobs":2,"max_completion_tokens":3,"stream":true,"stream_options":{"include_usage":true}})"},
            {"detokenize", R"({"tokens":[1,2,3]})"}};
    if (target == "http") return http_requests();
    if (target == "chat_template") return chat_templates();
    if (target == "serve_text")
        return {{"stops",
                 "\xff"
                 "ab\xff"
                 "b\xc3\xa9\xff"
                 "aab\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"}};
    if (target == "tokenizer_ranks")
        return {{"two", "YWI= 256\nYWJj 257\n"}, {"known", "SGVsbG8= 300\r\n\r\n"}};
    if (target == "messages")
        return {{"beat", beat()}, {"frames", ranks::frame("one") + ranks::frame("two")}};
    if (target == "rendezvous") return rendezvous();
    if (target == "collectives") return {{"log", collective_log()}};
    if (target == "launch")
        return {
            {"torchrun",
             "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=n1\nMASTER_PORT=29500\n"},
            {"slurm",
             "SLURM_STEP_ID=0\nSLURM_JOB_ID=7\nSLURM_PROCID=3\nSLURM_NTASKS=4\nSLURM_LOCALID=1\nSLURM_NODEID="
             "1\n"
             "SLURM_STEP_NODELIST=n[01-02]\nSLURM_STEP_TASKS_PER_NODE=2(x2)\n"},
            {"open_mpi",
             "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\n"
             "OMPI_COMM_WORLD_LOCAL_SIZE=2\n"},
            {"pmi", "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2\n"},
            {"nodes", "n[01-03,7],gpu-[1-2]x[0-1]"},
            {"tasks", "2(x3),1"}};
    fail(ExitCode::internal, "no seeds for the target '{}'", target);
}

std::string dictionary_of(std::string_view target) {
    return target == "config" ? dictionary_of_fields(config::describe<sample::Experiment>()) : "";
}

}  // namespace longreach::fuzz
