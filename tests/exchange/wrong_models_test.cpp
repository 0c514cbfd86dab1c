// Each mistake in a model of another program has its own message, and nothing outside its directory is read.
#include <doctest/doctest.h>

#include "exchange/import.h"
#include "exchange/small_forms.h"
#include "exchange/weights.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::string import_error(const ModelDirectory& model) {
    const std::string error = error_of([&] {
        exchange::import_model({.directory = model.dir.path(), .output = model.dir / "run"},
                               [](const std::string&) {});
    });
    if (error != "no error")
        CHECK(io::kind_of(model.dir / "run", io::Links::refuse) == io::PathKind::missing);
    return anonymous(error, model.dir.path());
}

// With one member of config.json set to a JSON text.
std::string config_error(const std::string& key, std::string_view value) {
    json::Value config = small_llama();
    config.set(key, json::parse(value, "value"));
    return import_error(ModelDirectory(config));
}

std::string index_error(std::string_view map) {
    return error_of([&] { exchange::parse_index(fmt::format(R"({{"weight_map": {}}})", map), "i.json"); });
}

}  // namespace

TEST_CASE("the small model is right") {
    CHECK(import_error(ModelDirectory()) == "no error");
}

TEST_CASE("a config.json that is not the config of a model is refused") {
    const ModelDirectory model;
    const auto with = [&](std::string_view text) {
        put(model.dir / "config.json", text);
        return import_error(model);
    };
    CHECK(with("") == "4: x/config.json:1:1: expected a value, found the end of the text");
    CHECK(with("[1]") == "4: x/config.json is not a JSON object");
    CHECK(with("{}") == "4: x/config.json: model_type: is missing: the form of the model is unknown");
    CHECK(contains(with(R"({"model_type": "llama", "model_type": "llama"})"), "model_type"));
    CHECK(
        contains(with(R"({"model_type": "bert"})"), "model_type: bert is not supported; known are llama, "));
    CHECK(with(R"({"model_type": 1})") == "4: x/config.json:1:16: model_type: expected a string");
    CHECK(with(R"({"model_type": "llama"})") == "4: x/config.json: num_hidden_layers: is missing");
    io::remove_file(model.dir / "config.json");
    CHECK(contains(import_error(model), "x/config.json"));
}

TEST_CASE("a setting that is wrong, or that has no equal here, is named") {
    CHECK(contains(config_error("num_hidden_layers", "\"2\""),
                   "num_hidden_layers: expected an integer of at least 1"));
    CHECK(contains(config_error("num_hidden_layers", "0"),
                   "num_hidden_layers: expected an integer of at least 1"));
    CHECK(contains(config_error("num_hidden_layers", "1000000"), "model.layers"));
    CHECK(contains(config_error("hidden_size", "99999999999999"), "hidden_size: expected an integer"));
    CHECK(contains(config_error("num_attention_heads", "3"),
                   "num_attention_heads: does not divide the width 8"));
    CHECK(contains(config_error("num_key_value_heads", "3"), "model.attention"));
    CHECK(contains(config_error("rms_norm_eps", "-1"), "model.norm.eps"));
    CHECK(contains(config_error("rms_norm_eps", "true"), "rms_norm_eps: expected a number"));
    CHECK(contains(config_error("tie_word_embeddings", "1"), "tie_word_embeddings: expected true or false"));
    CHECK(contains(config_error("hidden_act", "\"relu\""),
                   "hidden_act: \"relu\" is not supported; only \"silu\" is"));
    CHECK(contains(config_error("rope_interleaved", "true"),
                   "rope_interleaved: true is not supported; only false is"));
    CHECK(contains(config_error("rope_theta", "0"), "rope_theta: must be above 0"));
    CHECK(contains(config_error("rope_scaling", "3"), "rope_scaling: expected an object"));
    CHECK(contains(config_error("rope_scaling", R"({"rope_type": "longrope"})"),
                   "rope_scaling.rope_type: longrope is not supported"));
    CHECK(contains(config_error("rope_scaling", R"({"rope_type": "linear"})"),
                   "rope_scaling.factor: must be above 0"));
    CHECK(contains(
        config_error("rope_scaling",
                     R"({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})"),
        "rope_scaling.low_freq_factor: must be below high_freq_factor"));
    CHECK(contains(config_error("quantization_config", R"({"bits": 4})"), "quantization_config"));
}

