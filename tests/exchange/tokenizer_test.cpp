// The tokenizer travels with the model, and another one's is refused.
#include <doctest/doctest.h>

#include "data/tokenizer_file.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/made_run.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/tiny_vocabulary.h"
#include "train/run_files.h"

using namespace longreach;
using namespace longreach::test;

namespace {
const io::Notice quiet = [](const std::string&) {};
const char* const small_model =
    R"({"layers": 1, "width": 16, "vocab_size": 300, "embedding_norm": false, "norm": {"gain": true},
        "mlp": {"kind": "swiglu"}, "attention": {"heads": 2, "head_dim": 8, "qk": {"kind": "none"}}})";
}  // namespace

TEST_CASE("the tokenizer goes from run to model and back, and its fingerprint with it") {
    const TempDir dir;
    io::make_directories(dir / "run");
    put(dir / "run/tokenizer.json", json::write(tiny_byte_level({{"a", "b"}}), json::Style::pretty));
    const uint64_t fingerprint = data::load_tokenizer(dir / "run")->fingerprint();
    make_run(dir / "run", small_model, fingerprint);
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    CHECK(get(dir / "hf/tokenizer.json") == get(dir / "run/tokenizer.json"));
    const exchange::ImportResult result =
        exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
    CHECK(contains(result.tokenizer, "257 tokens"));
    CHECK(get(dir / "back/tokenizer.json") == get(dir / "run/tokenizer.json"));
    CHECK(train::tokenizer_of(train::find_checkpoint(dir / "back", quiet)) == fingerprint);

    io::make_directories(dir / "other");
    put(dir / "other/tokenizer.json", json::write(tiny_byte_level({{"a", "c"}}), json::Style::pretty));
    const std::string error = error_of([&] {
        exchange::export_model({.target = dir / "run", .directory = dir / "hf2", .tokenizer = dir / "other"},
                               quiet);
    });
    CHECK(contains(error, "the model was trained on tokens of the tokenizer"));
}

TEST_CASE("an export says which token ends a document, unless files of the tokenizer do") {
    const TempDir dir;
    io::make_directories(dir / "run");
    json::Value file = tiny_byte_level({{"a", "b"}});
    file.set("added_tokens", json::Value::array({added_token(257, "<|endoftext|>", true)}));
    put(dir / "run/tokenizer.json", json::write(file, json::Style::pretty));
    make_run(dir / "run", small_model, data::load_tokenizer(dir / "run")->fingerprint());
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    const auto read = [&](const char* name) { return json::parse(get(dir / name), name); };
    const json::Value config = read("hf/config.json"), generation = read("hf/generation_config.json");
    for (const char* id : {"bos_token_id", "eos_token_id"}) {
        REQUIRE(config.find(id) != nullptr);
        CHECK(config.find(id)->as_int64() == 257);
        REQUIRE(generation.find(id) != nullptr);
        CHECK(generation.find(id)->as_int64() == 257);
    }
    CHECK(config.find("pad_token_id") == nullptr);
    CHECK(generation.find("pad_token_id")->as_int64() == 257);
    CHECK(read("hf/tokenizer_config.json").find("eos_token")->as_string() == "<|endoftext|>");
    put(dir / "hf/chat_template.jinja", "{{ messages[0].content }}");
    CHECK(exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet).notes.empty());

    put(dir / "back/tokenizer_config.json", R"({"eos_token": "ab"})");
    exchange::export_model({.target = dir / "back", .directory = dir / "again"}, quiet);
    CHECK(get(dir / "again/tokenizer_config.json") == R"({"eos_token": "ab"})");
    CHECK(get(dir / "again/chat_template.jinja") == "{{ messages[0].content }}");
    CHECK(get(dir / "again/generation_config.json") == get(dir / "hf/generation_config.json"));
    CHECK(read("again/config.json").find("eos_token_id") == nullptr);
    CHECK(contains(get(dir / "again/README.md"), "longreach has not trained it: its weights are imported"));
}

TEST_CASE("a model of bytes is exported with the bytes as its tokenizer") {
    const TempDir dir;
    std::string model = small_model;
    model.replace(model.find("300"), 3, "257");
    make_run(dir / "run", model, tokenizer::bytes_fingerprint());
    const exchange::ExportResult result =
        exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    CHECK(result.notes == std::vector<std::string>{"the tokens are bytes, and tokenizer.json says so"});
    const auto tokenizer = data::load_tokenizer(dir / "hf");
    std::string text;
    std::vector<int32_t> ids, expected;
    for (int byte = 0; byte < 256; ++byte) {
        text += static_cast<char>(byte);
        expected.push_back(byte);
    }
    tokenizer::Encoder encoder(tokenizer);
    encoder.encode(text + "a b  c<|endoftext|>", tokenizer::SpecialTokens::as_tokens, ids);
    for (const char byte : std::string_view("a b  c")) expected.push_back(byte);
    expected.push_back(256);
    CHECK(ids == expected);
    expected.pop_back();
    CHECK(tokenizer->decode(expected) == text + "a b  c");
    CHECK(json::parse(get(dir / "hf/generation_config.json"), "g").find("eos_token_id")->as_int64() == 256);
    CHECK(json::parse(get(dir / "hf/config.json"), "c").find("eos_token_id")->as_int64() == 256);
    CHECK(exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet).notes.empty());
    CHECK(train::tokenizer_of(train::find_checkpoint(dir / "back", quiet)) == tokenizer::bytes_fingerprint());

    make_run(dir / "numbers", small_model);  // tokens of which nothing is known
    exchange::export_model({.target = dir / "numbers", .directory = dir / "without"}, quiet);
    CHECK(io::kind_of(dir / "without/tokenizer.json", io::Links::refuse) == io::PathKind::missing);
}

