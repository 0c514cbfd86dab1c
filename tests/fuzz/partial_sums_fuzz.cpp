// What a stopped validation left: as it is, and with context and checksum made right, or nothing after
// them would be reached.
#include <cstring>

#include "base/hash.h"
#include "eval/partial_sums.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

constexpr uint64_t context = 7;
constexpr size_t documents = 5;

std::string sealed(std::string bytes) {
    constexpr size_t context_at = 16, least = 32;  // after the magic; with context, position and checksum
    if (bytes.size() < least) return bytes;
    std::memcpy(bytes.data() + context_at, &context, sizeof context);
    const size_t body = bytes.size() - sizeof(uint64_t);
    const uint64_t checksum = xxh64(bytes.substr(0, body));
    std::memcpy(bytes.data() + body, &checksum, sizeof checksum);
    return bytes;
}

void try_to_read(const std::string& bytes) {
    accepts([&] {
        const std::optional<eval::PartialSums> sums = eval::PartialSums::read(bytes, context, documents);
        if (sums) holds(sums->write() == bytes, "sums change when they are written");
    });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string bytes(text_of(data, size));
    try_to_read(bytes);
    try_to_read(sealed(bytes));
    return 0;
}
