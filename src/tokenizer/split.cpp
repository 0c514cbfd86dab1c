#include "tokenizer/split.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/interruption.h"

namespace longreach::tokenizer {

namespace {

// Collects the words of a text, which follow each other, and sends many at once.
class Words {
  public:
    Words(std::string_view text, const WordSink& sink) : text_(text), sink_(sink) { bounds_[0] = 0; }
    void end_at(size_t end) {
        if (end == bounds_[count_ - 1]) return;
        bounds_[count_++] = end;
        if (end == text_.size() || count_ == most_bounds) send();
    }

  private:
    void send() {
        heed_interruption();
        sink_(text_, std::span(bounds_).first(count_));
        bounds_[0] = bounds_[count_ - 1];
        count_ = 1;
    }
    std::string_view text_;
    const WordSink& sink_;
    std::array<size_t, most_bounds> bounds_;  // not zeroed: a text can be short
    size_t count_ = 1;
};

constexpr size_t most_growth = 64;  // of a text by replacements, which could otherwise multiply each other

}  // namespace

Rewriter::Rewriter(const std::vector<NormalizerStep>& steps) {
    for (const NormalizerStep& step : steps) {
        steps_.push_back({step});
        if (const auto* replace = std::get_if<Replace>(&step))
            steps_.back().matcher.emplace(replace->pattern);
    }
}

std::string_view Rewriter::rewrite(std::string_view text, std::string& scratch) {
    if (steps_.empty() || text.empty()) return text;
    scratch = text;
    for (Step& step : steps_) {
        if (const auto* form = std::get_if<NormalForm>(&step.what)) {
            scratch = normalize(scratch, *form);
        } else if (const auto* prepend = std::get_if<Prepend>(&step.what)) {
            if (!scratch.empty()) scratch.insert(0, prepend->text);
        } else {
            const std::string& content = std::get<Replace>(step.what).content;
            std::string replaced;
            size_t at = 0, begin = 0, end = 0;
            for (; step.matcher->find(scratch, at, begin, end); at = end) {
                heed_interruption();
                replaced.append(scratch, at, begin - at).append(content);
            }
            scratch = replaced.append(scratch, at, std::string::npos);
            require(scratch.size() <= most_growth * (text.size() + 1024), ExitCode::data,
                    "a normaliser makes {} bytes of a text of {}", scratch.size(), text.size());
        }
    }
    return scratch;
}

Splitter::Splitter(const std::vector<SplitStep>& steps) {
    for (const SplitStep& step : steps) {
        steps_.push_back({step});
        if (const auto* split = std::get_if<PatternSplit>(&step))
            steps_.back().matcher.emplace(split->pattern);
    }
}

void Splitter::split(std::string_view text, bool at_front, const WordSink& sink) {
    run(0, text, at_front, sink);
}

void Splitter::run(size_t step, std::string_view text, bool at_front, const WordSink& sink) {
    if (text.empty()) return;
    if (step == steps_.size()) {
        Words(text, sink).end_at(text.size());
    } else if (std::holds_alternative<PatternSplit>(steps_[step].what)) {
        run_pattern(step, text, at_front, sink);
    } else if (std::holds_alternative<Metaspace>(steps_[step].what)) {
        run_metaspace(step, text, at_front, sink);
    } else if (text.front() == ' ') {
        run(step + 1, text, at_front, sink);
    } else {
        run(step + 1, ' ' + std::string(text), at_front, sink);
    }
}

void Splitter::run_pattern(size_t step, std::string_view text, bool at_front, const WordSink& sink) {
    const PatternSplit& rule = std::get<PatternSplit>(steps_[step].what);
    const SplitBehaviour behaviour = rule.behaviour;
    // A piece waits here until it is known whether the next joins it.
    size_t waiting = 0;
    bool has_waiting = false, waiting_matches = false;
    const auto send = [&](size_t begin, size_t end) {
        run(step + 1, text.substr(begin, end - begin), at_front && begin == 0, sink);
    };
    const auto piece = [&](size_t begin, size_t end, bool found) {
        if (begin == end) return;
        const bool matches = found != rule.invert;
        if (behaviour == SplitBehaviour::isolated || (behaviour == SplitBehaviour::removed && !matches))
            return send(begin, end);
        if (behaviour == SplitBehaviour::removed) return;
        const bool joins =
            has_waiting &&
            (behaviour == SplitBehaviour::contiguous             ? matches == waiting_matches
             : behaviour == SplitBehaviour::merged_with_previous ? matches && !waiting_matches
                                                                 : !matches && waiting_matches);
        if (has_waiting && !joins) send(waiting, begin);
        if (!joins) waiting = begin;
        has_waiting = true;
        waiting_matches = matches;
    };
    size_t at = 0, begin = 0, end = 0;
    Matcher& matcher = *steps_[step].matcher;
    if (behaviour == SplitBehaviour::isolated && step + 1 == steps_.size()) {
        Words words(text, sink);
        for (; matcher.find(text, at, begin, end); at = end) {
            words.end_at(begin);
            words.end_at(end);
        }
        words.end_at(text.size());
        return;
    }
    for (; matcher.find(text, at, begin, end); at = end) {
        heed_interruption();
        piece(at, begin, false);
        piece(begin, end, true);
    }
    piece(at, text.size(), false);
    if (has_waiting) send(waiting, text.size());
}

void Splitter::run_metaspace(size_t step, std::string_view text, bool at_front, const WordSink& sink) {
    const Metaspace& rule = std::get<Metaspace>(steps_[step].what);
    std::string marked;
    for (const char c : text) {
        if (c == ' ') {
            marked += rule.replacement;
        } else {
            marked += c;
        }
    }
    const bool prepends =
        rule.prepend == PrependScheme::always || (rule.prepend == PrependScheme::first && at_front);
    if (prepends && !marked.starts_with(rule.replacement)) marked.insert(0, rule.replacement);
    const std::string_view all = marked;
    const bool is_last = step + 1 == steps_.size();
    Words words(all, sink);
    for (size_t begin = 0; begin < all.size();) {
        const size_t next = rule.split ? all.find(rule.replacement, begin + 1) : std::string_view::npos;
        const size_t end = std::min(next, all.size());
        if (is_last) {
            words.end_at(end);
        } else {
            run(step + 1, all.substr(begin, end - begin), at_front && begin == 0, sink);
        }
        begin = end;
    }
}

}  // namespace longreach::tokenizer
