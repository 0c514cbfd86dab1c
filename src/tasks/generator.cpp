#include "tasks/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace longreach::tasks {

namespace {

// Streams of a sample's random numbers.
constexpr uint32_t stream_seed = 0, stream_sample = 1, stream_words = 2, stream_places = 3;

int64_t count_tokens(const std::vector<TokenList>& list) {
    int64_t n = 0;
    for (const TokenList& t : list) n += static_cast<int64_t>(t.size());
    return n;
}

// How often `wanted` occurs in [begin, end), overlaps included; stops at `most`.
int64_t occurrences(TokenList::const_iterator begin, TokenList::const_iterator end, const TokenList& wanted,
                    int64_t most) {
    int64_t n = 0;
    for (auto it = begin; n < most && (it = std::search(it, end, wanted.begin(), wanted.end())) != end; ++it)
        ++n;
    return n;
}

}  // namespace

void AnswerList::add(const std::function<void(TokenList&)>& answer,
                     const std::function<void(TokenList&)>& decoy) {
    TokenList right, wrong;
    answer(right);
    decoy(wrong);
    check(right.size() == wrong.size(), "a decoy of {} tokens for an answer of {}", wrong.size(),
          right.size());
    if (!draft_.answer.empty() && !separator_.empty()) {
        words_.say(draft_.answer, separator_, Mark::separator);
        words_.say(draft_.decoy, separator_, Mark::separator);
    }
    draft_.answer.insert(draft_.answer.end(), right.begin(), right.end());
    draft_.decoy.insert(draft_.decoy.end(), wrong.begin(), wrong.end());
    draft_.reference_ends.push_back(static_cast<int64_t>(draft_.answer.size()));
    draft_.absent.push_back(std::move(wrong));
}

int64_t room(const DraftInput& in, const Draft& draft, int64_t needed) {
    const int64_t taken = static_cast<int64_t>(draft.tail.size() + draft.answer.size());
    require(in.length - taken >= needed, ExitCode::usage,
            "task {}: a context of {} tokens is too short, it needs {}", data::name_of(in.task), in.length,
            taken + needed);
    return in.length - taken;
}

TaskGenerator::TaskGenerator(data::TaskKind task, const data::TaskConfig& config, int64_t vocab_size,
                             uint64_t seed, const data::TokenStream* haystack)
    : task_(task), config_(config), vocab_size_(vocab_size), seed_(seed), haystack_(haystack) {
    require(config.form != data::TaskForm::gpt2 || task == data::TaskKind::needle_s3, ExitCode::usage,
            "task {}: data.task.form gpt2 has the words of needle_s3 alone", data::name_of(task));
}

uint64_t TaskGenerator::sample_seed(int64_t length, uint64_t index) const {
    const uint64_t of_task = Rng(seed_, Purpose::task, stream_seed).bits(static_cast<uint64_t>(task_));
    const uint64_t of_length = Rng(of_task, Purpose::task, stream_seed).bits(static_cast<uint64_t>(length));
    return Rng(of_length, Purpose::task, stream_sample).bits(index);
}

Draft TaskGenerator::draft(int64_t length, uint64_t seed) const {
    const Lexicon words(config_, vocab_size_, seed);
    Dice dice(seed, stream_words);
    const DraftInput in{words, dice, config_, task_, length};
    Draft d = [&] {
        switch (task_) {
            case data::TaskKind::variable_tracking:
                return draft_tracking(in);
            case data::TaskKind::common_words:
                return draft_common_words(in);
            case data::TaskKind::frequent_words:
                return draft_frequent_words(in);
            case data::TaskKind::copy:
            case data::TaskKind::reverse:
            case data::TaskKind::sort:
            case data::TaskKind::local_count:
            case data::TaskKind::two_back:
                return draft_string(in);
            case data::TaskKind::flip_flop:
                return draft_flip_flop(in);
            case data::TaskKind::induction:
                return draft_induction(in);
            case data::TaskKind::associative_recall:
            case data::TaskKind::multi_query_recall:
                return draft_recall(in);
            default:
                check(task_ != data::TaskKind::none, "a sample of no task");
                return draft_retrieval(in);
        }
    }();
    room(in, d, count_tokens(d.pieces) + count_tokens(d.units));
    return d;
}

