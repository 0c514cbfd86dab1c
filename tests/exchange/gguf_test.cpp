// A model in a GGUF file becomes the same run as the same model in Hugging Face's layout, bit by bit.
#include <doctest/doctest.h>

#include <cmath>

#include "dice.h"
#include "exchange/gguf_file.h"
#include "exchange/gguf_writer.h"
#include "exchange/import.h"
#include "exchange/small_forms.h"
#include "exchange/weights.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const io::Notice quiet = [](const std::string&) {};

// What a converter makes of a model: names and rows in the order of llama.cpp.
struct Converter {
    std::string architecture, form;
    int64_t heads = 4, kv_heads = 2, head_dim = 4, layers = 3;

    std::string name_of(std::string name) const {
        const bool wide = form == "gemma2" || form == "gemma3_text";
        const std::pair<std::string, std::string> names[] = {
            {"model.embed_tokens.", "token_embd."},
            {"model.norm.", "output_norm."},
            {"lm_head.", "output."},
            {"model.layers.", "blk."},
            {"input_layernorm", "attn_norm"},
            {"pre_feedforward_layernorm", "ffn_norm"},
            {"post_feedforward_layernorm", "post_ffw_norm"},
            {"post_attention_layernorm", wide || form == "olmo2" ? "post_attention_norm" : "ffn_norm"},
            {"self_attn.q_proj", "attn_q"},
            {"self_attn.k_proj", "attn_k"},
            {"self_attn.v_proj", "attn_v"},
            {"self_attn.o_proj", "attn_output"},
            {"self_attn.q_norm", "attn_q_norm"},
            {"self_attn.k_norm", "attn_k_norm"},
            {"mlp.gate_proj", "ffn_gate"},
            {"mlp.up_proj", "ffn_up"},
            {"mlp.down_proj", "ffn_down"}};
        for (const auto& [from, to] : names)
            if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
        return name;
    }

    std::vector<float> values_of(const std::string& name, const std::vector<int64_t>& shape,
                                 std::vector<float> values) const {
        if (architecture.starts_with("gemma") && contains(name, "norm"))
            for (float& value : values) value += 1;
        const bool q = contains(name, "q_proj"), k = contains(name, "k_proj");
        if (architecture != "llama" || !(q || k)) return values;
        // [heads, 2, d / 2, columns] to [heads, d / 2, 2, columns]
        const int64_t n = q ? heads : kv_heads, half = head_dim / 2,
                      columns = shape.size() > 1 ? shape[1] : 1;
        std::vector<float> out;
        for (int64_t head = 0; head < n; ++head)
            for (int64_t pair = 0; pair < half; ++pair)
                for (int64_t part = 0; part < 2; ++part)
                    for (int64_t c = 0; c < columns; ++c)
                        out.push_back(
                            values[static_cast<size_t>(((head * 2 + part) * half + pair) * columns + c)]);
        return out;
    }
};

std::vector<float> numbers_of(const io::SafetensorsFile& file, const io::StoredTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.bytes() / 4));
    file.read(tensor, values.data(), tensor.bytes());
    return values;
}

// Four heads of size 4 over two of keys and values, width 16, 11 tokens.
Shapes shapes_of(const std::string& form, int64_t layers, bool tied, bool biases) {
    Shapes shapes{{"model.embed_tokens.weight", {11, 16}}, {"model.norm.weight", {16}}};
    if (!tied) shapes["lm_head.weight"] = {11, 16};
    for (int64_t l = 0; l < layers; ++l) {
        const std::string layer = fmt::format("model.layers.{}.", l);
        const bool wide = form == "gemma2" || form == "gemma3_text", after = form == "olmo2";
        if (!after) shapes[layer + "input_layernorm.weight"] = {16};
        shapes[layer + "post_attention_layernorm.weight"] = {16};
        if (wide) shapes[layer + "pre_feedforward_layernorm.weight"] = {16};
        if (wide || after) shapes[layer + "post_feedforward_layernorm.weight"] = {16};
        if (form == "qwen3" || form == "gemma3_text")
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = {4};
        if (after) {
            shapes[layer + "self_attn.q_norm.weight"] = {16};
            shapes[layer + "self_attn.k_norm.weight"] = {8};
        }
        for (const auto& [part, rows] : {std::pair{"q", 16}, {"k", 8}, {"v", 8}, {"o", 16}}) {
            shapes[fmt::format("{}self_attn.{}_proj.weight", layer, part)] = {rows, 16};
            if (biases || (form == "qwen2" && *part != 'o'))
                shapes[fmt::format("{}self_attn.{}_proj.bias", layer, part)] = {rows};
        }
        shapes[layer + "mlp.gate_proj.weight"] = shapes[layer + "mlp.up_proj.weight"] = {24, 16};
        shapes[layer + "mlp.down_proj.weight"] = {16, 24};
        if (biases) {
            shapes[layer + "mlp.gate_proj.bias"] = shapes[layer + "mlp.up_proj.bias"] = {24};
            shapes[layer + "mlp.down_proj.bias"] = {16};
        }
    }
    return shapes;
}

