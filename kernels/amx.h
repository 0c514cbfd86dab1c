// Whether this process may use the tiles of AMX.
#pragma once

namespace longreach {

// Asks the CPU whether it multiplies bf16 in tiles, the system whether it saves them between threads, and Linux for the
// leave to use them, which all threads get. False where one says no, and everywhere but on x86-64 under Linux.
bool request_amx();

}  // namespace longreach
