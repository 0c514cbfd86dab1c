// JSON text. The first byte chooses options. Whatever is accepted and written is read again as what is
// written the same (not as the same value: 1.0 is written as 1).
#include "base/json.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    json::ParseOptions options;
    options.relaxed = (data[0] & 1) != 0;
    options.keep_duplicates = (data[0] & 2) != 0;
    json::Value value;
    if (!accepts([&] { value = json::parse(text_of(data + 1, size - 1), "input.json", options); })) return 0;
    options.relaxed = false;
    for (const json::Style style : {json::Style::pretty, json::Style::compact}) {
        // Pretty text is longer than what was read.
        options.max_bytes = 64 * size + 1024;
        const std::string text = json::write(value, style);
        holds(json::write(json::parse(text, "written.json", options), style) == text,
              "JSON written and read again differs");
    }
    return 0;
}
