// Paths, keys, and the JSON of answers, without HTTP.
#include "serve/service_bench.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::serve;

TEST_CASE("service: the key, hosts, paths and methods") {
    ServiceBench bench({.model = "m", .key = "correct horse battery"});
    const auto status = [&](const std::string& given) {
        bench.authorization = given;
        return bench.ask("GET", "/v1/models").status;
    };
    CHECK(status("") == 401);
    CHECK(status("Bearer ") == 401);
    CHECK(status("Bearer correct horse batter") == 401);
    CHECK(status("Bearer correct horse battery ") == 401);
    CHECK(status("correct horse battery") == 401);
    CHECK(status("Bearer correct horse battery") == 200);
    CHECK(bench.ask("GET", "/v1/completions").status == 405);
    CHECK(bench.ask("POST", "/v1/models").status == 405);
    CHECK(bench.ask("DELETE", "/v1/completions").status == 405);
    CHECK(bench.ask("GET", "/v1/chat").status == 404);
    const json::Value refused = bench.get("/etc/passwd", 404);
    CHECK(refused.find("error")->find("type")->as_string() == "not_found_error");
    CHECK(refused.find("error")->find("code")->as_int64() == 404);

    ServiceBench open({.model = "m", .hosts = {"localhost", "[::1]"}});
    CHECK(open.ask("GET", "/health").status == 200);
    open.host = "evil.example:8080";
    CHECK(open.ask("GET", "/health").status == 403);
    open.host = "localhost.evil.example";
    CHECK(open.ask("GET", "/health").status == 403);
    open.host = "";
    CHECK(open.ask("GET", "/health").status == 403);
    open.host = "[::1]:9";
    CHECK(open.ask("GET", "/health").status == 200);
}

TEST_CASE("service: models, tokens and text") {
    ServiceBench bench;
    const json::Value models = bench.get("/v1/models");
    CHECK(models.find("data")->as_array().at(0).find("id")->as_string() == "m");
    CHECK(bench.get("/v1/models/m").find("max_model_len")->as_int64() == 96);
    CHECK(bench.get("/tokenizer_info").find("eos_token")->as_string() == "<|endoftext|>");
    const auto tokens = [&](const std::string& body) {
        const json::Value answer = bench.post("/tokenize", body);
        CHECK(answer.find("count")->as_int64() ==
              static_cast<int64_t>(answer.find("tokens")->as_array().size()));
        return json::write(*answer.find("tokens"), json::Style::compact);
    };
    CHECK(tokens(R"({"prompt":"ab"})") == "[256,97,98]");
    CHECK(tokens(R"({"prompt":"ab","add_special_tokens":false})") == "[97,98]");
    CHECK(tokens(R"({"prompt":"a<|endoftext|>b","add_special_tokens":false})") == "[97,256,98]");
    CHECK(bench.post("/detokenize", R"({"tokens":[256,195,169,255]})").find("prompt")->as_string() ==
          "\xC3\xA9\xEF\xBF\xBD");
}

TEST_CASE("service: a completion as a whole") {
    ServiceBench bench;
    const json::Value value = bench.post(
        "/v1/completions",
        R"({"model":"m","prompt":[[5,6,7],[8]],"max_tokens":1,"echo":true,"logprobs":1,"temperature":0})");
    CHECK(value.find("object")->as_string() == "text_completion");
    REQUIRE(value.find("choices")->as_array().size() == 2);
    const json::Value& choice = value.find("choices")->as_array()[0];
    CHECK(choice.find("index")->as_int64() == 0);
    const json::Value& lists = *choice.find("logprobs");
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
        CHECK(lists.find(name)->as_array().size() == 4);
    CHECK(lists.find("token_logprobs")->as_array()[0].is_null());
    CHECK(lists.find("top_logprobs")->as_array()[0].is_null());
    CHECK(lists.find("top_logprobs")->as_array()[3].as_object().size() == 1);
    CHECK(lists.find("top_logprobs")->as_array()[3].as_object()[0].value.as_number() ==
          lists.find("token_logprobs")->as_array()[3].as_number());
    CHECK(value.find("usage")->find("prompt_tokens")->as_int64() == 4);
    CHECK(value.find("usage")->find("total_tokens")->as_int64() == 6);
    const json::Value plain =
        bench.post("/v1/completions", R"({"prompt":"a","max_tokens":2,"temperature":0})");
    CHECK(plain.find("choices")->as_array()[0].find("logprobs")->is_null());
}

