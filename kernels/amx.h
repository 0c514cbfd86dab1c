// Whether this process may use the tiles of AMX.
#pragma once

namespace longreach {

// Asks the CPU whether it multiplies bf16 in tiles, the system whether it saves them between threads, and Linux for
// permission to use them, which it grants to all threads. False if one refuses, and always outside x86-64 Linux.
bool request_amx();

}  // namespace longreach
