// The one list of config fields.
//
// Every config struct lists its fields once, in a member `void fields(Fields& f)`. Everything that uses the
// fields (the strict reader, `config show`, `config schema`, `config explain`, the reference page, `config
// diff`) is a visitor of the same list, so they cannot disagree.
//
//     struct AdamConfig {
//         double beta1 = 0.9;
//         void fields(Fields& f) {
//             f.number("beta1", beta1, {.min = 0, .max = 1}, {"decay of the first moment"});
//         }
//     };
//
// The value a default-constructed struct holds is the field's default; it must be finite,
// in range and UTF-8, because the resolved config writes every field and must be readable.
// A struct lists the same fields whatever its values are. "base", "resolved" and "$schema" are taken at the
// top level of a file (config/document.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace longreach::config {

// When a field acts: by the value of another field.
struct Acts {
    std::string_view field = "";  // in the same struct; with a dot: the path of any field; "": always
    std::string_view words = "";  // values as text, separated by spaces
    bool among = true;  // the field acts where the other one holds one of them; false: where it does not
};
constexpr Acts only(std::string_view field, std::string_view words) {
    return {field, words, true};
}
constexpr Acts unless(std::string_view field, std::string_view words) {
    return {field, words, false};
}

struct Doc {
    std::string_view help;   // one line: what the field does, with its unit
    bool resumable = false;  // may differ between a checkpoint and the run that resumes from it
    Acts acts = {};          // of a section: all of its fields
    // What a methods paragraph says of the field unless it is off, with {} for its value. The words of a
    // chosen value come first.
    std::string_view words = "";
    std::string_view sources = "";  // keys of configs/references.bib with spaces between, unless it is off
    bool of_library = false;        // it may name laws or angles, which have sources of their own
    std::string_view also = "";     // further names by which it is looked for, with spaces between
    std::string_view main = "";  // of variations: the field that an entry sets that is written as no object
};

struct IntegerRange {
    int64_t min = 0;
    int64_t max = std::numeric_limits<int64_t>::max();
    bool tokens = false;  // a length or count of tokens: "64K" is accepted too (base/units.h)
};

struct NumberRange {
    double min = -std::numeric_limits<double>::infinity();
    double max = std::numeric_limits<double>::infinity();
    bool open_min = false;  // min itself is refused
    bool open_max = false;
};

template <class E>
struct Named {
    E value;
    std::string_view name;
    std::string_view help = "";     // one line of what this choice means
    std::string_view words = "";    // in a methods paragraph
    std::string_view sources = "";  // keys of configs/references.bib, with spaces between
};

class Fields {
  public:
    using Body = std::function<void(Fields&)>;  // calls `fields` of some struct
    virtual ~Fields() = default;

    virtual void flag(std::string_view name, bool& value, Doc doc) = 0;
    virtual void integer(std::string_view name, int64_t& value, IntegerRange range, Doc doc) = 0;
    virtual void number(std::string_view name, double& value, NumberRange range, Doc doc) = 0;
    virtual void text(std::string_view name, std::string& value, Doc doc) = 0;
    virtual void texts(std::string_view name, std::vector<std::string>& value, Doc doc) = 0;
    virtual void integers(std::string_view name, std::vector<int64_t>& value, IntegerRange range,
                          Doc doc) = 0;

    // Any JSON value; the rules between fields decide what is valid.
    virtual void any(std::string_view name, json::Value& value, Doc doc) = 0;

    // One of a fixed set of words.
    template <class E>
    void choice(std::string_view name, E& value, std::vector<Named<E>> names, Doc doc) {
        std::vector<Named<int>> plain;
        for (const Named<E>& n : names)
            plain.push_back({static_cast<int>(n.value), n.name, n.help, n.words, n.sources});
        int index = static_cast<int>(value);
        choice_value(name, index, plain, doc);
        value = static_cast<E>(index);
    }

    // The same for words that stand for themselves. The value is one of them.
    struct Word {
        std::string_view name, help = "", words = "", sources = "";  // as in Named
    };
    void word(std::string_view name, std::string& value, const std::vector<Word>& words, Doc doc) {
        std::vector<Named<int>> plain;
        int index = 0;
        for (const Word& w : words) {
            if (w.name == value) index = static_cast<int>(plain.size());
            plain.push_back({static_cast<int>(plain.size()), w.name, w.help, w.words, w.sources});
        }
        choice_value(name, index, plain, doc);
        value = words[static_cast<size_t>(index)].name;
    }

    // A nested object.
    template <class S>
    void section(std::string_view name, S& value, Doc doc) {
        section_value(
            name, [&](Fields& f) { value.fields(f); }, doc);
    }

    // An array of objects; each element starts from a default-constructed S.
    template <class S>
    void list(std::string_view name, std::vector<S>& value, Doc doc) {
        list_value(
            name, value.size(), [&](size_t count) { value.resize(count); },
            [&](size_t i, Fields& f) {
                // A visitor may ask for the element after the last: it then sees the defaults.
                S defaults;
                (i < value.size() ? value[i] : defaults).fields(f);
            },
            doc);
    }

    // An object of named variations of `start` (read before this call): each entry sets only what
    // differs. Empty by default.
    template <class S>
    void variations(std::string_view name, std::map<std::string, S>& value, const S& start, Doc doc) {
        std::vector<std::string> present;
        for (const auto& [key, unused] : value) present.push_back(key);
        variations_value(
            name, present,
            [&](const std::string& key, Fields& f) {
                // A visitor may ask for a key that is absent ("" always is): it then sees the start values.
                S shown = start;
                auto it = value.find(key);
                (it == value.end() ? shown : it->second).fields(f);
            },
            [&](const std::string& key) { value.insert_or_assign(key, start); }, doc);
    }

  protected:
    virtual void choice_value(std::string_view name, int& value, const std::vector<Named<int>>& names,
                              Doc doc) = 0;
    virtual void section_value(std::string_view name, const Body& body, Doc doc) = 0;
    virtual void list_value(std::string_view name, size_t size, const std::function<void(size_t)>& resize,
                            const std::function<void(size_t, Fields&)>& element, Doc doc) = 0;
    virtual void variations_value(std::string_view name, const std::vector<std::string>& present,
                                  const std::function<void(const std::string&, Fields&)>& element,
                                  const std::function<void(const std::string&)>& add, Doc doc) = 0;
};

}  // namespace longreach::config
