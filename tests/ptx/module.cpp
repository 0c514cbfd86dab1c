#include "ptx/module.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <stdexcept>

namespace longreach::ptx {

namespace {

struct TypeName {
    std::string_view word;
    Type type;
};
constexpr std::array<TypeName, 17> types{{{"pred", Type::pred},
                                          {"b8", Type::b8},
                                          {"b16", Type::b16},
                                          {"b32", Type::b32},
                                          {"b64", Type::b64},
                                          {"u8", Type::u8},
                                          {"u16", Type::u16},
                                          {"u32", Type::u32},
                                          {"u64", Type::u64},
                                          {"s8", Type::s8},
                                          {"s16", Type::s16},
                                          {"s32", Type::s32},
                                          {"s64", Type::s64},
                                          {"bf16", Type::bf16},
                                          {"bf16x2", Type::bf16x2},
                                          {"f32", Type::f32},
                                          {"f64", Type::f64}}};

constexpr std::array<std::string_view, 14> specials = {
    "%tid.x",   "%tid.y",   "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z", "%ctaid.x",
    "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid"};

struct Token {
    std::string_view text;
    int line;
};

bool starts_word(char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}
bool in_word(char c) {
    return starts_word(c) || std::isdigit(static_cast<unsigned char>(c));
}

std::vector<Token> tokens_of(std::string_view text) {
    std::vector<Token> tokens;
    int line = 1;
    for (size_t i = 0; i < text.size();) {
        const char c = text[i];
        if (c == '\n') ++line;
        if (std::isspace(static_cast<unsigned char>(c))) {
            ++i;
        } else if (text.substr(i, 2) == "//") {
            i = std::min(text.find('\n', i), text.size());
        } else if (c == '"') {
            const size_t end = text.find('"', i + 1) + 1;
            tokens.push_back({text.substr(i, end - i), line});
            i = end;
        } else if (in_word(c)) {
            size_t end = i + 1;
            // Words such as shared::cta go on after two colons; one ends a label.
            while (end < text.size() && (in_word(text[end]) || text.substr(end, 2) == "::"))
                end += in_word(text[end]) ? 1 : 2;
            tokens.push_back({text.substr(i, end - i), line});
            i = end;
        } else {
            tokens.push_back({text.substr(i, 1), line});
            ++i;
        }
    }
    return tokens;
}

bool is_number(std::string_view word) {
    return !word.empty() && std::isdigit(static_cast<unsigned char>(word[0]));
}

class Parser {
  public:
    Parser(const std::string& path, std::string_view text) : tokens_(tokens_of(text)) { module_.path = path; }

    Module run() {
        for (; !done(); ++at_)
            if (peek() == ".func") {  // a kernel may call what is defined further down
                ++at_;
                function();
                --at_;
            }
        at_ = 0;
        while (!done()) {
            const std::string_view word = next();
            if (word == ".version" || word == ".target" || word == ".address_size") {
                const int line = tokens_[at_ - 1].line;
                while (!done() && tokens_[at_].line == line) ++at_;
            } else if (word == ".visible" || word == ".weak" || word == ".extern") {
                continue;
            } else if (word == ".shared" || word == ".global" || word == ".const") {
                variable(word);
            } else if (word == ".entry") {
                entry();
            } else if (word == ".func") {
                function();
            } else {
                fail("'" + std::string(word) + "' outside of a function");
            }
        }
        return std::move(module_);
    }

  private:
    using Scope = std::map<std::string, Operand, std::less<>>;

    bool done() const { return at_ >= tokens_.size(); }
    std::string_view peek() const { return done() ? std::string_view() : tokens_[at_].text; }
    std::string_view next() {
        if (done()) fail("the file ends early");
        return tokens_[at_++].text;
    }
    void expect(std::string_view word) {
        if (next() != word)
            fail("'" + std::string(word) + "' expected, not '" + std::string(tokens_[at_ - 1].text) + "'");
    }
    bool accept(std::string_view word) {
        if (peek() != word) return false;
        ++at_;
        return true;
    }
    [[noreturn]] void fail(const std::string& what) const {
        const int line = tokens_.empty() ? 0 : tokens_[std::min(at_, tokens_.size()) - 1].line;
        throw std::runtime_error(module_.path + ":" + std::to_string(line) + ": " + what);
    }

