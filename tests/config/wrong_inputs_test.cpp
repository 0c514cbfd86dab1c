// Wrong configs and exactly what is said about each.
#include <doctest/doctest.h>

#include "config/load.h"

using namespace longreach;
using namespace longreach::sample;

namespace {

struct Wrong {
    std::string text, message;
    std::vector<std::string> overrides = {};
};

void check_all(const std::vector<Wrong>& cases) {
    for (const Wrong& wrong : cases) {
        CAPTURE(wrong.text);
        CHECK(problems(wrong.text, wrong.overrides) == wrong.message);
    }
}

}  // namespace

TEST_CASE("wrong inputs: types are never converted") {
    check_all({
        {R"({"model": {"width": 1.5}})",
         "model.width (c.json:1:21): expected an integer, got the real number 1.5"},
        {R"({"model": {"width": 64.0}})",
         "model.width (c.json:1:21): expected an integer, got the real number 64: write 64"},
        {R"({"model": {"width": 1e3}})",
         "model.width (c.json:1:21): expected an integer, got the real number 1000: write 1000"},
        {R"({"model": {"width": true}})", "model.width (c.json:1:21): expected an integer, got true"},
        {R"({"model": {"width": "64"}})",
         "model.width (c.json:1:21): expected an integer, got the string \"64\""},
        {R"({"model": {"width": null}})", "model.width (c.json:1:21): expected an integer, got null"},
        {R"({"model": {"width": [64]}})", "model.width (c.json:1:21): expected an integer, got a list"},
        {R"({"model": {"width": {}}})", "model.width (c.json:1:21): expected an integer, got an object"},
        {R"({"model": {"dropout": "0.1"}})",
         "model.dropout (c.json:1:23): expected a number, got the string \"0.1\""},
        {R"({"model": {"dropout": false}})", "model.dropout (c.json:1:23): expected a number, got false"},
        {R"({"model": {"attention": {"gate": 1}}})",
         "model.attention.gate (c.json:1:34): expected true or false, got the integer 1"},
        {R"({"model": {"attention": {"gate": "true"}}})",
         "model.attention.gate (c.json:1:34): expected true or false, got the string \"true\""},
        {R"({"run": {"name": 5}})", "run.name (c.json:1:18): expected a string, got the integer 5"},
        {R"({"run": {"name": ["a"]}})", "run.name (c.json:1:18): expected a string, got a list"},
        {R"({"model": {"pattern": 3}})",
         "model.pattern (c.json:1:23): expected a list of strings, got the integer 3"},
        {R"({"model": {"pattern": ["a", 3]}})",
         "model.pattern.1 (c.json:1:29): expected a string, got the integer 3"},
        {R"({"eval": {"lengths": 2048}})",
         "eval.lengths (c.json:1:22): expected a list of integers, got the integer 2048"},
        {R"({"eval": {"lengths": [16, 32.5, "x"]}})",
         "eval.lengths.1 (c.json:1:27): expected an integer, got the real number 32.5\n"
         "eval.lengths.2 (c.json:1:33): expected an integer or a count like \"2K\", got the string \"x\""},
        {R"({"model": []})", "model (c.json:1:11): expected an object, got a list"},
        {R"({"model": 3})", "model (c.json:1:11): expected an object, got the integer 3"},
        {R"({"stages": {"steps": 5}})", "stages (c.json:1:12): expected a list of objects, got an object"},
        {R"({"stages": [{}, 800]})", "stages.1 (c.json:1:17): expected an object, got the integer 800"},
        {R"({"model": {"layouts": ["local"]}})",
         "model.layouts (c.json:1:23): expected an object of named variations, got a list"},
        {R"({"model": {"layouts": {"local": 64}}})",
         "model.layouts.local (c.json:1:33): expected an object, got the integer 64"},
        {"[]", "config (c.json:1:1): expected an object: a file begins with {"},
    });
}

