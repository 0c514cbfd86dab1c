// The language of chat templates. chat_peer.py compares it with jinja2; here is what needs no package: what is refused, what
// is bounded, and which bytes of a text a client wrote.
#include "serve/chat_template.h"

#include <doctest/doctest.h>

#include <chrono>

#include "base/interruption.h"

using namespace longreach;
using namespace longreach::serve;

namespace {

TemplateValue foreign(const std::string& text) {
    return TemplateValue::text(MarkedText(text, MarkedText::foreign));
}

TemplateDict variables() {
    const TemplateValue message =
        TemplateValue::dict({{"role", foreign("user")}, {"content", foreign(" h\u00e9 ")}});
    return {{"messages", TemplateValue::list({message, message})}, {"s", foreign("{{ s }}<|x|>")}};
}

std::string rendered(const std::string& source) {
    return ChatTemplate(source).render(variables(), 0).bytes;
}

// The line and the message of the error that reading a template ends with.
std::string refused(const std::string& source) {
    try {
        ChatTemplate ignored(source);
    } catch (const TemplateError& error) {
        return std::to_string(error.line()) + ": " + error.what();
    }
    return "read";
}
std::string failed(const std::string& source) {
    try {
        return "rendered: " + rendered(source);
    } catch (const TemplateError& error) {
        return std::to_string(error.line()) + ": " + error.what();
    }
}

}  // namespace

TEST_CASE("chat template: messages, loops, conditions, white space") {
    CHECK(
        rendered(
            "{% for m in messages %}\n  {% if loop.last %}\n<{{ m.role }}>{{ m['content'] | trim }}\n  {% endif %}\n"
            "{% endfor %}\nend\n") == "<user>h\u00e9\nend");
    CHECK(
        rendered(
            "{%- set ns = namespace(n=0) -%}{% for m in messages[1:] %}{% set ns.n = ns.n + 1 %}{% endfor %}"
            "{{ ns.n }}{{ 'a' if ns.n == 1 else 'b' }}") == "1a");
    CHECK(rendered("{{ 'a\"b c'.title() }}{{ 'a\"b c' | title }}") == "A\"B CA\"b C");  // two rules
    CHECK(rendered("{{ s }}") == "{{ s }}<|x|>");  // never read as a template
    CHECK(rendered("{{ strftime_now('%Y') | length }}") == "4");
}

TEST_CASE("chat template: what is not understood is refused with its line when the template is read") {
    CHECK(refused("{% if true %}\na\n{% macro m() %}{% endmacro %}{% endif %}") ==
          "3: the tag 'macro' is not understood");
    CHECK(refused("\n{{ s | shuffle }}") == "2: the filter 'shuffle' is not understood");
    CHECK(refused("{{ s is upper }}") == "1: the test 'upper' is not understood");
    CHECK(refused("{{ s.encode() }}") == "1: the method 'encode' is not understood");
    CHECK(refused("{{ open('/etc/passwd') }}") == "1: the function 'open' is not understood");
    CHECK(refused("{{ loop.cycle }}") == "1: '.cycle' is not understood");
    CHECK(refused("{{ s.items }}") == "1: '.items' is not understood");
    CHECK(refused("{{ s | tojson(2, 3) }}") == "1: the filter 'tojson' has more than 1 arguments");
    CHECK(refused("{{ s | trim(sep='x') }}") ==
          "1: the argument 'sep' of the filter 'trim' is not understood");
    CHECK(refused("{{ s.replace('x') }}") == "1: the argument 'new' of the method 'replace' is missing");
    CHECK(refused("{{ messages | selectattr('role', 'nosuch') }}")
              .find("the test that the filter 'selectattr' makes") == 3);
    CHECK(refused("{{ 1.5 }}").find("plain integers") != std::string::npos);
    CHECK(refused("{{ 1 / 2 }}") == "1: the operator '/' is not understood");
    CHECK(refused("{{ 1 < 2 < 3 }}").find("in a row") != std::string::npos);
    CHECK(refused("{{ '\\N{DASH}' }}").find("the escape") != std::string::npos);
    CHECK(refused("{{ s") == "1: '}}' is missing");
    CHECK(refused("{# s") == "1: a comment has no end");
    CHECK(refused("{% for m in messages %}").find("'endfor' is missing") != std::string::npos);
    CHECK(refused("{% endif %}") == "1: the tag 'endif' is not understood");
    CHECK(refused("{% set range = 1 %}") == "1: 'range' cannot be set");
    CHECK(refused("{{ (1, 2) }}") == "1: tuples are not understood");
    CHECK(refused("\xFF") == "1: the template is not UTF-8");
    CHECK(refused("{% if 1 if 1 else 0 %}{% endif %}") == "1: 'if' is not expected here");
    CHECK(refused("{% break %}") == "1: 'break' outside of a loop");
}

