// The answer follows from the prompt: a reader of the text finds it, on every task.
#include "tasks/oracle.h"

#include <doctest/doctest.h>

#include <set>

using namespace longreach;
using namespace longreach::test;

TEST_CASE("a reader of the prompt gives the answer of every text sample") {
    for (const data::TaskKind task : data::all_tasks())
        for (const int64_t length : lengths(true))
            for (uint64_t index = 0; index < 20; ++index) {
                CAPTURE(data::name_of(task));
                CAPTURE(length);
                CAPTURE(index);
                const tasks::Sample s = generator(task, true).make(length, index);
                const std::string context = as_text(s, 0, s.context),
                                  question = as_text(s, s.context, s.answer_begin),
                                  answer = as_text(s, s.answer_begin, length);
                REQUIRE(answer_text(task, context, question, s.answer_tokens()) == answer);
            }
}

TEST_CASE("a reader finds the answers among other needles, in noise and in text") {
    for (const data::TaskHaystack kind :
         {data::TaskHaystack::essay, data::TaskHaystack::noise, data::TaskHaystack::needles})
        for (const data::TaskKind task : {data::TaskKind::niah_single, data::TaskKind::niah_multikey,
                                          data::TaskKind::niah_multivalue, data::TaskKind::niah_multiquery})
            for (uint64_t index = 0; index < 10; ++index) {
                data::TaskConfig config;
                config.haystack = kind;
                const tasks::Sample s = generator(task, true, 1, config).make(2048, index);
                const std::string context = as_text(s, 0, s.context);
                CHECK(answer_text(task, context, as_text(s, s.context, s.answer_begin), s.answer_tokens()) ==
                      as_text(s, s.answer_begin, 2048));
                const size_t needles =
                    all_text_after(context, "One of the special magic numbers for ", ".").size();
                if (kind == data::TaskHaystack::needles)
                    CHECK(needles >= 30);  // 57 bytes each
                else
                    CHECK(needles <= 4);
            }
}

namespace {

bool is_number(const std::string& s) {
    return s.size() == 7 && s.find_first_not_of("0123456789") == s.npos && s[0] != '0';
}
bool is_word(const std::string& s) {
    return s.size() == 6 && s.find_first_not_of("abdefgiklmnoprstuvz") == s.npos;
}
bool is_uuid(const std::string& s) {
    if (s.size() != 36 || s[14] != '4' || std::string("89ab").find(s[19]) == std::string::npos) return false;
    for (size_t i = 0; i < s.size(); ++i) {
        const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash != (s[i] == '-')) return false;
        if (!dash && std::string("0123456789abcdef").find(s[i]) == std::string::npos) return false;
    }
    return true;
}

const std::vector<std::pair<data::TaskTerms, bool (*)(const std::string&)>> terms{
    {data::TaskTerms::words, is_word},
    {data::TaskTerms::numbers, is_number},
    {data::TaskTerms::uuids, is_uuid}};
const std::vector<data::TaskKind> niah{data::TaskKind::niah_single, data::TaskKind::niah_multikey,
                                       data::TaskKind::niah_multivalue, data::TaskKind::niah_multiquery};

}  // namespace

TEST_CASE("keys and values are words, numbers or uuids, in every haystack") {
    for (const auto& [keys, is_key] : terms)
        for (const auto& [values, is_value] : terms)
            for (const data::TaskHaystack kind : {data::TaskHaystack::essay, data::TaskHaystack::needles})
                for (const data::TaskKind task : niah)
                    for (uint64_t index = 0; index < 5; ++index) {
                        CAPTURE(data::name_of(task));
                        CAPTURE(data::name_of(keys));
                        CAPTURE(data::name_of(values));
                        data::TaskConfig config;
                        config.haystack = kind;
                        config.keys = keys;
                        config.values = values;
                        const tasks::Sample s = generator(task, true, 3, config).make(4096, index);
                        const std::string context = as_text(s, 0, s.context),
                                          question = as_text(s, s.context, s.answer_begin),
                                          answer = as_text(s, s.answer_begin, 4096);
                        CHECK(answer_text(task, context, question, s.answer_tokens()) == answer);
                        std::set<std::string> different;
                        for (const std::string& value : split(answer, ", ")) {
                            CHECK(is_value(value));
                            different.insert(value);
                        }
                        const size_t asked = split(answer, ", ").size();
                        CHECK(asked == (task == data::TaskKind::niah_multivalue ||
                                                task == data::TaskKind::niah_multiquery
                                            ? 4
                                            : 1));
                        CHECK(different.size() == asked);
                        for (const std::string& key : split(text_after(question, " for ", " are: "), ", ")) {
                            CHECK(is_key(key));
                            // The key of the asked needles alone, and no value.
                            CHECK(all_text_after(context, " for " + key + " is: ", ".").size() ==
                                  (task == data::TaskKind::niah_multivalue ? 4 : 1));
                            CHECK(all_text_after(context, ": " + key, ".").empty());
                        }
                        for (const std::string& key : all_text_after(context, " for ", " is: "))
                            CHECK(is_key(key));
                    }
}

