#include "tokenizer/automaton.h"

#include <algorithm>
#include <bitset>
#include <map>

#include "base/text.h"
#include "tokenizer/byte_text.h"

namespace longreach::tokenizer {

namespace {

using Set = std::bitset<Symbols::count>;
constexpr int unlimited = -1;
constexpr size_t most_nodes = 1000, most_rows = 200, deepest_group = 16;

struct OtherForm {};  // thrown for an expression that is not taken

struct Atom;
using Sequence = std::vector<Atom>;
using Alternatives = std::vector<Sequence>;

struct Atom {
    enum class Kind { set, group, no_word_follows, end_follows };
    Kind kind = Kind::set;
    Set set = {};
    Alternatives group = {};
    int least = 1, most = 1;
    bool possessive = false;
};

void refuse_unless(bool taken) {
    if (!taken) throw OtherForm{};
}

class Parser {
  public:
    explicit Parser(std::string_view regex) : rest_(regex) {}

    Alternatives parse() {
        Alternatives all = alternatives(false);
        refuse_unless(rest_.empty());
        for (const Sequence& sequence : all) check_possessive(sequence);
        return all;
    }

  private:
    bool take(std::string_view text) {
        if (!rest_.starts_with(text)) return false;
        rest_.remove_prefix(text.size());
        return true;
    }
    char take_character() {
        refuse_unless(!rest_.empty());
        const char c = rest_.front();
        rest_.remove_prefix(1);
        return c;
    }

    Alternatives alternatives(bool any_case) {
        refuse_unless(++depth_ <= deepest_group);
        Alternatives all(1);
        while (!rest_.empty() && rest_.front() != ')') {
            if (take("|")) {
                all.emplace_back();
            } else {
                all.back().push_back(counted(atom(any_case)));
            }
        }
        --depth_;
        return all;
    }

    Atom atom(bool any_case) {
        if (take("(?!\\S)")) return {.kind = Atom::Kind::no_word_follows};
        if (take("$")) return {.kind = Atom::Kind::end_follows};
        const bool ignores_case = take("(?i:");
        if (ignores_case || take("(?:")) {
            Atom group{.kind = Atom::Kind::group, .group = alternatives(any_case || ignores_case)};
            refuse_unless(take(")"));
            return group;
        }
        if (take("[")) return {.set = character_class(any_case)};
        const char c = take_character();
        if (c == '\\') return {.set = escaped(any_case)};
        refuse_unless(std::string_view(".^*+?(){}").find(c) == std::string_view::npos);
        return {.set = of_letter(c, any_case)};
    }

    Atom counted(Atom atom) {
        const bool counts = take("*") || take("+") || take("?") || take("{");
        if (!counts) return atom;
        refuse_unless(atom.kind == Atom::Kind::set || atom.kind == Atom::Kind::group);
        const char sign = *(rest_.data() - 1);
        atom.least = sign == '+' ? 1 : 0;
        atom.most = sign == '?' ? 1 : unlimited;
        if (sign == '{') {
            atom.least = atom.most = number();
            if (take(",")) atom.most = number();
            refuse_unless(take("}") && atom.most >= atom.least && atom.most > 0);
        }
        // What a matcher does with a group that matches nothing again and again differs.
        refuse_unless(atom.kind == Atom::Kind::set || atom.most == 1);
        atom.possessive = take("+");
        refuse_unless(rest_.empty() ||
                      std::string_view("*+?{").find(rest_.front()) == std::string_view::npos);
        return atom;
    }

    int number() {
        int value = 0;
        const size_t before = rest_.size();
        while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9' && value < 100)
            value = 10 * value + (take_character() - '0');
        refuse_unless(rest_.size() < before && value < 100);
        return value;
    }

