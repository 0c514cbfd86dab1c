#include "ranks/team.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/process.h"
#include "ranks/gloo_comm.h"
#include "ranks/nccl_comm.h"

namespace longreach::ranks {

namespace {

// For rank 0 to reach its broadcast; the watchdog reports a dead rank at once.
constexpr double wait_seconds = 3600;

// Without destructors or stdio: the main thread may hang in a collective, or hold a lock.
void end_process(const std::string& reason) {
    write_to_stderr(fmt::format("error: {}\n", reason));
    ::_exit(static_cast<int>(ExitCode::peer));
}

}  // namespace

Team::Team(const RankPlace& place, const std::string& token, const std::string& run_directory,
           const TeamOptions& options)
    : place_(place), token_(token), run_directory_(run_directory), options_(options) {
    if (first()) {
        server_ =
            std::make_unique<RendezvousServer>(place, token, ServerOptions{.watchdog = options.watchdog});
        place_.port = server_->port();
        place_.listening = -1;  // the server owns it now
    }
    rendezvous_.emplace(place_, token, options.arrival);
}

void Team::join(const Fingerprints& fingerprints) {
    if (!rendezvous_) return;
    rendezvous_->join(fingerprints, options_.arrival);
    log_.emplace(collective_log_path(run_directory_, rank()), rank(), ranks());
    heartbeat_.emplace(place_, token_, *log_, end_process, options_.heartbeat);
    rendezvous_->barrier("heartbeats", options_.arrival);
}

CollectiveLog& Team::log() {
    check(log_.has_value(), "the ranks have not joined");
    return *log_;
}

std::unique_ptr<Comm> Team::connect(Ops& ops) {
    if (!rendezvous_) return std::make_unique<SingleComm>();
    const int connection = connections_++;
    if (ops.native_queue().device >= 0) {
        const std::string unusable = nccl_unusable();
        require(unusable.empty(), ExitCode::device, "several GPUs need NCCL: {}", unusable);
        NcclId id;
        if (first()) id = new_nccl_id();
        const std::string sent =
            broadcast(fmt::format("nccl/{}", connection), std::string(id.bytes.data(), id.bytes.size()));
        require(sent.size() == id.bytes.size(), ExitCode::peer, "rank 0 sent an NCCL id of {} bytes",
                sent.size());
        std::copy(sent.begin(), sent.end(), id.bytes.begin());
        return make_nccl_comm(rank(), ranks(), &log(), ops.native_queue(), id, end_process, options_.arrival);
    }
    return make_gloo_comm(*rendezvous_, place_, &log(), fmt::format("gloo/{}/", connection));
}

std::string Team::broadcast(const std::string& topic, const std::string& text) {
    if (!rendezvous_) return text;
    const std::string key = "broadcast/" + topic;
    if (!first()) return rendezvous_->wait(key, wait_seconds);
    rendezvous_->set(key, text);
    return text;
}

void Team::set_step(int64_t step) {
    if (rendezvous_) log().set_step(step);
}

void Team::leave(ExitCode code, const std::string& reason) {
    if (!rendezvous_ || std::exchange(left_, true)) return;
    // The heartbeats first: the watchdog reports the reason of their goodbye.
    if (heartbeat_) heartbeat_->leave(code, reason);
    rendezvous_->leave(code, reason);
}

Team::Busy::Busy(Team& team, const std::string& what) : team_(team) {
    if (team_.rendezvous_) team_.log().set_busy(what);
}

Team::Busy::~Busy() {
    if (team_.rendezvous_) team_.log().set_busy("");
}

}  // namespace longreach::ranks
