// The words of a chat template, in Jinja's syntax as transformers reads it (trim_blocks, lstrip_blocks).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::serve {

struct TemplateToken {
    enum class Kind {
        data,
        print_begin,
        print_end,
        block_begin,
        block_end,
        name,
        integer,
        string,
        symbol,
        end
    };
    Kind kind = Kind::end;
    std::string text;  // of a string: its value
    int64_t number = 0;
    int line = 1;
};

// Ends with Kind::end. Throws a TemplateError.
std::vector<TemplateToken> template_tokens(std::string_view source);

}  // namespace longreach::serve
