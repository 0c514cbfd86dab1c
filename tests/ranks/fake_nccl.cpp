#include "ranks/fake_nccl.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

using namespace longreach::test;
using fake_cuda::Range;
using fake_cuda::report;
using fake_nccl::Fault;

namespace {

int64_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclFloat32:
            return 4;
        case ncclFloat64:
            return 8;
    }
    return 1;
}

struct Letter {
    ncclDataType_t type;
    std::vector<std::byte> bytes;
};

// The ranks of one id.
struct World {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<int> present, dead;
    std::map<std::pair<int, int>, std::deque<Letter>> letters;       // sent and not yet received
    std::map<int, std::map<int, std::vector<float>>> contributions;  // to all_reduce, by collective and rank
    std::map<std::pair<int, int>, Fault> faults;                     // by rank and collective
};

// Of one rank; outlives the handle, for its stream may still be at work.
struct Member {
    std::shared_ptr<World> world;
    int rank = 0, ranks = 0;
    bool aborted = false;  // all below: with world->mutex held
    ncclResult_t error = ncclSuccess;
    int under_way = 0;
};

struct Posted {
    enum { send, receive, all_reduce } kind;
    void* data;
    size_t count;
    ncclDataType_t type;
    int peer;
    ncclComm_t comm;
    cudaStream_t stream;
    Range range() const { return {data, static_cast<int64_t>(count) * size_of(type)}; }
};

std::mutex plans_mutex;
std::map<std::pair<int, int>, Fault> plans;
std::map<std::string, std::weak_ptr<World>> worlds;
std::atomic<int> communicators{0}, slowness{0};
thread_local bool in_group = false;
thread_local std::vector<Posted> group;

}  // namespace

struct ncclComm {
    std::shared_ptr<Member> member;
    std::atomic<bool> busy{false};
    std::vector<Posted> deferred;  // said, and not yet on the stream
    int asked = 0;                 // how often, since
    int collectives = 0;
    bool connecting = true, finalizing = false;
};

namespace {

// No two calls into one communicator at once.
class CallGuard {
  public:
    explicit CallGuard(ncclComm_t comm) : comm_(comm) {
        if (comm_->busy.exchange(true)) report("two threads are in one communicator at once");
    }
    ~CallGuard() { comm_->busy = false; }

