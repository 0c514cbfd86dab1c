#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "tasks/haystack.h"

using namespace longreach;
using namespace longreach::test;

namespace {

bool occurs(const tasks::TokenList& wanted, const tasks::TokenList& in, int64_t end) {
    const auto last = in.begin() + end;
    return std::search(in.begin(), last, wanted.begin(), wanted.end()) != last;
}

tasks::TokenList slice(const tasks::TokenList& list, int64_t begin, int64_t end) {
    return {list.begin() + begin, list.begin() + end};
}

}  // namespace

TEST_CASE("every sample has exactly the length asked for, and its answer at the end") {
    for (const bool text : {true, false})
        for (const data::TaskKind task : data::all_tasks())
            for (const int64_t length : lengths(text)) {
                const tasks::TaskGenerator g = generator(task, text);
                for (uint64_t index = 0; index < 30; ++index) {
                    CAPTURE(data::name_of(task));
                    CAPTURE(length);
                    const tasks::Sample s = g.make(length, index);
                    REQUIRE(static_cast<int64_t>(s.tokens.size()) == length);
                    CHECK(s.answer_tokens() == g.answer_tokens(length));
                    CHECK(s.context < s.answer_begin);
                    CHECK(static_cast<int64_t>(s.decoy.size()) == s.answer_tokens());
                    CHECK(s.reference_ends.back() == s.answer_tokens());
                    CHECK(std::is_sorted(s.reference_ends.begin(), s.reference_ends.end()));
                    CHECK(std::all_of(s.tokens.begin(), s.tokens.end(), [&](int32_t t) {
                        return t >= 0 && t < (text ? text_vocab : id_vocab);
                    }));
                    CHECK(s.decoy != slice(s.tokens, s.answer_begin, length));
                }
            }
}

TEST_CASE("the decoy has the answer's form and does not occur in the prompt") {
    for (const bool text : {true, false})
        for (const data::TaskKind task : data::all_tasks())
            for (const int64_t length : lengths(text))
                for (uint64_t index = 0; index < 20; ++index) {
                    CAPTURE(data::name_of(task));
                    CAPTURE(length);
                    const tasks::Sample s = generator(task, text).make(length, index);
                    if (task == data::TaskKind::flip_flop) continue;  // there are two bits, and both occur
                    if (task == data::TaskKind::copy || task == data::TaskKind::reverse ||
                        task == data::TaskKind::sort || task == data::TaskKind::two_back ||
                        task == data::TaskKind::local_count) {
                        // Its parts are single symbols, each of which does occur.
                        CHECK_FALSE(occurs(s.decoy, s.tokens, s.answer_begin));
                        continue;
                    }
                    int64_t begin = 0;
                    for (const int64_t end : s.reference_ends) {
                        // Separators (at most two tokens, no part of the reference) are the same in both.
                        int64_t from = begin;
                        while (from < end && from < begin + 2 && begin > 0 &&
                               s.decoy[static_cast<size_t>(from)] ==
                                   s.tokens[static_cast<size_t>(s.answer_begin + from)])
                            ++from;
                        CHECK_FALSE(occurs(slice(s.decoy, from, end), s.tokens, s.answer_begin));
                        begin = end;
                    }
                    if (text)
                        for (size_t i = 0; i < s.decoy.size(); ++i) {
                            const int32_t right = s.tokens[static_cast<size_t>(s.answer_begin) + i];
                            CHECK((s.decoy[i] >= '0' && s.decoy[i] <= '9') == (right >= '0' && right <= '9'));
                        }
                }
}

TEST_CASE("samples depend on seed, task, length and index, and on nothing else") {
    for (const data::TaskKind task : data::all_tasks()) {
        CAPTURE(data::name_of(task));
        const tasks::TaskGenerator g = generator(task, true);
        const tasks::Sample s = g.make(512, 7);
        static_cast<void>(g.make(1024, 8));
        CHECK(g.make(512, 7).tokens == s.tokens);
        CHECK(generator(task, true).make(512, 7).tokens == s.tokens);
        CHECK(generator(task, true, 2).make(512, 7).tokens != s.tokens);
        CHECK(g.make(512, 8).tokens != s.tokens);
        std::set<tasks::TokenList> different;
        for (uint64_t index = 0; index < 50; ++index) different.insert(g.make(512, index << 40).tokens);
        CHECK(different.size() == 50);
    }
}

TEST_CASE("a requested depth places what is asked for; without one, places spread over the context") {
    for (const data::TaskKind task :
         {data::TaskKind::needle, data::TaskKind::niah_single, data::TaskKind::niah_multikey,
          data::TaskKind::induction, data::TaskKind::associative_recall}) {
        CAPTURE(data::name_of(task));
        const tasks::TaskGenerator g = generator(task, true);
        REQUIRE(g.has_depth(4096));
        for (const double depth : {0.0, 25.0, 50.0, 100.0}) {
            const tasks::Sample s = g.make(4096, 5, depth);
            // The place is a whole token or list item: of at least 4096 / 14 - 2 > 200 items, half of one is
            // less than 0.25 percent.
            CHECK(std::abs(s.depth - depth) < 0.25);
            const tasks::TokenList question = slice(s.tokens, s.context, s.answer_begin);
            if (task != data::TaskKind::needle && task != data::TaskKind::associative_recall) continue;
            const auto at = std::search(s.tokens.begin(), s.tokens.end(), question.begin(), question.end());
            // Of the haystack, of which the needle is no part: it shifts what follows by its own length.
            const double place = static_cast<double>(at - s.tokens.begin());
            CHECK(std::abs(place - depth / 100 * static_cast<double>(s.context)) < 32);
        }
        int octants[8] = {};
        for (uint64_t index = 0; index < 400; ++index)
            ++octants[std::min(7, static_cast<int>(g.make(1024, index).depth / 12.5))];
        // 50 expected in each, standard deviation sqrt(400 / 8 * 7 / 8) = 6.6; six of them is 40.
        for (const int n : octants) CHECK(std::abs(n - 50) < 40);
    }
    CHECK_FALSE(generator(data::TaskKind::needle_s3, true).has_depth(512));
}

TEST_CASE("a haystack that holds a number by chance is drawn again, and a hopeless one is an error") {
    data::TaskConfig config;
    config.digits = 1;
    // One of ten numbers is the answer, one the decoy; the corpus has five-digit numbers all over.
    CHECK_THROWS_AS(generator(data::TaskKind::needle, true, 1, config).make(4096, 0), Error);
    config.digits = 3;
    for (uint64_t index = 0; index < 200; ++index) {
        const tasks::Sample s = generator(data::TaskKind::needle, true, 1, config).make(2048, index);
        const tasks::TokenList answer = slice(s.tokens, s.answer_begin, 2048);
        const auto end = s.tokens.begin() + s.answer_begin;
        const auto at = std::search(s.tokens.begin(), end, answer.begin(), answer.end());
        REQUIRE(at != end);
        CHECK(std::search(at + 1, end, answer.begin(), answer.end()) == end);
    }
}

TEST_CASE("a context too short for a task is named with what it needs") {
    for (const data::TaskKind task : data::all_tasks()) {
        std::string message;
        try {
            static_cast<void>(generator(task, true).make(8, 0));
        } catch (const Error& e) {
            CHECK(e.code() == ExitCode::usage);
            message = e.what();
        }
        CAPTURE(message);
        CHECK(message.find(std::string(data::name_of(task))) != std::string::npos);
        CHECK(message.find("it needs") != std::string::npos);
    }
    CHECK_THROWS_AS(generator(data::TaskKind::needle, true).make(1 << 20, 0),
                    Error);  // no such piece of the stream
}
