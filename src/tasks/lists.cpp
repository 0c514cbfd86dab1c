// Tasks whose context is a generated list: counting words, looking up.
#include <algorithm>

#include "base/error.h"
#include "tasks/draft.h"

namespace longreach::tasks {

namespace {

template <class T>
void shuffle(std::vector<T>& list, Dice& dice) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[dice.below(i)]);
}

int64_t size_of(const TokenList& tokens) {
    return static_cast<int64_t>(tokens.size());
}

}  // namespace

// Common words occur 30 times and others 3 times where there is room for it, else 6 times and once; as many
// of ten common words as leave at least two thirds of the list to others.
Draft draft_common_words(const DraftInput& in) {
    const Lexicon& w = in.words;
    const auto entry = [&](size_t index, uint64_t name) {
        TokenList out;
        if (w.text()) w.say(out, fmt::format("{}. ", index + 1));
        w.name(out, name);
        w.say(out, " ");
        return out;
    };
    const auto ask = [&](Draft& d, uint64_t common, const std::vector<uint64_t>& order) {
        w.say(d.tail, common == 1 ? "The most common word: " : "The most common words: ", Mark::ask);
        AnswerList answers(d, w, " ");
        for (uint64_t i = 0; i < common; ++i)
            answers.add([&](TokenList& out) { w.name(out, order[i]); },
                        [&](TokenList& out) { w.name(out, w.names() - 1 - i); });
    };
    uint64_t common = 11;
    int64_t entries = 0;
    do {
        --common;
        Draft trial;
        std::vector<uint64_t> order(common);
        ask(trial, common, order);
        int64_t left = room(in, trial, common == 1 ? 8 * size_of(entry(0, 0)) : 0);
        for (entries = 0; (left -= size_of(entry(static_cast<size_t>(entries), 0))) >= 0;) ++entries;
    } while (common > 1 && entries < static_cast<int64_t>(common) * 18);

    const bool long_list = in.length >= 4096 && entries >= static_cast<int64_t>(common) * 30 + 9;
    const uint64_t often = long_list ? 30 : 6, seldom = long_list ? 3 : 1;
    // The last ten names are the decoy's.
    const uint64_t others =
        std::min((static_cast<uint64_t>(entries) - common * often) / seldom, w.names() - common - 10);
    std::vector<uint64_t> list;
    for (uint64_t name = 0; name < common + others; ++name)
        list.insert(list.end(), name < common ? often : seldom, name);
    shuffle(list, in.dice);

    Draft d;
    std::vector<uint64_t> order;  // common words, by first appearance
    for (size_t i = 0; i < list.size(); ++i) {
        d.units.push_back(entry(i, list[i]));
        if (list[i] < common && std::find(order.begin(), order.end(), list[i]) == order.end())
            order.push_back(list[i]);
    }
    ask(d, common, order);
    return d;
}

// Word of rank k occurs in proportion to (k + 1)^-2; that of rank 0 is written as dots and not asked for. The
// ranks 1 to 3 have different counts, above that of any other but the dots.
Draft draft_frequent_words(const DraftInput& in) {
    const Lexicon& w = in.words;
    Draft d;
    w.say(d.tail, "The most frequent words: ", Mark::ask);
    AnswerList answers(d, w, " ");
    for (uint64_t rank = 1; rank <= 3; ++rank)
        answers.add([&](TokenList& out) { w.name(out, rank); },
                    [&](TokenList& out) { w.name(out, w.names() - rank); });
    const auto entry = [&](uint64_t rank) {
        TokenList out;
        if (rank == 0)
            w.say(out, "......", Mark::dots);
        else
            w.name(out, rank);
        w.say(out, " ");
        return out;
    };
    const int64_t unit = size_of(entry(0));
    const int64_t entries = room(in, d, 10 * unit) / unit;
    const size_t vocabulary = static_cast<size_t>(
        std::min(std::max<int64_t>(5, in.length / 50), static_cast<int64_t>(w.names()) - 4));
    // Shares of 2^32 in integers: floor(entries * (k+1)^-2 / (pi^2 / 6)).
    constexpr uint64_t six_over_pi_squared = 2611030442;  // 2^32 * 6 / pi^2
    std::vector<int64_t> counts(vocabulary);
    for (size_t k = 0; k < vocabulary; ++k)
        counts[k] = static_cast<int64_t>(((static_cast<uint64_t>(entries) * six_over_pi_squared) >> 32) /
                                         ((k + 1) * (k + 1)));
    for (size_t k = 3; k >= 1; --k) counts[k] = std::max(counts[k], counts[k + 1] + 1);
    std::vector<uint64_t> list;
    for (size_t k = 1; k < vocabulary; ++k) list.insert(list.end(), static_cast<size_t>(counts[k]), k);
    list.insert(list.end(), static_cast<size_t>(entries) - list.size(), 0);
    shuffle(list, in.dice);
    for (const uint64_t rank : list) d.units.push_back(entry(rank));
    return d;
}

// Random symbols. Symbol 0 occurs once, followed by the answer, and again at the end. Symbol 1 nowhere.
Draft draft_induction(const DraftInput& in) {
    const Lexicon& w = in.words;
    const auto other = [&] { return 2 + in.dice.below(w.symbols() - 2); };
    const uint64_t after = other();
    Draft d;
    TokenList pair;
    w.symbol(pair, 0);
    w.symbol(pair, after);
    d.pieces = {pair};
    d.asked = 0;
    w.symbol(d.tail, 0);
    AnswerList(d, w, "").add([&](TokenList& out) { w.symbol(out, after); },
                             [&](TokenList& out) { w.symbol(out, 1); });
    for (int64_t left = room(in, d, 8) - 2; left > 0; --left) {
        TokenList one;
        w.symbol(one, other());
        d.units.push_back(one);
    }
    return d;
}

// Pairs of names, then the first names of some of them: one or, multi_query_recall, several.
Draft draft_recall(const DraftInput& in) {
    const Lexicon& w = in.words;
    const bool several = in.task == data::TaskKind::multi_query_recall;
    const auto pair = [&](uint64_t n) {
        TokenList out;
        w.name(out, 2 * n);
        w.say(out, "=");
        w.name(out, 2 * n + 1);
        w.say(out, "; ");
        return out;
    };
    const uint64_t asked = several ? static_cast<uint64_t>(std::clamp<int64_t>(in.length / 64, 2, 16)) : 1;
    Draft d;
    AnswerList answers(d, w, ", ");
    for (uint64_t n = 0; n < asked; ++n) {
        if (n > 0) w.say(d.tail, ", ", Mark::separator);
        w.name(d.tail, 2 * n);
        answers.add([&](TokenList& out) { w.name(out, 2 * n + 1); },
                    [&](TokenList& out) { w.name(out, w.names() - 1 - n); });
        d.pieces.push_back(pair(n));
    }
    w.say(d.tail, "=", several ? Mark::ask : Mark::silent);
    if (!several) d.asked = 0;
    d.once = d.pieces;
    const int64_t unit = size_of(d.pieces[0]);
    // Names of the decoys belong to no pair.
    const int64_t most = static_cast<int64_t>((w.names() - asked) / 2);
    const int64_t pairs = std::min(room(in, d, 2 * static_cast<int64_t>(asked + 1) * unit) / unit, most);
    for (auto n = static_cast<int64_t>(asked); n < pairs; ++n)
        d.units.push_back(pair(static_cast<uint64_t>(n)));
    return d;
}

}  // namespace longreach::tasks
