// A text that arrives as bytes, given out as UTF-8 as soon as it is certain.
//
// Bytes of an unfinished character wait for the rest; bytes that are not a character become U+FFFD, one each. What may
// be the beginning of a stop string waits too. The text ends before the stop string that is complete first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longreach::serve {

class TextStream {
  public:
    // stops: well-formed UTF-8, none empty.
    explicit TextStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

    std::string add(std::string_view bytes);  // the text that is certain now
    std::string finish();                     // what waited
    bool stopped() const { return stopped_; }
    // Whole characters so far, given out or waiting; after the text ended, those before its end and in the stop string.
    size_t characters() const { return characters_; }

  private:
    std::string take_certain();

    std::vector<std::string> stops_;
    std::string bytes_;  // of an unfinished character
    std::string held_;   // may begin a stop string
    size_t characters_ = 0;
    bool stopped_ = false;
};

// All of it at once: bytes that are not a character become U+FFFD.
std::string to_utf8(std::string_view bytes);

}  // namespace longreach::serve