    Operand literal() {
        Operand o;
        o.kind = Operand::Kind::number;
        const bool minus = accept("-");
        const std::string_view word = next();
        if (!is_number(word)) fail("a number expected, not '" + std::string(word) + "'");
        const auto parsed = [&](std::string_view digits, int base) {
            uint64_t value = 0;
            const auto [end, error] =
                std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
            if (error != std::errc() || (end != digits.data() + digits.size() && *end != 'U'))
                fail("'" + std::string(word) + "' is no number");
            return value;
        };
        if (word.starts_with("0f") || word.starts_with("0F")) {
            o.number = parsed(word.substr(2), 16);
            if (minus) o.number ^= uint64_t{1} << 31;
        } else if (word.starts_with("0d") || word.starts_with("0D")) {
            o.number = parsed(word.substr(2), 16);
            if (minus) o.number ^= uint64_t{1} << 63;
        } else {
            o.number = word.starts_with("0x") ? parsed(word.substr(2), 16) : parsed(word, 10);
            if (minus) o.number = ~o.number + 1;
        }
        return o;
    }

    struct Array {
        Type type = Type::none;
        std::string name;
        size_t alignment = 1, bytes = 0;
    };
    // .align 4 .b8 name[24], the words before it read.
    Array array() {
        Array a;
        if (accept(".align")) a.alignment = literal().number;
        std::string_view word = next();
        while (word == ".ptr" || word == ".attribute") word = next();
        a.type = type_named(word.substr(1));
        if (a.type == Type::none) fail("'" + std::string(word) + "' is no type");
        if (accept(".ptr")) {
            while (peek() == ".global" || peek() == ".shared" || peek() == ".const") ++at_;
            if (accept(".align")) literal();
        }
        a.name = next();
        const auto one = static_cast<size_t>(bits_of(a.type) / 8);
        a.alignment = std::max(a.alignment, one);
        a.bytes = one;
        if (accept("[")) {
            a.bytes = peek() == "]" ? 0 : one * literal().number;
            expect("]");
        }
        return a;
    }

    void variable(std::string_view space) {
        const Array a = array();
        if (space == ".shared") {
            // The launch's shared memory, after what functions declare.
            if (a.bytes != 0) fail("shared memory outside of a function has a size");
            dynamic_shared_.push_back(a.name);
        } else {
            std::vector<std::byte>& value = module_.variables[a.name];
            value.resize(a.bytes);
            if (accept("=")) {
                const size_t one = static_cast<size_t>(bits_of(a.type) / 8);
                size_t at = 0;
                const bool list = accept("{");
                do {
                    const uint64_t number = literal().number;
                    if (at + one > a.bytes) fail("too many values");
                    for (size_t i = 0; i < one; ++i)
                        value[at + i] = static_cast<std::byte>(number >> (8 * i));
                    at += one;
                } while (list && accept(","));
                if (list) expect("}");
            }
        }
        expect(";");
    }

    static size_t place(size_t& used, const Array& a) {
        used = (used + a.alignment - 1) / a.alignment * a.alignment;
        const size_t offset = used;
        used += a.bytes;
        return offset;
    }

    void entry() {
        Entry e;
        e.name = next();
        scopes_.assign(1, {});
        for (auto& [name, value] : module_.variables)
            scopes_[0][name] = symbol(reinterpret_cast<uint64_t>(value.data()));
        labels_.clear();
        awaited_.clear();
        expect("(");
        while (!accept(")")) {
            expect(".param");
            const Array a = array();
            const size_t offset = place(e.parameter_bytes, a);
            e.parameters.push_back({offset, a.bytes});
            scopes_[0][a.name] = symbol(offset);
            accept(",");
        }
        while (!accept("{")) {
            const std::string_view word = next();
            if (word == ".maxntid") {
                literal();
                while (accept(",")) literal();
            } else if (word == ".minnctapersm" || word == ".maxnreg" || word == ".reqntid") {
                literal();
            } else {
                fail("'" + std::string(word) + "' before a function's body");
            }
        }
        body(e);
        for (size_t i = 0; i < awaited_.size(); ++i)
            if (functions_.contains(awaited_[i].name) && !labels_.contains(awaited_[i].name))
                function_body(e, awaited_[i].name);
        for (const std::string& name : dynamic_shared_) {
            e.shared_bytes = (e.shared_bytes + 127) / 128 * 128;
            for (auto [instruction, operand] : dynamic_uses_[name])
                e.instructions[instruction].operands[operand].number += e.shared_bytes;
        }
        dynamic_uses_.clear();
        for (const auto& [instruction, operand, name] : awaited_) {
            const auto found = labels_.find(name);
            if (found == labels_.end()) fail("'" + name + "' is not declared");
            Operand& o = e.instructions[instruction].operands[operand];
            o.kind = Operand::Kind::label;
            o.index = found->second;
        }
        module_.entries[e.name] = std::move(e);
    }

