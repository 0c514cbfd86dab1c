// Cuts a long text where a tokenizer gives the parts, encoded one by one, the ids of the whole.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tokenizer/definition.h"

namespace longreach::text {

// Between an ASCII letter or digit, or a letter of the scripts that text_cutter.cpp lists, and one of these.
enum class Cuts { nowhere, before_spaces, before_spaces_and_newlines };

// Where texts may be cut for a tokenizer, as far as that is proven from its definition:
//   - of the normalisers only normal forms are allowed: nothing composes with a space or a newline before it;
//   - each splitting pattern consists of known alternatives, none of which matches across such a place or looks past
//     it, and one of the steps makes a word end there: a pattern that matches all white space, or Metaspace;
//   - no added token reaches across or takes the white space next to it.
// Anything else: nowhere, and a document is encoded whole.
Cuts cuts_of(const tokenizer::Definition& definition);

bool may_cut(Cuts cuts, std::string_view text, size_t at);

// Collects the text of a document and hands it on in parts.
class TextCutter {
  public:
    explicit TextCutter(Cuts cuts) : cuts_(cuts) {}
    // Sends what can be cut off.
    void add(std::string_view text, const std::function<void(std::string)>& send);
    std::string take_rest();  // the last part; the next text is another document's

  private:
    size_t last_cut() const;  // 0: none
    Cuts cuts_;
    std::string text_;
    size_t searched_ = 1;  // no cut before
};

}  // namespace longreach::text
