// Merging and the table of words against the plain forms of both.
#include "tokenizer/merge.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/rng.h"
#include "io/temp_dir.h"
#include "tokenizer/tiny_vocabulary.h"
#include "tokenizer/word_table.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::tokenizer;

namespace {

using Ids = std::vector<int32_t>;
using Ranks = std::map<std::pair<int32_t, int32_t>, std::pair<uint32_t, int32_t>>;  // rank and result by pair

// The definition of byte-pair encoding, step by step.
Ids merged(Ids ids, const Ranks& ranks) {
    for (;;) {
        size_t best = ids.size();
        uint32_t lowest = UINT32_MAX;
        for (size_t i = 0; i + 1 < ids.size(); ++i) {
            const auto found = ranks.find({ids[i], ids[i + 1]});
            if (found == ranks.end() || found->second.first >= lowest) continue;
            lowest = found->second.first;
            best = i;
        }
        if (best == ids.size()) return ids;
        ids[best] = ranks.at({ids[best], ids[best + 1]}).second;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
}

}  // namespace

TEST_CASE("words of any length merge as the definition says, whatever the ranks") {
    const Rng rng(11, Purpose::test);
    uint64_t draw = 0;
    const auto below = [&](uint64_t limit) { return static_cast<int32_t>(rng.below(draw++, limit)); };
    for (int round = 0; round < 200; ++round) {
        MergeTable table;
        Ranks ranks;
        const int32_t letters = 2 + below(6), count = 1 + below(40);
        for (int32_t i = 0; i < count; ++i) {
            // Merges of one rank make one symbol. Some ranks rise above those of the symbols they are made of.
            const int32_t symbol = letters + below(static_cast<uint64_t>(count));
            const uint32_t rank = static_cast<uint32_t>((symbol * 7919) % 4096);
            const Merge merge{below(static_cast<uint64_t>(letters + i)),
                              below(static_cast<uint64_t>(letters + i)), symbol};
            table.add(merge, rank);
            ranks[{merge.left, merge.right}] = {rank, symbol};
        }
        Merger merger(table);
        for (int word = 0; word < 50; ++word) {
            Ids ids(static_cast<size_t>(below(word % 10 == 0 ? 300 : 60)));
            for (int32_t& id : ids) id = below(static_cast<uint64_t>(letters));
            const Ids expected = merged(ids, ranks);
            merger.merge(ids);
            REQUIRE(ids == expected);
        }
    }
}

TEST_CASE("a merge of a rank that the table has no room for is refused") {
    Definition definition = parse_json(tiny_byte_level({{"a", "b"}}));
    definition.merges[0].second = MergeTable::none;
    CHECK(contains(error_of([&] { Tokenizer{definition}; }), "3: t.json: more than 4194303 merges"));
}

TEST_CASE("a table of words holds what was added, with few probes as well") {
    const Rng rng(12, Purpose::test);
    uint64_t draw = 0;
    std::map<std::string, Ids> all;
    WordTable table, few(1);
    for (int i = 0; i < 20000; ++i) {
        std::string text(rng.below(draw++, i % 8 == 0 ? 300 : 12), 'x');
        for (char& c : text) c = static_cast<char>(rng.below(draw++, 3));
        const std::string longer = text + "more";  // the word ends within a text
        const WordTable::Key key = WordTable::key_of(longer, 0, text.size());
        const WordTable::Found found = table.find(key), one = few.find(key);
        REQUIRE((found.numbers != nullptr) == (all.count(text) == 1));
        for (const WordTable::Found& got : {found, one})
            if (got.numbers != nullptr) REQUIRE(Ids(got.numbers, got.numbers + got.count) == all[text]);
        Ids& numbers = all[text];
        if (found.numbers == nullptr) {
            numbers.resize(rng.below(draw++, 9));
            for (int32_t& number : numbers) number = static_cast<int32_t>(rng.below(draw++, 1000));
            table.add(key, numbers);
        }
        if (one.numbers == nullptr) few.add(key, numbers);
    }
    CHECK(table.size() == all.size());
    CHECK(few.size() > all.size() / 2);
    CHECK(few.size() < all.size());
    std::map<std::string, Ids> seen;
    table.for_each([&](std::string_view word, const int32_t* numbers) {
        const Ids& expected = all[std::string(word)];
        seen[std::string(word)] = Ids(numbers, numbers + expected.size());
    });
    CHECK(seen == all);
    table.clear();
    CHECK(table.find("").numbers == nullptr);
}
