// How often an attack is repeated: a few times on each commit, 50 times under `tools/test --long`.
#pragma once

#include <cstdlib>

namespace longreach::test {

inline int attack_rounds(int few = 3) {
    return std::getenv("LONGREACH_LONG_TESTS") ? 50 : few;
}

}  // namespace longreach::test