    // Where nothing that a possessive count has taken could begin what follows, a greedy one gives nothing back either.
    static void check_possessive(const Sequence& sequence) {
        for (size_t i = 0; i < sequence.size(); ++i) {
            for (const Sequence& inner : sequence[i].group)
                for (const Atom& atom : inner) refuse_unless(!atom.possessive && atom.group.empty());
            if (!sequence[i].possessive) continue;
            refuse_unless(sequence[i].kind == Atom::Kind::set);
            for (size_t next = i + 1; next < sequence.size(); ++next) {
                const Atom& atom = sequence[next];
                if (atom.kind == Atom::Kind::end_follows) break;
                refuse_unless(atom.kind == Atom::Kind::set && (atom.set & sequence[i].set).none());
                if (atom.least > 0) break;
            }
        }
    }

    Set of_letter(char c, bool any_case) {
        refuse_unless(static_cast<unsigned char>(c) < 0x80);
        Set set;
        set.set(static_cast<size_t>(c));
        const char low = static_cast<char>(c | 0x20);
        if (!any_case || low < 'a' || low > 'z') return set;
        refuse_unless(low != 'k');  // that of the Kelvin sign
        set.set(static_cast<size_t>(low)).set(static_cast<size_t>(low & ~0x20));
        return low == 's' ? set.set(Symbols::long_s) : set;
    }

    static Set white_space() {
        Set set;
        for (uint32_t c = 0; c < 0x80; ++c) set[c] = is_white_space(c);
        for (size_t i = 0; i < general_categories.size(); ++i) set.set(Symbols::first_category + 2 * i + 1);
        return set;
    }

    static Set all_but(Set set) { return set.flip().reset(Symbols::end_of_text); }

    Set of_category(std::string_view name) {
        Set set;
        bool any = false;
        for (size_t i = 0; i < general_categories.size(); ++i) {
            if (!general_categories[i].starts_with(name)) continue;
            any = true;
            set.set(Symbols::first_category + 2 * i).set(Symbols::first_category + 2 * i + 1);
            for (size_t c = 0; c < 0x80; ++c)
                if (ascii_category(static_cast<char>(c)) == general_categories[i]) set.set(c);
            if (general_categories[i] == "Ll") set.set(Symbols::long_s);
        }
        refuse_unless(any && !name.empty());
        return set;
    }

    static std::string_view ascii_category(char c) {
        if (c < ' ' || c == 0x7F) return "Cc";
        if (c >= 'a' && c <= 'z') return "Ll";
        if (c >= 'A' && c <= 'Z') return "Lu";
        if (c >= '0' && c <= '9') return "Nd";
        constexpr std::string_view signs = " $+<=>^`|~_-([{)]}";
        constexpr std::array<std::string_view, 18> categories = {"Zs", "Sc", "Sm", "Sm", "Sm", "Sm",
                                                                 "Sk", "Sk", "Sm", "Sm", "Pc", "Pd",
                                                                 "Ps", "Ps", "Ps", "Pe", "Pe", "Pe"};
        const size_t at = signs.find(c);
        return at == std::string_view::npos ? "Po" : categories[at];
    }

    // After a backslash.
    Set escaped(bool any_case) {
        const char c = take_character();
        if (c == 's') return white_space();
        if (c == 'S') return all_but(white_space());
        if (c == 'r') return of_letter('\r', false);
        if (c == 'n') return of_letter('\n', false);
        if (c == 't') return of_letter('\t', false);
        if (c == 'p') {
            refuse_unless(!any_case && take("{"));
            const size_t close = rest_.find('}');
            refuse_unless(close != std::string_view::npos);
            const Set set = of_category(rest_.substr(0, close));
            rest_.remove_prefix(close + 1);
            return set;
        }
        refuse_unless(static_cast<unsigned char>(c) < 0x80 && !ascii_category(c).starts_with('L') &&
                      !ascii_category(c).starts_with('N') && !ascii_category(c).starts_with('C'));
        return of_letter(c, false);
    }

