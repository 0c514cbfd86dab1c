#include "ranks/team.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/process.h"
#include "ranks/gloo_comm.h"
#include "ranks/nccl_comm.h"

namespace longreach::ranks {

namespace {

// For rank 0 to work until it sends its text; the watchdog reports a dead rank at once.
constexpr double meeting_seconds = 3600;

// Without destructors or stdio: the main thread may hang in a collective, or hold a lock.
void end_process(const std::string& reason) {
    write_to_stderr(fmt::format("error: {}\n", reason));
    ::_exit(static_cast<int>(ExitCode::peer));
}

}  // namespace

struct Team::Parts {
    const std::string token, run_directory;
    const TeamOptions options;
    std::unique_ptr<RendezvousServer> server;  // rank 0
    std::optional<Rendezvous> rendezvous;
    std::optional<CollectiveLog> log;
    std::optional<Heartbeat> heartbeat;
    int connections = 0;
    bool left = false;
};

Team::Team() = default;

Team::Team(const RankPlace& place, const std::string& token, const std::string& run_directory,
           const TeamOptions& options)
    : parts_(new Parts{token, run_directory, options, {}, {}, {}, {}}), place_(place) {
    if (first()) {
        ServerOptions server;
        server.watchdog = options.watchdog;
        parts_->server = std::make_unique<RendezvousServer>(place, token, server);
        place_.port = parts_->server->port();
        place_.listening = -1;  // the server's own now
    }
    parts_->rendezvous.emplace(place_, token, options.arrival);
}

Team::~Team() = default;

void Team::join(const std::vector<Fingerprint>& fingerprints) {
    if (!parts_) return;
    Parts& p = *parts_;
    p.rendezvous->join(fingerprints, p.options.arrival);
    p.log.emplace(collective_log_path(p.run_directory, rank()), rank(), ranks());
    p.heartbeat.emplace(place_, p.token, *p.log, end_process, p.options.heartbeat);
    p.rendezvous->barrier("heartbeats", p.options.arrival);
}

CollectiveLog& Team::log() const {
    check(parts_->log.has_value(), "the ranks have not joined");
    return *parts_->log;
}

std::unique_ptr<Comm> Team::connect(Ops& ops) {
    if (!parts_) return std::make_unique<SingleComm>();
    Parts& p = *parts_;
    const int connection = p.connections++;
    if (ops.native_queue().device >= 0) {
        const std::string unusable = nccl_unusable();
        require(unusable.empty(), ExitCode::device, "several GPUs need NCCL: {}", unusable);
        NcclId id;
        if (first()) id = new_nccl_id();
        const std::string told =
            broadcast(fmt::format("nccl/{}", connection), std::string(id.bytes.data(), id.bytes.size()));
        require(told.size() == id.bytes.size(), ExitCode::peer, "rank 0 sent an NCCL id of {} bytes",
                told.size());
        std::copy(told.begin(), told.end(), id.bytes.begin());
        return make_nccl_comm(rank(), ranks(), &log(), ops.native_queue(), id, end_process,
                              p.options.arrival);
    }
    GlooOptions options;
    options.prefix = fmt::format("gloo/{}/", connection);
    return make_gloo_comm(*p.rendezvous, place_, &log(), options);
}

std::string Team::broadcast(const std::string& topic, const std::string& text) {
    if (!parts_) return text;
    const std::string key = "broadcast/" + topic;
    if (!first()) return parts_->rendezvous->wait(key, meeting_seconds);
    parts_->rendezvous->set(key, text);
    return text;
}

void Team::set_step(int64_t step) {
    if (parts_) log().set_step(step);
}

void Team::leave(ExitCode code, const std::string& reason) {
    if (!parts_ || parts_->left) return;
    parts_->left = true;
    // The heartbeats first: their goodbye is what the watchdog passes on.
    if (parts_->heartbeat) parts_->heartbeat->leave(code, reason);
    parts_->rendezvous->leave(code, reason);
}

Team::Busy::Busy(Team& team, const std::string& what) : team_(team) {
    if (team_.parts_) team_.log().set_busy(what);
}

Team::Busy::~Busy() {
    if (team_.parts_) team_.log().set_busy("");
}

}  // namespace longreach::ranks
