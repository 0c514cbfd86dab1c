// tokenizer.json, and texts encoded with what is accepted. The part after a separator is the text.
#include "fuzz/target.h"
#include "tokenizer/formats.h"
#include "tokenizer/tokenizer.h"

using namespace longreach;
using namespace longreach::fuzz;
using namespace longreach::tokenizer;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string_view> parts = parts_of(text_of(data, size));
    std::shared_ptr<const Tokenizer> tokenizer;
    if (!accepts([&] {
            tokenizer = std::make_shared<const Tokenizer>(parse_tokenizer_json(parts[0], "tokenizer.json"));
        }))
        return 0;
    holds(tokenizer->fingerprint() != 0, "a fingerprint of 0 means that it is unknown");
    Encoder encoder(tokenizer);
    for (const std::string_view text : {parts.back(), std::string_view("ab  <s> a\xc3\xa9\xff b\n")})
        for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::as_tokens})
            accepts([&] {
                std::vector<int32_t> ids;
                encoder.encode(text, special, ids);
                tokenizer->decode(ids, true);  // refuses an id outside the vocabulary
            });
    return 0;
}