    // After the bracket.
    Set character_class(bool any_case) {
        const bool negated = take("^");
        refuse_unless(!rest_.starts_with("]"));
        Set set;
        while (!take("]")) {
            const char c = take_character();
            refuse_unless(c != '[');
            const bool is_escape = c == '\\';
            set |= is_escape ? escaped(any_case) : of_letter(c, any_case);
            if (!rest_.starts_with("-") || rest_.starts_with("-]")) continue;
            take("-");
            refuse_unless(!is_escape && !any_case);
            const char last = take_character();
            refuse_unless(last > c && last != '\\' && last != '[');
            for (char between = c; between < last; ++between) set |= of_letter(between, false);
            set |= of_letter(last, false);
        }
        return negated ? all_but(set) : set;
    }

    std::string_view rest_;
    size_t depth_ = 0;
};

}  // namespace

// The nodes of the expression, from its end to its front, then the rows: each is the list of the nodes that the next
// character may match, the preferred first.
class AutomatonBuilder {
  public:
    Automaton build(const Alternatives& all) {
        first_ = add({.kind = Node::Kind::match});
        first_ = add_alternatives(all, first_);
        number_kinds();
        make_rows();
        check_reach();
        return std::move(automaton_);
    }

  private:
    struct Node {
        enum class Kind { set, fork, no_word_follows, end_follows, match };
        Kind kind = Kind::set;
        Set set = {};
        size_t next = 0, otherwise = 0;
    };

    size_t add(const Node& node) {
        refuse_unless(nodes_.size() < most_nodes);
        nodes_.push_back(node);
        return nodes_.size() - 1;
    }

    size_t add_alternatives(const Alternatives& all, size_t next) {
        size_t first = add_sequence(all.back(), next);
        for (size_t i = all.size() - 1; i-- > 0;)
            first = add({.kind = Node::Kind::fork, .next = add_sequence(all[i], next), .otherwise = first});
        return first;
    }

    size_t add_sequence(const Sequence& sequence, size_t next) {
        for (size_t i = sequence.size(); i-- > 0;) next = add_counted(sequence[i], next);
        return next;
    }

    size_t add_counted(const Atom& atom, size_t next) {
        if (atom.most == unlimited) {
            const size_t fork = add({.kind = Node::Kind::fork, .otherwise = next});
            nodes_[fork].next = add_once(atom, fork);
            next = fork;
        } else {
            const size_t after = next;
            for (int i = atom.least; i < atom.most; ++i)
                next = add({.kind = Node::Kind::fork, .next = add_once(atom, next), .otherwise = after});
        }
        for (int i = 0; i < atom.least; ++i) next = add_once(atom, next);
        return next;
    }

    size_t add_once(const Atom& atom, size_t next) {
        switch (atom.kind) {
            case Atom::Kind::set:
                return add({.set = atom.set, .next = next});
            case Atom::Kind::group:
                return add_alternatives(atom.group, next);
            case Atom::Kind::no_word_follows:
                return add({.kind = Node::Kind::no_word_follows, .next = next});
            case Atom::Kind::end_follows:
                return add({.kind = Node::Kind::end_follows, .next = next});
        }
        throw OtherForm{};
    }

    // Symbols that no node tells apart are one kind.
    void number_kinds() {
        std::map<std::vector<bool>, size_t> kinds;
        for (size_t symbol = 0; symbol < Symbols::count; ++symbol) {
            std::vector<bool> traits = {symbol == Symbols::end_of_text, is_white(symbol)};
            for (const Node& node : nodes_) traits.push_back(node.set[symbol]);
            const auto [kind, added] = kinds.emplace(std::move(traits), kinds.size());
            if (added) examples_.push_back(symbol);
            refuse_unless(kinds.size() <= Automaton::width);
            automaton_.kinds_[symbol] = static_cast<uint8_t>(kind->second);
        }
    }

    static bool is_white(size_t symbol) {
        if (symbol < Symbols::first_category) return is_white_space(static_cast<uint32_t>(symbol));
        return symbol < Symbols::long_s && (symbol - Symbols::first_category) % 2 == 1;
    }

