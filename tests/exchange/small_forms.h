// Small models in Hugging Face's layout, written without any library of theirs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"

namespace longreach::test {

// A Llama of one layer: 2 heads of size 4 that share one of keys and values, width 8, 11 tokens.
inline json::Value small_llama() {
    return json::parse(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11,
        "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "rope_theta": 10000.0, "hidden_act": "silu"})",
                       "small");
}

using Shapes = std::map<std::string, std::vector<int64_t>>;
inline Shapes small_llama_shapes() {
    const std::string layer = "model.layers.0.";
    return {{"model.embed_tokens.weight", {11, 8}},
            {"lm_head.weight", {11, 8}},
            {"model.norm.weight", {8}},
            {layer + "input_layernorm.weight", {8}},
            {layer + "post_attention_layernorm.weight", {8}},
            {layer + "self_attn.q_proj.weight", {8, 8}},
            {layer + "self_attn.k_proj.weight", {4, 8}},
            {layer + "self_attn.v_proj.weight", {4, 8}},
            {layer + "self_attn.o_proj.weight", {8, 8}},
            {layer + "mlp.gate_proj.weight", {12, 8}},
            {layer + "mlp.up_proj.weight", {12, 8}},
            {layer + "mlp.down_proj.weight", {8, 12}}};
}

// Element i of every tensor is i / 64.
inline void put_weights(const std::string& path, const Shapes& shapes,
                        io::StoredType type = io::StoredType::f32) {
    std::vector<io::StoredTensor> tensors;
    for (const auto& [name, shape] : shapes) {
        io::StoredTensor tensor;
        tensor.name = name;
        tensor.shape = shape;
        tensor.type = type;
        tensors.push_back(tensor);
    }
    io::remove_file(path);
    io::File file = io::File::create(path);
    io::SafetensorsWriter(tensors).write(file, [&](const io::StoredTensor& tensor, io::ByteSink& out) {
        if (type != io::StoredType::f32) return out.write(std::string(tensor.bytes(), '\0'));
        for (uint64_t i = 0; i < tensor.bytes() / 4; ++i) {
            const float value = static_cast<float>(i) / 64;
            out.write(&value, sizeof value);
        }
    });
    file.close();
}

// A directory with that model.
struct ModelDirectory {
    TempDir dir;

    ModelDirectory(const json::Value& config = small_llama(), const Shapes& shapes = small_llama_shapes()) {
        configure(config);
        put_weights(dir / "model.safetensors", shapes);
    }
    void configure(const json::Value& config) const {
        put(dir / "config.json", json::write(config, json::Style::pretty));
    }
};

}  // namespace longreach::test