Sample TaskGenerator::lay_out(const Draft& d, int64_t length, uint64_t seed, double depth) const {
    Dice dice(seed, stream_places);
    const int64_t around = length - count_tokens(d.pieces) -
                           static_cast<int64_t>(d.tail.size() + d.answer.size());  // tokens of haystack
    TokenList hay;
    std::vector<int64_t> places;  // where in the haystack a piece may be placed; empty: anywhere
    if (d.units.empty() && d.haystack == data::TaskHaystack::essay && haystack_) {
        require(haystack_->tokens() >= static_cast<uint64_t>(around), ExitCode::data,
                "task {}: a haystack of {} tokens out of a stream of {}", data::name_of(task_), around,
                haystack_->tokens());
        hay.resize(static_cast<size_t>(around));
        const uint64_t begin = dice.below(haystack_->tokens() - static_cast<uint64_t>(around) + 1);
        haystack_->read(begin, around, hay.data());
    } else {
        const Lexicon words(config_, vocab_size_, seed);
        words.noise(hay, around - count_tokens(d.units));
        if (words.text() && !hay.empty() && !d.units.empty())
            hay.back() = ' ';  // noise ends where a list begins
        for (const TokenList& unit : d.units) {
            places.push_back(static_cast<int64_t>(hay.size()));
            hay.insert(hay.end(), unit.begin(), unit.end());
        }
        if (!d.units.empty()) places.push_back(around);
    }

    const int64_t last = places.empty() ? around : static_cast<int64_t>(places.size()) - 1;
    std::vector<int64_t> at(d.pieces.size());
    for (int64_t& place : at) place = dice.between(0, last);
    if (d.ordered) std::sort(at.begin(), at.end());
    if (depth >= 0 && d.asked >= 0)
        at[static_cast<size_t>(d.asked)] = std::llround(depth / 100 * static_cast<double>(last));
    std::vector<size_t> order(d.pieces.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at[a] < at[b]; });

    Sample s;
    if (d.asked >= 0)
        s.depth =
            last > 0 ? 100 * static_cast<double>(at[static_cast<size_t>(d.asked)]) / static_cast<double>(last)
                     : 0;
    int64_t copied = 0;
    const auto copy_to = [&](int64_t end) {
        s.tokens.insert(s.tokens.end(), hay.begin() + copied, hay.begin() + end);
        copied = end;
    };
    for (const size_t piece : order) {
        copy_to(places.empty() ? at[piece] : places[static_cast<size_t>(at[piece])]);
        s.tokens.insert(s.tokens.end(), d.pieces[piece].begin(), d.pieces[piece].end());
    }
    copy_to(around);
    s.context = static_cast<int64_t>(s.tokens.size());
    s.tokens.insert(s.tokens.end(), d.tail.begin(), d.tail.end());
    s.answer_begin = static_cast<int64_t>(s.tokens.size());
    s.tokens.insert(s.tokens.end(), d.answer.begin(), d.answer.end());
    s.decoy = d.decoy;
    s.reference_ends = d.reference_ends;
    check(static_cast<int64_t>(s.tokens.size()) == length, "a sample of {} tokens instead of {}",
          s.tokens.size(), length);
    return s;
}

Sample TaskGenerator::make(int64_t length, uint64_t index, double depth) const {
    // A haystack that contains the answer or the decoy is rejected.
    constexpr int attempts = 100;
    const uint64_t first = sample_seed(length, index);
    for (uint64_t attempt = 0; attempt < attempts; ++attempt) {
        const uint64_t seed = attempt == 0 ? first : Rng(first, Purpose::task, stream_seed).bits(attempt);
        const Draft d = draft(length, seed);
        Sample s = lay_out(d, length, seed, depth);
        const auto begin = s.tokens.cbegin(), end = begin + s.answer_begin;
        const bool clean =
            std::all_of(d.once.begin(), d.once.end(),
                        [&](const TokenList& t) { return occurrences(begin, end, t, 2) == 1; }) &&
            std::all_of(d.absent.begin(), d.absent.end(),
                        [&](const TokenList& t) { return occurrences(begin, end, t, 1) == 0; });
        if (clean) return s;
    }
    throw Error(
        ExitCode::data,
        fmt::format("task {}: of {} haystacks of {} tokens each held the answer or the decoy by chance",
                    data::name_of(task_), attempts, length),
        "longer answers (data.task.digits) occur less often");
}

}  // namespace longreach::tasks
