#include "tasks/question_answering.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"

namespace longreach::tasks {

namespace {

// Streams of random numbers.
constexpr uint32_t of_questions = 16, of_samples = 17, of_passages = 18, of_places = 19;

}  // namespace

QuestionSamples::QuestionSamples(const std::vector<data::Question>& questions, std::string path,
                                 const Encode& encode, int64_t shortest, uint64_t seed)
    : path_(std::move(path)), seed_(seed) {
    std::map<std::string_view, size_t> known;
    int64_t smallest = 0;
    for (const data::Question& q : questions) {
        const auto [at, fresh] = known.emplace(q.context, passages_.size());
        if (fresh) passages_.push_back({q.context, encode("Passage: " + q.context + "\n\n")});
        Item item{at->second, encode("Question: " + q.question + "\nAnswer:"), {}, q.answers, q.line, 0};
        // Encoded together, as a text that goes on; the tokens of the question are those in front.
        TokenList whole = encode("Question: " + q.question + "\nAnswer: " + q.answers[0]);
        require(whole.size() > item.tail.size(), ExitCode::data, "{} line {}: the answer adds no token",
                shown(path_), q.line);
        const auto cut = whole.begin() + static_cast<std::ptrdiff_t>(item.tail.size());
        item.answer.assign(cut, whole.end());
        item.tail.assign(whole.begin(), cut);
        item.tokens = static_cast<int64_t>(passages_[item.passage].tokens.size() + whole.size());
        smallest = smallest == 0 ? item.tokens : std::min(smallest, item.tokens);
        if (item.tokens > shortest)
            ++left_out_;
        else
            items_.push_back(std::move(item));
    }
    require(!items_.empty(), ExitCode::data,
            "{}: no question fits a context of {} tokens with its passage; the shortest takes {}",
            shown(path_), grouped(shortest), grouped(smallest));
}

int64_t QuestionSamples::samples(int64_t asked) const {
    return std::min(asked, static_cast<int64_t>(items_.size()));
}

Sample QuestionSamples::make(int64_t length, uint64_t index, double depth) const {
    const uint64_t number = index - first_evaluation_sample;
    const Item& item = items_[Permutation(items_.size(), seed_, of_questions)(number % items_.size())];
    const uint64_t seed = Rng(seed_, Purpose::task, of_samples).bits(number);
    const auto holds_answer = [&](const std::string& text) {
        return std::any_of(item.answers.begin(), item.answers.end(),
                           [&](const std::string& answer) { return text.find(answer) != text.npos; });
    };
    longreach::check(length >= item.tokens, "a length at which the questions were not chosen");
    int64_t room = length - item.tokens;
    std::vector<const Passage*> others;
    const Permutation order(passages_.size(), seed, of_passages);
    for (uint64_t i = 0; i < passages_.size() && room > 0; ++i) {
        const uint64_t passage = order(i);
        if (passage == item.passage || holds_answer(passages_[passage].text)) continue;
        others.push_back(&passages_[passage]);
        room -= static_cast<int64_t>(others.back()->tokens.size());
    }
    require(room <= 0, ExitCode::data,
            "{} line {}: a context of {} tokens needs {} more of passages without an answer to its question",
            shown(path_), item.line, grouped(length), grouped(room));
    // The passage drawn last begins the text, so that what is cut off it lies in front of everything.
    const int64_t whole = std::max<int64_t>(0, static_cast<int64_t>(others.size()) - 1);
    const int64_t place = depth >= 0 ? std::llround(depth / 100 * static_cast<double>(whole))
                                     : Dice(seed, of_places).between(0, whole);
    Sample s;
    s.depth = whole > 0 ? 100 * static_cast<double>(place) / static_cast<double>(whole) : 0;
    const auto append = [&](const TokenList& tokens, int64_t from) {
        s.tokens.insert(s.tokens.end(), tokens.begin() + from, tokens.end());
    };
    if (!others.empty()) append(others.back()->tokens, -room);
    for (int64_t i = 0; i <= whole; ++i) {
        if (i == place) append(passages_[item.passage].tokens, 0);
        if (i < whole) append(others[static_cast<size_t>(whole - 1 - i)]->tokens, 0);
    }
    s.context = static_cast<int64_t>(s.tokens.size());
    append(item.tail, 0);
    s.answer_begin = static_cast<int64_t>(s.tokens.size());
    append(item.answer, 0);
    s.reference_ends = {s.answer_tokens()};
    longreach::check(static_cast<int64_t>(s.tokens.size()) == length, "a sample of {} tokens instead of {}",
                     s.tokens.size(), length);
    return s;
}

void QuestionSamples::check(int64_t longest, int64_t asked) const {
    for (int64_t i = 0; i < samples(asked); ++i)
        make(longest, first_evaluation_sample + static_cast<uint64_t>(i), -1);
}

}  // namespace longreach::tasks
