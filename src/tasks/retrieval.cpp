// Needles: sentences with a number in a haystack, and a question for some of the numbers.
#include <algorithm>

#include "tasks/draft.h"

namespace longreach::tasks {

namespace {

// Keys or values of the niah tasks: the number in RULER, or fewer if the context has no room.
int64_t several(int64_t length) {
    return std::clamp<int64_t>(length / 256, 2, 4);
}

// Different numbers, values and decoys alike.
class Numbers {
  public:
    Numbers(Dice& dice, int64_t digits) : dice_(dice), digits_(digits) {}
    uint64_t next() {
        uint64_t n;
        do n = random_number(dice_, digits_);
        while (std::find(used_.begin(), used_.end(), n) != used_.end());
        used_.push_back(n);
        return n;
    }

  private:
    Dice& dice_;
    int64_t digits_;
    std::vector<uint64_t> used_;
};

TokenList number(const Lexicon& words, uint64_t value) {
    TokenList out;
    words.number(out, value);
    return out;
}

Draft draft_needle(const DraftInput& in) {
    const Lexicon& w = in.words;
    Numbers numbers(in.dice, in.config.digits_of(in.task));
    const uint64_t value = numbers.next(), wrong = numbers.next();
    Draft d;
    d.haystack = data::TaskHaystack::essay;
    TokenList needle;
    w.say(needle, in.config.phrase, Mark::needle);
    w.number(needle, value);
    w.say(needle, ". ", Mark::stop);
    d.pieces = {needle};
    d.asked = 0;
    w.say(d.tail, in.config.phrase, Mark::needle);
    AnswerList(d, w, "").add([&](TokenList& out) { w.number(out, value); },
                             [&](TokenList& out) { w.number(out, wrong); });
    d.once = {needle, number(w, value)};
    return d;
}

Draft draft_needle_s3(const DraftInput& in) {
    const Lexicon& w = in.words;
    Numbers numbers(in.dice, in.config.digits_of(in.task));
    Draft d;
    d.haystack = data::TaskHaystack::essay;
    d.ordered = true;  // the answer has them in order of appearance
    w.say(d.tail, "\n", Mark::ask);
    AnswerList answers(d, w, ";");
    for (uint64_t n = 0; n < 3; ++n) {
        const uint64_t value = numbers.next(), wrong = numbers.next();
        TokenList needle;
        w.say(needle, "The special magic ", Mark::needle);
        w.city(needle, n);
        w.say(needle, " number is ", Mark::is);
        w.number(needle, value);
        w.say(needle, ".", Mark::stop);
        d.pieces.push_back(needle);
        d.once.push_back(number(w, value));
        const auto reference = [&](TokenList& out, uint64_t v) {
            w.city(out, n);
            w.say(out, "=", Mark::is);
            w.number(out, v);
        };
        answers.add([&](TokenList& out) { reference(out, value); },
                    [&](TokenList& out) { reference(out, wrong); });
        d.absent.push_back(number(w, wrong));
    }
    return d;
}

Draft draft_niah(const DraftInput& in) {
    const Lexicon& w = in.words;
    Numbers numbers(in.dice, in.config.digits_of(in.task));
    const auto needle = [&](uint64_t key, uint64_t value) {
        TokenList out;
        w.say(out, "One of the special magic numbers for ", Mark::needle);
        w.name(out, key);
        w.say(out, " is: ", Mark::is);
        w.number(out, value);
        w.say(out, ". ", Mark::stop);
        return out;
    };
    const bool single = in.task == data::TaskKind::niah_single,
               multikey = in.task == data::TaskKind::niah_multikey,
               multivalue = in.task == data::TaskKind::niah_multivalue;
    const int64_t needles = single ? 1 : several(in.length);
    Draft d;
    d.haystack = data::TaskHaystack::essay;
    std::vector<uint64_t> values;
    for (int64_t i = 0; i < needles; ++i) {
        values.push_back(numbers.next());
        d.pieces.push_back(needle(multivalue ? 0 : static_cast<uint64_t>(i), values.back()));
        d.once.push_back(number(w, values.back()));
    }
    if (single || multikey) d.asked = 0;
    d.ordered = multivalue;  // several values: in order of appearance; several keys: in that of the question

    w.say(d.tail, "The special magic numbers for ", Mark::ask);
    const int64_t asked = single || multikey ? 1 : needles;
    for (int64_t i = 0; i < (multivalue ? 1 : asked); ++i) {
        if (i > 0) w.say(d.tail, ", ", Mark::separator);
        w.name(d.tail, static_cast<uint64_t>(i));
    }
    w.say(d.tail, " are: ", Mark::is);
    AnswerList answers(d, w, ", ");
    for (int64_t i = 0; i < asked; ++i) {
        const uint64_t value = values[static_cast<size_t>(i)], wrong = numbers.next();
        answers.add([&](TokenList& out) { w.number(out, value); },
                    [&](TokenList& out) { w.number(out, wrong); });
    }
    if (in.config.haystack == data::TaskHaystack::needles) {
        const int64_t unit = static_cast<int64_t>(d.pieces[0].size());
        int64_t left = room(in, d, unit * needles) - unit * needles;
        // Names beyond those asked for; a small vocabulary has no more, and noise fills the rest.
        for (uint64_t key = static_cast<uint64_t>(needles); left >= unit && key < w.names(); left -= unit)
            d.units.push_back(needle(key++, random_number(in.dice, in.config.digits_of(in.task))));
    }
    return d;
}

}  // namespace

Draft draft_retrieval(const DraftInput& in) {
    Draft d = in.task == data::TaskKind::needle      ? draft_needle(in)
              : in.task == data::TaskKind::needle_s3 ? draft_needle_s3(in)
                                                     : draft_niah(in);
    if (in.config.haystack == data::TaskHaystack::noise) d.haystack = data::TaskHaystack::noise;
    return d;
}

Draft draft_tracking(const DraftInput& in) {
    const Lexicon& w = in.words;
    const uint64_t hops = static_cast<uint64_t>(std::clamp<int64_t>(in.length / 256, 1, 4));
    const uint64_t value = random_number(in.dice, 5);
    Draft d;
    d.ordered = true;
    if (in.config.haystack == data::TaskHaystack::essay) d.haystack = data::TaskHaystack::essay;
    w.say(d.tail, "Variables with the value ", Mark::ask);
    w.number(d.tail, value);
    w.say(d.tail, ": ", Mark::is);
    AnswerList answers(d, w, " ");
    for (uint64_t i = 0; i <= hops; ++i) {
        TokenList statement;
        w.say(statement, "VAR ", Mark::needle);
        w.variable(statement, i);
        if (i == 0) {
            w.say(statement, " = ", Mark::assign);
            w.number(statement, value);
        } else {
            w.say(statement, " = VAR ", Mark::refer);
            w.variable(statement, i - 1);
        }
        w.say(statement, ". ", Mark::stop);
        d.once.push_back(statement);
        d.pieces.push_back(std::move(statement));
        answers.add([&](TokenList& out) { w.variable(out, i); },
                    [&](TokenList& out) { w.variable(out, hops + 1 + i); });
    }
    return d;
}

}  // namespace longreach::tasks
