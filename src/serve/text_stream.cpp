#include "serve/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace longreach::serve {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

// Whether more bytes can make these a character. Every lead byte that allows less than all continuations allows
// either the smallest or the largest.
bool unfinished(std::string_view bytes) {
    for (const char fill : {'\x80', '\xBF'}) {
        std::string whole(bytes);
        while (whole.size() < 4) {
            whole += fill;
            if (utf8_sequence(whole) == whole.size()) return true;
        }
    }
    return false;
}

// Moves the characters at the front of `bytes` to `text` and returns their number.
size_t take_characters(std::string& bytes, std::string& text) {
    size_t at = 0, count = 0;
    while (at < bytes.size()) {
        const std::string_view rest = std::string_view(bytes).substr(at);
        const size_t length = utf8_sequence(rest);
        if (length == 0 && rest.size() < 4 && unfinished(rest)) break;
        text += length > 0 ? rest.substr(0, length) : replacement;
        at += std::max<size_t>(length, 1);
        ++count;
    }
    bytes.erase(0, at);
    return count;
}

}  // namespace

std::string TextStream::add(std::string_view bytes) {
    if (stopped_) return "";
    bytes_ += bytes;
    characters_ += take_characters(bytes_, held_);
    return take_certain();
}

std::string TextStream::take_certain() {
    // The stop string that is complete first ends the text, however many bytes came at once. Where two end at the same
    // byte, the longer one counts.
    size_t begin = std::string::npos, end = std::string::npos;
    for (const std::string& stop : stops_) {
        const size_t at = held_.find(stop);
        if (at == std::string::npos) continue;
        if (std::pair(at + stop.size(), at) < std::pair(end, begin)) {
            begin = at;
            end = at + stop.size();
        }
    }
    if (begin != std::string::npos) {
        stopped_ = true;
        bytes_.clear();
        std::string text = held_.substr(0, begin);
        held_.clear();
        return text;
    }
    size_t kept = 0;  // the longest end that begins a stop string
    for (const std::string& stop : stops_)
        for (size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n)
            if (held_.ends_with(std::string_view(stop).substr(0, n))) kept = n;
    std::string text = held_.substr(0, held_.size() - kept);
    held_.erase(0, text.size());
    return text;
}

std::string TextStream::finish() {
    if (stopped_) return "";
    for (; !bytes_.empty(); bytes_.erase(0, 1), ++characters_) held_ += replacement;
    std::string text = take_certain();
    if (!stopped_) text += held_;
    held_.clear();
    return text;
}

std::string to_utf8(std::string_view bytes) {
    TextStream stream;
    std::string text = stream.add(bytes);
    return text + stream.finish();
}

}  // namespace longreach::serve
