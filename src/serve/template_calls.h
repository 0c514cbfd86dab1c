// What chat templates may call: filters, tests, methods and functions, as Jinja and Python define them.
#pragma once

#include <ctime>
#include <optional>
#include <string_view>
#include <vector>

#include "serve/template_syntax.h"

namespace longreach::serve {

// For the parser. settle_... throw a TemplateError that names a call which is not understood, and put arguments that were
// given by name into their places among the operands; one that is missing is null.
bool is_template_function(std::string_view name);
bool test_takes_argument(std::string_view name);
void settle_filter(Expression& call);
void settle_test(Expression& call);
void settle_method(Expression& call);
void settle_function(Expression& call);

struct TemplateCall {
    const Expression& call;
    std::vector<std::optional<TemplateValue>>
        arguments;  // of a filter, test or method, the first is what it is applied to
    TemplateWork& work;
    std::time_t now = 0;
};
TemplateValue apply_filter(const TemplateCall& call);
bool apply_test(const TemplateCall& call);
bool is_contained(const TemplateCall& call);  // the first argument in the second
TemplateValue call_method(const TemplateCall& call);
TemplateValue call_function(const TemplateCall& call);  // but for `namespace`, whose arguments have names

// The elements of a list, the keys of a dictionary, the characters of a text; none of an undefined value. Throws for others.
TemplateList elements_of(const TemplateValue& value, TemplateWork& work, int line);

}  // namespace longreach::serve
