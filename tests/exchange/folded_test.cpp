// What is folded into the weights of other forms, element by element.
#include <doctest/doctest.h>

#include <cmath>

#include "exchange/import.h"
#include "exchange/small_forms.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::vector<float> tensor_of(const ModelDirectory& model, const std::string& name) {
    const io::SafetensorsFile file =
        io::SafetensorsFile::open(model.dir / "run/checkpoints/step_00000000/model.safetensors");
    const io::StoredTensor* tensor = file.find(name);
    REQUIRE(tensor != nullptr);
    std::vector<float> values(static_cast<size_t>(tensor->bytes() / 4));
    file.read(*tensor, values.data(), tensor->bytes());
    return values;
}

void import(const ModelDirectory& model) {
    exchange::import_model({.directory = model.dir.path(), .output = model.dir / "run"},
                           [](const std::string&) {});
}

}  // namespace

TEST_CASE("GPT-2's matrices are transposed, and its queries, keys and values are cut apart") {
    const std::string layer = "h.0.";  // without the name of the model, as some files are
    Shapes shapes{{"wte.weight", {11, 8}},
                  {"wpe.weight", {16, 8}},
                  {"ln_f.weight", {8}},
                  {"ln_f.bias", {8}},
                  {layer + "attn.bias", {1, 1, 16, 16}}};
    for (const char* norm : {"ln_1", "ln_2"})
        for (const char* part : {".weight", ".bias"}) shapes[layer + norm + part] = {8};
    const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
        shapes[layer + name + ".weight"] = {in, out};
        shapes[layer + name + ".bias"] = {out};
    };
    linear("attn.c_attn", 8, 24);
    linear("attn.c_proj", 8, 8);
    linear("mlp.c_fc", 8, 32);
    linear("mlp.c_proj", 32, 8);
    const ModelDirectory model(
        json::parse(R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2,
                        "n_positions": 16})",
                    "gpt2"),
        shapes);
    import(model);
    const std::vector<float> k = tensor_of(model, "layers.0.attention.k.weight"),
                             bias = tensor_of(model, "layers.0.attention.k.bias"),
                             down = tensor_of(model, "layers.0.mlp.down.weight");
    for (size_t row = 0; row < 8; ++row) {
        CHECK(bias[row] == static_cast<float>(8 + row) / 64);
        for (size_t c = 0; c < 8; ++c) CHECK(k[row * 8 + c] == static_cast<float>(c * 24 + 8 + row) / 64);
        for (size_t c = 0; c < 32; ++c) CHECK(down[row * 32 + c] == static_cast<float>(c * 8 + row) / 64);
    }
    CHECK(tensor_of(model, "position_embedding.weight")[9] == 9.0f / 64);
}

TEST_CASE("Gemma's gains and its scaled embedding are folded, the tied head stays what it was") {
    Shapes shapes = small_llama_shapes();
    shapes.erase("lm_head.weight");
    json::Value config = small_llama();
    config.set("model_type", "gemma")
        .set("head_dim", 4)
        .set("hidden_act", "gelu_pytorch_tanh")
        .set("tie_word_embeddings", true);
    const ModelDirectory model(config, shapes);
    import(model);
    const std::vector<float> table = tensor_of(model, "embedding.weight"),
                             last = tensor_of(model, "final_norm.gain"),
                             first = tensor_of(model, "layers.0.attention_norm.gain");
    const double root = std::sqrt(8.0);
    for (size_t c = 0; c < 8; ++c) {
        const double w = static_cast<double>(c) / 64;
        CHECK(first[c] == static_cast<float>(1 + w));
        CHECK(last[c] == static_cast<float>((1 + w) / root));
        CHECK(table[c] == static_cast<float>(root * w));
    }
}
