// Text and tokens of a model: by its tokenizer, as bytes, or as the numbers of tokens of which nothing is known.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_text.h"
#include "tokenizer/tokenizer.h"

namespace longreach::serve {

using tokenizer::byte_vocabulary;

class Vocabulary {
  public:
    // `tokens`: the model's; it may have more than its tokenizer, never fewer. tokenizer: null means the bytes of
    // data tokenize if the model has as many tokens, and numbers otherwise.
    Vocabulary(int64_t tokens, std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

    int64_t size() const { return size_; }
    bool reads_text() const { return tokenizer_ || bytes_; }
    // The token in front of each document, at which texts end; and the name under which texts show it.
    std::optional<int32_t> boundary() const { return boundary_; }
    const std::string& boundary_name() const { return boundary_name_; }

    // names: the names of special tokens in the text are these tokens. Belongs to one thread at a time.
    std::vector<int32_t> encode(std::string_view text, bool names) const;
    // names_token(id, begin, end): whether the name of the token `id` in these bytes of the text is this token. Asked of special
    // tokens and of others that have a name.
    using NamesToken = std::function<bool(int32_t id, size_t begin, size_t end)>;
    std::vector<int32_t> encode(std::string_view text, const NamesToken& names_token) const;
    struct NamedToken {
        std::string name;
        int32_t id = 0;
        bool special = false;  // one that encode(text, false) does not make
    };
    std::vector<NamedToken> named_tokens() const;
    // The bytes of tokens; special ones are left out.
    std::string decode(const std::vector<int32_t>& tokens) const;
    // A token by itself: its bytes, or the name of a special one.
    std::string spelled(int32_t token) const;

  private:
    int64_t size_;
    bool bytes_;
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
    std::optional<int32_t> boundary_;
    std::string boundary_name_;
};

// The bytes that tokens add to a text, one after the other. What a token adds may depend on the one before it:
// the space in front of a word is left out at the front of a text.
class TokenText {
  public:
    explicit TokenText(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}
    std::string next(int32_t token);
    void follow(const std::vector<int32_t>& text);  // the tokens before the first

  private:
    static constexpr size_t remembered = 8;
    const Vocabulary* vocabulary_;
    std::vector<int32_t> recent_;
};

}  // namespace longreach::serve
