// Loading the sample config from text, for tests.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/loader.h"
#include "config/sample.h"

namespace longreach::sample {

inline config::LoadedConfig<Experiment> load(const std::string& text,
                                             const std::vector<std::string>& overrides = {}) {
    return config::load_config<Experiment>({.file = "c.json", .overrides = overrides, .text = text},
                                           [](Experiment& e, config::Problems& p) { e.check(p); });
}

// The lines of the error but the last, which counts them; "" if there was none.
inline std::string problems(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
        load(text, overrides);
        return "";
    } catch (const Error& error) {
        if (error.code() != ExitCode::usage) return std::string("not a usage error: ") + error.what();
        const std::string message = error.what();
        const size_t last = message.rfind('\n');
        return last == std::string::npos ? message : message.substr(0, last);
    }
}

}  // namespace longreach::sample
