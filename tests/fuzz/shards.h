// Reading a token shard as far as the program ever does.
#pragma once

#include "text/inspect.h"
#include "fuzz/target.h"

namespace longreach::fuzz {

inline void read_shard(const std::string& path, const data::StreamOptions& options) {
    accepts([&] {
        const data::Shard shard = data::Shard::open(path, options.shard);
        const uint64_t count = std::min<uint64_t>(shard.info().tokens, 1 << 16);
        std::vector<int32_t> tokens(static_cast<size_t>(count));
        shard.read(shard.info().tokens - count, count, tokens.data());
        if (count > 0) shard.stored_value(shard.info().tokens - 1);
        for (size_t i = 0; i < shard.info().block_checksums.size(); ++i) shard.block_is_intact(i);
    });
    accepts([&] { text::to_text(text::verify({path}, options)); });
    accepts([&] { text::to_text(text::inspect({path}, {.stream = options})); });
}

}  // namespace longreach::fuzz
