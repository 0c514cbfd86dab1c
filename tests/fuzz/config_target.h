// The targets `config` and `experiment`: a config, optionally a base it may name ("base.json"), then overrides as --set
// gives them: parts of the input. A config that is accepted and written in its resolved form comes back as the same bytes.
#pragma once

#include "config/loader.h"
#include "fuzz/target.h"

namespace longreach::fuzz {

template <class Config>
void resolve_twice(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::vector<std::string_view> parts = parts_of(text_of(data, size));
    config::ConfigSource source{.file = scratch / "config.json", .text = std::string(parts[0])};
    if (parts.size() > 1) scratch.put("base.json", parts[1]);
    for (size_t i = 2; i < parts.size(); ++i) source.overrides.emplace_back(parts[i]);
    const auto resolve = [](const config::ConfigSource& from) {
        return config::write_resolved(
            config::load_config<Config>(from, [](Config& c, config::Problems& p) { c.check(p); }).value);
    };
    std::string resolved, twice;
    if (!accepts([&] { resolved = resolve(source); })) return;
    holds(accepts([&] { twice = resolve({.file = scratch / "resolved.json", .text = resolved}); }),
          "a resolved config is refused");
    holds(twice == resolved, "a resolved config resolves to another one");
}

}  // namespace longreach::fuzz
