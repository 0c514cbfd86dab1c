// One process per run directory.
#pragma once

#include <string>

#include "io/file.h"

namespace longreach {

// Holds `directory`/lock for as long as it lives. The kernel's lock on the open file decides, so a dead
// process holds nothing; the text inside (process, host, start time) is for the message. On file systems
// without such locks the text decides: its process must be alive on this host.
class RunLock {
  public:
    // Error(ExitCode::locked) names the holder.
    explicit RunLock(const std::string& directory);
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

    // What the process before left in the lock file, if it ended without letting go: it crashed or was
    // killed.
    const std::string& taken_over_from() const { return previous_; }

  private:
    int fd_ = -1;
    std::string previous_;
};

}  // namespace longreach