json::Value model_of(const std::string& run) {
    return *json::parse(get(run + "/config.json"), "config.json", {.max_bytes = 1 << 22}).find("model");
}

std::string weights_of(const std::string& run) {
    return get(run + "/checkpoints/step_00000000/model.safetensors");
}

std::string import_file(const TempDir& dir, const std::string& bytes) {
    put(dir / "m.gguf", bytes);
    return exchange::to_text(
        exchange::import_model({.directory = dir / "m.gguf", .output = dir / "run"}, quiet));
}

std::string refusal(const std::string& bytes) {
    const TempDir dir;
    const std::string error = error_of([&] { import_file(dir, bytes); });
    CHECK(io::kind_of(dir / "run", io::Links::refuse) == io::PathKind::missing);
    return anonymous(error, dir.path());
}

}  // namespace

TEST_CASE("a GGUF file gives the run that Hugging Face's layout gives") {
    struct Case {
        std::string form, architecture, config, scaling;
        std::vector<std::pair<std::string, float>> keys;
        bool tied = false, biases = false;
    };
    const std::string yarn = R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                  "original_max_position_embeddings": 16})";
    for (const Case& c : {
             Case{"llama", "llama", "", "", {}, false, false},
             Case{"llama", "llama", R"("attention_bias": true, "mlp_bias": true)", "", {}, true, true},
             Case{"llama",
                  "llama",
                  R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})",
                  "linear",
                  {{"rope.scaling.factor", 2.0f}}},
             Case{"llama", "llama", yarn, "yarn", {{"rope.scaling.factor", 4.0f}}},
             Case{"mistral", "llama", R"("sliding_window": 8)", "", {{"attention.sliding_window", -8.0f}}},
             Case{"qwen2", "qwen2", "", "", {}},
             Case{"qwen3", "qwen3", "", "", {}, true},
             Case{"olmo2", "olmo2", "", "", {}},
             Case{"gemma", "gemma", "", "", {}, true},
             Case{"gemma2",
                  "gemma2",
                  R"("sliding_window": 8, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 5.0,
                     "final_logit_softcapping": 3.0)",
                  "",
                  {{"attention.sliding_window", -8.0f},
                   {"attn_logit_softcapping", 5.0f},
                   {"final_logit_softcapping", 3.0f}},
                  true},
             Case{"gemma3_text",
                  "gemma3",
                  R"("sliding_window": 8, "query_pre_attn_scalar": 4)",
                  "",
                  {{"attention.sliding_window", -8.0f}},
                  true},
         }) {
        const auto& [form, architecture, config, scaling, keys, tied, biases] = c;
        CAPTURE(c.form);
        CAPTURE(c.config);
        const TempDir dir;
        io::make_directories(dir / "hf");
        put(dir / "hf/config.json",
            fmt::format(R"({{"model_type": "{}", "vocab_size": 11, "hidden_size": 16, "intermediate_size": 24,
                "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
                "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
                "tie_word_embeddings": {}{}{}}})",
                        form, tied, config.empty() ? "" : ", ", config));
        put_weights(dir / "hf/model.safetensors", shapes_of(form, 3, tied, biases));
        exchange::import_model({.directory = dir / "hf", .output = dir / "expected"}, quiet);

        GgufWriter file;
        const std::string prefix = architecture + ".";
        file.text("general.architecture", architecture)
            .text("general.name", "a model")
            .u32(prefix + "block_count", 3)
            .u32(prefix + "context_length", 64)
            .u32(prefix + "embedding_length", 16)
            .u32(prefix + "feed_forward_length", 24)
            .u32(prefix + "attention.head_count", 4)
            .value(prefix + "attention.head_count_kv", 10, uint64_t{2})
            .value(prefix + "attention.key_length", 5, int32_t{4})
            .u32(prefix + "rope.dimension_count", 4)
            .u32(prefix + "expert_count", 0)
            .f32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f)
            .f32(prefix + "rope.freq_base", 50000.0f);
        if (!scaling.empty()) file.text(prefix + "rope.scaling.type", scaling);
        if (scaling == "yarn") file.u32(prefix + "rope.scaling.original_context_length", 16);
        for (const auto& [key, number] : keys) {
            if (number < 0)
                file.u32(prefix + key, static_cast<uint32_t>(-number));
            else
                file.f32(prefix + key, number);
        }
        file.version = form == "llama" ? 2 : 3;
        file.alignment = form == "qwen2" ? 64 : 32;
        const Converter converter{.architecture = architecture, .form = form};
        const io::SafetensorsFile weights = io::SafetensorsFile::open(dir / "hf/model.safetensors");
        for (const io::StoredTensor& tensor : weights.tensors())
            file.tensor(converter.name_of(tensor.name), tensor.shape,
                        converter.values_of(tensor.name, tensor.shape, numbers_of(weights, tensor)));
        CHECK(!contains(import_file(dir, file.bytes()), "note"));
        CHECK(model_of(dir / "run") == model_of(dir / "expected"));
        CHECK(weights_of(dir / "run") == weights_of(dir / "expected"));
    }
}

