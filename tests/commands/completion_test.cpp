// `completion words`: what a shell offers; `man`: pages made of the commands.
#include <doctest/doctest.h>

#include "commands/process.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// The words offered, each with a space after it; the kind of answer first.
std::string offered(const std::vector<std::string>& typed) {
    static const TempDir output;
    std::vector<std::string> arguments{"completion", "words", "--"};
    arguments.insert(arguments.end(), typed.begin(), typed.end());
    const Finished f = run(output, arguments);
    CHECK(f.code == 0);
    std::string words;
    bool help = false;
    for (const char c : f.out) {
        if (c == '\n') words += ' ';
        help = c == '\t' || (help && c != '\n');
        if (!help && c != '\n') words += c;
    }
    return words;
}

}  // namespace

TEST_CASE("completion: commands, and those of a command") {
    CHECK(offered({"tr"}) == "words train ");
    CHECK(offered({"nothing"}) == "words ");
    CHECK(offered({"config", "s"}) == "words show schema ");
    CHECK(offered({"--log-level", "error", "tr"}) == "words train ");
}

TEST_CASE("completion: options, without those that were given and cannot be repeated") {
    CHECK(offered({"train", "--dry"}) == "words --dry-run ");
    CHECK(offered({"train", "--dry-run", "--dry"}) == "words ");
    CHECK(offered({"train", "--set", "a=b", "--se"}) == "words --set ");
    CHECK(offered({"train", "--log"}) == "words --log-level ");
    CHECK(offered({"train", "--", "--dry"}) == "files ");
    CHECK(offered({"config", "show", "--ori"}) == "words --origins ");
}

TEST_CASE("completion: values are words, files or nothing") {
    CHECK(offered({"serve", "run", "--prompt-cache", ""}) == "words same prefix off ");
    CHECK(offered({"serve", "run", "--prompt-cache=p"}) == "words --prompt-cache=prefix ");
    CHECK(offered({"train", ""}) == "files ");
    CHECK(offered({"train", "a.json", ""}) == "words ");
    CHECK(offered({"report", "runs/a", ""}) == "files ");
    CHECK(offered({"train", "--ranks", ""}) == "words ");
    CHECK(offered({"export", "runs/a", "--hf", ""}) == "files ");
    CHECK(offered({"train", "--dry-run="}) == "words ");
}

TEST_CASE("completion: fields of a config, a level at a time") {
    CHECK(offered({"train", "--set", "mod"}) == "stems model. ");
    CHECK(offered({"train", "--set", "model.att"}) == "stems model.attention. ");
    CHECK(offered({"train", "--set=model.norm.k"}) == "stems --set=model.norm.kind= ");
    CHECK(offered({"train", "--set", "model.norm.kind="}) ==
          "words model.norm.kind=rms model.norm.kind=layer ");
    CHECK(offered({"train", "--set", "run.events=t"}) == "words run.events=true ");
    CHECK(offered({"train", "--set", "stages."}) == "stems stages.0. ");
    CHECK(offered({"train", "--set", "stages.1.w"}) == "stems stages.1.window= ");
    CHECK(offered({"train", "--set", "model.layouts."}) == "stems ");
    CHECK(offered({"train", "--set", "model.layouts.local.wi"}) == "stems model.layouts.local.window= ");
    CHECK(offered({"train", "--set", "nothing.at.all"}) == "words ");
    CHECK(offered({"train", "--set", "run.seed.x"}) == "words ");
    CHECK(offered({"train", "--set", "\xff[.='"}) == "words ");
}

TEST_CASE("man: a page for each command and one for the fields") {
    const TempDir output;
    const std::string list = run(output, {"man", "--list"}).out;
    for (const char* page :
         {"longreach.1\n", "longreach-train.1\n", "longreach-man.1\n", "longreach-fields.5\n"})
        CHECK(contains(list, page));
    CHECK(contains(run(output, {"man", "train"}).out, "\\fB\\-\\-dry\\-run\\fR\n"));
    CHECK(run(output, {"man", "train"}).out == run(output, {"man", "longreach-train.1"}).out);
    CHECK(contains(run(output, {"man", "serve"}).out, "One of same, prefix, off.\nDefault: same.\n"));
    CHECK(contains(run(output, {"man", "fields"}).out, "\\fBmodel.width\\fR\n"));
    CHECK(run(output, {"man", "nothing"}).code == 2);
}
