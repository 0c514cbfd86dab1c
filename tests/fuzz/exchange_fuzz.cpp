// config.json of a model of another program, and the index of its files. The part after a separator is the index.
#include "exchange/family.h"
#include "exchange/weights.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string_view> parts = parts_of(text_of(data, size));
    accepts([&] {
        const exchange::Settings settings(parts[0], "config.json");
        const exchange::Foreign foreign = exchange::read_form(settings);
        settings.unread();
        holds(foreign.model.find("train_context") != nullptr, "a model without a context");
        for (const char* name : {"embedding.weight", "final_norm.gain", "layers.7.attention.q.weight"})
            holds(!foreign.place(name).name.empty(), "a tensor without a place");
    });
    accepts([&] {
        const exchange::WeightIndex index = exchange::parse_index(parts.back(), "index.json");
        for (const std::string& shard : index.shards)
            holds(shard.find('/') == std::string::npos && !shard.starts_with('.'),
                  "a file outside the directory");
    });
    return 0;
}
