// The body of a request to the server, read as each kind of request. A mistake is a refusal with status 400 and a text
// that JSON takes; what is accepted keeps every limit.
#include "fuzz/target.h"
#include "serve/request.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

template <class Read>
void try_reading(Read read) {
    try {
        read();
    } catch (const serve::Refusal& refusal) {
        holds(refusal.status() == 400, "a body is refused with another status than 400");
        holds(std::string_view(refusal.what()).size() > 0 && std::string_view(refusal.what()).size() < 10000,
              "a refusal says nothing, or too much");
    }
}

void check_draws(const serve::CompletionRequest& r, const serve::Limits& limits) {
    holds(r.n >= 1 && r.n <= limits.choices, "too many choices");
    holds(r.max_tokens <= limits.context, "too many tokens");
    holds(r.temperature >= 0 && r.top_p > 0 && r.top_p <= 1 && r.top_k >= 0 && r.seed >= -1,
          "a draw of no kind");
    holds(r.logprobs >= -1 && r.logprobs <= limits.top, "too many log-probabilities");
    holds(static_cast<int64_t>(r.stop.size()) <= limits.stops, "too many stop strings");
    for (const std::string& stop : r.stop)
        holds(!stop.empty() && static_cast<int64_t>(stop.size()) <= limits.stop && is_utf8(stop),
              "a stop string");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const serve::Limits limits{
        .vocabulary = 300, .context = 64, .choices = 8, .stops = 4, .stop = 16, .top = 5, .body = 1 << 16};
    const std::string_view body = text_of(data, size);
    try_reading([&] {
        const serve::CompletionRequest r = serve::read_completion(body, limits);
        const int64_t prompts = static_cast<int64_t>(r.prompts.size());
        holds(prompts >= 1 && prompts * r.n <= limits.choices, "too many choices");
        holds(r.max_tokens >= 0, "too few tokens");
        check_draws(r, limits);
        for (const serve::Prompt& prompt : r.prompts)
            if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt))
                for (const int32_t token : *tokens)
                    holds(token >= 0 && token < limits.vocabulary, "a token outside the vocabulary");
    });
    try_reading([&] {
        const serve::ChatRequest chat = serve::read_chat(body, limits);
        holds(!chat.messages.empty() && chat.completion.prompts.empty(), "a chat of no messages");
        for (const serve::ChatMessage& message : chat.messages)
            holds(!message.role.empty() && is_utf8(message.role + message.content + message.name),
                  "a message");
        holds(chat.completion.max_tokens == -1 || chat.completion.max_tokens > 0, "too few tokens");
        check_draws(chat.completion, limits);
    });
    try_reading([&] { serve::read_tokenize(body, limits); });
    try_reading([&] {
        for (const int32_t token : serve::read_detokenize(body, limits).tokens)
            holds(token >= 0 && token < limits.vocabulary, "a token outside the vocabulary");
    });
    return 0;
}
