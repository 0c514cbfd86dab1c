// Tasks that answer a random string of symbols, one token each.
#include <algorithm>
#include <functional>

#include "tasks/draft.h"

namespace longreach::tasks {

namespace {

using data::TaskKind;

constexpr uint64_t longest_run = 9;  // local_count: a count is one digit

int32_t one_token(const std::function<void(TokenList&)>& write) {
    TokenList out;
    write(out);
    return out.at(0);
}

struct Answered {
    TokenList string, answer, decoy;  // the decoy is another random string, or other counts
};

// Runs of equal symbols, each continued with a probability of one half, and the number of each symbol in its run.
Answered counted_runs(const DraftInput& in, int64_t count) {
    const auto digit = [&](uint64_t n) {
        return one_token([&](TokenList& out) { in.words.number(out, n); });
    };
    Answered out;
    uint64_t symbol = 0, run = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (run > 0 && run < longest_run && in.dice.below(2) == 0) {
            ++run;
        } else {
            symbol = (symbol + 1 + in.dice.below(in.words.symbols() - 1)) % in.words.symbols();
            run = 1;
        }
        in.words.symbol(out.string, symbol);
        out.answer.push_back(digit(run));
        out.decoy.push_back(digit(1 + (run + in.dice.below(longest_run - 1)) % longest_run));
    }
    return out;
}

Answered answered_string(const DraftInput& in, int64_t count) {
    if (in.task == TaskKind::local_count) return counted_runs(in, count);
    Answered out;
    for (int64_t i = 0; i < count; ++i) {
        in.words.symbol(out.string, in.dice.below(in.words.symbols()));
        in.words.symbol(out.decoy, in.dice.below(in.words.symbols()));
    }
    out.answer = out.string;
    if (in.task == TaskKind::reverse) std::reverse(out.answer.begin(), out.answer.end());
    if (in.task == TaskKind::sort) std::sort(out.answer.begin(), out.answer.end());
    if (in.task == TaskKind::two_back) {
        out.answer.resize(out.answer.size() - 2);
        out.decoy.resize(out.answer.size());
    }
    return out;
}

}  // namespace

// Half of the context is the string, the rest the answer; each of its tokens is a reference.
Draft draft_string(const DraftInput& in) {
    Draft d;
    in.words.say(d.tail, "\n", Mark::ask);
    const int64_t unanswered = in.task == TaskKind::two_back ? 2 : 0;
    const Answered made = answered_string(in, (room(in, d, 16) + unanswered) / 2);
    AnswerList answers(d, in.words, "");
    for (size_t i = 0; i < made.answer.size(); ++i)
        answers.add([&](TokenList& out) { out.push_back(made.answer[i]); },
                    [&](TokenList& out) { out.push_back(made.decoy[i]); });
    d.units = {made.string};
    d.absent = {made.decoy};  // as a whole: its symbols may
    return d;
}

// Pairs of an instruction and a bit: one in ten is written, one in ten read, which has the bit that was written last, and
// the others are ignored. The first is written; the last is read and asked for. The decoy is the other bit.
Draft draft_flip_flop(const DraftInput& in) {
    const Lexicon& w = in.words;
    Draft d;
    TokenList whole;
    const auto instruct = [&](TokenList& out, const char* letter, Mark mark, uint64_t bit) {
        w.say(out, letter, mark);
        w.number(out, bit);
    };
    w.say(d.tail, "r", Mark::ask);
    uint64_t written = 0;
    const int64_t pairs = (room(in, d, 17) - 1) / 2;  // the answer takes one token
    for (int64_t i = 0; i < pairs; ++i) {
        const uint64_t kind = i == 0 ? 0 : in.dice.below(10), bit = in.dice.below(2);
        if (kind == 0) written = bit;
        if (kind == 0)
            instruct(whole, "w", Mark::assign, bit);
        else if (kind == 1)
            instruct(whole, "r", Mark::ask, written);
        else
            instruct(whole, "i", Mark::refer, bit);
    }
    AnswerList(d, w, "").add([&](TokenList& out) { w.number(out, written); },
                             [&](TokenList& out) { w.number(out, 1 - written); });
    d.absent.clear();
    d.units = {whole};
    return d;
}

}  // namespace longreach::tasks
