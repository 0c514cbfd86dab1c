// A checkpoint's manifest.json: as it is, and with its checksum made right, or nothing after the
// checksum would be reached.
#include "base/hash.h"
#include "fuzz/target.h"
#include "io/manifest.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

// `text` with the last "checksum" of 16 characters replaced by the right one.
std::string sealed(std::string text) {
    constexpr std::string_view key = "\"checksum\": \"";
    const size_t at = text.rfind(key);
    if (at == std::string::npos || text.size() - at < key.size() + 16) return text;
    text.replace(at + key.size(), 16, 16, '0');
    return text.replace(at + key.size(), 16, format_hash64(xxh64(text)));
}

void try_to_read(const std::string& text) {
    accepts([&] {
        const io::Checkpoint checkpoint = io::parse_manifest(text, "manifest.json");
        for (const io::ManifestEntry& file : checkpoint.files)
            holds(io::is_checkpoint_file_name(file.name), "a manifest names a file outside its directory");
        const std::string again = io::format_manifest(checkpoint.step, checkpoint.files);
        holds(io::parse_manifest(again, "manifest.json").files == checkpoint.files,
              "files change when written");
    });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(text_of(data, size));
    try_to_read(text);
    try_to_read(sealed(text));
    return 0;
}