  private:
    ncclComm_t comm_;
};

void give_to_peers(Member& m, const std::vector<Posted>& operations, int collective) {
    for (const Posted& o : operations) {
        const auto bytes = static_cast<size_t>(o.range().bytes);
        const auto* from = static_cast<const std::byte*>(o.data);
        if (o.kind == Posted::send) {
            m.world->letters[{m.rank, o.peer}].push_back({o.type, {from, from + bytes}});
        } else if (o.kind == Posted::all_reduce) {
            const auto* numbers = static_cast<const float*>(o.data);
            m.world->contributions[collective][m.rank].assign(numbers, numbers + o.count);
        }
    }
    m.world->changed.notify_all();
}

// Pieces of another size or type never meet: both sides wait for good, as with NCCL.
bool complete(Member& m, const std::vector<Posted>& operations, int collective) {
    std::map<int, size_t> taken;
    for (const Posted& o : operations) {
        if (o.kind == Posted::receive) {
            const auto& waiting = m.world->letters[{o.peer, m.rank}];
            const size_t k = taken[o.peer]++;
            if (waiting.size() <= k || waiting[k].type != o.type ||
                static_cast<int64_t>(waiting[k].bytes.size()) != o.range().bytes)
                return false;
        } else if (o.kind == Posted::all_reduce) {
            const auto& all = m.world->contributions[collective];
            if (std::ssize(all) != m.ranks) return false;
            for (const auto& [rank, numbers] : all)
                if (numbers.size() != o.count) return false;
        }
    }
    return true;
}

void take_from_peers(Member& m, const std::vector<Posted>& operations, int collective) {
    for (const Posted& o : operations) {
        if (o.kind == Posted::receive) {
            auto& waiting = m.world->letters[{o.peer, m.rank}];
            std::memcpy(o.data, waiting.front().bytes.data(), waiting.front().bytes.size());
            waiting.pop_front();
        } else if (o.kind == Posted::all_reduce) {
            // A ring: the sum of a chunk begins at the rank after the chunk's own.
            const auto& all = m.world->contributions[collective];
            auto* numbers = static_cast<float*>(o.data);
            for (size_t i = 0; i < o.count; ++i) {
                const int chunk = static_cast<int>(i * static_cast<size_t>(m.ranks) / o.count);
                float sum = 0;
                for (int k = 1; k <= m.ranks; ++k) sum += all.at((chunk + k) % m.ranks)[i];
                numbers[i] = sum;
            }
        }
    }
}

void perform(const std::shared_ptr<Member>& member, const std::vector<Posted>& operations, int collective) {
    Member& m = *member;
    std::unique_lock lock(m.world->mutex);
    if (m.aborted) return;
    const auto planned = m.world->faults.find({m.rank, collective});
    bool stands_still = m.world->dead.contains(m.rank);
    if (planned != m.world->faults.end()) {
        if (planned->second == Fault::slow) {
            lock.unlock();
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            lock.lock();
        } else {
            if (planned->second == Fault::kill) m.world->dead.insert(m.rank);
            if (planned->second == Fault::async_error) m.error = ncclSystemError;
            stands_still = true;
        }
    }
    if (!stands_still) give_to_peers(m, operations, collective);
    m.world->changed.wait(
        lock, [&] { return m.aborted || (!stands_still && complete(m, operations, collective)); });
    if (!m.aborted) take_from_peers(m, operations, collective);
    --m.under_way;
}

// What was deferred goes onto its stream.
void carry_out(ncclComm_t comm) {
    const std::vector<Posted> operations = std::exchange(comm->deferred, {});
    fake_cuda::Work work;
    work.name = fmt::format("collective {} of NCCL", ++comm->collectives);
    for (const Posted& o : operations) {
        if (o.kind != Posted::receive) work.reads.push_back(o.range());
        if (o.kind != Posted::send) work.writes.push_back(o.range());
    }
    work.run = [member = comm->member, operations, collective = comm->collectives] {
        perform(member, operations, collective);
    };
    {
        const std::lock_guard lock(comm->member->world->mutex);
        ++comm->member->under_way;
    }
    fake_cuda::enqueue(operations.front().stream, std::move(work));
}

bool pending(ncclComm_t comm) {
    return comm->connecting || comm->finalizing || !comm->deferred.empty();
}

ncclResult_t defer(ncclComm_t comm, std::vector<Posted> operations) {
    comm->deferred = std::move(operations);
    comm->asked = 0;
    return ncclInProgress;
}

ncclResult_t add(const Posted& o) {
    const CallGuard call(o.comm);
    if (pending(o.comm)) {
        report("a call while the communicator is in progress");
        return ncclInvalidUsage;
    }
    {
        const std::lock_guard lock(o.comm->member->world->mutex);
        if (o.comm->member->error != ncclSuccess) report("a call after an error");
    }
    if (!fake_cuda::allocated(o.range())) {
        report(fmt::format("{} elements of {} bytes go past their memory", o.count, size_of(o.type)));
        return ncclInvalidArgument;
    }
    if (in_group) {
        group.push_back(o);
        return ncclSuccess;
    }
    return defer(o.comm, {o});
}

}  // namespace

