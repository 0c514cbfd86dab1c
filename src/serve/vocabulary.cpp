#include "serve/vocabulary.h"

#include <algorithm>

#include "base/error.h"

namespace longreach::serve {

using tokenizer::byte_boundary;

Vocabulary::Vocabulary(int64_t tokens, std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
    : size_(tokens), bytes_(!tokenizer && tokens == byte_vocabulary), tokenizer_(std::move(tokenizer)) {
    if (bytes_) {
        boundary_ = byte_boundary;
        boundary_name_ = tokenizer::boundary_name;
    }
    if (!tokenizer_) return;
    require(tokenizer_->vocab_size() <= size_, ExitCode::data, "the tokenizer has {} tokens, the model {}",
            tokenizer_->vocab_size(), size_);
    boundary_ = tokenizer_->document_boundary();
    for (const tokenizer::AddedToken& added : tokenizer_->definition().added)
        if (boundary_ == added.id) boundary_name_ = added.content;
}

std::vector<int32_t> Vocabulary::encode(std::string_view text, bool names) const {
    if (!tokenizer_) return encode(text, [&](int32_t, size_t, size_t) { return names; });
    std::vector<int32_t> ids;
    tokenizer::Encoder(tokenizer_)
        .encode(text, names ? tokenizer::SpecialTokens::as_tokens : tokenizer::SpecialTokens::as_text, ids);
    return ids;
}

std::vector<int32_t> Vocabulary::encode(std::string_view text, const NamesToken& names_token) const {
    std::vector<int32_t> ids;
    if (tokenizer_) {
        const auto admits = [&](const tokenizer::AddedToken& token, size_t begin, size_t end) {
            return names_token(token.id, begin, end);
        };
        tokenizer::Encoder(tokenizer_).encode(text, admits, ids);
        return ids;
    }
    check(bytes_, "text for a vocabulary of {} unknown tokens", size_);
    const size_t length = boundary_name_.size();
    for (size_t at = 0; at < text.size(); ++at) {
        if (text.substr(at).starts_with(boundary_name_) && names_token(byte_boundary, at, at + length)) {
            ids.push_back(byte_boundary);
            at += length - 1;
        } else {
            ids.push_back(static_cast<unsigned char>(text[at]));
        }
    }
    return ids;
}

std::vector<Vocabulary::NamedToken> Vocabulary::named_tokens() const {
    if (bytes_) return {{tokenizer::boundary_name, byte_boundary, true}};
    std::vector<NamedToken> out;
    if (!tokenizer_) return out;
    for (const tokenizer::AddedToken& added : tokenizer_->definition().added)
        out.push_back({added.content, added.id, added.special});
    return out;
}

std::string Vocabulary::decode(const std::vector<int32_t>& tokens) const {
    std::string text;
    if (tokenizer_) {
        std::vector<int32_t> known;  // rows of the model's vocabulary that no token uses stand for nothing
        for (const int32_t token : tokens)
            if (token < tokenizer_->vocab_size()) known.push_back(token);
        return tokenizer_->decode(known);
    }
    for (const int32_t token : tokens) {
        if (!bytes_) {
            text += fmt::format("{}{}", text.empty() ? "" : " ", token);
        } else if (token != byte_boundary) {
            text += static_cast<char>(token);
        }
    }
    return text;
}

std::string Vocabulary::spelled(int32_t token) const {
    if (bytes_) return token == byte_boundary ? boundary_name_ : std::string(1, static_cast<char>(token));
    if (!tokenizer_) return std::to_string(token);
    return token < tokenizer_->vocab_size() ? tokenizer_->decode(std::vector{token}, true) : std::string();
}

std::string TokenText::next(int32_t token) {
    const size_t before = vocabulary_->decode(recent_).size();
    recent_.push_back(token);
    std::string text = vocabulary_->decode(recent_).substr(before);
    if (recent_.size() > remembered) recent_.erase(recent_.begin());
    return text;
}

void TokenText::follow(const std::vector<int32_t>& text) {
    recent_.assign(text.end() - static_cast<std::ptrdiff_t>(std::min(remembered, text.size())), text.end());
}

}  // namespace longreach::serve
