// Texts in run directories that attack whoever shows them: no page holds markup from a file, no terminal sees
// an escape sequence from one.
#include <doctest/doctest.h>

#include "commands/process.h"
#include "report/hostile_runs.h"
#include "rounds.h"

using namespace longreach;
using namespace longreach::test;

namespace {

size_t occurrences(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
    return count;
}

// The first control character but newline, or the start of a C1 control or a change of direction; -1 if none.
int control_in(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
        const unsigned char c = static_cast<unsigned char>(text[i]);
        const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
        if ((c < 0x20 && c != '\n') || c == 0x7F || (c == 0xC2 && next >= 0x80 && next <= 0x9F)) return c;
        if (text.compare(i, 3, "\xe2\x80\xae") == 0) return c;
    }
    return -1;
}

void check_page(const std::string& page, const std::string& bad) {
    INFO("text: ", quoted(bad));
    CHECK(occurrences(page, "<script") == 1);  // its own
    CHECK(occurrences(page, "</script") == 1);
    CHECK(occurrences(page, "<style") == 2);
    for (const char* tag : {"<img", "<iframe", "<animate", "<object", "<a href=\"j", "<!--"})
        CHECK_MESSAGE(occurrences(page, tag) == 0, tag);
    CHECK(page.find("'unsafe-inline'") == std::string::npos);
    CHECK(occurrences(page, "http-equiv=\"Content-Security-Policy\"") == 1);
    // Ids and what refers to them consist of letters, digits and - _ . only.
    for (const char* name : {" id=\"", " aria-labelledby=\"", " data-piece=\"", "clip-path=\"url(#"}) {
        const std::string attribute = name;
        for (size_t at = 0; (at = page.find(attribute, at)) != std::string::npos;) {
            at += attribute.size();
            const std::string id = page.substr(at, page.find_first_of("\")", at) - at);
            const bool plain = id.find_first_not_of(
                                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789-_. ") == std::string::npos;
            CHECK_MESSAGE(plain, id);
        }
    }
    // Inside tags quotes come in pairs: an attribute that ends early leaves one over.
    for (size_t at = 0; (at = page.find('<', at)) != std::string::npos; ++at) {
        if (page.compare(at, 7, "<script") == 0) break;
        if (page.compare(at, 6, "<style") == 0) at = page.find("</style", at);
        bool inside = false;
        for (size_t i = at; i < page.size() && (inside || page[i] != '>'); ++i) {
            if (page[i] == '"') inside = !inside;
            if (!inside && page[i] == '<' && i > at) FAIL_CHECK("a tag in a tag: ", page.substr(at, 80));
            if (!inside && page.compare(i, 3, " on") == 0) FAIL_CHECK("a handler: ", page.substr(at, 80));
        }
    }
}

}  // namespace

TEST_CASE(
    "hostile strings: neither page, picture, terminal nor tables take markup or escape sequences from "
    "files") {
    for (int round = 0; round < (attack_rounds() > 3 ? 5 : 1); ++round)
        for (const std::string& bad : hostile_texts()) {
            const TempDir dir;
            const std::vector<std::string> runs = write_hostile_sweep(dir / "sweep", bad);
            const auto clean = [&](const std::vector<std::string>& arguments, int code) {
                const Finished f = run(dir, arguments);
                CHECK_MESSAGE(f.code == code, f.err);
                CHECK(control_in(f.out) == -1);
                CHECK(control_in(f.err) == -1);
                return f;
            };
            clean({"report", dir / "sweep", "--html", dir / "sweep.html", "--svg", dir / "sweep.svg"}, 0);
            check_page(get(dir / "sweep.html"), bad);
            CHECK(control_in(get(dir / "tables.txt")) == -1);
            CHECK(get(dir / "sweep.html").find("Shown apart") != std::string::npos);
            const std::string picture = get(dir / "sweep.svg");
            for (const char* tag : {"<script", "<img", "<animate"}) CHECK(occurrences(picture, tag) == 0);
            clean({"report", runs[0], "--html", dir / "one.html"}, 0);
            check_page(get(dir / "one.html"), bad);
            clean({"report", runs[0], runs[1], runs[2], "--html", dir / "several.html"}, 0);
            check_page(get(dir / "several.html"), bad);
            clean({"report", dir / "sweep", "--baseline", "nobody", "--html", dir / "no.html"}, 2);
            clean({"runs", dir / "sweep"}, 0);
            // Cells that are not what they should be.
            put(io::join_path(runs[0], "val.csv"), "step,tokens,length,loss\n1,2,3," + bad + "\n");
            clean({"report", dir / "sweep", "--html", dir / "no.html"}, 3);
            put(io::join_path(runs[1], "metrics.jsonl"), bad + "\n");
            clean({"runs", dir / "sweep"}, 0);
        }
}
