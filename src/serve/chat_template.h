// A chat template: messages become the text that a model was trained to continue. The language is a part of Jinja's, as
// transformers reads it: README.md lists it.
//
// Neither a template nor a message can take more than a bounded time and memory: steps, texts, depth and output are counted.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/template_syntax.h"

namespace longreach::serve {

class ChatTemplate {
  public:
    // Throws a TemplateError that names whatever in it is not understood, and its line.
    explicit ChatTemplate(std::string_view source);

    // The text with these variables. now: what strftime_now shows. Throws a TemplateError, which has no
    // line if raise_exception made it.
    MarkedText render(const TemplateDict& variables, std::time_t now) const;

  private:
    Statements statements_;
};

}  // namespace longreach::serve