TEST_CASE("wrong inputs: ranges are shown") {
    check_all({
        {R"({"model": {"width": 0}})", "model.width (c.json:1:21): must be at least 1, got 0"},
        {R"({"model": {"width": -1}})", "model.width (c.json:1:21): must be at least 1, got -1"},
        {R"({"model": {"width": 9223372036854775808}})",
         "model.width (c.json:1:21): must be at most 9223372036854775807, got 9223372036854775808"},
        {R"({"model": {"attention": {"heads": 65}}})",
         "model.attention.heads (c.json:1:35): must be 1 to 64, got 65"},
        {R"({"model": {"dropout": 1}})",
         "model.dropout (c.json:1:23): must be at least 0 and below 1, got 1"},
        {R"({"model": {"dropout": -0.1}})",
         "model.dropout (c.json:1:23): must be at least 0 and below 1, got -0.1"},
        {R"({"model": {"attention": {"window": {"size": 1, "tau": 0}}}})",
         "model.attention.window.tau (c.json:1:55): must be above 0, got 0"},
        {R"({"stages": [{"context": 8}, {"steps": 0, "context": 2097152}]})",
         "stages.0.context (c.json:1:25): must be 16 to 1048576, got 8\n"
         "stages.1.steps (c.json:1:39): must be at least 1, got 0\n"
         "stages.1.context (c.json:1:53): must be 16 to 1048576, got 2097152"},
        {R"({"eval": {"lengths": [0]}})", "eval.lengths.0 (c.json:1:23): must be 1 to 1048576, got 0"},
    });
}

TEST_CASE("wrong inputs: unknown words list the known ones, nearest first") {
    check_all({
        {R"({"model": {"attention": {"window": {"shape": "sqaure"}}}})",
         "model.attention.window.shape (c.json:1:46): expected square, round or squircle, got the string "
         "\"sqaure\": did you mean square?"},
        {R"({"model": {"attention": {"window": {"shape": "Round"}}}})",
         "model.attention.window.shape (c.json:1:46): expected round, square or squircle, got the string "
         "\"Round\": did you mean round?"},
        {R"({"model": {"attention": {"window": {"shape": 2}}}})",
         "model.attention.window.shape (c.json:1:46): expected round, square or squircle, got the integer 2"},
    });
}

TEST_CASE("wrong inputs: unknown keys say what was meant, or where the key lives") {
    check_all({
        {R"({"model": {"widht": 64}})", "model.widht (c.json:1:12): unknown key: did you mean model.width?"},
        {R"({"model": {"att": {}}})", "model.att (c.json:1:12): unknown key: did you mean model.attention?"},
        {R"({"heads": 4})",
         "heads (c.json:1:2): unknown key: did you mean model.attention.heads or model.layouts.*.heads?"},
        {R"({"stages": [{"step": 4}]})",
         "stages.0.step (c.json:1:14): unknown key: did you mean stages.0.steps?"},
        {R"({"model": {"layouts": {"local": {"head": 4}}}})",
         "model.layouts.local.head (c.json:1:34): unknown key: did you mean model.layouts.local.heads?"},
        {R"({"eval": {"foo": 1}})", "eval.foo (c.json:1:11): unknown key: known here are every, lengths"},
        {R"({"model.width": 64})",
         "\"model.width\" (c.json:1:2): unknown key: dotted paths are for --set; in a file, write one object "
         "inside the other"},
        {R"({"run": {"Na\u001bme": 1}})",
         "run.\"Na\\u001bme\" (c.json:1:10): unknown key: did you mean run.name?"},
        {R"({"eval": {"": 1}})", "eval.\"\" (c.json:1:11): unknown key: known here are every, lengths"},
        {R"({"model": {"layouts": {"a b": {}, "": {}}}})",
         "model.layouts.\"a b\" (c.json:1:24): a name is made of letters, digits, '_' and '-'\n"
         "model.layouts.\"\" (c.json:1:35): a name is made of letters, digits, '_' and '-'"},
    });
}

TEST_CASE("wrong inputs: repeated keys name both places") {
    check_all({
        {"{\"model\": {\"width\": 64,\n \"width\": 64}}",
         "model.width (c.json:2:2): the key is given twice; first c.json:1:12"},
        {R"({"run": {}, "run": {}})", "run (c.json:1:13): the key is given twice; first c.json:1:2"},
        {R"({"stages": [{}, {"steps": 1, "steps": 2}]})",
         "stages.1.steps (c.json:1:30): the key is given twice; first c.json:1:18"},
        {R"({"model": {"layouts": {"a": {}, "\u0061": {}}}})",
         "model.layouts.a (c.json:1:33): the key is given twice; first c.json:1:24"},
    });
}