    // Notes where it stands; it is read into each kernel that calls it.
    void function() {
        const size_t begin = at_;
        if (accept("("))
            while (next() != ")") {
            }
        const std::string name(next());
        while (peek() != ";" && peek() != "{") ++at_;
        if (next() == ";") return;  // a declaration
        functions_[name] = begin;
        for (int depth = 1; depth > 0;) {
            const std::string_view word = next();
            if (word == "{") ++depth;
            if (word == "}") --depth;
        }
    }
    void function_body(Entry& e, const std::string& name) {
        const size_t behind = at_;
        at_ = functions_.at(name);
        const auto first = static_cast<int>(e.instructions.size());
        labels_[name] = first;
        scopes_.resize(1);
        scopes_.emplace_back();
        Function& f = e.functions[first];
        const auto formals = [&](std::vector<Parameter>& all) {
            expect("(");
            while (!accept(")")) {
                expect(".param");
                all.push_back(argument(e));
                accept(",");
            }
        };
        if (peek() == "(") formals(f.returns);
        next();
        formals(f.parameters);
        expect("{");
        body(e);
        at_ = behind;
    }
    Parameter argument(Entry& e) {
        const Array a = array();
        const size_t offset = place(e.argument_bytes, a);
        scopes_.back()[a.name] = symbol(argument_base + offset);
        return {offset, a.bytes};
    }

    static Operand symbol(uint64_t value) {
        Operand o;
        o.kind = Operand::Kind::number;
        o.number = value;
        return o;
    }

    void body(Entry& e) {
        scopes_.emplace_back();
        for (size_t depth = 1; depth > 0;) {
            const std::string_view word = peek();
            if (word == "{") {
                ++at_;
                ++depth;
                scopes_.emplace_back();
            } else if (word == "}") {
                ++at_;
                --depth;
                scopes_.pop_back();
            } else if (word == ".reg") {
                ++at_;
                registers(e);
            } else if (word == ".local" || word == ".shared") {
                ++at_;
                const Array a = array();
                scopes_.back()[a.name] = symbol(place(word == ".local" ? e.local_bytes : e.shared_bytes, a));
                expect(";");
            } else if (word == ".param") {
                ++at_;
                argument(e);
                expect(";");
            } else if (word == ".pragma") {
                while (next() != ";") {
                }
            } else if (at_ + 1 < tokens_.size() && tokens_[at_ + 1].text == ":") {
                labels_[std::string(word)] = static_cast<int>(e.instructions.size());
                at_ += 2;
                if (accept(".branchtargets")) fail("branch tables are not known");
            } else {
                instruction(e);
            }
        }
    }

    void registers(Entry& e) {
        const std::string_view type = next();
        if (type_named(type.substr(1)) == Type::none) fail("'" + std::string(type) + "' is no type");
        do {
            const std::string name(next());
            uint64_t count = 1;
            const bool many = accept("<");
            if (many) {
                count = literal().number;
                expect(">");
            }
            for (uint64_t i = 0; i < count; ++i) {
                Operand o;
                o.kind = Operand::Kind::reg;
                o.index = static_cast<int>(e.registers.size());
                e.registers.push_back(many ? name + std::to_string(i) : name);
                scopes_.back()[e.registers.back()] = o;
            }
        } while (accept(","));
        expect(";");
    }

