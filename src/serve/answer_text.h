// The JSON of answers, written in pieces from what the engine reports: an answer is never held as a tree, and a long one
// not as a text either.
#pragma once

#include <functional>

#include "base/json.h"
#include "serve/answer.h"

namespace longreach::serve {

// Collects text and gives it on in pieces.
class PieceWriter {
  public:
    using Sink = std::function<bool(std::string_view)>;  // false: nobody takes any more
    explicit PieceWriter(Sink sink) : sink_(std::move(sink)) {}
    PieceWriter& add(std::string_view text);
    PieceWriter& add_value(const json::Value& value);
    bool finish();  // gives on the rest; false if the sink has refused a piece
    bool refused() const { return refused_; }

  private:
    void give();
    Sink sink_;
    std::string piece_;
    bool refused_ = false;
};

// One choice, from its events.
struct ChoiceText {
    std::shared_ptr<const PromptReport> prompt;
    std::string text;
    std::vector<TokenReport> tokens;
    std::string finish;
    void add(Event&& event);
};

// How an element of "choices" holds its text: as the text of a completion, as a message, or as a part of one.
enum class ChoiceForm { text, message, delta };

// An element of "choices". logprobs: whether to write its lists, and not null.
void write_choice(PieceWriter& to, size_t index, const ChoiceText& choice, bool logprobs, ChoiceForm form);

std::string compact(const json::Value& value);
// The object's text, without its closing brace.
std::string opened(const json::Value& object);

}  // namespace longreach::serve
