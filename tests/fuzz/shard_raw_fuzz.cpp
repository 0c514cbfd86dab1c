// Tokens without a header. The first byte chooses their width and the side of the boundary token.
#include "fuzz/shards.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    if (size == 0) return 0;
    data::StreamOptions options;
    options.shard = {true, (data[0] & 1) != 0 ? 2 : 4};
    options.vocab = (data[0] & 2) != 0 ? 257 : 0;
    options.boundary_token = (data[0] & 4) != 0 ? 0 : -1;
    options.side = (data[0] & 8) != 0 ? data::BoundarySide::before : data::BoundarySide::after;
    read_shard(scratch.put("shard.bin", text_of(data + 1, size - 1)), options);
    return 0;
}
