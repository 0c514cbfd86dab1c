// Polite stop requests: TERM, USR1, USR2, HUP and INT ask for a checkpoint and an exit; a second INT ends at
// once.
#pragma once

namespace longreach {

class StopSignals {
  public:
    StopSignals();   // installs the handlers
    ~StopSignals();  // restores what was there
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    static int received();  // the signal's number, or 0
};

}  // namespace longreach