TEST_CASE("chat template: what fails says where, but raise_exception what it was given") {
    CHECK(failed("{{ raise_exception('no ' + messages[0].role) }}") == "0: no user");
    CHECK(failed("a\n{{ messages[7].role }}") == "2: '[7]' is not defined");
    CHECK(failed("{{ 'a' + nothing }}") == "1: 'nothing' is not defined");
    CHECK(failed("{{ 'a' + 1 }}") == "1: '+' of a text and a number");
    CHECK(failed("{{ messages }}").find("a list becomes no text") != std::string::npos);
    CHECK(failed("{{ 9007199254740992 * 9007199254740992 }}") == "1: a number is too large");
    CHECK(failed("{{ s.upper }}").find("the method 'upper' without a call") != std::string::npos);
    CHECK(failed("{{ 'h\u00e9' | upper }}").find("beyond ASCII") != std::string::npos);
    CHECK(failed("{{ raise_exception('" + std::string(399, 'a') + "\u00e9" + std::string(9, 'b') + "') }}") ==
          "0: " + std::string(399, 'a'));
}

TEST_CASE("chat template: time, depth and text are bounded, whatever a template does") {
    const std::string numbers = "{% set l = range(20000) | list %}";
    const std::vector<std::pair<std::string, std::string>> hostile = {
        {numbers + "{% for a in l %}{% for b in l %}{{ a }}{% endfor %}{% endfor %}", "too many steps"},
        {"{% set x = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set x.s = x.s + x.s %}{% endfor %}",
         "too much text"},
        {"{% set x = namespace(l=[1]) %}{% for i in range(99) %}{% set x.l = [x.l, x.l] %}{% endfor %}",
         "too deeply"},
        {"{% set x = namespace(l=[1]) %}{% for i in range(25) %}{% set x.l = [x.l, x.l] %}{% endfor %}{{ x.l == x.l }}",
         "too many steps"},
        {"{% set x = namespace(l=[1]) %}{% for i in range(25) %}{% set x.l = [x.l, x.l] %}{% endfor %}{{ x.l | tojson }}",
         "too many steps"},
        {"{% set x = namespace() %}{% set x.x = x %}", "too deeply"},
        {"{{ range(99999999999) | length }}", "too much text"},
        {"{% set x = namespace(s='ab') %}{% for i in range(22) %}{% set x.s = x.s + x.s %}{% endfor %}"
         "{{ x.s.replace('a', x.s) }}",
         "too much text"},
        {"{% set x = namespace(s='ab') %}{% for i in range(20) %}{% set x.s = x.s + x.s %}{% endfor %}"
         "{{ (x.s + 'c') in (x.s + x.s) }}",
         "too much text"}};
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& [source, message] : hostile) {
        INFO(source);
        CHECK(failed(source).find(message) != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
    const auto repeated = [](const std::string& text, int count) {
        std::string all;
        for (int i = 0; i < count; ++i) all += text;
        return all;
    };
    for (const std::string& deep :
         {"{{ " + repeated("(", 9999) + "1" + repeated(")", 9999) + " }}",
          "{{ 1" + repeated(" + 1", 9999) + " }}", "{{ " + repeated("not ", 9999) + "1 }}",
          "{{ s" + repeated(".a", 9999) + " }}", "{{ s" + repeated("|trim", 9999) + " }}",
          repeated("{% if 1 %}", 9999), "{{ " + repeated("1 if 1 else ", 9999) + "1 }}"})
        CHECK(refused(deep).find("too deeply") != std::string::npos);
    CHECK(refused(std::string((1 << 20) + 1, 'a')).find("more than") != std::string::npos);
    const Interruption gone([] { return true; });
    CHECK_THROWS_AS(rendered(hostile[0].first), Interrupted);
}

TEST_CASE("chat template: a text remembers which of its bytes a client wrote") {
    const auto marks = [](const std::string& expression) {
        const MarkedText text = ChatTemplate("{{ " + expression + " }}").render(variables(), 0);
        std::string shown;
        REQUIRE(text.bytes.size() == text.marks.size());
        for (size_t i = 0; i < text.size(); ++i)
            shown += text.marks[i] == MarkedText::ours ? text.bytes[i] : '~';
        return shown;
    };
    CHECK(marks("'<' + s + '>'") == "<~~~~~~~~~~~~>");
    CHECK(marks("'ab' ~ messages[0].role[1:3] ~ 1") == "ab~~1");
    CHECK(marks("messages[0].role | upper | trim") == "~~~~");
    CHECK(marks("'x-y'.replace('-', messages[0].role)") == "x~~~~y");
    CHECK(marks("messages[0].role.replace('s', '<>')") == "~<>~~");
    CHECK(marks("messages | map(attribute='role') | join(',')") == "~~~~,~~~~");
    CHECK(marks("messages[0].role.split('s') | last") == "~~");
    CHECK(marks("[messages[0].role] | tojson") == "[\"~~~~\"]");
    CHECK(marks("s[::-1] | first") == "~");
    CHECK(marks("'a' if s else s") == "a");
}
