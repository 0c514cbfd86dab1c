// A config, optionally a base it may name ("base.json"), then overrides as --set gives them: parts of the
// input. A config that is accepted and written in its resolved form comes back as the same bytes.
#include "config/loader.h"
#include "fuzz/target.h"
#include "train/experiment.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

config::LoadedConfig<train::Experiment> load(const config::ConfigSource& source) {
    return config::load_config<train::Experiment>(
        source, [](train::Experiment& e, config::Problems& p) { e.check(p); });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::vector<std::string_view> parts = parts_of(text_of(data, size));
    config::ConfigSource source{.file = scratch / "config.json", .text = std::string(parts[0])};
    if (parts.size() > 1) scratch.put("base.json", parts[1]);
    for (size_t i = 2; i < parts.size(); ++i) source.overrides.emplace_back(parts[i]);
    std::string resolved;
    if (!accepts([&] { resolved = config::write_resolved(load(source).value); })) return 0;
    const config::ConfigSource again{.file = scratch / "resolved.json", .text = resolved};
    std::string twice;
    holds(accepts([&] { twice = config::write_resolved(load(again).value); }),
          "a resolved config is refused");
    holds(twice == resolved, "a resolved config resolves to another one");
    return 0;
}
