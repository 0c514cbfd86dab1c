// The seam between the program and longreach_gloo.so, which contains everything that needs Gloo's shared
// library. The program opens it for several CPU ranks and otherwise runs without it.
//
// The two may link separate C++ libraries, so no exception crosses the seam in either direction:
// failures are return values. Strings and vectors do cross it: both sides are built together and
// allocate from the same C library.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "ranks/comm.h"

namespace longreach::ranks {

class Rendezvous;

struct GlooFailure {
    ExitCode code = ExitCode::ok;  // ok: none
    std::string message = {}, hint = {};

    // Runs `action` and returns the Error it throws.
    template <class Action>
    static GlooFailure of(Action action) noexcept {
        try {
            action();
            return {};
        } catch (const Error& error) {
            return {error.code(), error.what(), error.hint()};
        } catch (const std::exception& error) {
            return {ExitCode::internal, error.what()};
        }
    }
    void rethrow() const {
        if (code != ExitCode::ok) throw Error(code, message, hint);
    }
};

// What Gloo needs of the program: the run's store.
struct GlooStore {
    Rendezvous* rendezvous;
    GlooFailure (*set)(Rendezvous&, const std::string& key, const std::string& value);
    GlooFailure (*wait)(Rendezvous&, const std::string& key, std::string& value);
};

struct GlooPlace {
    int rank = 0, ranks = 1;
    std::string address;  // to listen on
    std::string prefix;   // of keys in the store
};

// The connections of one communicator, with the members that Comm requires of its implementations.
class GlooPort {
  public:
    virtual ~GlooPort() = default;
    virtual GlooFailure post(Comm::Ticket ticket, std::span<const Transfer> sends,
                             std::span<const Transfer> receives) noexcept = 0;
    virtual GlooFailure post_all_reduce(Comm::Ticket ticket, Tensor data) noexcept = 0;
    virtual GlooFailure finish(Comm::Ticket ticket) noexcept = 0;
};

// The module's one symbol, longreach_open_gloo: returns once all ranks are connected.
using OpenGloo = void (*)(const GlooStore& store, const GlooPlace& place, std::unique_ptr<GlooPort>& port,
                          GlooFailure& failure) noexcept;

}  // namespace longreach::ranks
