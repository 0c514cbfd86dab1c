// What a report looks at while runs train.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace longreach::report {

// Changes when a record below one of the paths is added, grows or is replaced. Files that a report writes do not count.
uint64_t records_state(const std::vector<std::string>& paths);

// Whether a process trains a run below one of the paths, or works on a sweep there.
bool any_in_use(const std::vector<std::string>& paths);

// Waits that long; false, at once, when `stopped` says so.
bool wait_for(std::chrono::milliseconds duration, const std::function<bool()>& stopped);

}  // namespace longreach::report
