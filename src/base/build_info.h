// What this binary is, and what it runs on.
#pragma once

#include <cstdint>
#include <string>

namespace longreach {

struct BuildInfo {
    std::string version;   // "0.1.0"
    std::string commit;    // "4bcdef123456", with a + if the sources differed from it; "" if unknown
    std::string compiler;  // "GNU 12.2.0"
    std::string build_type, flags;
    std::string system;  // "Linux x86_64"
};
BuildInfo build_info();

// Of --version: version and commit on the first line, then compiler and flags.
std::string describe(const BuildInfo& build);

// This process and its machine.
struct ProcessInfo {
    std::string command_line;  // quoted for a shell where needed
    std::string host;
    std::string cpu;           // the processor's name; "" if the system does not say
    int cores = 1;             // that this process may use
    int64_t memory_bytes = 0;  // of the machine
};
ProcessInfo process_info();

}  // namespace longreach
