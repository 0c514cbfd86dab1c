#include "tokenizer/split.h"

#include "base/error.h"
#include "base/interruption.h"

namespace longreach::tokenizer {

namespace {

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
        sink(text);
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
    for (; steps_[step].matcher->find(text, at, begin, end); at = end) {
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
    size_t begin = 0;
    while (rule.split && begin < all.size()) {
        const size_t end = all.find(rule.replacement, begin + 1);
        if (end == std::string_view::npos) break;
        run(step + 1, all.substr(begin, end - begin), at_front && begin == 0, sink);
        begin = end;
    }
    run(step + 1, all.substr(begin), at_front && begin == 0, sink);
}

}  // namespace longreach::tokenizer
