// A chat template, then contents of messages, separated: what is read is rendered, or refused by a message with a line of the
// template. A text is well formed, and each of its bytes has an author.
#include <algorithm>

#include "fuzz/target.h"
#include "serve/chat_template.h"

using namespace longreach;
using namespace longreach::fuzz;
using namespace longreach::serve;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string_view> parts = parts_of(text_of(data, std::min<size_t>(size, 4096)));
    const int lines = 1 + static_cast<int>(std::count_if(parts[0].begin(), parts[0].end(),
                                                         [](char c) { return c == '\n' || c == '\r'; }));
    TemplateList messages;
    for (size_t i = 1; i < parts.size(); ++i) {
        if (!is_utf8(parts[i])) continue;
        messages.push_back(TemplateValue::dict(
            {{"role", TemplateValue::text(MarkedText("user", MarkedText::foreign))},
             {"content", TemplateValue::text(MarkedText(parts[i], MarkedText::foreign))}}));
    }
    try {
        const MarkedText text = ChatTemplate(parts[0]).render(
            {{"messages", TemplateValue::list(std::move(messages))},
             {"bos_token", TemplateValue::text(MarkedText("<s>", MarkedText::ours))}},
            0);
        holds(text.bytes.size() == text.marks.size(), "a byte without an author");
        holds(is_utf8(text.bytes), "a text is not well formed");
        for (size_t i = 0; i < text.size(); ++i)
            holds(text.marks[i] == MarkedText::ours || text.marks[i] == MarkedText::foreign,
                  "an author of no kind");
    } catch (const TemplateError& error) {
        holds(error.line() >= 0 && error.line() <= lines,
              "an error at a line that the template does not have");
        holds(is_utf8(error.what()) && std::string_view(error.what()).size() < 2000,
              "an error that is no message");
    }
    return 0;
}
