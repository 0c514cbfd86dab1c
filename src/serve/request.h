// What a client asks for, read from the JSON of a request with every mistake named. The fields are those of
// OpenAI's completions and chat, and of vLLM's tokenize and detokenize; README.md lists them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace longreach::serve {

// An answer with an HTTP status from 400 on, in OpenAI's form.
class Refusal : public std::runtime_error {
  public:
    // field: the first field at fault; may be empty.
    Refusal(int status, const std::string& message, std::string field = {})
        : std::runtime_error(message), status_(status), field_(std::move(field)) {}
    int status() const { return status_; }
    const std::string& field() const { return field_; }

  private:
    int status_;
    std::string field_;
};

struct Limits {
    int64_t vocabulary = 0;          // of the model
    bool text = true;                // whether prompts may be text
    int64_t context = 0;             // tokens of a prompt and what follows it
    int64_t choices = 128;           // prompts times n
    int64_t stops = 16, stop = 256;  // stop strings, bytes of each
    int64_t top = 20;                // logprobs
    uint64_t body = 0;               // bytes
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
    std::string model;
    std::vector<Prompt> prompts;
    int64_t max_tokens = 16, n = 1;
    double temperature = 1, top_p = 1;
    int64_t top_k = 0;      // 0: all
    int64_t seed = -1;      // as that of generate; -1: none was given
    int64_t logprobs = -1;  // -1: none; else how many of the most likely tokens
    std::vector<std::string> stop;
    bool echo = false, stream = false, usage_chunk = false;
    bool begin_document = true;      // the document's token in front of prompts that are text
    std::vector<int32_t> ends = {};  // tokens that end a text, besides the document's
};

struct ChatMessage {
    std::string role, content, name;  // a name may be empty
};

struct ChatRequest {
    std::vector<ChatMessage> messages;
    // Without prompts, which the messages become. max_tokens of -1: as many as there is room for.
    CompletionRequest completion;
};

struct TokenizeRequest {
    std::string prompt;
    bool begin_document = true;
};

struct DetokenizeRequest {
    std::vector<int32_t> tokens;
};

// Throw a Refusal that names every mistake.
CompletionRequest read_completion(std::string_view body, const Limits& limits);
ChatRequest read_chat(std::string_view body, const Limits& limits);
TokenizeRequest read_tokenize(std::string_view body, const Limits& limits);
DetokenizeRequest read_detokenize(std::string_view body, const Limits& limits);

}  // namespace longreach::serve