namespace {

// The values of one block as the format's description computes them, walking over its bytes.
std::vector<float> reference(const std::string& type, const std::string& bytes) {
    const auto* b = reinterpret_cast<const uint8_t*>(bytes.data());
    const auto half = [&](size_t at) {
        return exchange::half_value(static_cast<uint16_t>(b[at] | b[at + 1] << 8));
    };
    std::vector<float> y;
    const auto small = [&](size_t quants, auto value) {
        for (int high = 0; high < 2; ++high)
            for (int i = 0; i < 16; ++i)
                y.push_back(value(high ? b[quants + i] >> 4 : b[quants + i] & 15, 16 * high + i));
    };
    const auto fifth = [&](size_t at, int i) {
        uint32_t bits = 0;
        std::memcpy(&bits, b + at, 4);
        return static_cast<int>(bits >> i & 1) * 16;
    };
    if (type == "Q4_0") small(2, [&](int q, int) { return half(0) * static_cast<float>(q - 8); });
    if (type == "Q4_1") small(4, [&](int q, int) { return half(0) * static_cast<float>(q) + half(2); });
    if (type == "Q5_0")
        small(6, [&](int q, int i) { return half(0) * static_cast<float>(q + fifth(2, i) - 16); });
    if (type == "Q5_1")
        small(8, [&](int q, int i) { return half(0) * static_cast<float>(q + fifth(4, i)) + half(2); });
    if (type == "Q8_0")
        for (int i = 0; i < 32; ++i) y.push_back(half(0) * static_cast<float>(static_cast<int8_t>(b[2 + i])));
    if (type == "Q4_K" || type == "Q5_K") {
        // Twelve bytes: six bits of the scales 0 to 3, of the offsets 0 to 3, then low halves of the others; their high pairs of
        // bits fill the first eight bytes.
        int scales[8], offsets[8];
        for (int j = 0; j < 4; ++j) {
            scales[j] = b[4 + j] % 64;
            offsets[j] = b[8 + j] % 64;
            scales[4 + j] = b[12 + j] % 16 + 16 * (b[4 + j] / 64);
            offsets[4 + j] = b[12 + j] / 16 + 16 * (b[8 + j] / 64);
        }
        const bool five = type == "Q5_K";
        const uint8_t *quants = b + (five ? 48 : 16), *high = b + 16;
        uint8_t mask = 1;
        for (int j = 0; j < 8; ++j, mask = static_cast<uint8_t>(mask << 1)) {
            for (int i = 0; i < 32; ++i) {
                const int q = (j % 2 ? quants[i] >> 4 : quants[i] & 15) + (five && (high[i] & mask) ? 16 : 0);
                y.push_back(half(0) * static_cast<float>(scales[j]) * static_cast<float>(q) -
                            half(2) * static_cast<float>(offsets[j]));
            }
            if (j % 2) quants += 32;
        }
    }
    if (type == "Q6_K") {
        y.resize(256);
        const uint8_t *low = b, *high = b + 128;
        const auto* scales = reinterpret_cast<const int8_t*>(b + 192);
        for (int n = 0; n < 256; n += 128, low += 64, high += 32, scales += 8)
            for (int l = 0; l < 32; ++l) {
                const int q[] = {
                    (low[l] & 15) | (high[l] & 3) << 4, (low[l + 32] & 15) | (high[l] >> 2 & 3) << 4,
                    (low[l] >> 4) | (high[l] >> 4 & 3) << 4, (low[l + 32] >> 4) | (high[l] >> 6) << 4};
                for (int k = 0; k < 4; ++k)
                    y[static_cast<size_t>(n + 32 * k + l)] = half(208) *
                                                             static_cast<float>(scales[2 * k + l / 16]) *
                                                             static_cast<float>(q[k] - 32);
            }
    }
    return y;
}

// Random blocks whose scales are finite.
std::string random_blocks(const exchange::BlockType& type, size_t count, Dice& dice) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
        std::string block(type.bytes, '\0');
        for (char& c : block) c = static_cast<char>(dice.below(256));
        for (const size_t at : {size_t{0}, size_t{2}, size_t{208}})
            if (at + 1 < block.size()) block[at + 1] = static_cast<char>(block[at + 1] & 0xbf);
        bytes += block;
    }
    return bytes;
}

}  // namespace

