#include "ptx/machine.h"

#include "ptx/block.h"

namespace longreach::ptx {

void run(const Program& program, const Launch& launch, const Memory& memory) {
    const Entry& entry = program.entry;
    if (launch.parameters.size() != entry.parameter_bytes)
        throw Fault(program.module.path + ": " + entry.name + " takes " +
                    std::to_string(entry.parameter_bytes) + " bytes of parameters, given " +
                    std::to_string(launch.parameters.size()));
    Block block(program, launch, memory);
    const auto [x, y, z] = launch.grid;
    const uint64_t count = uint64_t{x} * y * z;
    for (uint64_t k = 0; k < count; ++k) {
        const uint64_t b = launch.last_first ? count - 1 - k : k;
        block.run({static_cast<unsigned>(b % x), static_cast<unsigned>(b / x % y),
                   static_cast<unsigned>(b / x / y)});
    }
}

}  // namespace longreach::ptx
