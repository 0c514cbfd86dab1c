// configs/README.md names every variant, and every source it cites is in configs/references.bib.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <set>
#include <sstream>

#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::set<std::string> matches(const std::string& text, const char* pattern) {
    const std::regex regex(pattern);
    std::set<std::string> out;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), regex); it != std::sregex_iterator(); ++it)
        out.insert((*it)[1]);
    return out;
}

}  // namespace

TEST_CASE("configs/README.md names every config, sweep and kind of attention") {
    const std::string text = get(LONGREACH_CONFIGS "/README.md");
    const std::set<std::string> named = matches(text, "`([a-z0-9_]+)`");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(LONGREACH_CONFIGS)) {
        const std::string stem = entry.path().stem().string();
        if (entry.path().extension() != ".json" || stem == "base" || stem == "cpu" || stem == "shrink")
            continue;
        CHECK_MESSAGE(named.count(stem), stem);
    }
    const std::set<std::string> explained = matches(text.substr(text.find("## Glossary")), "`([a-z0-9_]+)`");
    const config::FieldInfo fields = config::describe<train::Experiment>();
    for (const char* path :
         {"model.attention.qk.kind", "model.attention.gate.kind", "model.attention.output_norm.kind",
          "model.attention.angle_scaling.kind", "eval.rope.kind", "eval.rope.scale"}) {
        const config::FieldInfo* field = config::find_field(fields, path);
        REQUIRE_MESSAGE(field != nullptr, path);
        for (const config::FieldInfo::Choice& choice : field->choices)
            if (choice.name != "none") CHECK_MESSAGE(explained.count(choice.name), choice.name);
    }
}

TEST_CASE("the configs of published variants exist") {
    const std::string text = get(LONGREACH_CONFIGS "/README.md");
    const size_t begin = text.find("## Published variants");
    REQUIRE(begin != std::string::npos);
    const std::string section = text.substr(begin, text.find("\n## ", begin + 1) - begin);
    const std::set<std::string> configs = matches(section, "`([a-z0-9_]+/[a-z0-9_]+)`");
    CHECK(configs.size() >= 16);
    for (const std::string& config : configs)
        CHECK_MESSAGE(std::filesystem::exists(LONGREACH_CONFIGS "/" + config + ".json"), config);
}

TEST_CASE("the sources that the glossary cites are those of references.bib") {
    const std::string text = get(LONGREACH_CONFIGS "/README.md");
    const std::set<std::string> cited =
        matches(text.substr(text.find("## Glossary")), "\\[([a-z]+[0-9]{4}[a-z0-9]*)\\]");
    const std::set<std::string> known = matches(get(LONGREACH_CONFIGS "/references.bib"), "@misc\\{([^,]+),");
    CHECK(known.size() > 20);
    for (const std::string& key : cited) CHECK_MESSAGE(known.count(key), key);
    for (const std::string& key : known) CHECK_MESSAGE(cited.count(key), key);
}

TEST_CASE("where a field acts is said of a field that exists, by values that it can hold") {
    // A name or word that nothing has would let the field act always, or never.
    const config::FieldInfo root = config::describe<train::Experiment>();
    size_t conditions = 0;
    const std::function<void(const config::FieldInfo&)> walk = [&](const config::FieldInfo& section) {
        for (const config::FieldInfo& field : section.fields) {
            walk(field);
            if (field.acts.field.empty()) continue;
            ++conditions;
            CAPTURE(field.path);
            const std::string name(field.acts.field);
            const bool absolute = name.find('.') != std::string::npos;
            const config::FieldInfo* other = config::find_field(
                root, absolute ? name : field.path.substr(0, field.path.rfind('.') + 1) + name);
            REQUIRE(other != nullptr);
            std::istringstream words{std::string(field.acts.words)};
            for (std::string word; words >> word;) {
                CAPTURE(word);
                if (other->kind == config::FieldInfo::Kind::choice)
                    CHECK(std::any_of(other->choices.begin(), other->choices.end(),
                                      [&](const auto& choice) { return choice.name == word; }));
                else if (other->kind == config::FieldInfo::Kind::flag)
                    CHECK((word == "true" || word == "false"));
                else
                    CHECK((other->kind == config::FieldInfo::Kind::text ||
                           json::parse(word, "").to_number().has_value()));
            }
        }
    };
    walk(root);
    CHECK(conditions > 40);
}
