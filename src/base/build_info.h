// What this binary is: version, compiler, flags.
#pragma once

#include <string>

namespace longreach {

struct BuildInfo {
    std::string version;   // "0.1.0"
    std::string compiler;  // "GNU 12.2.0"
    std::string build_type, flags;
    std::string system;  // "Linux x86_64"
};
BuildInfo build_info();

}  // namespace longreach