TEST_CASE("wrong inputs: overrides go through the same table and name themselves") {
    check_all({
        {"{}",
         "model.widht (--set model.widht=3): unknown key: did you mean model.width?",
         {"model.widht=3"}},
        {"{}", "model.width (--set model.width=0): must be at least 1, got 0", {"model.width=0"}},
        {"{}",
         "model.width (--set model.width=1.5): expected an integer, got the real number 1.5",
         {"model.width=1.5"}},
        {"{}",
         "model.width (--set model.width=wide): expected an integer, got the string \"wide\"",
         {"model.width=wide"}},
        {"{}", "model.widht (--set model.widht=): unknown key: did you mean model.width?", {"model.widht="}},
        {
            "{}",
            "model.width (--set model.width=2): the key is given twice; first --set model.width=",
            {"model.width=", "model.width=2"},
        },
        {R"({"stages": [{}, {}]})",
         "stages.1 (--set stages.1=): one entry of a list cannot be unset; unset the list",
         {"stages.1="}},
        {"{}",
         "run.name (--set run.name=7): expected a string, got the integer 7: write --set 'run.name=\"7\"'",
         {"run.name=7"}},
        {"{}",
         "model.width (--set model.width=2): the key is given twice; first --set model.width=1",
         {"model.width=1", "model.width=2"}},
        {"{}",
         "model.width (--set model={\"width\":2}): the key is given twice; first --set model.width=1",
         {"model.width=1", "model={\"width\":2}"}},
        {"{}",
         "model (--set model=3): the key is given twice; first --set model.width=1",
         {"model.width=1", "model=3"}},
        {"{}",
         "model.width (--set model={\"width\":1,\"width\":2}): the key is given twice; first --set "
         "model={\"width\":1,\"width\":2}",
         {"model={\"width\":1,\"width\":2}"}},
        {R"({"stages": [{}, {}]})",
         "stages.2.steps (--set stages.2.steps=1): stages is a list and has no element 2: its indices are 0 "
         "to 1",
         {"stages.2.steps=1"}},
        {R"({"stages": []})",
         "stages.0.steps (--set stages.0.steps=1): stages is a list and has no element 0: it is empty",
         {"stages.0.steps=1"}},
        {"{}",
         "stages.one.steps (--set stages.one.steps=1): stages is a list and has no element one: its indices "
         "are 0 to 0",
         {"stages.one.steps=1"}},
        {"{}",
         "stages.00.steps (--set stages.00.steps=1): stages is a list and has no element 00: its indices are "
         "0 to 0",
         {"stages.00.steps=1"}},
        {R"({"run": {"name": "a"}})",
         "run.name.x (--set run.name.x=1): run.name is not a section; see run.name (c.json:1:18)",
         {"run.name.x=1"}},
        {"{}", "run.name (--set run.name.x=1): expected a string, got an object", {"run.name.x=1"}},
        {"{}", "config (--set model.width): expected path=value, such as model.width=256", {"model.width"}},
        {"{}", "config (--set =3): expected path=value, such as model.width=256", {"=3"}},
        {"{}",
         "model..width (--set model..width=3): expected names or indices with single dots between them",
         {"model..width=3"}},
        {"{}", "config (--set \"run.name=\\xff\"): not UTF-8", {"run.name=\xff"}},
        {"{}", "base (--set base=x.json): can only be given in a file", {"base=x.json"}},
        {"{}", "resolved (--set resolved=true): can only be given in a file", {"resolved=true"}},
        {"{}",
         "model.layouts.local.heads (--set model.layouts.local.heads=0): must be 1 to 64, got 0",
         {"model.layouts.local.heads=0"}},
    });
}

TEST_CASE("wrong inputs: rules between fields name both halves") {
    check_all({
        {R"({"model": {"width": 130, "attention": {"heads": 4}}})",
         "model.width (c.json:1:21): not a multiple of the heads; see model.attention.heads (c.json:1:49)"},
        {R"({"model": {"width": 130}})",
         "model.width (c.json:1:21): not a multiple of the heads; see model.attention.heads (default)"},
        {R"({"model": {"attention": {"heads": 3}}})",
         "model.width (default): not a multiple of the heads; see model.attention.heads (c.json:1:35)"},
        {R"({"model": {"attention": {"window": {"tau": 2}}}})",
         "model.attention.window.tau (c.json:1:44): has no effect: there is no window; see "
         "model.attention.window.size (default)"},
    });
}

