// A model that is exported and imported again has the same weights, bit by bit, and the same logits.
#include <doctest/doctest.h>

#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/own_form.h"
#include "exchange/made_run.h"
#include "exchange/run_logits.h"
#include "exchange/small_forms.h"
#include "law/function_table.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const io::Notice quiet = [](const std::string&) {};

std::string section(const std::string& attention, const std::string& others = "") {
    return fmt::format(
        R"({{"layers": 3, "width": 16, "vocab_size": 23, "embedding_norm": false, "norm": {{"gain": true}},
        "mlp": {{"kind": "swiglu", "hidden": 20}}, "attention": {{"heads": 2, "kv_heads": 1, "head_dim": 8, {}}}{}}})",
        attention, others);
}
const std::string llama = section(R"("qk": {"kind": "none"})");
const std::string qwen3 = section(R"("qk": {"kind": "qk_rms_w", "eps": 1e-6})",
                                  R"(, "layouts": {"a": {"window": 4}, "b": {}}, "pattern": ["a", "b"],
                                      "head": {"tied": true})");

std::string scaled(const std::string& scaling) {
    return section(R"("qk": {"kind": "none"}, "params": {"base": {"init": 300}}, "angle_scaling": {)" +
                   scaling + "}");
}

// The bytes of every tensor of a run's model.
std::map<std::string, std::string> tensors_of(const std::string& run) {
    const io::SafetensorsFile file =
        io::SafetensorsFile::open(io::join_path(run, "checkpoints/step_00000000/model.safetensors"));
    std::map<std::string, std::string> all;
    for (const io::StoredTensor& tensor : file.tensors()) {
        std::string& bytes = all[tensor.name];
        bytes.resize(static_cast<size_t>(tensor.bytes()));
        file.read(tensor, bytes.data(), tensor.bytes());
    }
    return all;
}

const std::vector<int32_t> text{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 22};

}  // namespace

TEST_CASE("export and import give back the weights and the logits") {
    for (const auto& [model, architecture, shard_bytes] :
         {std::tuple{llama, "LlamaForCausalLM", uint64_t{1} << 40},
          {llama, "LlamaForCausalLM", 1000},
          {scaled(R"("kind": "pi", "factor": 3)"), "LlamaForCausalLM", 1000},
          {scaled(R"("kind": "llama3", "factor": 3, "fast": 2, "slow": 0.5)"), "LlamaForCausalLM", 1000},
          {scaled(R"("kind": "yarn", "original_context": 7, "fast": 2, "slow": 0.25)"), "LlamaForCausalLM",
           1000},
          {scaled(R"("kind": "yarn", "factor": 4, "truncate": false, "attention_factor": 2)"),
           "LlamaForCausalLM", 1000},
          {qwen3, "Qwen3ForCausalLM", 4000}}) {
        CAPTURE(architecture);
        const TempDir dir;
        make_run(dir / "run", model);
        const exchange::ExportResult exported = exchange::export_model(
            {.target = dir / "run", .directory = dir / "hf", .shard_bytes = shard_bytes}, quiet);
        CHECK(exported.architecture == architecture);
        const bool sharded =
            io::kind_of(dir / "hf/model.safetensors.index.json", io::Links::refuse) == io::PathKind::file;
        CHECK(sharded == (shard_bytes < 10000));
        exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
        CHECK(tensors_of(dir / "back") == tensors_of(dir / "run"));
        for (const bool steps : {false, true})
            CHECK(run_logits(dir / "back", text, steps) == run_logits(dir / "run", text, steps));
    }
}

TEST_CASE("plain norms are exported with gains of 1") {
    const TempDir dir;
    make_run(
        dir / "run",
        R"({"layers": 1, "width": 16, "vocab_size": 23, "embedding_norm": false, "mlp": {"kind": "swiglu"},
                 "norm": {"eps": 1e-6}, "attention": {"heads": 2, "head_dim": 8, "qk": {"eps": 1e-6}}})");
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
    CHECK(tensors_of(dir / "back").count("layers.0.attention.q_norm.gain") == 1);
    CHECK(run_logits(dir / "back", text, false) == run_logits(dir / "run", text, false));
}