TEST_CASE("an index names plain files of its own directory") {
    const std::string plain = ": the file must be a plain name that ends in .safetensors";
    CHECK(index_error(R"({"a": "../x.safetensors"})") == "4: i.json:1:22: tensor a" + plain);
    CHECK(contains(index_error(R"({"a": "/etc/x.safetensors"})"), plain));
    CHECK(contains(index_error(R"({"a": "b/x.safetensors"})"), plain));
    CHECK(contains(index_error(R"({"a": ".x.safetensors"})"), plain));
    CHECK(contains(index_error("{\"a\": \"x\\u0000.safetensors\"}"), plain));
    CHECK(contains(index_error(R"({"a": "x.bin"})"), plain));
    CHECK(contains(index_error(R"({"a": 1})"), plain));
    CHECK(contains(index_error(R"({"a": "x.safetensors", "a": "y.safetensors"})"), "\"a\""));
    CHECK(index_error("{}") == "4: i.json: weight_map is empty");
    CHECK(index_error("[]") == "4: i.json: weight_map is not an object");
    CHECK(error_of([] { exchange::parse_index("{}", "i.json"); }) ==
          "4: i.json: weight_map is not an object");
}

TEST_CASE("shards and their index agree, tensor by tensor") {
    const ModelDirectory model;
    const std::string shard = model.dir / "a.safetensors", index = model.dir / "model.safetensors.index.json";
    io::remove_file(model.dir / "model.safetensors");
    CHECK(import_error(model) == "4: x has neither model.safetensors nor model.safetensors.index.json");
    const auto with = [&](std::string_view map) {
        put(index, fmt::format(R"({{"metadata": {{}}, "weight_map": {}}})", map));
        return import_error(model);
    };
    CHECK(contains(with(R"({"a": "a.safetensors"})"), "x/a.safetensors"));
    put_weights(shard, {{"a", {2}}, {"b", {2}}});
    CHECK(contains(with(R"({"a": "a.safetensors"})"), "x/a.safetensors holds b, which"));
    CHECK(contains(with(R"({"a": "a.safetensors", "b": "a.safetensors", "c": "a.safetensors"})"),
                   "x/a.safetensors lacks c, which"));
    const std::string bytes = get(shard);
    for (const size_t size : {size_t{0}, size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
        put(shard, bytes.substr(0, size));
        CHECK(contains(with(R"({"a": "a.safetensors", "b": "a.safetensors"})"), "4: x/a.safetensors: "));
    }
}

TEST_CASE("tensors that are missing, unknown, of another shape or of a type without a value are named") {
    Shapes shapes = small_llama_shapes();
    const std::string q = "model.layers.0.self_attn.q_proj.weight";
    shapes[q] = {8, 4};
    CHECK(import_error(ModelDirectory(small_llama(), shapes)) ==
          "4: x: " + q + " has the shape [8, 4]; config.json asks for [8, 8]");
    shapes.erase(q);
    CHECK(import_error(ModelDirectory(small_llama(), shapes)) ==
          "4: x lacks " + q + ", which a model of the form Llama has");
    shapes = small_llama_shapes();
    shapes["model.layers.0.self_attn.q_proj.bias"] = {8};
    CHECK(import_error(ModelDirectory(small_llama(), shapes)) ==
          "4: x holds model.layers.0.self_attn.q_proj.bias, which a model of the form Llama with this "
          "config.json does not have");
    const ModelDirectory model;
    put_weights(model.dir / "model.safetensors", small_llama_shapes(), io::StoredType::f64);
    const std::string error = error_of([&] {
        exchange::import_model({.directory = model.dir.path(), .output = model.dir / "run"},
                               [](const std::string&) {});
    });
    CHECK(contains(error, "is F64; only F32, F16 and BF16 are read"));
}

TEST_CASE("every f16 is the f32 of the same value") {
    CHECK(exchange::half_value(0x3c00) == 1.0f);
    CHECK(exchange::half_value(0xc000) == -2.0f);
    CHECK(exchange::half_value(0x7bff) == 65504.0f);
    CHECK(exchange::half_value(0x0001) == 0x1p-24f);
    CHECK(exchange::half_value(0x83ff) == -1023 * 0x1p-24f);
    CHECK(exchange::half_value(0x0400) == 0x1p-14f);
    CHECK(std::isinf(exchange::half_value(0xfc00)));
    CHECK(std::isnan(exchange::half_value(0x7e00)));
}
