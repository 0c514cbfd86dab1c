// Loads wrong experiments and compares the complete messages about them.
#pragma once

#include <doctest/doctest.h>

#include "train/tiny_run.h"

namespace longreach::test {

struct Wrong {
    std::string text, message;
    std::vector<std::string> overrides = {};
};

// The message without its last line, which counts the problems.
inline std::string problems(const Wrong& wrong) {
    try {
        config::load_config<train::Experiment>(
            {.file = "c.json", .overrides = wrong.overrides, .text = wrong.text},
            [](train::Experiment& e, config::Problems& p) { e.check(p); });
        return "no problem";
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::usage);
        std::string message = error.what();
        const size_t last = message.rfind('\n');
        if (last != std::string::npos && message.find(" problem", last) != std::string::npos)
            message.resize(last);
        return message;
    }
}

inline void check_all(const std::vector<Wrong>& cases) {
    for (const Wrong& wrong : cases) {
        CAPTURE(wrong.text);
        CHECK(problems(wrong) == wrong.message);
    }
}

}  // namespace longreach::test
