// Documents that repeat the library: every tensor has a name in one of them, configs/LANGUAGE.md has examples.
#include <doctest/doctest.h>

#include <regex>
#include <set>

#include "model/transformer.h"
#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Tensors as the tables of a page name them, numbers and names of layouts as placeholders. "`a.b.c`, `.d`" stands for
// a.b.c and for every a.b. ... .d; "the same with `.d`" for all names above whose last part is replaced.
class TensorNames {
  public:
    explicit TensorNames(const std::string& page) {
        static const std::regex code("`([^`]+)`");
        for (size_t at = page.find("\n| "); at != page.npos; at = page.find("\n| ", at + 1)) {
            const std::string cell = page.substr(at + 3, page.find(" | ", at + 3) - at - 3);
            std::string module;
            for (auto it = std::sregex_iterator(cell.begin(), cell.end(), code); it != std::sregex_iterator();
                 ++it) {
                const std::string name = (*it)[1];
                if (name[0] != '.') {
                    whole_.insert(name);
                    module = name.substr(0, name.find('.', name.find('.', name.find('.') + 1) + 1) + 1);
                } else {
                    endings_.emplace_back(module, name);
                }
            }
        }
        for (const std::string& name : whole_) stems_.insert(name.substr(0, name.rfind('.')));
    }
    bool hold(std::string name) const {
        name = std::regex_replace(name, std::regex("^layers\\.[0-9]+\\."), "layers.<l>.");
        name = std::regex_replace(name, std::regex("^value_embeddings\\.[0-9]+\\."), "value_embeddings.<i>.");
        name = std::regex_replace(name, std::regex("^layouts\\.[^.]+\\."), "layouts.<name>.");
        name = std::regex_replace(name, std::regex("\\.score\\.[^.]+$"), ".score.<parameter>");
        name = std::regex_replace(name, std::regex("\\.terms\\.[^.]+\\."), ".terms.<name>.");
        if (whole_.count(name)) return true;
        for (const auto& [module, ending] : endings_)
            if (name.ends_with(ending) &&
                (module.empty() ? stems_.count(name.substr(0, name.size() - ending.size())) > 0
                                : name.starts_with(module)))
                return true;
        return false;
    }

  private:
    std::set<std::string> whole_, stems_;
    std::vector<std::pair<std::string, std::string>> endings_;  // module, or "" for any; ".part"
};

}  // namespace

TEST_CASE("data/formats/checkpoint.md, and FORWARD.md for mixers, name every tensor of every experiment") {
    const TensorNames documented(get(LONGREACH_CONFIGS "/../data/formats/checkpoint.md") +
                                 get(LONGREACH_CONFIGS "/../src/model/FORWARD.md"));
    std::vector<std::string> files = experiments();
    for (const std::string& file : experiments("quickstart")) files.push_back(file);
    std::set<std::string> missing;
    for (const std::string& file : files) {
        const auto config = load(file, "data", "runs");
        const model::Transformer model(config.value.model, 64);
        for (const model::Param& p : model.params().params())
            if (!documented.hold(p.name)) missing.insert(file + ": " + p.name);
    }
    for (const std::string& name : missing) CHECK_MESSAGE(false, name);
    CHECK(documented.hold("layers.3.delta.a_log"));
    CHECK_FALSE(documented.hold("layers.3.attention.qq.weight"));
}

TEST_CASE("every example of configs/LANGUAGE.md is a config without a problem") {
    const TempDir dir;
    make_corpus(dir / "data");
    const std::string page = get(LONGREACH_CONFIGS "/LANGUAGE.md"), fence = "```json\n";
    int examples = 0;
    for (size_t at = 0; (at = page.find(fence, at)) != page.npos; ++examples) {
        at += fence.size();
        const std::string text = page.substr(at, page.find("```", at) - at);
        CAPTURE(text);
        std::vector<std::string> overrides;
        const json::Value example = json::parse(text, "LANGUAGE.md");
        for (const json::Member& section : example.as_object())
            for (const json::Member& m : section.value.as_object())
                overrides.push_back(fmt::format("{}{}.{}={}", section.key == "attention" ? "model." : "",
                                                section.key, m.key,
                                                json::write(m.value, json::Style::compact)));
        config::LoadedConfig<train::Experiment> config;
        CHECK_NOTHROW(config = load_tiny(tiny_config(dir.path()), overrides));
        CHECK(config.warnings.empty());
    }
    CHECK(examples >= 12);
}
