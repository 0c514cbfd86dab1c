#include "ranks/gloo_comm.h"

#include <dlfcn.h>

#include "ranks/channel.h"
#include "ranks/gloo_module.h"

namespace longreach::ranks {

namespace {

// For the slowest rank to arrive; a dead rank is reported at once.
constexpr double wait_seconds = 3600;
constexpr const char* module_name = "longreach_gloo.so";

// Found by the program's run path: in its directory, or where an installation has its modules.
OpenGloo open_gloo() {
    void* module = ::dlopen(module_name, RTLD_NOW | RTLD_LOCAL);
    void* symbol = module != nullptr ? ::dlsym(module, "longreach_open_gloo") : nullptr;
    if (symbol == nullptr)
        throw Error(
            ExitCode::usage, fmt::format("several CPU ranks need {}: {}", module_name, ::dlerror()),
            "it must be in the program's directory or in ../lib/longreach and needs the package libgloo0 "
            "(Debian, Ubuntu); a build makes it where libgloo-dev is installed");
    return reinterpret_cast<OpenGloo>(symbol);
}

GlooStore store_of(Rendezvous& rendezvous) {
    return {&rendezvous,
            [](Rendezvous& r, const std::string& key, const std::string& value) {
                return GlooFailure::of([&] { r.set(key, value); });
            },
            [](Rendezvous& r, const std::string& key, std::string& value) {
                return GlooFailure::of([&] { value = r.wait(key, wait_seconds); });
            }};
}

class GlooComm final : public Comm {
  public:
    GlooComm(Rendezvous& rendezvous, const RankPlace& place, CollectiveLog* log, const std::string& prefix)
        : Comm(place.rank, place.ranks, log),
          address_(place.one_node() ? "127.0.0.1" : rendezvous.local_address()) {
        const OpenGloo open = open_gloo();
        const BlockedSignals guard;  // for Gloo's thread
        GlooFailure failure;
        open(store_of(rendezvous), {place.rank, place.ranks, address_, prefix}, port_, failure);
        failure.rethrow();
    }
    std::string describe() const override { return "gloo over " + address_; }

  protected:
    void post(Ticket ticket, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
        port_->post(ticket, sends, receives).rethrow();
    }
    void post_all_reduce(Ticket ticket, Tensor data) override {
        port_->post_all_reduce(ticket, data).rethrow();
    }
    void finish(Ticket ticket) override { port_->finish(ticket).rethrow(); }

  private:
    const std::string address_;
    std::unique_ptr<GlooPort> port_;
};

}  // namespace

std::unique_ptr<Comm> make_gloo_comm(Rendezvous& rendezvous, const RankPlace& place, CollectiveLog* log,
                                     const std::string& prefix) {
    return std::make_unique<GlooComm>(rendezvous, place, log, prefix);
}

}  // namespace longreach::ranks