TEST_CASE("weights exported as bf16 are the nearest ones") {
    const TempDir dir;
    make_run(dir / "run", llama);
    exchange::export_model(
        {.target = dir / "run", .directory = dir / "hf", .type = exchange::ExportType::bf16}, quiet);
    exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
    const auto before = tensors_of(dir / "run"), after = tensors_of(dir / "back");
    for (const auto& [name, bytes] : before)
        for (size_t i = 0; i < bytes.size(); i += 4) {
            float a = 0, b = 0;
            std::copy_n(bytes.data() + i, 4, reinterpret_cast<char*>(&a));
            std::copy_n(after.at(name).data() + i, 4, reinterpret_cast<char*>(&b));
            REQUIRE(std::abs(a - b) <= std::abs(a) / 256);
        }
    // A second round changes nothing.
    exchange::export_model(
        {.target = dir / "back", .directory = dir / "hf2", .type = exchange::ExportType::bf16}, quiet);
    exchange::import_model({.directory = dir / "hf2", .output = dir / "again"}, quiet);
    CHECK(tensors_of(dir / "again") == after);
}

TEST_CASE("nothing is written over by accident") {
    const TempDir dir;
    make_run(dir / "run", llama);
    const exchange::ExportOptions out{.target = dir / "run", .directory = dir / "hf"};
    exchange::export_model(out, quiet);
    CHECK(contains(error_of([&] { exchange::export_model(out, quiet); }), "holds an export already"));
    CHECK(contains(error_of([&] {
                       exchange::export_model(
                           {.target = dir / "run", .directory = dir / "run", .replace = true}, quiet);
                   }),
                   "is not an export of this program"));
    const exchange::ImportOptions in{.directory = dir / "hf", .output = dir / "back"};
    exchange::import_model(in, quiet);
    CHECK(contains(error_of([&] { exchange::import_model(in, quiet); }), "holds a run already"));
    exchange::import_model({.directory = dir / "hf", .output = dir / "back", .replace = true}, quiet);
}

TEST_CASE("names in an exported README are escaped") {
    const TempDir dir;
    make_run(dir / "a](x)<script>|b_c", llama);
    exchange::export_model({.target = dir / "a](x)<script>|b_c", .directory = dir / "hf"}, quiet);
    CHECK(contains(get(dir / "hf/README.md"), "# a\\]\\(x\\)\\<script\\>\\|b\\_c\n"));
}

TEST_CASE("a model that no class computes brings its code") {
    const TempDir dir;
    make_run(dir / "run", section(R"("score": "log_bias")"));
    const exchange::ExportResult result =
        exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    CHECK(result.architecture == "LongreachForCausalLM");
    CHECK(contains(get(dir / "hf/modeling_longreach.py"), "class LongreachForCausalLM"));
    CHECK(contains(get(dir / "hf/README.md"), "trust_remote_code=True"));
    const json::Value config = json::parse(get(dir / "hf/config.json"), "config.json");
    const json::Value& layer = config.find("longreach")->find("layers")->as_array()[0];
    CHECK(layer.find("row")->is_null());
    CHECK(layer.find("bias")->as_string() == "-log1p(t/10)");
    exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
    CHECK(tensors_of(dir / "back") == tensors_of(dir / "run"));
    CHECK(run_logits(dir / "back", text, true) == run_logits(dir / "run", text, true));
}

