#include "plot/style_rules.h"

#include <algorithm>

namespace longreach::plot {

namespace {

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \n");
    if (begin == text.npos) return {};
    return text.substr(begin, text.find_last_not_of(" \n") - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> out;
    for (size_t at; (at = text.find(separator)) != text.npos; text.remove_prefix(at + 1))
        out.push_back(trimmed(text.substr(0, at)));
    out.push_back(trimmed(text));
    std::erase(out, std::string_view());
    return out;
}

// "svg.alone" or ":root", which is the outermost svg.
StyledElement compound(std::string_view text) {
    if (text == ":root") return {"svg", {}};
    StyledElement out{std::string(text.substr(0, text.find('.'))), {}};
    for (const std::string_view name : split(text.substr(out.tag.size()), '.'))
        out.classes.emplace_back(name);
    return out;
}

bool matches(const StyledElement& wanted, const StyledElement& element) {
    return (wanted.tag.empty() || wanted.tag == element.tag) &&
           std::all_of(wanted.classes.begin(), wanted.classes.end(), [&](const std::string& name) {
               return std::find(element.classes.begin(), element.classes.end(), name) !=
                      element.classes.end();
           });
}

// Descendants: each compound is at an element of the path, the last at its end.
bool matches(const std::vector<StyledElement>& selector, const std::vector<StyledElement>& path) {
    if (!matches(selector.back(), path.back())) return false;
    size_t left = selector.size() - 1;
    for (size_t i = path.size() - 1; i-- > 0 && left > 0;)
        if (matches(selector[left - 1], path[i])) --left;
    return left == 0;
}

// With each var(--name) or var(--name, otherwise) replaced.
std::string without_variables(std::string value, const Properties& properties) {
    for (size_t at; (at = value.find("var(")) != value.npos;) {
        const size_t end = value.find(')', at);
        const std::string inside = value.substr(at + 4, end - at - 4);
        const size_t comma = inside.find(',');
        const auto found = properties.find(std::string(trimmed(inside.substr(0, comma))));
        const std::string otherwise =
            comma == inside.npos ? "" : std::string(trimmed(std::string_view(inside).substr(comma + 1)));
        value.replace(at, end - at + 1, found == properties.end() ? otherwise : found->second);
    }
    return value;
}

}  // namespace

StyleRules::StyleRules(std::string_view css) {
    for (size_t open; (open = css.find('{')) != css.npos;) {
        const std::string_view head = trimmed(css.substr(0, open));
        size_t end = open + 1;
        for (int depth = 1; depth > 0 && end < css.size(); ++end)
            depth += (css[end] == '{') - (css[end] == '}');
        const std::string_view body = css.substr(open + 1, end - open - 2);
        css.remove_prefix(end);
        if (head.starts_with('@')) continue;
        Rule rule;
        for (const std::string_view declaration : split(body, ';')) {
            const size_t colon = declaration.find(':');
            rule.declarations.emplace(trimmed(declaration.substr(0, colon)),
                                      trimmed(declaration.substr(colon + 1)));
        }
        for (const std::string_view selector : split(head, ',')) {
            rule.selector.clear();
            rule.specificity = 0;
            for (const std::string_view part : split(selector, ' ')) {
                rule.selector.push_back(compound(part));
                rule.specificity +=
                    100 * rule.selector.back().classes.size() + !rule.selector.back().tag.empty();
            }
            rules_.push_back(rule);
        }
    }
    std::stable_sort(rules_.begin(), rules_.end(),
                     [](const Rule& a, const Rule& b) { return a.specificity < b.specificity; });
}

void StyleRules::apply(const std::vector<StyledElement>& path, Properties& properties) const {
    Properties own;
    for (const Rule& rule : rules_)
        if (matches(rule.selector, path))
            for (const auto& [name, value] : rule.declarations) own[name] = value;
    // Variables first: the element's own are those that its other properties read.
    for (const auto& [name, value] : own)
        if (name.starts_with("--")) properties[name] = without_variables(value, properties);
    for (const auto& [name, value] : own)
        if (!name.starts_with("--")) properties[name] = without_variables(value, properties);
}

}  // namespace longreach::plot