TEST_CASE("in reserved ids a word is one token and a uuid 32 digits") {
    for (const data::TaskKind task : niah) {
        data::TaskConfig config;
        config.keys = config.values = data::TaskTerms::uuids;
        const int64_t needles = task == data::TaskKind::niah_single ? 1 : 4;
        const tasks::Sample s = generator(task, false, 3, config).make(2048, 0);
        const int64_t asked = task == data::TaskKind::niah_multikey ? 1 : needles;
        CHECK(s.answer_tokens() == 32 * asked + asked - 1);
        for (int64_t i = s.answer_begin; i < 2048; ++i) {
            const int32_t mark = s.tokens[static_cast<size_t>(i)] - (id_vocab - 1024);
            // Letters 8 to 13, digits 16 to 25; separators between references.
            CHECK(((i - s.answer_begin) % 33 == 32 ? mark == 4
                                                   : (mark >= 8 && mark < 14) || (mark >= 16 && mark < 26)));
        }
        config.values = data::TaskTerms::words;
        CHECK(generator(task, false, 3, config).make(2048, 0).answer_tokens() == 2 * asked - 1);
    }
    // A small vocabulary has 96 words, and noise fills what they leave.
    data::TaskConfig small;
    small.ids = 128;
    small.values = data::TaskTerms::words;
    small.haystack = data::TaskHaystack::needles;
    for (uint64_t index = 0; index < 50; ++index)
        CHECK(generator(data::TaskKind::niah_multiquery, false, 3, small).make(4096, index).tokens.size() ==
              4096);
}

namespace {

// Reserved tokens with the defaults: the last 1024 of the vocabulary.
constexpr int32_t first = id_vocab - 1024, mark_needle = first, mark_is = first + 1, mark_stop = first + 2,
                  mark_separator = first + 4, mark_assign = first + 5, first_digit = first + 16,
                  first_name = first + 32;

using List = tasks::TokenList;

List slice(const tasks::Sample& s, int64_t begin, int64_t end) {
    return {s.tokens.begin() + begin, s.tokens.begin() + end};
}

// Tokens between the end of `cue` and the first `stop` after it.
List id_text_after(const List& context, const List& cue, int32_t stop) {
    auto at = std::search(context.begin(), context.end(), cue.begin(), cue.end());
    if (at == context.end()) return {};
    at += static_cast<std::ptrdiff_t>(cue.size());
    return {at, std::find(at, context.end(), stop)};
}

// Names by how often they occur, then by first appearance.
std::vector<std::pair<int32_t, int>> counted_names(const List& context) {
    std::vector<std::pair<int32_t, int>> counts;
    for (const int32_t id : context) {
        if (id < first_name) continue;
        const auto at =
            std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == id; });
        if (at == counts.end())
            counts.emplace_back(id, 1);
        else
            ++at->second;
    }
    std::stable_sort(counts.begin(), counts.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return counts;
}

List answer_ids(data::TaskKind task, const List& context, const List& question, int64_t answer_tokens) {
    switch (task) {
        case data::TaskKind::needle:
            return id_text_after(context, question, mark_stop);
        case data::TaskKind::niah_single:
        case data::TaskKind::niah_multikey:
        case data::TaskKind::niah_multiquery: {  // ask key {separator key} is
            List answer;
            for (const int32_t key : question) {
                if (key < first_name) continue;
                if (!answer.empty()) answer.push_back(mark_separator);
                const List value = id_text_after(context, {mark_needle, key, mark_is}, mark_stop);
                answer.insert(answer.end(), value.begin(), value.end());
            }
            return answer;
        }
        case data::TaskKind::common_words: {
            List answer;
            const auto counts = counted_names(context);
            for (const auto& [id, n] : counts) {
                if (n < counts[0].second) break;
                if (!answer.empty()) answer.push_back(mark_separator);
                answer.push_back(id);
            }
            return answer;
        }
        case data::TaskKind::frequent_words: {
            const auto c = counted_names(context);
            return {c[0].first, mark_separator, c[1].first, mark_separator, c[2].first};
        }
        case data::TaskKind::copy:
            return {context.end() - answer_tokens, context.end()};
        case data::TaskKind::reverse:
            return {context.rbegin(), context.rbegin() + answer_tokens};
        case data::TaskKind::sort: {
            const std::multiset<int32_t> sorted(context.end() - answer_tokens, context.end());
            return {sorted.begin(), sorted.end()};
        }
        case data::TaskKind::two_back:
            return {context.end() - answer_tokens - 2, context.end() - 2};
        case data::TaskKind::local_count: {
            List counts;
            int32_t last = -1, count = 0;
            for (auto at = context.end() - answer_tokens; at != context.end(); last = *at++)
                counts.push_back(first_digit + (count = *at == last ? count + 1 : 1));
            return counts;
        }
        case data::TaskKind::flip_flop: {
            const auto written = std::find(context.rbegin(), context.rend(), mark_assign);
            return {*(written - 1)};
        }
        case data::TaskKind::multi_query_recall: {
            List answer;
            for (const int32_t key : question) {
                if (key < first_name) continue;
                if (!answer.empty()) answer.push_back(mark_separator);
                answer.push_back(*(std::find(context.begin(), context.end(), key) + 1));
            }
            return answer;
        }
        case data::TaskKind::induction:
        case data::TaskKind::associative_recall:
            return {*(std::find(context.begin(), context.end(), question[0]) + 1)};
        default:
            return {};
    }
}

}  // namespace

