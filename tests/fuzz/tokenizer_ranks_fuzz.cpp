// tiktoken's rank files after the ranks of single bytes: every text decodes to itself.
#include "fuzz/target.h"
#include "tokenizer/formats.h"
#include "tokenizer/tokenizer.h"

using namespace longreach;
using namespace longreach::fuzz;
using namespace longreach::tokenizer;

namespace {

// "AA== 0" and so on.
std::string single_bytes() {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string ranks;
    for (size_t byte = 0; byte < 256; ++byte)
        ranks += fmt::format("{}{}== {}\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    return ranks;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::string bytes = single_bytes();
    // Keeps the splitting expression compiled.
    static const Tokenizer first(parse_rank_file(bytes, "r.tiktoken", "cl100k"));
    const std::string text(text_of(data, size));
    // Most texts have a line that is refused, which takes a thirtieth of the time without the ranks of single bytes.
    try {
        parse_rank_file(text, "r.tiktoken", "cl100k");
    } catch (const Error& error) {
        holds(error.code() != ExitCode::internal, "a text is called a bug of the program");
        if (std::string_view(error.what()).find("single byte") == std::string_view::npos) return 0;
    }
    std::shared_ptr<const Tokenizer> tokenizer;
    if (!accepts([&] {
            tokenizer =
                std::make_shared<const Tokenizer>(parse_rank_file(bytes + text, "r.tiktoken", "cl100k"));
        }))
        return 0;
    std::vector<int32_t> ids;
    Encoder(tokenizer).encode(text + "Hello abc", SpecialTokens::as_text, ids);
    holds(tokenizer->decode(ids) == text + "Hello abc", "a text does not survive");
    return 0;
}
