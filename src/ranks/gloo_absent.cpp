// Stands for gloo_comm.cpp in builds without Gloo.
#include "ranks/gloo_comm.h"

namespace longreach::ranks {

std::unique_ptr<Comm> make_gloo_comm(Rendezvous&, const RankPlace&, CollectiveLog*, const GlooOptions&) {
    throw Error(ExitCode::usage, "this build cannot run several CPU ranks: it was made without Gloo",
                "install libgloo-dev (Debian, Ubuntu), configure again and build");
}

}  // namespace longreach::ranks
