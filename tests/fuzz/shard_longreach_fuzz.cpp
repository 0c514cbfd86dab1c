// A shard of our own format: as it is, and with the checksums of header and tables made right,
// which hide the rest.
#include <cstring>

#include "base/hash.h"
#include "data/shard_writer.h"
#include "fuzz/shards.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

template <class T>
T at(const std::string& bytes, size_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

std::string sealed(std::string bytes) {
    if (bytes.size() < data::shard_header_bytes) return bytes;
    const uint64_t token_bytes = at<uint64_t>(bytes, 24) * at<uint32_t>(bytes, 16);
    const uint64_t room = bytes.size() - data::shard_header_bytes;
    const uint64_t trailer = token_bytes <= room
                                 ? xxh64(bytes.data() + data::shard_header_bytes + token_bytes,
                                         static_cast<size_t>(room - token_bytes))
                                 : 0;
    std::memcpy(bytes.data() + 80, &trailer, sizeof trailer);
    const uint64_t header = xxh64(bytes.data(), 120);
    std::memcpy(bytes.data() + 120, &header, sizeof header);
    return bytes;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::string bytes = std::string("LRTOKENS").append(text_of(data, size));
    read_shard(scratch.put("shard.bin", bytes), {});
    read_shard(scratch.put("shard.bin", sealed(bytes)), {});
    return 0;
}
