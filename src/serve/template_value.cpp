#include "serve/template_value.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/interruption.h"
#include "base/text.h"

namespace longreach::serve {

namespace {

const TemplateValue* find_in(const TemplateDict& dict, std::string_view key) {
    const auto found =
        std::find_if(dict.begin(), dict.end(), [&](const auto& member) { return member.first == key; });
    return found == dict.end() ? nullptr : &found->second;
}

uint32_t code_point(std::string_view character) {
    const auto byte = [&](size_t i) {
        return static_cast<uint32_t>(static_cast<unsigned char>(character[i]));
    };
    uint32_t value = byte(0);
    if (character.size() > 1) value &= 0x7Fu >> character.size();
    for (size_t i = 1; i < character.size(); ++i) value = value << 6 | (byte(i) & 0x3F);
    return value;
}

bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

// A character inside the quotes of JSON.
std::string escaped(char c) {
    switch (c) {
        case '"':
            return "\\\"";
        case '\\':
            return "\\\\";
        case '\n':
            return "\\n";
        case '\r':
            return "\\r";
        case '\t':
            return "\\t";
        case '\b':
            return "\\b";
        case '\f':
            return "\\f";
        default:
            return static_cast<unsigned char>(c) < 0x20 ? fmt::format("\\u{:04x}", static_cast<unsigned>(c))
                                                        : std::string(1, c);
    }
}

class JsonWriter {
  public:
    JsonWriter(int64_t indent, TemplateWork& work, int line) : indent_(indent), work_(work), line_(line) {}
    void write(const TemplateValue& value, int depth) {
        work_.step(line_);
        int64_t number = 0;
        if (value.as_text() != nullptr) {
            quote(*value.as_text());
        } else if (const bool* flag = value.as<bool>()) {
            add(*flag ? "true" : "false");
        } else if (integer_of(value, number) != nullptr) {
            add(std::to_string(number));
        } else if (value.as<TemplateValue::None>()) {
            add("null");
        } else if (const TemplateList* list = value.as_list()) {
            nest('[', ']', *list, depth, [&](const TemplateValue& element) { write(element, depth + 1); });
        } else if (value.as<TemplateValue::Dict>()) {
            nest('{', '}', *value.as_dict(), depth, [&](const auto& member) {
                quote(MarkedText(member.first, MarkedText::ours));
                add(": ");
                write(member.second, depth + 1);
            });
        } else {
            throw TemplateError(line_, fmt::format("tojson of {}", value.kind()));
        }
    }
    MarkedText text;

  private:
    void add(std::string_view more) { text.add(more, MarkedText::ours); }
    void quote(const MarkedText& content) {
        work_.spend(content.size(), line_);
        add("\"");
        for (size_t i = 0; i < content.size(); ++i) text.add(escaped(content.bytes[i]), content.marks[i]);
        add("\"");
    }
    void new_line(int depth) { add("\n" + std::string(static_cast<size_t>(indent_ * depth), ' ')); }
    template <class Elements, class Write>
    void nest(char open, char close, const Elements& elements, int depth, Write write_element) {
        add(std::string(1, open));
        bool first = true;
        for (const auto& element : elements) {
            if (!first) add(indent_ < 0 ? ", " : ",");
            first = false;
            if (indent_ >= 0) new_line(depth + 1);
            write_element(element);
        }
        if (indent_ >= 0 && !first) new_line(depth);
        add(std::string(1, close));
    }

