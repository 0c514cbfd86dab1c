// Readers that answer from the prompt alone, as a person would; none knows how a sample was made.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tasks/haystack.h"

namespace longreach::test {

// What stands in `text` after `cue` up to `stop`, searched from `from`; "" if the cue is not there.
inline std::string text_after(const std::string& text, const std::string& cue, const std::string& stop,
                              size_t from = 0) {
    const size_t at = text.find(cue, from);
    if (at == std::string::npos) return "";
    const size_t begin = at + cue.size();
    return text.substr(begin, text.find(stop, begin) - begin);
}

inline std::vector<std::string> all_text_after(const std::string& text, const std::string& cue,
                                               const std::string& stop) {
    std::vector<std::string> found;
    for (size_t at = 0; (at = text.find(cue, at)) != std::string::npos; at += cue.size())
        found.push_back(text_after(text, cue, stop, at));
    return found;
}

inline std::vector<std::string> split(const std::string& text, const std::string& separator) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + separator.size())
        parts.push_back(text.substr(begin, end - begin));
    parts.push_back(text.substr(begin));
    return parts;
}

inline std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
    std::string out;
    for (const std::string& p : parts) out += (out.empty() ? "" : separator) + p;
    return out;
}

// Words in the order of their first appearance, and how often each occurs.
struct Counts {
    std::vector<std::string> order;
    std::map<std::string, int> of;
    void add(const std::string& word) {
        if (of[word]++ == 0) order.push_back(word);
    }
};

// To the random string at the end of the context.
inline std::string string_answer(data::TaskKind task, const std::string& context, size_t letters) {
    if (task == data::TaskKind::two_back) return context.substr(context.size() - letters - 2, letters);
    std::string x = context.substr(context.size() - letters), counts;
    if (task == data::TaskKind::reverse) return {x.rbegin(), x.rend()};
    if (task == data::TaskKind::sort) {
        std::sort(x.begin(), x.end());
        return x;
    }
    char last = 0, count = '0';
    for (const char c : x) {
        count = c == last ? static_cast<char>(count + 1) : '1';
        last = c;
        counts += count;
    }
    return counts;
}

inline std::string answer_text(data::TaskKind task, const std::string& context, const std::string& question,
                               int64_t answer_tokens) {
    switch (task) {
        case data::TaskKind::needle:
            return text_after(context, question, ".");
        case data::TaskKind::needle_s3: {
            std::vector<std::string> parts;
            for (const std::string& s : all_text_after(context, "The special magic ", "."))
                parts.push_back(s.substr(0, s.find(" number is ")) + "=" + text_after(s, " number is ", "."));
            return joined(parts, ";");
        }
        case data::TaskKind::niah_single:
        case data::TaskKind::niah_multikey:
        case data::TaskKind::niah_multivalue:
        case data::TaskKind::niah_multiquery: {
            const std::string kind = text_after(question, "The special magic ", " ");
            std::vector<std::string> values;
            for (const std::string& key : split(text_after(question, kind + " for ", " are: "), ", "))
                for (const std::string& v : all_text_after(
                         context, "One of the special magic " + kind + " for " + key + " is: ", "."))
                    values.push_back(v);
            return joined(values, ", ");
        }
        case data::TaskKind::variable_tracking: {
            std::vector<std::string> known;
            const std::string value = text_after(question, "value ", ":");
            for (const std::string& s : all_text_after(context, "VAR ", ". ")) {
                const std::vector<std::string> sides = split(s, " = ");
                if (sides.size() != 2) continue;  // the right side of another
                const bool refers = sides[1].starts_with("VAR ");
                const std::string source = refers ? sides[1].substr(4) : "";
                if (sides[1] == value || std::find(known.begin(), known.end(), source) != known.end())
                    known.push_back(sides[0]);
            }
            return joined(known, " ");
        }
        case data::TaskKind::common_words: {
            Counts words;
            int item = 1;
            const size_t list = context.find("1. ");
            for (const std::string& w : split(context.substr(list), " "))
                if (w == fmt::format("{}.", item))
                    ++item;
                else if (!w.empty())
                    words.add(w);
            int most = 0;
            for (const auto& [w, n] : words.of) most = std::max(most, n);
            std::vector<std::string> common;
            for (const std::string& w : words.order)
                if (words.of[w] == most) common.push_back(w);
            return joined(common, " ");
        }
        case data::TaskKind::frequent_words: {
            Counts words;
            for (const std::string& w : split(context, " "))
                if (w.size() == 6 && w[0] != '.') words.add(w);
            std::stable_sort(words.order.begin(), words.order.end(),
                             [&](const auto& a, const auto& b) { return words.of.at(a) > words.of.at(b); });
            words.order.resize(3);
            return joined(words.order, " ");
        }
        case data::TaskKind::copy:
            return context.substr(context.size() - static_cast<size_t>(answer_tokens));
        case data::TaskKind::reverse:
        case data::TaskKind::sort:
        case data::TaskKind::local_count:
        case data::TaskKind::two_back:
            return string_answer(task, context, static_cast<size_t>(answer_tokens));
        case data::TaskKind::flip_flop: {
            const std::string written = context.substr(context.rfind('w') + 1, 1);
            for (size_t read = 0; (read = context.find('r', read)) != context.npos; ++read)
                if (context[read + 1] != context[context.rfind('w', read) + 1]) return "a read bit is wrong";
            return written;
        }
        case data::TaskKind::multi_query_recall: {
            std::vector<std::string> partners;
            for (const std::string& key : split(question.substr(0, question.size() - 1), ", "))
                partners.push_back(text_after(context, key + "=", ";"));
            return joined(partners, ", ");
        }
        case data::TaskKind::induction:
            return context.substr(context.find(question) + 1, 1);
        case data::TaskKind::associative_recall:
            return text_after(context, question, ";");
        case data::TaskKind::none:
            break;
    }
    return "";
}

}  // namespace longreach::test