TEST_CASE("wrong inputs: counts of tokens may have a K, an M or a G, other integers may not") {
    check_all({
        {R"({"stages": [{"context": "2t"}]})",
         "stages.0.context (c.json:1:25): expected an integer or a count like \"2K\", got the string \"2t\""},
        {R"({"stages": [{"context": "2048"}]})",
         "stages.0.context (c.json:1:25): expected an integer or a count like \"2K\", got the string "
         "\"2048\""},
        {R"({"stages": [{"context": "2M"}]})",
         "stages.0.context (c.json:1:25): must be 16 to 1048576, got \"2M\""},
        {R"({"stages": [{"steps": "2K"}]})",
         "stages.0.steps (c.json:1:23): expected an integer, got the string \"2K\""},
        {R"({"eval": {"lengths": "2K,4K"}})",
         "eval.lengths (c.json:1:22): expected a list of integers, got the string \"2K,4K\""},
        {"{}",
         "eval.lengths.1 (--set eval.lengths=2K,x): expected an integer or a count like \"2K\", got the "
         "string \"x\"",
         {"eval.lengths=2K,x"}},
    });
}

TEST_CASE("wrong inputs: a problem is reported once, not again for every variation that inherits it") {
    // Both layouts start from the attention whose window has no size.
    struct Rules {
        static std::string of(const std::string& text) {
            try {
                config::load_config<Experiment>(
                    {.file = "c.json", .text = text}, [](Experiment& e, config::Problems& p) {
                        const auto check = [&](const Attention& a, const std::string& path) {
                            if (a.heads == 3) p.add(path + ".heads", "three heads are unlucky");
                        };
                        check(e.model.attention, "model.attention");
                        for (const auto& [name, layout] : e.model.layouts)
                            check(layout, "model.layouts." + name);
                        check(e.model.attention, "model.attention");
                    });
            } catch (const Error& error) {
                return error.what();
            }
            return "";
        }
    };
    CHECK(Rules::of(R"({"model": {"attention": {"heads": 3}, "layouts": {"a": {}, "b": {}}}})") ==
          "model.attention.heads (c.json:1:35): three heads are unlucky\n1 problem");
    // Written twice, wrong twice.
    CHECK(Rules::of(R"({"model": {"attention": {"heads": 3}, "layouts": {"a": {"heads": 3}}}})") ==
          "model.attention.heads (c.json:1:35): three heads are unlucky\n"
          "model.layouts.a.heads (c.json:1:66): three heads are unlucky\n2 problems");
}

TEST_CASE("wrong inputs: a file that is not JSON ends the reading at once") {
    check_all({
        {"{\"model\": {\"width\": 064}}", "c.json:1:21: a number must not begin with 0"},
        {"", "c.json:1:1: expected a value, found the end of the text"},
        {"{\"run\": {\"seed\": 1e999}}", "c.json:1:18: the number 1e999 does not fit a 64-bit real"},
        {"{\"run\": NaN}", "c.json:1:9: NaN is not a number JSON can hold"},
        {std::string(2 << 20, ' '), "c.json:1:1: the text is larger than 1048576 bytes"},
        {std::string(100, '['), "c.json:1:65: nesting deeper than 64"},
    });
}

TEST_CASE("wrong inputs: all problems at once, in the order of the file, with a count and a hint") {
    const std::string text =
        "{ // comment\n"
        "  \"model\": { \"widht\": 3, \"dropout\": 2 },\n"
        "  \"eval\": { \"every\": \"often\" }\n"
        "}";
    try {
        load(text, {"run.seed=x"});
        FAIL("accepted");
    } catch (const Error& error) {
        CHECK(std::string(error.what()) ==
              "model.widht (c.json:2:14): unknown key: did you mean model.width?\n"
              "model.dropout (c.json:2:37): must be at least 0 and below 1, got 2\n"
              "eval.every (c.json:3:22): expected an integer, got the string \"often\"\n"
              "run.seed (--set run.seed=x): expected an integer, got the string \"x\"\n"
              "4 problems; the rules between fields are checked once these are solved");
        CHECK(error.hint() == "longreach config explain model");
    }
    try {
        load(R"({"model": {"attention": {"heads": 3}}})");
        FAIL("accepted");
    } catch (const Error& error) {
        CHECK(std::string(error.what()).ends_with("\n1 problem"));
        CHECK(error.hint() == "longreach config explain model.width");
    }
}

TEST_CASE("wrong inputs: a file of nothing but errors is cut short and stays quick") {
    std::string text = "{";
    for (int i = 0; text.size() < 1'000'000; ++i) text += "\"k" + std::to_string(i) + "\": 1, ";
    text += "\"z\": 1}";
    const std::string message = problems(text);
    CHECK(message.find("\n... and ") != std::string::npos);
    CHECK(message.size() < 40'000);
}
