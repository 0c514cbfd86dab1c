// A Megatron index and its tokens: two bytes, how many bytes of the end are tokens, then the index.
#include "fuzz/shards.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    if (size < 2) return 0;
    const size_t tokens = std::min<size_t>(data[0] + 256 * size_t{data[1]}, size - 2);
    const std::string path = scratch.put("tokens.idx", text_of(data + 2, size - 2 - tokens));
    scratch.put("tokens.bin", text_of(data + size - tokens, tokens));
    read_shard(path, {});
    return 0;
}
