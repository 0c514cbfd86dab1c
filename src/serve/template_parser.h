// Reads a chat template. Whatever of the language is not understood is an error that names it and its line, so that a
// template which was read is rendered as its authors saw it.
#pragma once

#include <string_view>

#include "serve/template_syntax.h"

namespace longreach::serve {

// Throws a TemplateError.
Statements parse_template(std::string_view source);

}  // namespace longreach::serve
