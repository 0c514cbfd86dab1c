#pragma once

namespace longreach {

// Schedule k of the harness for what follows; nothing on a GPU.
void set_schedule(int k);

}  // namespace longreach