TEST_CASE("blocks of every quantised type are the values that the format defines, bit by bit") {
    Dice dice(5);
    int types = 0;
    for (uint32_t id = 0; id < 64; ++id) {
        const exchange::BlockType* type = exchange::find_block_type(id);
        if (type == nullptr || type->elements == 1) continue;
        ++types;
        CAPTURE(type->name);
        for (int round = 0; round < 200; ++round) {
            const std::string bytes = random_blocks(*type, 1, dice);
            const std::vector<float> values = exchange::decode_blocks(
                *type, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
            const std::vector<float> expected = reference(type->name, bytes);
            REQUIRE(values.size() == expected.size());
            REQUIRE(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)) == 0);
        }
    }
    CHECK(types == 8);
}

TEST_CASE("quantised weights become those of their blocks") {
    Dice dice(6);
    for (uint32_t id = 0; id < 64; ++id) {
        const exchange::BlockType* type = exchange::find_block_type(id);
        if (type == nullptr || type->elements == 1) continue;
        CAPTURE(type->name);
        const TempDir dir;
        std::string texts[2];
        const std::string blocks = random_blocks(*type, 11 * 256 / static_cast<size_t>(type->elements), dice);
        std::vector<float> plain;
        for (size_t at = 0; at < blocks.size(); at += type->bytes)
            for (const float value : reference(type->name, blocks.substr(at, type->bytes)))
                plain.push_back(value);
        for (const bool quantised : {false, true}) {
            GgufWriter file;
            file.text("general.architecture", "llama")
                .u32("llama.block_count", 1)
                .u32("llama.context_length", 64)
                .u32("llama.embedding_length", 256)
                .u32("llama.feed_forward_length", 8)
                .u32("llama.attention.head_count", 2)
                .f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
            if (quantised)
                file.tensor("token_embd.weight", {11, 256}, id, blocks);
            else
                file.tensor("token_embd.weight", {11, 256}, plain);
            for (const auto& [name, shape] : Shapes{{"output_norm.weight", {256}},
                                                    {"blk.0.attn_norm.weight", {256}},
                                                    {"blk.0.ffn_norm.weight", {256}},
                                                    {"blk.0.attn_q.weight", {256, 256}},
                                                    {"blk.0.attn_k.weight", {256, 256}},
                                                    {"blk.0.attn_v.weight", {256, 256}},
                                                    {"blk.0.attn_output.weight", {256, 256}},
                                                    {"blk.0.ffn_gate.weight", {8, 256}},
                                                    {"blk.0.ffn_up.weight", {8, 256}},
                                                    {"blk.0.ffn_down.weight", {256, 8}}})
                file.tensor(name, shape,
                            std::vector<float>(
                                static_cast<size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1)), 0.5f));
            import_file(dir, file.bytes());
            texts[quantised] = weights_of(dir / "run");
            io::remove_tree(dir / "run");
        }
        CHECK(texts[0] == texts[1]);
    }
}