TEST_CASE("the parts that other forms brought survive a round trip, and decoding agrees with whole texts") {
    for (
        const char* model :
        {R"({"layers": 2, "width": 16, "vocab_size": 23, "embedding_norm": false, "positions": 64,
              "norm": {"kind": "layer", "gain": true}, "mlp": {"kind": "gelu_tanh", "hidden": 20, "bias": true},
              "attention": {"heads": 2, "head_dim": 8, "bias": "all", "angle": "nope",
                            "qk": {"kind": "none"}}})",
         R"({"layers": 2, "width": 16, "vocab_size": 23, "embedding_norm": false, "norm": {"placement": "after"},
              "mlp": {"kind": "geglu_tanh", "hidden": 20}, "init": {"zero_projections": false},
              "attention": {"heads": 2, "kv_heads": 1, "head_dim": 8, "bias": "qkv",
                            "qk": {"kind": "qk_rms_full", "eps": 1e-5}}})"}) {
        const TempDir dir;
        make_run(dir / "run", model);
        exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
        const exchange::ImportResult result =
            exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
        CHECK(result.notes.empty());
        CHECK(tensors_of(dir / "back") == tensors_of(dir / "run"));
        const auto whole = run_logits(dir / "back", text, false),
                   steps = run_logits(dir / "back", text, true);
        CHECK(whole == run_logits(dir / "run", text, false));
        double most = 0;
        for (size_t i = 0; i < whole.size(); ++i)
            for (size_t v = 0; v < whole[i].size(); ++v)
                most = std::max(most, std::abs(double{whole[i][v]} - double{steps[i][v]}));
        CHECK(most < 1e-5);  // about forty roundings of logits below 5
    }
}

TEST_CASE("a model that neither a class nor the code expresses is refused by the name of what it has") {
    const TempDir dir;
    const auto refused = [&](const std::string& model) {
        io::remove_tree(dir / "run");
        make_run(dir / "run", model);
        return error_of(
            [&] { exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet); });
    };
    const auto message = [](const std::string& why, const std::string& beyond) {
        return fmt::format(
            "2: neither a class of transformers (for {}) nor modeling_longreach.py can express this "
            "model: {}",
            why, beyond);
    };
    CHECK(refused(section(R"("conv": {"size": 3})")) ==
          message("model.attention: conv.size", "model.attention: conv.size"));
    CHECK(refused(section(R"("score": "forgetting")")) ==
          message("model.attention: score", "model.attention: a score that reads tokens (terms)"));
    CHECK(refused(section(R"("score": "wall")")) ==
          message("model.attention: score", "model.attention: a score that reads tokens (terms)"));
    CHECK(refused(section(R"("mixer": "gdn")")) ==
          message("model.attention: mixer", "model.attention: mixer"));
    CHECK(contains(refused(section(R"("score": "si_interp")")), "(si_interp)"));
    CHECK(contains(refused(section(R"("score": "z - t/T")")), "depends on the length T"));
    CHECK(io::kind_of(dir / "hf", io::Links::refuse) == io::PathKind::missing);
}

TEST_CASE("the code that a model brings has every function that is not solved for") {
    const std::string code = exchange::modeling_code();
    for (const law::FunctionRow& row : law::function_table())
        if (row.strength == law::Strength::call && row.solver == nullptr)
            CHECK_MESSAGE(contains(code, fmt::format("\"{}\": ", row.name)), row.name);
}

TEST_CASE("an imported run takes fields of the config, and is evaluated like any other") {
    const ModelDirectory model;
    const exchange::ImportResult result = exchange::import_model(
        {.directory = model.dir.path(), .output = model.dir / "run", .set = {"eval.lengths=[16,32]"}}, quiet);
    CHECK(result.family == "Llama");
    CHECK(result.notes.empty());
    const auto config = config::load_config<train::Experiment>({.file = model.dir / "run/config.json"});
    CHECK(config.value.eval.lengths == std::vector<int64_t>{16, 32});
    CHECK(config.value.model.train_context == 64);
    CHECK(config.value.model.norm.eps == 1e-5);
    CHECK(run_logits(model.dir / "run", {1, 2, 3}, false).size() == 3);
}