    Operand named(std::string_view word, Entry& e, const Instruction& in) {
        for (size_t s = scopes_.size(); s-- > 0;)
            if (const auto found = scopes_[s].find(word); found != scopes_[s].end()) return found->second;
        const auto special = std::find(specials.begin(), specials.end(), word);
        if (special != specials.end()) {
            Operand o;
            o.kind = Operand::Kind::special;
            o.index = static_cast<int>(special - specials.begin());
            return o;
        }
        if (word == "WARP_SZ") return symbol(32);
        if (std::find(dynamic_shared_.begin(), dynamic_shared_.end(), word) != dynamic_shared_.end()) {
            dynamic_uses_[std::string(word)].emplace_back(e.instructions.size(), in.operands.size());
            return symbol(0);
        }
        awaited_.push_back({e.instructions.size(), in.operands.size(), std::string(word)});
        return {};
    }

    Operand operand(Entry& e, const Instruction& in) {
        if (accept("_")) return {};
        if (accept("!")) {
            Operand o = named(next(), e, in);
            o.negated = true;
            return o;
        }
        if (accept("[")) {
            Operand o = peek() == "-" || is_number(peek()) ? literal() : named(next(), e, in);
            o.of_register = o.kind == Operand::Kind::reg;
            o.kind = Operand::Kind::address;
            if (accept("+"))
                o.number += literal().number;
            else if (peek() == "-")
                o.number += literal().number;
            if (accept(",")) {  // [map, {x, y, z}]: coordinates, a list after the address
                expect("{");
                do coordinates_.push_back(named(next(), e, in));
                while (accept(","));
                expect("}");
            }
            expect("]");
            return o;
        }
        if (peek() == "-" || is_number(peek())) return literal();
        return named(next(), e, in);
    }

    void instruction(Entry& e) {
        Instruction in;
        in.line = tokens_[at_].line;
        const size_t first = at_;
        if (accept("@")) {
            in.guard_negated = accept("!");
            in.guard = named(next(), e, in).index;
        }
        std::string_view opcode = next();
        for (size_t dot; !opcode.empty(); opcode.remove_prefix(std::min(dot + 1, opcode.size()))) {
            dot = opcode.find('.');
            in.words.emplace_back(opcode.substr(0, dot));
            if (dot == std::string_view::npos) break;
        }
        while (!accept(";")) {
            const std::string_view close = peek() == "{" ? "}" : peek() == "(" ? ")" : "";
            if (!close.empty()) ++at_;
            int count = 0;
            do {
                in.operands.push_back(operand(e, in));
                ++count;
            } while (!close.empty() && accept(","));
            if (!close.empty()) expect(close);
            in.groups.push_back(count);
            if (!coordinates_.empty()) {
                in.operands.insert(in.operands.end(), coordinates_.begin(), coordinates_.end());
                in.groups.push_back(static_cast<int>(coordinates_.size()));
                coordinates_.clear();
            }
            if (!accept(",")) accept("|");
        }
        for (size_t i = first; i < at_; ++i) in.text += (i > first ? " " : "") + std::string(tokens_[i].text);
        e.instructions.push_back(std::move(in));
    }

    struct Awaited {
        size_t instruction, operand;
        std::string name;
    };
    std::vector<Token> tokens_;
    std::vector<Operand> coordinates_;
    size_t at_ = 0;
    Module module_;
    std::map<std::string, size_t> functions_;  // where the header after ".func" begins
    std::vector<std::string> dynamic_shared_;
    std::map<std::string, std::vector<std::pair<size_t, size_t>>> dynamic_uses_;  // instruction, operand
    std::vector<Scope> scopes_;
    std::map<std::string, int> labels_;
    std::vector<Awaited> awaited_;
};

}  // namespace

Type type_named(std::string_view word) {
    for (const TypeName& t : types)
        if (t.word == word) return t.type;
    return Type::none;
}

bool Instruction::has(std::string_view word) const {
    return std::find(words.begin(), words.end(), word) != words.end();
}

const Operand& Instruction::at(int group, int element) const {
    size_t first = 0;
    for (int g = 0; g < group; ++g) first += static_cast<size_t>(groups[static_cast<size_t>(g)]);
    return operands[first + static_cast<size_t>(element)];
}

Module parse(const std::string& path, const std::string& text) {
    return Parser(path, text).run();
}

}  // namespace longreach::ptx