TEST_CASE("the factors of Llama 3's angles are its scaling, and others are refused") {
    const auto with = [](std::vector<float> factors) {
        GgufWriter file = small_gguf();
        file.tensor("token_embd.weight", {11, 8}, std::vector<float>(88));
        file.tensor("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, factors);
        return refusal(file.bytes());
    };
    // Of a head of size 4 with the base 10000, both pairs turn more than four times in 8192 tokens.
    CHECK(contains(with({1, 1}), "lacks model.layers.0.input_layernorm.weight"));
    CHECK(with({1, 8}) ==
          "4: x/m.gguf: rope_freqs.weight holds factors other than those of Llama 3 (low 1, high 4, 8192 "
          "tokens), which are not supported");
}

TEST_CASE("a model with the factors of Llama 3 has its scaling") {
    // As the format's writers compute them: by the wavelength of a pair against 8192 and 2048 tokens.
    std::vector<float> factors;
    for (int i = 0; i < 32; ++i) {
        const double wavelength = 2 * std::acos(-1.0) * std::pow(500000.0, i / 32.0);
        const double smooth = (8192 / wavelength - 1) / 3;
        factors.push_back(static_cast<float>(wavelength < 2048   ? 1
                                             : wavelength > 8192 ? 32
                                                                 : 1 / ((1 - smooth) / 32 + smooth)));
    }
    GgufWriter file;
    file.text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 131072)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 8)
        .u32("llama.attention.head_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
        .f32("llama.rope.freq_base", 500000.0f)
        .tensor("rope_freqs.weight", {32}, factors);
    for (const auto& [name, shape] : Shapes{{"token_embd.weight", {11, 64}},
                                            {"output_norm.weight", {64}},
                                            {"blk.0.attn_norm.weight", {64}},
                                            {"blk.0.ffn_norm.weight", {64}},
                                            {"blk.0.attn_q.weight", {64, 64}},
                                            {"blk.0.attn_k.weight", {64, 64}},
                                            {"blk.0.attn_v.weight", {64, 64}},
                                            {"blk.0.attn_output.weight", {64, 64}},
                                            {"blk.0.ffn_gate.weight", {8, 64}},
                                            {"blk.0.ffn_up.weight", {8, 64}},
                                            {"blk.0.ffn_down.weight", {64, 8}}})
        file.tensor(name, shape,
                    std::vector<float>(static_cast<size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1))));
    const TempDir dir;
    import_file(dir, file.bytes());
    const json::Value model = model_of(dir / "run");
    const json::Value& scaling = *model.find("attention")->find("angle_scaling");
    CHECK(scaling.find("kind")->as_string() == "llama3");
    CHECK(scaling.find("factor")->as_number() == 32);
    CHECK(scaling.find("original_context")->as_int64() == 8192);
    CHECK(scaling.find("fast")->as_number() == 4);
    CHECK(scaling.find("slow")->as_number() == 1);
}

