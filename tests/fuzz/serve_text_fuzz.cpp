// Text given out in pieces: any number of stop strings, then the bytes. However they are cut, the text is the same,
// well formed, and ends before the stop string that is complete first.
#include "fuzz/target.h"
#include "serve/text_stream.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<std::string_view> parts = parts_of(text_of(data, std::min<size_t>(size, 4096)));
    const std::string_view bytes = parts.back();
    parts.pop_back();
    std::vector<std::string> stops;
    for (const std::string_view part : parts)
        if (!part.empty() && is_utf8(part) && stops.size() < 4) stops.emplace_back(part);
    const auto in_pieces = [&](size_t length) {
        serve::TextStream stream(stops);
        std::string text;
        for (size_t at = 0; at < bytes.size(); at += length) {
            const std::string piece = stream.add(bytes.substr(at, length));
            holds(is_utf8(piece), "a piece is not well formed");
            text += piece;
        }
        return text + stream.finish();
    };
    const std::string whole = serve::to_utf8(bytes);
    size_t first = std::string::npos, end = std::string::npos;
    for (const std::string& stop : stops) {
        const size_t at = whole.find(stop);
        if (at == std::string::npos || std::pair(at + stop.size(), at) >= std::pair(end, first)) continue;
        first = at;
        end = at + stop.size();
    }
    for (const size_t length : {size_t{1}, size_t{3}, size_t{4096}})
        holds(in_pieces(length) == whole.substr(0, first), "the text depends on how its bytes are cut");
    return 0;
}
