#include "eval/selection.h"

#include <algorithm>

#include "base/hash.h"

namespace longreach::eval {

namespace {

// Windows of the largest length. The last token of the stream is only a target.
void choose_windows(Selection& s, const data::TokenStream& stream, const EvalRequest& request) {
    const uint64_t longest = static_cast<uint64_t>(request.lengths.back());
    s.scored = request.lengths.back();
    s.scope.choices = (stream.tokens() - 1) / longest;
    const uint64_t count = std::min(s.scope.choices, static_cast<uint64_t>(request.tokens) / longest);
    for (const uint64_t cell : pick_cells(request.pick, count, s.scope.choices))
        s.anchors.push_back(cell * longest);
}

// Ends of documents that are long enough and have enough of the stream before their end.
void choose_documents(Selection& s, const data::TokenStream& stream, const EvalRequest& request,
                      const std::vector<uint64_t>& begins) {
    const int64_t longest = request.lengths.back();
    s.scored =
        request.suffix_tokens > 0 ? request.suffix_tokens : std::max<int64_t>(1, request.lengths.front() / 2);
    const int64_t wanted = std::max(request.min_document, s.scored + 1);
    std::vector<uint64_t> ends;
    for (size_t d = 0; d < begins.size(); ++d) {
        // The last target is the document's last token, so the sequence ends one before it.
        const uint64_t end = (d + 1 < begins.size() ? begins[d + 1] : stream.tokens()) - 1;
        if (end + 1 - begins[d] >= static_cast<uint64_t>(wanted) && end >= static_cast<uint64_t>(longest))
            ends.push_back(end);
    }
    s.scope.choices = ends.size();
    const uint64_t count = std::min<uint64_t>(ends.size(), static_cast<uint64_t>(request.tokens / s.scored));
    for (const uint64_t cell : pick_cells(request.pick, count, ends.size())) s.anchors.push_back(ends[cell]);
    require(!s.anchors.empty(), ExitCode::data,
            "no document of at least {} tokens has {} tokens of stream before its end", wanted, longest);
}

// First scored position of an anchor.
uint64_t first_position(const Selection& s, const EvalRequest& request, size_t anchor) {
    return s.anchors[anchor] -
           (request.align == EvalAlign::suffix ? static_cast<uint64_t>(s.scored) : uint64_t{0});
}

void name_documents(Selection& s, const data::TokenStream& stream, const EvalRequest& request,
                    const std::vector<uint64_t>& begins) {
    s.document.resize(s.anchors.size() * static_cast<size_t>(s.scored));
    s.documents = static_cast<int32_t>(begins.size());
    for (size_t a = 0; a < s.anchors.size(); ++a) {
        const uint64_t first = first_position(s, request, a);
        size_t d =
            static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), first) - begins.begin()) - 1;
        for (int64_t i = 0; i < s.scored; ++i) {
            const uint64_t position = first + static_cast<uint64_t>(i);
            while (d + 1 < begins.size() && begins[d + 1] <= position) ++d;
            const uint64_t end = d + 1 < begins.size() ? begins[d + 1] : stream.tokens();
            const bool wanted = end - begins[d] >= static_cast<uint64_t>(request.min_document);
            s.document[a * static_cast<size_t>(s.scored) + static_cast<size_t>(i)] =
                wanted ? static_cast<int32_t>(d) : -1;
        }
    }
}

// Counts the scored tokens, and hashes the stream's fingerprint, the alignment, then the
// first and one-past-last position of every run of scored positions, each number as 8 bytes.
void describe_scope(Selection& s, const data::TokenStream& stream, const EvalRequest& request) {
    ScoredTokens& scope = s.scope;
    scope.pick = request.pick;
    scope.align = request.align;
    scope.windows = static_cast<int64_t>(s.anchors.size());
    scope.window_tokens = s.scored;
    scope.min_document = request.min_document;
    std::vector<uint64_t> words{stream.fingerprint(), static_cast<uint64_t>(request.align)};
    int32_t newest = -1;
    for (size_t a = 0, slot = 0; a < s.anchors.size(); ++a) {
        const uint64_t first = first_position(s, request, a);
        for (int64_t i = 0; i < s.scored; ++i, ++slot) {
            if (s.document[slot] < 0) continue;
            const uint64_t position = first + static_cast<uint64_t>(i);
            if (words.size() == 2 || words.back() != position) {
                words.push_back(position);
                words.push_back(position);
            }
            ++words.back();
            ++scope.tokens;
            // Positions rise, and so do the numbers of their documents.
            if (s.document[slot] != newest) ++scope.documents;
            newest = s.document[slot];
        }
    }
    if (!stream.knows_documents()) scope.documents = 0;
    scope.fingerprint = xxh64(words.data(), words.size() * sizeof(uint64_t));
}

}  // namespace

std::vector<uint64_t> pick_cells(EvalPick pick, uint64_t count, uint64_t cells) {
    check(count <= cells, "{} of {} cells", count, cells);
    std::vector<uint64_t> picked;
    for (uint64_t i = 0; i < count; ++i) {
        const auto middle = static_cast<unsigned __int128>(2 * i + 1) * cells / (2 * count);
        picked.push_back(pick == EvalPick::head ? i : static_cast<uint64_t>(middle));
    }
    return picked;
}

Selection select(const data::TokenStream& stream, const EvalRequest& request) {
    const int64_t longest = request.lengths.back();
    require(stream.tokens() > static_cast<uint64_t>(longest), ExitCode::data,
            "the validation stream has {} tokens; a sequence of {} needs one more than its length",
            stream.tokens(), longest);
    require(stream.knows_documents() || (request.min_document == 0 && request.align == EvalAlign::chunk),
            ExitCode::usage,
            "eval.min_document and suffix alignment need to know where documents begin; set "
            "data.boundary.token");
    const std::vector<uint64_t> begins =
        stream.knows_documents() ? stream.document_begins() : std::vector<uint64_t>{0};
    Selection s;
    if (request.align == EvalAlign::chunk)
        choose_windows(s, stream, request);
    else
        choose_documents(s, stream, request, begins);
    name_documents(s, stream, request, begins);
    describe_scope(s, stream, request);
    require(s.scope.tokens > 0, ExitCode::data,
            "none of the {} validation tokens looked at is in a document of at least {} tokens "
            "(eval.min_document)",
            s.document.size(), request.min_document);
    return s;
}

}  // namespace longreach::eval
