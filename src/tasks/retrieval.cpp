// Needles: sentences with a number in a haystack, and a question for some of the numbers.
#include <fmt/format.h>

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

// Different keys, or values and decoys, of one kind. Words are taken from one end of the sample's names: keys from the
// first on, values from the last on, so that no word is both.
class Terms {
  public:
    Terms(const DraftInput& in, data::TaskTerms kind, bool values) : in_(in), kind_(kind), values_(values) {}

    // One that a question may be about, or a decoy.
    TokenList next() {
        if (kind_ == data::TaskTerms::words)
            return word(values_ ? in_.words.names() - 1 - words_++ : words_++);
        TokenList term;
        do term = draw();
        while (used(term));
        used_.push_back(term);
        return term;
    }
    // One for a needle that is not asked for. A key is none of those that are asked for; a value may be one by
    // chance, which rejects the sample.
    TokenList other() {
        if (kind_ == data::TaskTerms::words && !values_) return next();
        TokenList term;
        do term = draw();
        while (!values_ && used(term));
        return term;
    }
    // How many words are taken.
    uint64_t words() const { return words_; }

  private:
    TokenList word(uint64_t n) const {
        TokenList out;
        in_.words.name(out, n);
        return out;
    }
    TokenList draw() {
        constexpr uint64_t asked = 4;  // keys that a question may be about
        if (kind_ == data::TaskTerms::words)
            return word(asked + in_.dice.below(in_.words.names() - words_ - asked));
        TokenList out;
        if (kind_ == data::TaskTerms::numbers) {
            in_.words.number(out, random_number(in_.dice, in_.config.digits_of(in_.task)));
        } else {
            constexpr uint64_t half = uint64_t{1} << 32;
            const uint64_t a = in_.dice.below(half), b = in_.dice.below(half), c = in_.dice.below(half),
                           d = in_.dice.below(half);
            in_.words.uuid(out, a << 32 | b, c << 32 | d);
        }
        return out;
    }
    bool used(const TokenList& term) const {
        return std::find(used_.begin(), used_.end(), term) != used_.end();
    }

    const DraftInput& in_;
    data::TaskTerms kind_;
    bool values_;
    uint64_t words_ = 0;
    std::vector<TokenList> used_;
};

void append(TokenList& out, const TokenList& term) {
    out.insert(out.end(), term.begin(), term.end());
}

Draft draft_niah(const DraftInput& in) {
    const Lexicon& w = in.words;
    Terms keys(in, in.config.keys, false), values(in, in.config.values, true);
    const std::string_view kind = data::name_of(in.config.values);
    const auto needle = [&](const TokenList& key, const TokenList& value) {
        TokenList out;
        w.say(out, fmt::format("One of the special magic {} for ", kind), Mark::needle);
        append(out, key);
        w.say(out, " is: ", Mark::is);
        append(out, value);
        w.say(out, ". ", Mark::stop);
        return out;
    };
    const bool single = in.task == data::TaskKind::niah_single,
               multikey = in.task == data::TaskKind::niah_multikey,
               multivalue = in.task == data::TaskKind::niah_multivalue;
    const int64_t needles = single ? 1 : several(in.length);
    Draft d;
    d.haystack = data::TaskHaystack::essay;
    std::vector<TokenList> key_of, value_of;  // several values have the first key
    for (int64_t i = 0; i < needles; ++i) {
        key_of.push_back(keys.next());
        value_of.push_back(values.next());
        d.pieces.push_back(needle(multivalue ? key_of[0] : key_of.back(), value_of.back()));
        d.once.push_back(value_of.back());
    }
    if (single || multikey) d.asked = 0;
    d.ordered = multivalue;  // several values: in order of appearance; several keys: in that of the question

    w.say(d.tail, fmt::format("The special magic {} for ", kind), Mark::ask);
    const int64_t asked = single || multikey ? 1 : needles;
    for (int64_t i = 0; i < (multivalue ? 1 : asked); ++i) {
        if (i > 0) w.say(d.tail, ", ", Mark::separator);
        append(d.tail, key_of[static_cast<size_t>(i)]);
    }
    w.say(d.tail, " are: ", Mark::is);
    AnswerList answers(d, w, ", ");
    for (int64_t i = 0; i < asked; ++i) {
        const TokenList wrong = values.next();
        answers.add([&](TokenList& out) { append(out, value_of[static_cast<size_t>(i)]); },
                    [&](TokenList& out) { append(out, wrong); });
    }
    if (in.config.haystack == data::TaskHaystack::needles) {
        const int64_t unit = static_cast<int64_t>(d.pieces[0].size());
        int64_t left = room(in, d, unit * needles) - unit * needles;
        // Words beyond those asked for; a small vocabulary has no more, and noise fills the rest.
        for (; left >= unit && keys.words() + values.words() < w.names(); left -= unit) {
            const TokenList key = keys.other();
            d.units.push_back(needle(key, values.other()));
        }
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