namespace longreach::test::fake_nccl {

namespace {

// --- as NcclApi has them
ncclResult_t version(int* out) {
    *out = 21400;
    return ncclSuccess;
}
const char* error_string(ncclResult_t result) {
    switch (result) {
        case ncclSystemError:
            return "unhandled system error";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        default:
            return "another error";
    }
}
const char* last_error(ncclComm_t) {
    return "";
}

ncclResult_t unique_id(ncclUniqueId* id) {
    static std::atomic<int> made{0};
    *id = {};
    const std::string text = fmt::format("id {}", ++made);
    std::memcpy(id->internal, text.data(), text.size());
    return ncclSuccess;
}

ncclResult_t connect(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (config->magic != 0xcafebeef || config->blocking != 0) report("a communicator that blocks");
    const std::lock_guard plans_lock(plans_mutex);
    std::weak_ptr<World>& known = worlds[std::string(id.internal, sizeof id.internal)];
    std::shared_ptr<World> world = known.lock();
    if (!world) known = world = std::make_shared<World>();
    const std::lock_guard lock(world->mutex);
    world->faults = plans;
    world->present.insert(rank);
    auto member = std::make_shared<Member>();
    member->world = world, member->rank = rank, member->ranks = ranks;
    *comm = new ncclComm;
    (*comm)->member = member;
    ++communicators;
    return ncclInProgress;
}

ncclResult_t async_error(ncclComm_t comm, ncclResult_t* error) {
    const CallGuard call(comm);
    {
        const std::lock_guard lock(comm->member->world->mutex);
        const Member& m = *comm->member;
        comm->connecting = comm->connecting && std::ssize(m.world->present) != m.ranks;
        *error = m.error;
        if (*error == ncclSuccess && !m.world->dead.empty() && !m.world->dead.contains(m.rank))
            *error = ncclRemoteError;
        if (*error != ncclSuccess) return ncclSuccess;
        if (comm->finalizing) comm->finalizing = m.under_way > 0;
    }
    // Whoever takes "in progress" for "on the stream" records his event too early: not
    // before the second time.
    if (!comm->deferred.empty() && ++comm->asked == 2) carry_out(comm);
    *error = pending(comm) ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t finalize(ncclComm_t comm) {
    const CallGuard call(comm);
    if (pending(comm)) report("a call while the communicator is in progress");
    comm->finalizing = true;
    return ncclInProgress;
}

ncclResult_t destroy(ncclComm_t comm) {
    {
        const std::lock_guard lock(comm->member->world->mutex);
        if (comm->member->under_way > 0)
            report("a communicator is destroyed while a collective is under way");
    }
    delete comm;
    --communicators;
    return ncclSuccess;
}

ncclResult_t abort(ncclComm_t comm) {
    {
        const std::lock_guard lock(comm->member->world->mutex);
        comm->member->aborted = true;
        comm->member->world->changed.notify_all();
    }
    delete comm;
    --communicators;
    return ncclSuccess;
}

ncclResult_t group_start() {
    in_group = true;
    return ncclSuccess;
}
ncclResult_t group_end() {
    in_group = false;
    if (group.empty()) return ncclSuccess;
    const ncclComm_t comm = group.front().comm;
    const CallGuard call(comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(slowness));
    return defer(comm, std::exchange(group, {}));
}
ncclResult_t send(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
    return add({Posted::send, const_cast<void*>(data), count, type, peer, comm, stream});
}
ncclResult_t receive(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
    return add({Posted::receive, data, count, type, peer, comm, stream});
}
ncclResult_t all_reduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        ncclComm_t comm, cudaStream_t stream) {
    if (from != to || type != ncclFloat32 || op != ncclSum) report("an all_reduce that is no sum in place");
    return add({Posted::all_reduce, to, count, type, -1, comm, stream});
}

}  // namespace

const ranks::NcclApi& api() {
    static const ranks::NcclApi functions{
        .version = version,
        .error_string = error_string,
        .last_error = last_error,
        .unique_id = unique_id,
        .connect = connect,
        .async_error = async_error,
        .finalize = finalize,
        .destroy = destroy,
        .abort = abort,
        .group_start = group_start,
        .group_end = group_end,
        .send = send,
        .receive = receive,
        .all_reduce = all_reduce,
    };
    return functions;
}

ranks::NcclId new_id() {
    ncclUniqueId unique;
    unique_id(&unique);
    ranks::NcclId id;
    std::memcpy(id.bytes.data(), &unique, sizeof unique);
    return id;
}

int living() {
    return communicators;
}

void plan(int rank, int collective, Fault fault) {
    const std::lock_guard lock(plans_mutex);
    plans[{rank, collective}] = fault;
}
void make_calls_slow(int milliseconds) {
    slowness = milliseconds;
}
void forget_plans() {
    const std::lock_guard lock(plans_mutex);
    plans.clear();
    slowness = 0;
}

}  // namespace longreach::test::fake_nccl
