// Requests over HTTP one after the other, as a connection gives them to the server: in pieces of any size, which must
// not matter. The first byte is the size of the pieces.
#include "fuzz/target.h"
#include "serve/http_pieces.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

// What a server understands of the bytes, and what it refuses.
std::string understood(std::string_view bytes, size_t size) {
    test::Pieces pieces(bytes, size);
    serve::HttpReader reader(pieces);
    std::string all;
    for (bool more = true; more;) {
        reader.allow(4096);
        serve::HttpHead head;
        if (const serve::HttpProblem problem = read_head(reader, head))
            return all + std::to_string(problem.status) + problem.message;
        holds(!head.method.empty() && (head.path.starts_with('/') || head.path == "*"),
              "a request without a path");
        all += head.method + " " + head.path + (head.close ? " close" : " keep");
        for (const auto& [name, value] : head.headers) {
            holds(!name.empty() && name.find_first_of(" \t:\r\n") == std::string::npos,
                  "the name of a header");
            holds(value.find_first_of("\r\n") == std::string::npos, "the value of a header");
            all += "\n" + name + ": " + value;
        }
        serve::HttpBodyEnd end;
        if (const serve::HttpProblem problem = body_end(head, end)) return all + problem.message;
        std::string body;
        const bool whole = read_body(reader, end, [&](std::string_view piece) {
            body += piece;
            return body.size() <= 1000;
        });
        more = whole && end.kind != serve::HttpBodyEnd::unknown;
        holds(head.method == "POST" || body.empty(), "a body where there is none");
        // In pieces, more of a body that is too large may have arrived before it is refused.
        all += whole ? "\n" + body + "\n" : body.size() > 1000 ? "large" : "cut";
        all += serve::answer_head(200, "text/plain", whole ? body.size() : 0, head, !more);
    }
    return all;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes = text_of(data + 1, size - 1);
    holds(understood(bytes, bytes.size()) == understood(bytes, size_t{1} + data[0]),
          "the pieces in which a request arrives change it");
    return 0;
}
