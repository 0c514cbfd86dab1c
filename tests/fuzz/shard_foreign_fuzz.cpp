// Shards of llm.c (16 and 32 bits) and llmq, and whatever else a .bin file may turn out to be.
#include "fuzz/shards.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    read_shard(scratch.put("shard.bin", text_of(data, size)), {});
    return 0;
}