TEST_CASE("service: mistakes come back in OpenAI's form") {
    ServiceBench bench;
    const json::Value refused =
        bench.post("/v1/completions", R"({"prompt":"a","max_tokens":1000,"n":0})", 400);
    CHECK(refused.find("error")->find("param")->as_string() == "max_tokens");
    CHECK(refused.find("error")->find("type")->as_string() == "invalid_request_error");
    CHECK(bench.post("/v1/completions", R"({"prompt":"a","model":"gpt"})", 404).find("error") != nullptr);
    CHECK(bench.post("/v1/completions", "\xFF", 400).find("error") != nullptr);
    CHECK(bench.post("/v1/completions", "{\"prompt\":\"a\",\"\xC3\xA9\\u0000\":1}", 400).find("error") !=
          nullptr);
    CHECK(bench.post("/tokenize", "", 400).find("error") != nullptr);
    CHECK(bench.post("/detokenize", R"({"tokens":[-1]})", 400).find("error") != nullptr);
}

TEST_CASE("service: a stream is the same text, and ends") {
    ServiceBench bench;
    const std::string fields = R"("prompt":"ab","max_tokens":40,"temperature":1,"seed":4,"n":2)";
    const json::Value whole = bench.post("/v1/completions", "{" + fields + "}");
    const HttpAnswer answer =
        bench.ask("POST", "/v1/completions",
                  "{" + fields + R"(,"stream":true,"stream_options":{"include_usage":true}})");
    CHECK(answer.type == "text/event-stream");
    REQUIRE(answer.stream);
    answer.stream(bench.client);
    std::string texts[2], ends[2], rest = bench.client.text;
    int usages = 0;
    for (size_t end; (end = rest.find("\n\n")) != std::string::npos; rest.erase(0, end + 2)) {
        REQUIRE(rest.starts_with("data: "));
        const std::string data = rest.substr(6, end - 6);
        if (data == "[DONE]") continue;
        const json::Value chunk = json::parse(data, "chunk");
        usages += chunk.find("usage") != nullptr;
        for (const json::Value& choice : chunk.find("choices")->as_array()) {
            const size_t i = static_cast<size_t>(choice.find("index")->as_int64());
            texts[i] += choice.find("text")->as_string();
            if (!choice.find("finish_reason")->is_null()) ends[i] = choice.find("finish_reason")->as_string();
        }
    }
    CHECK(rest.empty());
    CHECK(bench.client.text.ends_with("data: [DONE]\n\n"));
    CHECK(usages == 1);
    CHECK(bench.client.parts > 10);
    for (size_t i = 0; i < 2; ++i) {
        CHECK(texts[i] == whole.find("choices")->as_array()[i].find("text")->as_string());
        CHECK(ends[i] == whole.find("choices")->as_array()[i].find("finish_reason")->as_string());
    }
}

TEST_CASE("service: every answer says the seed that gives its text again") {
    ServiceBench bench;
    const auto ask = [&](const std::string& fields) {
        return bench.post("/v1/completions", R"({"prompt":"ab","max_tokens":40)" + fields + "}");
    };
    const auto text = [](const json::Value& answer) {
        return answer.find("choices")->as_array()[0].find("text")->as_string();
    };
    const json::Value first = ask(""), second = ask("");
    const int64_t seed = first.find("seed")->as_int64();
    CHECK(seed >= 0);
    CHECK(seed < int64_t{1} << 53);
    CHECK(seed != second.find("seed")->as_int64());
    CHECK(text(first) != text(second));
    const json::Value again = ask(fmt::format(",\"seed\":{}", seed));
    CHECK(text(again) == text(first));
    CHECK(again.find("seed")->as_int64() == seed);
    CHECK(ask(",\"seed\":7,\"temperature\":0").find("seed")->is_null());
    const HttpAnswer streamed =
        bench.ask("POST", "/v1/completions", R"({"prompt":"ab","max_tokens":2,"seed":9,"stream":true})");
    streamed.stream(bench.client);
    CHECK(bench.client.text.find(R"("seed":9)") != std::string::npos);
}

