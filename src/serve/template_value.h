// The values of a chat template: those of Python that published templates use. A text remembers which of its bytes a client
// wrote, through every operation, so that only the template's own text can name a control token.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace longreach::serve {

// What is wrong with a template, or with messages according to it.
class TemplateError : public std::runtime_error {
  public:
    // line: of the template; 0: the message needs none.
    TemplateError(int line, const std::string& message) : std::runtime_error(message), line_(line) {}
    int line() const { return line_; }

  private:
    int line_;
};

// UTF-8, and for each byte who wrote it.
struct MarkedText {
    static constexpr char ours = '\0', foreign = '\1';
    std::string bytes, marks;  // of equal length

    MarkedText() = default;
    MarkedText(std::string_view text, char mark) : bytes(text), marks(text.size(), mark) {}
    size_t size() const { return bytes.size(); }
    MarkedText part(size_t begin, size_t end) const;
    void add(const MarkedText& more);
    void add(std::string_view text, char mark);
};

class TemplateValue;
using TemplateList = std::vector<TemplateValue>;
// Few members, in the order of their making.
using TemplateDict = std::vector<std::pair<std::string, TemplateValue>>;

class TemplateValue {
  public:
    struct Undefined {
        std::string name;
    };
    struct None {};
    struct Function {};  // of the language; it can only be called
    struct Namespace {
        std::shared_ptr<TemplateDict> members;  // of which copies are the same
    };
    using Text = std::shared_ptr<const MarkedText>;
    using List = std::shared_ptr<const TemplateList>;
    using Dict = std::shared_ptr<const TemplateDict>;
    using Data = std::variant<Undefined, None, Function, bool, int64_t, Text, List, Dict, Namespace>;

    TemplateValue() : data_(None()) {}
    TemplateValue(Data data);
    static TemplateValue undefined(std::string name) { return Data(Undefined{std::move(name)}); }
    static TemplateValue boolean(bool value) { return Data(value); }
    static TemplateValue integer(int64_t value) { return Data(value); }
    static TemplateValue text(MarkedText text);
    static TemplateValue list(TemplateList list);
    static TemplateValue dict(TemplateDict dict);

    template <class T>
    const T* as() const {
        return std::get_if<T>(&data_);
    }
    const MarkedText* as_text() const { return as<Text>() ? as<Text>()->get() : nullptr; }
    const TemplateList* as_list() const { return as<List>() ? as<List>()->get() : nullptr; }
    // Of a dictionary or a namespace.
    const TemplateDict* as_dict() const;
    bool is_undefined() const { return as<Undefined>() != nullptr; }
    const TemplateValue* find(std::string_view key) const;  // in a dictionary or a namespace
    bool truth() const;
    const char* kind() const;  // "a text", for messages
    // How deep lists and dictionaries are inside each other. A namespace, which could contain itself, is too deep for both.
    static constexpr int deepest = 32;
    int nesting() const { return nesting_; }

  private:
    Data data_;
    int nesting_ = 0;
};

// What one rendering may still take.
class TemplateWork {
  public:
    void step(int line);                 // an expression, a statement, an element
    void spend(size_t bytes, int line);  // of texts and lists that are made or read through

  private:
    int64_t steps_ = int64_t{1} << 20, bytes_ = int64_t{1} << 26;
};

// As Python's ==.
bool same(const TemplateValue& a, const TemplateValue& b, TemplateWork& work, int line);
// An integer, or a boolean as one; null if it is neither.
const int64_t* integer_of(const TemplateValue& value, int64_t& room);
// As Python's str(); a list or a dictionary, whose form nothing should depend on, is an error.
MarkedText printed(const TemplateValue& value, int line);
// As Python's json.dumps(ensure_ascii=False); indent < 0: on one line.
MarkedText json_text(const TemplateValue& value, int64_t indent, TemplateWork& work, int line);

// Where each character of a well-formed text begins, and its end.
std::vector<size_t> characters_of(std::string_view text);
// Where the text is without the white space (as Python's) at its ends.
std::pair<size_t, size_t> without_space(std::string_view text, bool left, bool right);

}  // namespace longreach::serve
