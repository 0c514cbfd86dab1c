// The two steps between a text and its words: rewriting (normalisation) and splitting. Objects belong to one thread.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/definition.h"

namespace longreach::tokenizer {

class Rewriter {
  public:
    explicit Rewriter(const std::vector<NormalizerStep>& steps);

    // The text itself if there is nothing to do, otherwise what `scratch` then holds.
    std::string_view rewrite(std::string_view text, std::string& scratch);

  private:
    struct Step {
        NormalizerStep what;
        std::optional<Matcher> matcher = {};
    };
    std::vector<Step> steps_;
};

// Receives words that follow each other in a text: each begins at one of the bounds and ends at the next.
using WordSink = std::function<void(std::string_view text, std::span<const size_t> bounds)>;
inline constexpr size_t most_bounds = 65;  // at once

class Splitter {
  public:
    explicit Splitter(const std::vector<SplitStep>& steps);

    // Sends the words of well-formed UTF-8 in order; they live until the sink returns.
    // `at_front`: the text begins a document.
    void split(std::string_view text, bool at_front, const WordSink& sink);

  private:
    struct Step {
        SplitStep what;
        std::optional<Matcher> matcher = {};
    };
    void run(size_t step, std::string_view text, bool at_front, const WordSink& sink);
    void run_pattern(size_t step, std::string_view text, bool at_front, const WordSink& sink);
    void run_metaspace(size_t step, std::string_view text, bool at_front, const WordSink& sink);
    std::vector<Step> steps_;
};

}  // namespace longreach::tokenizer