TEST_CASE("service: a client that leaves stops its request") {
    ServiceBench bench;
    bench.client.left = true;
    const std::string many = R"({"prompt":[1,2,3],"max_tokens":90,"n":4,"temperature":0)";
    CHECK(bench.ask("POST", "/v1/completions", many + "}").status >= 200);
    bench.client.left = false;
    bench.client.leaves_after = 1;
    const HttpAnswer answer = bench.ask("POST", "/v1/completions", many + R"(,"stream":true})");
    answer.stream(bench.client);
    CHECK(bench.client.parts == 1);
    { const HttpAnswer never = bench.ask("POST", "/v1/completions", many + R"(,"stream":true})"); }
    for (int i = 0; i < 600 && bench.engine.engine.waiting() > 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(bench.engine.engine.waiting() == 0);
}

TEST_CASE("service: web pages of other origins are refused, with a key and without") {
    ServiceBench open({.model = "m", .hosts = {"localhost"}}),
        keyed({.model = "m", .key = "correct horse battery"});
    for (ServiceBench* bench : {&open, &keyed}) {
        bench->authorization = "Bearer correct horse battery";
        const auto status = [&](const std::string& origin, const std::string& site) {
            bench->origin = origin;
            bench->fetch_site = site;
            return bench->ask("GET", "/v1/models").status;
        };
        CHECK(status("", "") == 200);
        CHECK(status("http://localhost:80", "same-origin") == 200);
        CHECK(status("", "none") == 200);
        for (const char* origin : {"http://evil.example", "null", "http://localhost:3000", "http://localhost",
                                   "http://localhost:80.evil.example", "localhost:80"})
            CHECK(status(origin, "") == 403);
        CHECK(status("", "cross-site") == 403);
        CHECK(status("", "same-site") == 403);
    }
}

TEST_CASE("service: a long answer comes in pieces and is the same text") {
    ServiceBench bench;
    const std::string asked = R"({"prompt":"abcdefgh","max_tokens":0,"echo":true,"logprobs":20,"n":)";
    const json::Value one = bench.post("/v1/completions", asked + "1}");
    const HttpAnswer answer = bench.ask("POST", "/v1/completions", asked + "64}");
    REQUIRE(!answer.stream);  // a few hundred KB
    const json::Value many = json::parse(answer.body, "answer");
    REQUIRE(many.find("choices")->as_array().size() == 64);
    for (const char* part : {"text", "logprobs"})
        CHECK(json::write(*many.find("choices")->as_array()[63].find(part), json::Style::compact) ==
              json::write(*one.find("choices")->as_array()[0].find(part), json::Style::compact));
    const std::string longer = R"({"prompt":")" + std::string(90, 'a') + asked.substr(19);
    const HttpAnswer pieces = bench.ask("POST", "/v1/completions", longer + "40}");
    REQUIRE(pieces.stream);
    CHECK(pieces.type == "application/json");
    CHECK(pieces.stream(bench.client));
    CHECK(bench.client.parts > 10);
    CHECK(
        json::parse(bench.client.text, "answer", {.max_bytes = 1 << 26}).find("choices")->as_array().size() ==
        40);
    const HttpAnswer left = bench.ask("POST", "/v1/completions", longer + "40}");
    bench.client.left = true;
    CHECK(!left.stream(bench.client));
}

TEST_CASE("service: what tokens stand for is bounded before it is made") {
    ServiceBench bench({.model = "m", .body = 1 << 20}, {.context = 96, .max_answer = 1 << 16});
    std::string tokens = "97";
    for (int i = 0; i < 20000; ++i) tokens += ",97";
    CHECK(bench.post("/detokenize", "{\"tokens\":[" + tokens + "]}", 400).find("error") != nullptr);
    CHECK(bench.post("/tokenize", R"({"prompt":")" + std::string(300000, 'a') + "\"}", 503).find("error") !=
          nullptr);
    CHECK(bench.post("/tokenize", R"({"prompt":"a"})").find("count")->as_int64() == 2);
}
