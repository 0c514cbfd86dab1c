// What the rules between the fields of one layout need to say.
#pragma once

#include <fmt/format.h>

#include <string>

#include "config/problems.h"
#include "model/attention_config.h"

namespace longreach::model {

struct LayoutRules {
    const AttentionConfig& a;
    const std::string& path;  // of the section: "model.attention" or "model.layouts.NAME"
    config::Problems& p;

    // key and other: below the section, with a dot in front.
    void no_effect(const std::string& key, const std::string& reason, const std::string& other) const {
        p.no_effect(path + key, reason, path + other);
    }
    void refuse(const std::string& key, const std::string& message, const std::string& other) const {
        p.add(path + key, message, path + other);
    }
    void needs_multiple_of_4(const std::string& key, int64_t value) const {
        if (value % 4 != 0) p.add(path + key, fmt::format("{} is not a multiple of 4", value));
    }
};

}  // namespace longreach::model
