// The parts of a parameter's name: "layers.3.attention.score.r" is attention.score.r of layer 3.
#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>

namespace longreach::model {

struct ParamName {
    int64_t layer = -1;     // -1: of no single layer
    std::string_view rest;  // after the layer; a piece of the name given

    explicit ParamName(std::string_view name) : rest(name) {
        constexpr std::string_view layers = "layers.";
        if (!name.starts_with(layers)) return;
        const char* const all = name.data() + name.size();
        const auto [end, error] = std::from_chars(name.data() + layers.size(), all, layer);
        if (error != std::errc() || end == all || *end != '.') {
            layer = -1;
            return;
        }
        rest = name.substr(static_cast<size_t>(end - name.data()) + 1);
    }
};

}  // namespace longreach::model
