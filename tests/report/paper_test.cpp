// What a report writes for a paper: figures, tables, methods and sources.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <sstream>

#include "config/loader.h"
#include "hostile_runs.h"
#include "report/figures.h"
#include "report/methods.h"
#include "report/page.h"
#include "report/sources.h"
#include "report/watch.h"
#include "sample_runs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

size_t count_of(std::string_view text, std::string_view part) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
    return count;
}

std::map<std::string, std::string> files_of(const report::Collection& collection) {
    std::map<std::string, std::string> out;
    for (const report::PaperFile& file : report::paper_files(collection))
        CHECK_MESSAGE(out.emplace(file.name, file.content).second, file.name);
    return out;
}

// Braces that are not escaped pair up, and so do environments.
void check_latex(const std::string& text) {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\') {
            ++i;
            continue;
        }
        depth += (text[i] == '{') - (text[i] == '}');
        CHECK(depth >= 0);
    }
    CHECK(depth == 0);
    for (const char* name : {"table", "tabular"})
        CHECK(count_of(text, fmt::format("\\begin{{{}}}", name)) ==
              count_of(text, fmt::format("\\end{{{}}}", name)));
}

report::Methods methods_of(const std::vector<std::string>& paths) {
    const report::Collection collection = report::collect(paths);
    return report::methods_of(collection, report::summarize(collection));
}

}  // namespace

TEST_CASE("every chart of the page becomes an SVG and a PDF under its name, every table LaTeX") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const report::Collection collection = report::collect({dir.path()});
    const auto files = files_of(collection);
    const std::string page = report::report_page(collection);
    size_t figures = 0;
    for (size_t at = 0; (at = page.find("data-chart=\"", at)) != page.npos; at += 12, ++figures) {
        std::string name = page.substr(at + 12, page.find('"', at + 12) - at - 12);
        if (name.find(' ') != name.npos) continue;  // of a new statistic: its name has other characters
        CHECK_MESSAGE(files.contains(name + ".svg"), name);
        CHECK_MESSAGE(files.contains(name + ".pdf"), name);
    }
    CHECK(figures > 30);
    for (const char* name :
         {"loss-by-length", "loss-by-length-log", "loss-by-length-difference", "differences-8192",
          "training-loss", "depth-needle", "quantiles-8192", "scalars", "task-copy"})
        CHECK_MESSAGE(files.contains(std::string(name) + ".pdf"), name);
    // Panels do not name their series: the picture does.
    CHECK(files.at("quantiles-8192.svg").find(">si-p-rope</text>") != std::string::npos);
    const std::string& tables = files.at("tables.tex");
    check_latex(tables);
    CHECK(tables.find("\\label{tab:loss-by-length}") != std::string::npos);
    CHECK(tables.find(" & 95\\% interval \\\\") != std::string::npos);
    std::set<std::string> labels;
    for (size_t at = 0; (at = tables.find("\\label{", at)) != tables.npos; ++at)
        CHECK(labels.insert(tables.substr(at, tables.find('}', at) - at)).second);
    CHECK(labels.size() > 10);
}

TEST_CASE("the methods say what the configs say, and cite what the variants stand on") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const report::Methods methods = methods_of({dir.path()});
    for (const char* words :
         {"4 layers of width 128, 4 heads of 64 channels", "a vocabulary of 257 tokens",
          "26,214,400 tokens in 400 steps of 65,536, at a context of 128, then 256 tokens",
          "rope: rotary positions (base 10000) [su2021roformer]", "s learned by head [nakanishi2025]",
          "sqrt(1 + 2*log1p(t/tau))", "[anson2025]", "Muon [jordan2024muon]", "yarn [peng2023yarn]",
          "Every variant was trained with 3 seeds", "95% intervals", "65,536 tokens of 320 documents",
          "RMS-normed queries and keys [henry2020, nor2025]",
          "trained and scored with longreach 0.1.0 (commit 0123456789ab) [longreach2026]"})
        CHECK_MESSAGE(methods.text.find(words) != std::string::npos, words << " in " << methods.text);
    check_latex(methods.latex);
    CHECK(methods.latex.find("~\\cite{nakanishi2025}") != std::string::npos);
    CHECK(methods.latex.find("95\\%") != std::string::npos);
    const std::string bibliography = report::bibliography(methods.keys);
    CHECK(count_of(bibliography, "@misc{") == methods.keys.size());
    for (const std::string& key : methods.keys)
        CHECK_MESSAGE(bibliography.find("@misc{" + key + ",") != std::string::npos, key);
    CHECK(bibliography.find("press2021") == std::string::npos);
    check_latex(bibliography);
    // One run alone, and one whose config is of another version.
    const std::string run = io::join_path(dir.path(), "logn.seed1");
    CHECK(methods_of({run}).text.find("The model was trained with one seed, so") != std::string::npos);
    // Continued from another run, its positions scaled.
    const std::string config = io::join_path(run, "config.json");
    const auto continued = config::load_config<train::Experiment>(
        {.file = config,
         .overrides = {"model.attention.angle_scaling.kind=yarn", "model.attention.angle_scaling.factor=2",
                       "run.init_from=runs/rope.seed1/checkpoints/step_00000400/"}},
        [](train::Experiment& e, config::Problems& p) { e.check(p); });
    io::write_file_atomically(config, config::write_resolved(continued.value));
    const std::string text = methods_of({run}).text;
    for (const char* words : {"made for 128 tokens and scaled by a factor of 2 (yarn) [peng2023yarn]",
                              "steps of 65,536, starting from the weights of rope, at a context of 128"})
        CHECK_MESSAGE(text.find(words) != std::string::npos, words << " in " << text);
    io::write_file_atomically(config, "{\"modle\": 1}");
    CHECK(methods_of({run}).empty());
    CHECK_FALSE(files_of(report::collect({run})).contains("methods.tex"));
}

