// Data that the ranks of a run exchange to take the same decisions: a text of rank 0, and a stop signal that
// any rank received. With one rank nothing is sent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/session.h"

namespace longreach::train {

class RankAgreement {
  public:
    // Error(ExitCode::usage) if the micro-batches of a step cannot be shared among the ranks.
    explicit RankAgreement(const Session& session);
    void plan(model::Arena& arena);

    // Returns the text of rank 0 on all ranks.
    std::string text(const std::string& own) const;

    // Every rank sends parts_of(own rank) to all others and receives parts_of(r) from each rank r.
    using PartsOf = std::function<std::vector<Tensor>(int rank)>;
    void gather(DType type, int64_t count, const PartsOf& parts_of) const;
    // The same, together with the signal that each rank received; sets stop_signal() on all ranks.
    void gather_with_signals(int64_t count, const PartsOf& parts_of);

    // The signal on which all ranks agree; 0: none.
    int stop_signal() const;

  private:
    const Session& session_;
    Tensor signals_;   // f64 [R], the signal each rank has received
    Tensor messages_;  // i32, room for texts
    int agreed_ = 0;
};

}  // namespace longreach::train