TEST_CASE("a reader of reserved tokens gives the answer") {
    for (const data::TaskKind task :
         {data::TaskKind::needle, data::TaskKind::niah_single, data::TaskKind::niah_multikey,
          data::TaskKind::niah_multiquery, data::TaskKind::common_words, data::TaskKind::frequent_words,
          data::TaskKind::copy, data::TaskKind::induction, data::TaskKind::associative_recall,
          data::TaskKind::multi_query_recall, data::TaskKind::reverse, data::TaskKind::sort,
          data::TaskKind::local_count, data::TaskKind::two_back, data::TaskKind::flip_flop})
        for (const int64_t length : lengths(false))
            for (uint64_t index = 0; index < 20; ++index) {
                CAPTURE(data::name_of(task));
                CAPTURE(length);
                const tasks::Sample s = generator(task, false).make(length, index);
                REQUIRE(answer_ids(task, slice(s, 0, s.context), slice(s, s.context, s.answer_begin),
                                   s.answer_tokens()) == slice(s, s.answer_begin, length));
            }
}

TEST_CASE("three needles as sentences in GPT-2's vocabulary") {
    data::TaskConfig config;
    config.form = data::TaskForm::gpt2;
    const tasks::TaskGenerator g(data::TaskKind::needle_s3, config, 50304, 1, nullptr);
    std::set<int32_t> cities;
    for (uint64_t index = 0; index < 200; ++index) {
        const tasks::Sample s = g.make(200, index);
        REQUIRE(s.tokens.size() == 200);
        // "The special magic", a city, " number is", a space, 7 digits, "."
        tasks::TokenList answer;
        for (auto at = s.tokens.begin(); at != s.tokens.end(); ++at) {
            const tasks::TokenList said{464, 2041, 5536};
            if (s.tokens.end() - at < 15 || !std::equal(said.begin(), said.end(), at)) continue;
            CHECK(tasks::TokenList(at + 4, at + 7) == tasks::TokenList{1271, 318, 220});
            CHECK(at[14] == 13);
            cities.insert(at[3]);
            if (!answer.empty()) answer.push_back(26);  // ";"
            answer.insert(answer.end(), {at[3], 28});   // "="
            for (auto digit = at + 7; digit != at + 14; ++digit) {
                CHECK((*digit >= 15 && *digit <= 24));
                answer.push_back(*digit);
            }
        }
        CHECK(answer.size() == 29);
        CHECK(slice(s, s.answer_begin, 200) == answer);
        CHECK(slice(s, s.context, s.answer_begin) == tasks::TokenList{198});
    }
    CHECK(cities.size() == 48);
    for (const int32_t city : {6182, 11307, 3576, 6342})
        CHECK(cities.count(city) == 1);  // Boston, Berlin, London, Paris
    CHECK_THROWS_WITH(tasks::TaskGenerator(data::TaskKind::copy, config, 50304, 1, nullptr),
                      "task copy: data.task.form gpt2 has the words of needle_s3 alone");
}

TEST_CASE("reserved tokens stay inside the range the config names") {
    data::TaskConfig config;
    config.ids_first = 300;
    config.ids = 200;
    config.haystack = data::TaskHaystack::noise;
    for (const data::TaskKind task : data::all_tasks()) {
        const tasks::Sample s = generator(task, false, 1, config).make(512, 3);
        CAPTURE(data::name_of(task));
        CHECK(std::all_of(s.tokens.begin(), s.tokens.end(), [](int32_t t) { return t >= 300 && t < 500; }));
    }
}