TEST_CASE("each mistake in a GGUF file has its own message") {
    const auto front = [](uint64_t tensors, uint64_t keys, const std::string& rest) {
        return "GGUF" + GgufWriter::raw(uint32_t{3}) + GgufWriter::raw(tensors) + GgufWriter::raw(keys) +
               rest;
    };
    const auto key = [](const std::string& name, uint32_t type, const std::string& value) {
        return GgufWriter::string(name) + GgufWriter::raw(type) + value;
    };
    const auto size = [](uint64_t bytes) { return GgufWriter::raw(bytes); };
    const auto type = [](uint32_t id) { return GgufWriter::raw(id); };
    CHECK(refusal("") == "4: x/m.gguf: is no GGUF file");
    CHECK(refusal("{\"model_type\": \"llama\", \"a\": 1}") == "4: x/m.gguf: is no GGUF file");
    CHECK(refusal("GGUF" + GgufWriter::raw(uint32_t{0x03000000}) + std::string(16, '\0')) ==
          "4: x/m.gguf: is a big-endian GGUF file; only little-endian ones are read");
    CHECK(refusal("GGUF" + GgufWriter::raw(uint32_t{1}) + std::string(16, '\0')) ==
          "4: x/m.gguf: has the version 1 of GGUF; 2 and 3 are read");
    CHECK(refusal(front(0, 1ull << 60, "")) == "4: x/m.gguf: 1152921504606846976 keys are more than 65536");
    CHECK(refusal(front(1ull << 60, 0, "")) ==
          "4: x/m.gguf: 1152921504606846976 tensors are more than 65536");
    CHECK(
        contains(refusal(front(0, 1, "")), "4: x/m.gguf: ends at byte 24, before its tensors are described"));
    CHECK(contains(refusal(front(0, 1, size(1ull << 62) + "ab")),
                   "a string of 4611686018427387904 bytes, the key"));
    CHECK(contains(refusal(front(0, 1, size(200) + "ab")),
                   "a string of 200 bytes, the key, at byte 32 is too long"));
    CHECK(contains(refusal(front(0, 1, key("a\nb", 4, type(1)))), "the key \"a\\nb\" is not a name"));
    CHECK(contains(refusal(front(0, 1, key("a", 13, type(1)))), "a: 13 is not the type of a value"));
    CHECK(contains(refusal(front(0, 1, key("a", 7, "\2"))), "a: 2 is neither true nor false"));
    CHECK(contains(refusal(front(0, 1, key("a", 8, size(1ull << 40) + "b"))),
                   "a string of 1099511627776 bytes, a,"));
    CHECK(contains(refusal(front(0, 1, key("a", 9, type(4) + size(1ull << 61)))),
                   "a: 2305843009213693952 values do not fit into the file"));
    CHECK(contains(refusal(front(0, 1, key("a", 9, type(9) + size(1)))), "a: a list of lists is not read"));
    CHECK(
        contains(refusal(front(0, 1, key("a", 9, type(99) + size(1)))), "a: 99 is not the type of a value"));
    CHECK(contains(refusal(front(0, 2, key("a", 4, type(1)) + key("a", 4, type(1)))), "a is given twice"));
    const auto tensor = [&](const std::string& dimensions, uint32_t id, uint64_t offset) {
        return refusal(front(1, 0, GgufWriter::string("t") + dimensions + type(id) + size(offset)) +
                       std::string(64, '\0'));
    };
    CHECK(contains(tensor(type(5), 0, 0), "tensor t: 5 dimensions are more than 4"));
    CHECK(contains(tensor(type(1) + size(0), 0, 0), "tensor t: its dimensions have no size in memory"));
    CHECK(contains(tensor(type(2) + size(1ull << 39) + size(1ull << 39), 0, 0),
                   "tensor t: its dimensions have no size"));
    CHECK(contains(tensor(type(1) + size(8), 23, 0),
                   "tensor t is of the type IQ4_XS; the types that are read are F32, F16, "));
    CHECK(contains(tensor(type(1) + size(8), 77, 0), "tensor t is of the type 77;"));
    CHECK(contains(tensor(type(1) + size(33), 8, 0),
                   "tensor t: a row of 33 elements is not a whole number of blocks of Q8_0, which have 32"));
    CHECK(contains(tensor(type(1) + size(8), 0, 4), "tensor t: its offset 4 is not a multiple of 32"));
    CHECK(contains(tensor(type(1) + size(8), 0, 1ull << 62),
                   "tensor t: 32 bytes at 4611686018427387904 after the byte 64 end beyond"));
    CHECK(contains(tensor(type(1) + size(4096), 0, 0), "end beyond the file"));
    const std::string entry = type(1) + size(8) + type(0) + size(0);
    CHECK(contains(refusal(front(2, 0, GgufWriter::string("t") + entry + GgufWriter::string("u") + entry) +
                           std::string(99, '\0')),
                   "begins inside the tensor before it"));
    const std::string later = type(1) + size(8) + type(0) + size(32);
    CHECK(contains(refusal(front(2, 0, GgufWriter::string("t") + entry + GgufWriter::string("t") + later) +
                           std::string(99, '\0')),
                   "tensor t is given twice"));
    GgufWriter odd = small_gguf();
    odd.alignment = 24;
    CHECK(contains(refusal(odd.bytes()), "general.alignment is not a power of two up to 65536"));
}

TEST_CASE("a directory with a GGUF file alone leads to the file") {
    const TempDir dir;
    put(dir / "m.gguf", small_gguf().bytes());
    try {
        exchange::import_model({.directory = dir.path(), .output = dir / "run"}, quiet);
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::checkpoint);
        CHECK(error.hint() == "name the GGUF file itself: longreach import " + dir / "m.gguf");
    }
    CHECK(contains(error_of([&] {
                       exchange::import_model({.directory = dir / "none.gguf", .output = dir / "run"}, quiet);
                   }),
                   "4: cannot open "));
}