    void make_rows() {
        std::map<std::vector<size_t>, size_t> numbers = {{{}, 0}, {{first_}, 1}};
        std::vector<std::vector<size_t>> rows = {{}, {first_}};
        for (size_t row = 0; row < rows.size(); ++row) {
            automaton_.next_.resize((row + 1) * Automaton::width);
            for (size_t kind = 0; kind < examples_.size(); ++kind) {
                bool matched = false;
                const std::vector<size_t> follows = step(rows[row], examples_[kind], matched);
                const auto [number, added] = numbers.emplace(follows, rows.size());
                if (added) rows.push_back(follows);
                refuse_unless(rows.size() <= most_rows);
                automaton_.next_[row * Automaton::width + kind] = static_cast<uint16_t>(
                    number->second * Automaton::width + (matched ? Automaton::matched : 0));
            }
        }
    }

    // The row after a symbol. What comes after a match in the order of preference does not count.
    std::vector<size_t> step(const std::vector<size_t>& row, size_t symbol, bool& matched) const {
        std::vector<size_t> follows, waiting(row.rbegin(), row.rend());
        std::vector<bool> seen(nodes_.size());
        while (!waiting.empty()) {
            const size_t at = waiting.back();
            const Node& node = nodes_[at];
            waiting.pop_back();
            if (seen[at]) continue;
            seen[at] = true;
            const bool at_end = symbol == Symbols::end_of_text;
            switch (node.kind) {
                case Node::Kind::match:
                    matched = true;
                    return follows;
                case Node::Kind::fork:
                    waiting.insert(waiting.end(), {node.otherwise, node.next});
                    break;
                case Node::Kind::end_follows:
                    if (at_end) waiting.push_back(node.next);
                    break;
                case Node::Kind::no_word_follows:
                    if (at_end || is_white(symbol)) waiting.push_back(node.next);
                    break;
                case Node::Kind::set:
                    if (node.set[symbol] &&
                        std::find(follows.begin(), follows.end(), node.next) == follows.end())
                        follows.push_back(node.next);
            }
        }
        return follows;
    }

    // Refuses an empty match, and rows without a match that can follow each other for ever: as each place of a text
    // would be tried, the time would grow with the square of the text.
    void check_reach() const {
        const size_t rows = automaton_.next_.size() / Automaton::width;
        std::vector<bool> reached(rows);
        reached[1] = true;
        for (size_t length = 0; length <= rows; ++length) {
            std::vector<bool> next(rows);
            for (size_t row = 1; row < rows; ++row)
                for (size_t kind = 0; reached[row] && kind < examples_.size(); ++kind) {
                    const uint16_t step = automaton_.next_[row * Automaton::width + kind];
                    const bool matched = (step & Automaton::matched) != 0;
                    refuse_unless(!(matched && row == 1 && length == 0));
                    if (!matched) next[step / Automaton::width] = true;
                }
            next[0] = false;
            reached = std::move(next);
        }
        refuse_unless(std::find(reached.begin(), reached.end(), true) == reached.end());
    }

    std::vector<Node> nodes_;
    std::vector<size_t> examples_;  // a symbol of each kind
    size_t first_ = 0;
    Automaton automaton_;
};

std::optional<Automaton> Automaton::of(std::string_view regex) {
    try {
        return AutomatonBuilder().build(Parser(regex).parse());
    } catch (const OtherForm&) {
        return std::nullopt;
    }
}

size_t Automaton::match(std::string_view text, size_t at, Symbols& symbols) const {
    size_t end = at;
    for (size_t row = width;;) {
        size_t symbol = Symbols::end_of_text, size = 0;
        if (at < text.size()) {
            size = 1;
            symbol = static_cast<unsigned char>(text[at]);
            if (symbol >= 0x80) {
                size = symbol < 0xE0 ? 2 : symbol < 0xF0 ? 3 : 4;
                symbol = symbols.of(code_point_at(text.substr(at)));
            }
        }
        const uint16_t step = next_[row + kinds_[symbol]];
        if ((step & matched) != 0) end = at;
        row = step & ~size_t{matched};
        if (row == 0) return end;
        at += size;
    }
}

}  // namespace longreach::tokenizer
