#include "sweep/contrast.h"

#include <algorithm>

#include "base/error.h"
#include "sweep/contrast_words.h"

namespace longreach::sweep {

namespace {

template <class E, size_t N>
std::string name_of(const config::Named<E> (&words)[N], E value) {
    return std::string(std::find_if(words, words + N, [&](auto& w) { return w.value == value; })->name);
}

// The members of one contrast; whatever is missing or of another type is an error with its line.
class Reader {
  public:
    Reader(const json::Value& entry, const std::string& path) : entry_(entry), path_(path) {}

    const json::Value& member(const char* key) const {
        const json::Value* value = entry_.find(key);
        expect(value != nullptr, entry_, key);
        return *value;
    }
    std::string text(const char* key) const {
        const json::Value& value = member(key);
        expect(value.to_string() != nullptr, value, key);
        return *value.to_string();
    }
    int64_t integer(const char* key) const {
        const json::Value& value = member(key);
        expect(value.to_int64().has_value(), value, key);
        return *value.to_int64();
    }
    double number(const char* key) const {
        const json::Value& value = member(key);
        expect(value.to_number().has_value(), value, key);
        return *value.to_number();
    }
    bool flag(const char* key) const {
        const json::Value& value = member(key);
        expect(value.to_bool().has_value(), value, key);
        return *value.to_bool();
    }
    template <class E, size_t N>
    E choice(const char* key, const config::Named<E> (&words)[N]) const {
        const std::string word = text(key);
        const auto found = std::find_if(words, words + N, [&](auto& w) { return w.name == word; });
        expect(found != words + N, member(key), key);
        return found->value;
    }
    std::string arm(size_t i) const {
        const json::Value& value = member("arms");
        const json::Array* arms = value.to_array();
        expect(arms != nullptr && arms->size() == 2 && (*arms)[i].to_string() != nullptr, value, "arms");
        return *(*arms)[i].to_string();
    }

  private:
    void expect(bool ok, const json::Value& at, const char* key) const {
        require(ok, ExitCode::data, "{}:{}: a contrast without a valid \"{}\"", path_, at.at().line, key);
    }
    const json::Value& entry_;
    const std::string& path_;
};

}  // namespace

json::Value contrasts_json(const std::vector<Contrast>& contrasts) {
    json::Value out = json::Value::array();
    for (const Contrast& c : contrasts)
        out.push(json::Value::object({{"name", c.name},
                                      {"claim", c.claim},
                                      {"arms", json::Value::array({c.first, c.second})},
                                      {"at", c.at},
                                      {"of", name_of(contrast_quantities, c.of)},
                                      {"margin", c.margin},
                                      {"primary", c.primary},
                                      {"evaluation", c.evaluation},
                                      {"task", c.task},
                                      {"depth", c.depth},
                                      {"expect", name_of(expected_signs, c.expect)},
                                      {"trained_at", c.trained_at}}));
    return out;
}

std::vector<Contrast> read_contrasts(const json::Value& sweep, const std::string& path) {
    std::vector<Contrast> out;
    const json::Value* list = sweep.find("contrasts");
    if (list == nullptr) return out;
    require(list->is_array(), ExitCode::data, "{}:{}: contrasts is not a list", path, list->at().line);
    for (const json::Value& entry : list->as_array()) {
        const Reader r(entry, path);
        out.push_back({r.text("name"), r.text("claim"), r.arm(0), r.arm(1), r.integer("at"),
                       r.choice("of", contrast_quantities), r.number("margin"), r.flag("primary"),
                       r.text("evaluation"), r.text("task"), r.integer("depth"),
                       r.choice("expect", expected_signs), r.integer("trained_at")});
    }
    return out;
}

}  // namespace longreach::sweep
