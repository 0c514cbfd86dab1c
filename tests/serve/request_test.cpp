// The JSON of requests: what is read, and how every mistake is named.
#include "serve/request.h"

#include <doctest/doctest.h>

using namespace longreach;
using namespace longreach::serve;

namespace {

const Limits limits{
    .vocabulary = 100, .context = 64, .choices = 8, .stops = 2, .stop = 8, .top = 5, .body = 4096};

std::string refusal_of(const std::string& body, const Limits& given = limits) {
    try {
        read_completion(body, given);
    } catch (const Refusal& refusal) {
        CHECK(refusal.status() == 400);
        return refusal.what();
    }
    return "(accepted)";
}

}  // namespace

TEST_CASE("request: a completion with every field") {
    const CompletionRequest r = read_completion(
        R"({"model":"m","prompt":"text","max_tokens":0,"n":2,"temperature":0.5,"top_p":0.9,"top_k":7,"seed":3,
            "logprobs":1,"stop":["a","b"],"echo":true,"stream":false,"stream_options":{"include_usage":true},
            "add_special_tokens":false,"user":"u","best_of":2,"presence_penalty":0,"frequency_penalty":0.0,
            "logit_bias":{},"suffix":null})",
        limits);
    CHECK(r.model == "m");
    CHECK(std::get<std::string>(r.prompts.at(0)) == "text");
    CHECK(r.max_tokens == 0);
    CHECK(r.n == 2);
    CHECK(r.temperature == 0.5);
    CHECK(r.top_p == 0.9);
    CHECK(r.top_k == 7);
    CHECK(r.seed == 3);
    CHECK(r.logprobs == 1);
    CHECK(r.stop == std::vector<std::string>{"a", "b"});
    CHECK(r.echo);
    CHECK(!r.stream);
    CHECK(r.usage_chunk);
    CHECK(!r.begin_document);
}

TEST_CASE("request: the four kinds of prompt") {
    const auto prompts = [](const std::string& json) {
        return read_completion("{\"prompt\":" + json + "}", limits).prompts;
    };
    CHECK(std::get<std::string>(prompts("\"a\"").at(0)) == "a");
    CHECK(prompts(R"(["a","b"])").size() == 2);
    CHECK(std::get<std::vector<int32_t>>(prompts("[1,2]").at(0)) == std::vector<int32_t>{1, 2});
    CHECK(std::get<std::vector<int32_t>>(prompts("[[1],[2,3]]").at(1)) == std::vector<int32_t>{2, 3});
}

TEST_CASE("request: each mistake is named") {
    const auto with = [](const std::string& field) { return refusal_of("{\"prompt\":\"a\"," + field + "}"); };
    CHECK(refusal_of("[]") == "the request is not a JSON object");
    CHECK(refusal_of("{").find("request:1:2") != std::string::npos);
    CHECK(refusal_of("{}") == "'prompt' is missing");
    CHECK(refusal_of(R"({"prompt":null})") == "'prompt' is missing");
    CHECK(refusal_of(R"({"prompt":[]})").find("and not empty") != std::string::npos);
    CHECK(refusal_of(R"({"prompt":3})").find("'prompt' must be a string") == 0);
    CHECK(refusal_of(R"({"prompt":["a",1]})").find("mixes kinds") != std::string::npos);
    CHECK(refusal_of(R"({"prompt":[[1],"a"]})").find("mixes kinds") != std::string::npos);
    CHECK(refusal_of(R"({"prompt":[1,100]})") == "element 2 of 'prompt' is not a token number from 0 to 99");
    CHECK(refusal_of(R"({"prompt":[1,-1]})").find("element 2") == 0);
    CHECK(refusal_of(R"({"prompt":[1,2.0]})").find("element 2") == 0);
    CHECK(refusal_of(R"({"prompt":[1,"a"]})").find("element 2") == 0);
    CHECK(with(R"("max_tokens":65)") == "'max_tokens' must be an integer from 0 to 64");
    CHECK(with(R"("max_tokens":-1)").find("'max_tokens'") == 0);
    CHECK(with(R"("max_tokens":"1")").find("'max_tokens'") == 0);
    CHECK(with(R"("max_tokens":1e3)").find("'max_tokens'") == 0);
    CHECK(with(R"("n":0)") == "'n' must be an integer from 1 to 8");
    CHECK(with(R"("temperature":-0.1)") == "'temperature' must be a number from 0 to 100");
    CHECK(with(R"("temperature":true)").find("'temperature'") == 0);
    CHECK(with(R"("top_p":0)") == "'top_p' must be a number above 0 and at most 1");
    CHECK(with(R"("top_k":-2)") == "'top_k' must be an integer of at least -1");
    CHECK(with(R"("seed":-1)").find("'seed'") == 0);
    CHECK(with(R"("logprobs":6)") == "'logprobs' must be an integer from 0 to 5");
    CHECK(with(R"("logprobs":true)").find("'logprobs'") == 0);
    CHECK(with(R"("stop":3)").find("'stop'") == 0);
    CHECK(with(R"("stop":["123456789"])").find("at most 8 bytes each") != std::string::npos);
    CHECK(with(R"("stop":["a","b","c"])") == "'stop' has 3 strings; at most 2");
    CHECK(with(R"("echo":1)") == "'echo' must be true or false");
    CHECK(with(R"("stream_options":{"usage":true})").find("'stream_options'") == 0);
    CHECK(with(R"("stream_options":3)").find("'stream_options'") == 0);
    CHECK(with(R"("best_of":2)").find("'best_of'") == 0);
    CHECK(with(R"("presence_penalty":0.5)") ==
          "'presence_penalty' is not supported: leave it out, or give 0");
    CHECK(with(R"("logit_bias":{"5":1})").find("'logit_bias' is not supported") == 0);
    CHECK(with(R"("suffix":"x")").find("'suffix' is not supported") == 0);
    CHECK(with(R"("temprature":1)") == "unknown field \"temprature\" (did you mean 'temperature'?)");
    CHECK(with(R"("n":1,"n":1)").find("request:") == 0);  // twice
    CHECK(with(R"("echo":true,"stream":true,"logprobs":1)").find("answered as a whole") != std::string::npos);
    CHECK(refusal_of(R"({"prompt":["a","a","a"],"n":3})").find("at most 8 choices") != std::string::npos);
    CHECK(refusal_of(R"({"n":0,"echo":2,"prompt":[7,500]})") ==
          "element 2 of 'prompt' is not a token number from 0 to 99; 'n' must be an integer from 1 to 8; "
          "'echo' must be true or false");
    Limits numbers = limits;
    numbers.text = false;
    CHECK(refusal_of(R"({"prompt":"a"})", numbers).find("'prompt' must be token numbers") == 0);
    CHECK(refusal_of("{\"prompt\":\"" + std::string(5000, 'a') + "\"}").find("larger than 4096") !=
          std::string::npos);
}