TEST_CASE("what differs between variants is said of each") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const std::string path = dir.path() + "/logn.seed1/config.json";
    std::string config = io::read_file(path, 1 << 20, io::Links::follow);
    config.replace(config.find("\"model\": {"), 10, "\"model\": { \"layers\": 6,");
    io::write_file_atomically(path, config);
    const std::string text = methods_of({dir.path()}).text;
    CHECK(text.find("(rope and si-p-rope) or 6 layers of width 128") != std::string::npos);
}

TEST_CASE("the source of an additive delta rule was never cited") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const std::string run = io::join_path(dir.path(), "rope.seed1"),
                      config = io::join_path(run, "config.json");
    const auto additive = config::load_config<train::Experiment>(
        {.file = config, .overrides = {"model.attention.mixer=gdn", "model.attention.delta.additive=true"}});
    io::write_file_atomically(config, config::write_resolved(additive.value));
    const report::Methods methods = methods_of({run});
    const char* words =
        "Gated DeltaNet [yang2024gdn] and states that are added to without correction [dao2024mamba2]";
    CHECK_MESSAGE(methods.text.find(words) != std::string::npos, methods.text);
    CHECK(std::count(methods.keys.begin(), methods.keys.end(), "dao2024mamba2") == 1);
}

TEST_CASE("the methods name the source of a formula of one's own") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const std::string run = io::join_path(dir.path(), "rope.seed1"),
                      config = io::join_path(run, "config.json");
    const auto own = config::load_config<train::Experiment>(
        {.file = config,
         .overrides = {"model.attention.score=z*log(n+2)", "model.attention.source=Doe & Roe\n2026"}});
    io::write_file_atomically(config, config::write_resolved(own.value));
    const report::Methods methods = methods_of({run});
    const std::string words = "z*log(n+2) (after Doe & Roe\\n2026)";
    CHECK_MESSAGE(methods.text.find(words) != std::string::npos, methods.text);
    CHECK_MESSAGE(methods.latex.find("(after Doe \\& Roe\\textbackslash{}n2026)") != std::string::npos,
                  methods.latex);
}

TEST_CASE("every choice with a source is one of the glossary, with that source") {
    const std::string glossary =
        io::read_file(LONGREACH_ROOT "/configs/README.md", 1 << 20, io::Links::follow);
    const auto explained = [&](std::string_view word, const std::string& key) {
        for (size_t at = 0; (at = glossary.find("[" + key + "]", at)) != glossary.npos; ++at) {
            const size_t begin = glossary.rfind('\n', at);
            if (glossary.substr(begin, at - begin).find(fmt::format("`{}`", word)) != std::string::npos)
                return true;
        }
        return false;
    };
    size_t sources = 0;
    const auto known = [&](std::string_view keys, const std::function<void(const std::string& key)>& check) {
        std::istringstream words{std::string(keys)};
        for (std::string key; words >> key; ++sources) {
            CHECK_MESSAGE(count_of(report::references(), "@misc{" + key + ",") == 1, key);
            check(key);
        }
    };
    const std::function<void(const config::FieldInfo&)> walk = [&](const config::FieldInfo& field) {
        CAPTURE(field.path);
        known(field.sources, [](const std::string&) {});
        const bool apart = field.name == "normaliser";
        for (const config::FieldInfo::Choice& choice : field.choices)
            known(choice.sources, [&](const std::string& key) {
                if (!apart) CHECK_MESSAGE(explained(choice.name, key), key);
            });
        for (const config::FieldInfo& inner : field.fields) walk(inner);
    };
    walk(config::describe<train::Experiment>());
    CHECK(sources > 40);
}

TEST_CASE("hostile names stay text in every file for a paper") {
    const TempDir dir;
    write_hostile_sweep(dir.path(), "\\input{x} %$#_^~");
    for (const auto& [name, content] : files_of(report::collect({dir.path()}))) {
        CHECK(name.find_first_of("/\\<>\"' ") == std::string::npos);
        if (name.ends_with(".tex")) check_latex(content);
        if (name.ends_with(".svg")) CHECK(content.find("<script") == std::string::npos);
    }
}

TEST_CASE("the state of records follows them and not what a report writes") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const uint64_t before = report::records_state({dir.path()});
    io::write_file_atomically(dir / "report.html", "x");
    io::write_file_atomically(dir / "tables.txt", "x");
    io::make_directories(dir / "rope.seed1/checkpoints/step_1");
    io::write_file_atomically(dir / "rope.seed1/checkpoints/step_1/state.json", "{}");
    CHECK(report::records_state({dir.path()}) == before);
    io::write_file_atomically(dir / "rope.seed1/eval/ntk/val.csv", "step\n");
    CHECK(report::records_state({dir.path()}) != before);
    CHECK(report::records_state({dir / "nowhere"}) == report::records_state({}));
    CHECK_FALSE(report::any_in_use({dir.path()}));
    bool asked = false;
    CHECK_FALSE(report::wait_for(std::chrono::hours(1), [&] { return asked = true; }));
    CHECK(asked);
}

TEST_CASE("a page loads itself again only while it is watched") {
    const TempDir dir;
    SampleWriter({}).write_sweep(dir.path());
    const report::Collection collection = report::collect({dir.path()});
    CHECK(report::report_page(collection).find("<body data-reload") == std::string::npos);
    CHECK(report::report_page(collection, {.reload_seconds = 7}).find("<body data-reload=\"7\">") !=
          std::string::npos);
}
