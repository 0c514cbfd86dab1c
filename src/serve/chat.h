// Chat: the messages of a client as the tokens of a prompt, by the model's chat template.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "serve/chat_template.h"
#include "serve/request.h"
#include "serve/vocabulary.h"

namespace longreach::serve {

// What the files of a model say about chat.
struct ChatFiles {
    std::string source = {};  // of the template; empty: there is none
    std::string file = {};    // where it stands, for messages
    std::vector<std::pair<std::string, std::string>> names =
        {};                          // bos_token, eos_token...: the texts of tokens
    std::vector<int64_t> ends = {};  // tokens that end an answer
};

// Of a run's directory: chat_template.jinja, or the template in tokenizer_config.json; names of tokens out of this file
// and special_tokens_map.json; ends out of generation_config.json. given: a file that is the template instead; may be
// empty. Throws an Error if a file cannot be read.
ChatFiles read_chat_files(const std::string& run, const std::string& given);

class Chat {
  public:
    Chat(const Vocabulary& vocabulary, const ChatFiles& files);

    // Why there are no chat completions; empty if there are.
    const std::string& problem() const { return problem_; }
    // The prompt that an answer continues. The names of control tokens are these tokens where the template wrote them, and
    // text where a client did. Throws a Refusal.
    std::vector<int32_t> prompt(const std::vector<ChatMessage>& messages) const;
    // Besides the document's token: the ends of the files, the eos_token, and the control token that the template writes
    // after an assistant's message.
    const std::vector<int32_t>& ends() const { return ends_; }

  private:
    MarkedText render(const std::vector<ChatMessage>& messages, bool answer_follows) const;
    std::vector<int32_t> encode(const MarkedText& text) const;
    void find_ends(const ChatFiles& files);
    std::string located(const TemplateError& error) const;

    const Vocabulary& vocabulary_;
    const std::string file_;
    const std::vector<std::pair<std::string, std::string>> names_;
    std::string problem_;
    std::optional<ChatTemplate> template_;
    std::set<int32_t> controls_;  // special tokens, and others whose names the template contains
    std::vector<int32_t> ends_;
};

}  // namespace longreach::serve