TEST_CASE("a GGUF file that ends anywhere before its end is refused") {
    GgufWriter file = small_gguf();
    file.texts("list", {"a", "bc"}).tensor("token_embd.weight", {11, 8}, std::vector<float>(88));
    const std::string bytes = file.bytes();
    for (size_t size = 0; size < bytes.size(); ++size) {
        CAPTURE(size);
        REQUIRE(refusal(bytes.substr(0, size)).starts_with("4: x/m.gguf: "));
    }
}

TEST_CASE("a key of a GGUF file that is wrong, or that has no equal here, is named") {
    const auto with = [](auto change) {
        GgufWriter file = small_gguf();
        file.tensor("token_embd.weight", {11, 8}, std::vector<float>(88));
        change(file);
        return refusal(file.bytes());
    };
    const std::string rope = "4: x/m.gguf: llama.rope.";
    CHECK(with([](GgufWriter& f) { f.u32("llama.expert_count", 8); }) ==
          "4: x/m.gguf: llama.expert_count: is not supported");
    CHECK(with([](GgufWriter& f) { f.text("llama.rope.scaling.type", "longrope"); }) ==
          rope + "scaling.type: longrope is not supported; none, linear and yarn are");
    CHECK(with([](GgufWriter& f) { f.text("llama.rope.scaling.type", "linear"); }) ==
          "4: x/m.gguf: rope_scaling.factor: must be above 0");
    CHECK(with([](GgufWriter& f) { f.f32("llama.rope.scaling.attn_factor", 2); }) ==
          rope + "scaling.attn_factor: 2 is not supported; only 1 is");
    CHECK(with([](GgufWriter& f) { f.u32("llama.rope.dimension_count", 2); }) ==
          rope + "dimension_count: 2 is not supported; only the size of a key, 4, is");
    CHECK(with([](GgufWriter& f) { f.f32("llama.rope.scale_linear", NAN); }) ==
          rope + "scale_linear: expected a finite number");
    CHECK(with([](GgufWriter& f) { f.u32("llama.vocab_size", 12); }) ==
          "4: x/m.gguf: llama.vocab_size: is 12; token_embd.weight has 11 rows");
    CHECK(with([](GgufWriter& f) { f.value("llama.attention.causal", 7, uint8_t{0}); }) ==
          "4: x/m.gguf: llama.attention.causal: only true is supported");
    CHECK(with([](GgufWriter& f) { f.text("general.type", "adapter"); }) ==
          "4: x/m.gguf: general.type: adapter is not supported; only model is");
    CHECK(contains(with([](GgufWriter& f) { f.value("split.count", 2, uint16_t{3}); }),
                   "4: x/m.gguf: split.count: a model in several files is not supported"));
    CHECK(contains(with([](GgufWriter& f) {
                       f.tensor("blk.0.attn_sinks", {2}, {1, 1});
                   }),
                   "lacks model.layers.0.input_layernorm.weight"));
    GgufWriter other;
    other.text("general.architecture", "mamba");
    CHECK(
        contains(refusal(other.bytes()), "general.architecture: mamba is not supported; known are llama, "));
    GgufWriter empty;
    CHECK(contains(refusal(empty.bytes()), "general.architecture: \"\" is not supported"));
    GgufWriter bare = small_gguf();
    CHECK(refusal(bare.bytes()) == "4: x/m.gguf has no matrix token_embd.weight");
    GgufWriter wrong;
    wrong.text("general.architecture", "qwen3").tensor("token_embd.weight", {11, 8}, std::vector<float>(88));
    CHECK(contains(refusal(wrong.bytes()), "qwen3.attention.layer_norm_rms_epsilon: is missing"));
    wrong.f32("qwen3.attention.layer_norm_rms_epsilon", 1e-5f);
    CHECK(contains(refusal(wrong.bytes()), "qwen3.block_count: is missing"));
    wrong.numbers<uint32_t>("qwen3.block_count", 4, {1, 2});
    CHECK(contains(refusal(wrong.bytes()),
                   "qwen3.block_count: a list is not read; one value has to hold for all layers"));
}