TEST_CASE("request: what clients send for nothing is taken") {
    CHECK(read_completion(R"({"prompt":"a","stop":[""],"top_k":-1,"seed":null})", limits).stop.empty());
    CHECK(read_completion(R"({"prompt":"a","top_k":-1})", limits).top_k == 0);
}

TEST_CASE("request: a chat with every field, and its mistakes by name") {
    const ChatRequest chat = read_chat(
        R"({"model":"m","messages":[{"role":"system","content":"s","name":"n"},{"role":"user","content":[{"type":"text",
        "text":"a"},{"type":"text","text":"b"}],"tool_calls":null}],"max_tokens":5,"max_completion_tokens":5,"n":2,
        "temperature":0.5,"top_p":0.9,"top_k":7,"seed":3,"stop":"x","logprobs":true,"top_logprobs":2,"stream":true,
        "stream_options":{"include_usage":true},"tools":[],"tool_choice":"none","response_format":{"type":"text"}})",
        limits);
    CHECK(chat.messages.size() == 2);
    CHECK(chat.messages[0].name == "n");
    CHECK(chat.messages[1].content == "a\nb");
    CHECK(chat.completion.max_tokens == 5);
    CHECK(chat.completion.logprobs == 2);
    CHECK(chat.completion.stream);
    CHECK(read_chat(R"({"messages":[{"role":"user","content":""}]})", limits).completion.max_tokens == -1);
    const auto refusal = [](const std::string& body) -> std::string {
        try {
            read_chat(body, limits);
        } catch (const Refusal& refused) {
            CHECK(refused.status() == 400);
            return refused.what();
        }
        return "";
    };
    const auto with = [&](const std::string& field) {
        return refusal(R"({"messages":[{"role":"user","content":"a"}],)" + field + "}");
    };
    const auto message = [&](const std::string& text) { return refusal("{\"messages\":[" + text + "]}"); };
    CHECK(refusal("{}") == "'messages' is missing");
    CHECK(message("") == "'messages' must be a list of messages, and not empty");
    CHECK(message("3") == "message 1 is not an object");
    CHECK(message(R"({"content":"a"})") == "message 1 has no 'role' that is a string");
    CHECK(message(R"({"role":"user"})").find("message 1 has no 'content' that is a string") == 0);
    CHECK(message(R"({"role":"user","content":[{"type":"image_url","image_url":{}}]})")
              .find("message 1 has no 'content'") == 0);
    CHECK(message(R"({"role":"user","content":"a","tool_calls":[1]})") ==
          "message 1 has the field \"tool_calls\", which is not supported");
    CHECK(with(R"("tools":[{}])").find("'tools' is not supported") == 0);
    CHECK(with(R"("response_format":{"type":"json_object"})").find("'response_format' is not supported") ==
          0);
    CHECK(with(R"("functions":[])").find("unknown field \"functions\"") == 0);
    CHECK(with(R"("prompt":"a")").find("unknown field \"prompt\"") == 0);
    CHECK(with(R"("logprobs":3)") == "'logprobs' must be true or false");
    CHECK(with(R"("top_logprobs":3)") == "'top_logprobs' needs 'logprobs': true");
    CHECK(with(R"("max_tokens":0)") == "'max_tokens' must be an integer from 1 to 64");
    CHECK(with(R"("max_tokens":1,"max_completion_tokens":2)").find("two names of one number") !=
          std::string::npos);
}

TEST_CASE("request: tokenize and detokenize") {
    CHECK(read_tokenize(R"({"prompt":"a b","add_special_tokens":false})", limits).prompt == "a b");
    CHECK(!read_tokenize(R"({"prompt":"","add_special_tokens":false})", limits).begin_document);
    CHECK_THROWS_AS(read_tokenize("{}", limits), Refusal);
    CHECK_THROWS_AS(read_tokenize(R"({"prompt":[1]})", limits), Refusal);
    CHECK(read_detokenize(R"({"tokens":[1,2]})", limits).tokens == std::vector<int32_t>{1, 2});
    CHECK_THROWS_AS(read_detokenize(R"({"tokens":[100]})", limits), Refusal);
    CHECK_THROWS_AS(read_detokenize(R"({"tokens":"a"})", limits), Refusal);
    CHECK_THROWS_AS(read_detokenize("{}", limits), Refusal);
}