TEST_CASE("an import replaces the import before it, with what that had of the tokenizer") {
    const TempDir dir;
    make_run(dir / "run", small_model);
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    put(dir / "hf/tokenizer.json", json::write(tiny_byte_level({{"a", "b"}}), json::Style::pretty));
    put(dir / "hf/generation_config.json", R"({"eos_token_id": 1})");
    put(dir / "hf/chat_template.jinja", "{{ messages }}");
    const exchange::ImportOptions first{.directory = dir / "hf", .output = dir / "back"};
    exchange::import_model(first, quiet);
    put(dir / "hf/generation_config.json", R"({"eos_token_id": 2})");
    io::remove_file(dir / "hf/chat_template.jinja");
    put(dir / "back/notes.txt", "mine");
    exchange::ImportOptions second = first;
    second.replace = true;
    CHECK(exchange::import_model(second, quiet).kept == std::vector<std::string>{"notes.txt"});
    CHECK(get(dir / "back/generation_config.json") == R"({"eos_token_id": 2})");
    CHECK(io::kind_of(dir / "back/chat_template.jinja", io::Links::refuse) == io::PathKind::missing);
}

TEST_CASE("import --replace keeps a chat template that the user put there or changed") {
    const TempDir dir;
    make_run(dir / "run", small_model);
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    const exchange::ImportOptions first{.directory = dir / "hf", .output = dir / "back"};
    exchange::ImportOptions again = first;
    again.replace = true;
    exchange::import_model(first, quiet);
    put(dir / "back/chat_template.jinja", "mine");
    put(dir / "back/tokenizer.json", "{}");
    const std::vector<std::string> mine{"chat_template.jinja", "tokenizer.json"};
    CHECK(exchange::import_model(again, quiet).kept == mine);
    CHECK(get(dir / "back/chat_template.jinja") == "mine");
    CHECK(get(dir / "back/tokenizer.json") == "{}");

    put(dir / "hf/chat_template.jinja", "theirs");
    CHECK_THROWS_WITH_AS(exchange::import_model(again, quiet),
                         doctest::Contains("was not written by this program, or was changed since"), Error);
    CHECK(get(dir / "back/chat_template.jinja") == "mine");
    io::remove_file(dir / "back/chat_template.jinja");
    io::remove_file(dir / "back/tokenizer.json");
    CHECK(exchange::import_model(again, quiet).kept.empty());
    put(dir / "back/chat_template.jinja", "changed");
    io::remove_file(dir / "hf/chat_template.jinja");
    CHECK(exchange::import_model(again, quiet).kept == std::vector<std::string>{"chat_template.jinja"});
    CHECK(get(dir / "back/chat_template.jinja") == "changed");
}

TEST_CASE("a run whose deletion was interrupted took the user's tokenizer for its own") {
    const TempDir dir;
    make_run(dir / "run", small_model);
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    put(dir / "hf/tokenizer.json", json::write(tiny_byte_level({{"a", "b"}}), json::Style::pretty));
    exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
    put(dir / "back/tokenizer.json", "mine");
    const std::vector<std::string> all = train::run_files(dir / "back");
    for (const std::string& next : all) {
        CAPTURE(next);
        io::remove_file(dir / ("back/" + next));
        for (const std::string& left : train::run_files(dir / "back")) CHECK(left != "tokenizer.json");
    }
    CHECK(get(dir / "back/tokenizer.json") == "mine");
}

TEST_CASE("a tokenizer that cannot be read is copied and noted") {
    const TempDir dir;
    make_run(dir / "run", small_model);
    exchange::export_model({.target = dir / "run", .directory = dir / "hf"}, quiet);
    put(dir / "hf/tokenizer.json", "{}");
    const exchange::ImportResult result =
        exchange::import_model({.directory = dir / "hf", .output = dir / "back"}, quiet);
    REQUIRE(result.notes.size() == 1);
    CHECK(contains(result.notes[0], "the tokenizer cannot be read here"));
    CHECK(get(dir / "back/tokenizer.json") == "{}");
}
