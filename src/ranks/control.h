// Heartbeats: every second each rank reports its progress to rank 0 and learns whether the run must end.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"
#include "ranks/channel.h"
#include "ranks/collective_log.h"
#include "ranks/launch.h"

namespace longreach::ranks {

struct HeartbeatOptions {
    double interval = 1;   // seconds between heartbeats
    double unheard = 120;  // seconds without an answer after which rank 0 counts as hung; longer than the
                           // watchdog's timeout, so that a rank 0 that still answers reports first
};

// `state.recent` from the record after `known` on, as much as fits.
std::string encode_beat(const CollectiveState& state, uint64_t known);
CollectiveState decode_beat(std::string_view body);  // Error(peer) if malformed

class Heartbeat {
  public:
    // Called at most once, on the heartbeat thread, when the run must end. The main thread may hang in a
    // collective forever, so the function should print the reason and end the process with
    // ExitCode::peer without running destructors.
    using OnEnd = std::function<void(const std::string& reason)>;

    // Connects before it returns. `log` must outlive it.
    Heartbeat(const RankPlace& place, const std::string& token, const CollectiveLog& log, OnEnd on_end,
              const HeartbeatOptions& options = {});
    // Without leave(), the others report this rank as dead.
    ~Heartbeat();
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

    // Leaves the run: with ExitCode::ok or ::stopped the others continue, with another code they end and
    // report the reason. on_end is not called after this returns.
    void leave(ExitCode code, const std::string& reason);

  private:
    void run();
    void stop();

    const CollectiveLog& log_;
    const OnEnd on_end_;
    const HeartbeatOptions options_;
    Channel channel_;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

}  // namespace longreach::ranks