    const int64_t indent_;
    TemplateWork& work_;
    const int line_;
};

}  // namespace

MarkedText MarkedText::part(size_t begin, size_t end) const {
    MarkedText out;
    out.bytes = bytes.substr(begin, end - begin);
    out.marks = marks.substr(begin, end - begin);
    return out;
}

void MarkedText::add(const MarkedText& more) {
    bytes += more.bytes;
    marks += more.marks;
}

void MarkedText::add(std::string_view text, char mark) {
    bytes += text;
    marks.append(text.size(), mark);
}

TemplateValue::TemplateValue(Data data) : data_(std::move(data)) {
    const auto count = [&](const TemplateValue& element) {
        nesting_ = std::max(nesting_, element.nesting() + 1);
    };
    if (const TemplateList* list = as_list()) {
        nesting_ = 1;
        std::for_each(list->begin(), list->end(), count);
    } else if (as<Dict>()) {
        nesting_ = 1;
        for (const auto& member : *as_dict()) count(member.second);
    } else if (as<Namespace>()) {
        nesting_ = deepest;
    }
}

TemplateValue TemplateValue::text(MarkedText text) {
    return Data(Text(std::make_shared<const MarkedText>(std::move(text))));
}

TemplateValue TemplateValue::list(TemplateList list) {
    return Data(List(std::make_shared<const TemplateList>(std::move(list))));
}

TemplateValue TemplateValue::dict(TemplateDict dict) {
    return Data(Dict(std::make_shared<const TemplateDict>(std::move(dict))));
}

const TemplateDict* TemplateValue::as_dict() const {
    if (const Namespace* members = as<Namespace>()) return members->members.get();
    return as<Dict>() ? as<Dict>()->get() : nullptr;
}

const TemplateValue* TemplateValue::find(std::string_view key) const {
    const TemplateDict* dict = as_dict();
    return dict == nullptr ? nullptr : find_in(*dict, key);
}

bool TemplateValue::truth() const {
    if (is_undefined() || as<None>()) return false;
    int64_t number = 0;
    if (integer_of(*this, number) != nullptr) return number != 0;
    if (const MarkedText* text = as_text()) return text->size() > 0;
    if (const TemplateList* list = as_list()) return !list->empty();
    if (as<Dict>()) return !as_dict()->empty();
    return true;
}

const char* TemplateValue::kind() const {
    constexpr const char* names[] = {"an undefined value", "none",   "a function", "a boolean",
                                     "a number",           "a text", "a list",     "a dictionary",
                                     "a namespace"};
    return names[data_.index()];
}

const int64_t* integer_of(const TemplateValue& value, int64_t& room) {
    if (const bool* flag = value.as<bool>()) {
        room = *flag ? 1 : 0;
    } else if (const int64_t* number = value.as<int64_t>()) {
        room = *number;
    } else {
        return nullptr;
    }
    return &room;
}

void TemplateWork::step(int line) {
    if (--steps_ < 0) throw TemplateError(line, "the template takes too many steps");
    if (steps_ % 1024 == 0) heed_interruption();
}

void TemplateWork::spend(size_t bytes, int line) {
    bytes_ -= static_cast<int64_t>(bytes);
    if (bytes_ < 0) throw TemplateError(line, "the template makes too much text");
}

bool same(const TemplateValue& a, const TemplateValue& b, TemplateWork& work, int line) {
    work.step(line);
    int64_t x = 0, y = 0;
    if (integer_of(a, x) != nullptr && integer_of(b, y) != nullptr) return x == y;
    if (a.is_undefined() || a.as<TemplateValue::None>()) return std::string_view(a.kind()) == b.kind();
    const auto equal = [&](const TemplateValue& p, const TemplateValue& q) { return same(p, q, work, line); };
    if (const MarkedText* text = a.as_text(), *other = b.as_text(); text != nullptr && other != nullptr) {
        if (text->size() != other->size()) return false;
        work.spend(text->size(), line);
        return text->bytes == other->bytes;
    }
    if (const TemplateList* list = a.as_list(), *other = b.as_list(); list != nullptr && other != nullptr)
        return std::equal(list->begin(), list->end(), other->begin(), other->end(), equal);
    if (!a.as<TemplateValue::Dict>() || !b.as<TemplateValue::Dict>()) return false;
    const TemplateDict& members = *a.as_dict();
    return members.size() == b.as_dict()->size() &&
           std::all_of(members.begin(), members.end(), [&](const auto& member) {
               const TemplateValue* other = b.find(member.first);
               return other != nullptr && equal(member.second, *other);
           });
}

MarkedText printed(const TemplateValue& value, int line) {
    if (const MarkedText* text = value.as_text()) return *text;
    const auto ours = [](std::string_view text) { return MarkedText(text, MarkedText::ours); };
    if (value.is_undefined()) return {};
    if (value.as<TemplateValue::None>()) return ours("None");
    if (const bool* flag = value.as<bool>()) return ours(*flag ? "True" : "False");
    if (const int64_t* number = value.as<int64_t>()) return ours(std::to_string(*number));
    throw TemplateError(line, fmt::format("{} becomes no text (but by tojson)", value.kind()));
}

MarkedText json_text(const TemplateValue& value, int64_t indent, TemplateWork& work, int line) {
    JsonWriter writer(indent, work, line);
    writer.write(value, 0);
    return std::move(writer.text);
}

std::vector<size_t> characters_of(std::string_view text) {
    std::vector<size_t> begins;
    begins.reserve(text.size() + 1);
    for (size_t at = 0; at < text.size(); at += std::max<size_t>(utf8_sequence(text.substr(at)), 1))
        begins.push_back(at);
    begins.push_back(text.size());
    return begins;
}

std::pair<size_t, size_t> without_space(std::string_view text, bool left, bool right) {
    size_t begin = 0, end = text.size();
    const auto space_at = [&](size_t at, size_t length) {
        return is_space(code_point(text.substr(at, std::max<size_t>(length, 1))));
    };
    while (left && begin < end) {
        const size_t length = utf8_sequence(text.substr(begin));
        if (!space_at(begin, length)) break;
        begin += std::max<size_t>(length, 1);
    }
    while (right && end > begin) {
        size_t at = end - 1;
        while (at > begin && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
        if (!space_at(at, end - at)) break;
        end = at;
    }
    return {begin, end};
}

}  // namespace longreach::serve
