// One process per run directory.
#pragma once

#include <string>

#include "io/file.h"

namespace longreach::io {

// Holds `directory`/lock and the directory itself for as long as it lives. The kernel's locks on the open
// files decide, so a dead process holds none; the text inside (process, host, start time) is for the
// message. The directory is locked too, so deleting `lock` admits no one. On file systems without such
// locks the text decides: its process must be alive on this host.
class RunLock {
  public:
    // Error(ExitCode::locked) names the holder.
    explicit RunLock(const std::string& directory, Disk& disk = Disk::system());
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

    // What the previous process left in the lock file if it ended without releasing it: it
    // crashed or was killed.
    const std::string& taken_over_from() const { return previous_; }

    // What happened if the path of the directory no longer names the locked directory; else empty. Nothing
    // more may then be written to that path.
    std::string directory_lost() const;
    // The same of the lock file.
    std::string lock_lost() const;
    // Whether other processes are excluded even if the lock file is lost.
    bool holds_directory() const { return holds_directory_; }

  private:
    File directory_, lock_;
    bool holds_directory_ = false;
    std::string previous_;
};

}  // namespace longreach::io
