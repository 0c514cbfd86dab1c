#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace longreach::tokenizer {

std::string Tokenizer::decode(std::span<const int32_t> ids, bool show_special) const {
    std::string text;
    for (const int32_t id : ids) {
        require(id >= 0 && id < vocab_size(), ExitCode::data, "token {} is outside the vocabulary of {}", id,
                vocab_size());
        const size_t at = static_cast<size_t>(id);
        if (show_special || !special_[at]) text += shown_[at];
    }
    const DecodeRules& rules = definition_.decode;
    size_t stripped = 0;
    for (int64_t i = 0;
         i < rules.strip_count && std::string_view(text).substr(stripped).starts_with(rules.strip); ++i)
        stripped += rules.strip.size();
    return text.substr(stripped);
}

}  // namespace longreach::tokenizer
