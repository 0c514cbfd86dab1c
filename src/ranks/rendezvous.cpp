#include "ranks/rendezvous.h"

#include <algorithm>

#include "base/text.h"

namespace longreach::ranks {

namespace {

constexpr double slack_seconds = 30;  // beyond a deadline that rank 0 itself keeps
constexpr double set_seconds = 60;

uint32_t milliseconds(double seconds) {
    return static_cast<uint32_t>(std::clamp(seconds * 1000, 0.0, 4e9));
}

}  // namespace

Rendezvous::Rendezvous(const RankPlace& place, const std::string& token, double connect_seconds)
    : channel_(place, token, Role::store, monotonic_seconds() + connect_seconds) {}

std::string Rendezvous::request(const std::string& message, double seconds) {
    const double deadline = monotonic_seconds() + seconds + slack_seconds;
    std::string answer;
    try {
        channel_.send(message, deadline);
        answer = channel_.receive(deadline);
    } catch (const Error&) {
        // Before it closed the connection, rank 0 may have said why.
        std::optional<std::string> last = channel_.last_message();
        if (!last || Reader(*last).kind() != Message::failed) throw;
        answer = std::move(*last);
    }
    Reader in(answer);
    if (in.kind() != Message::failed) return answer;
    throw Error(ExitCode::peer, one_line(in.text()));
}

void Rendezvous::join(const Fingerprints& fingerprints, double seconds) {
    meet(join_barrier, seconds, fingerprints);
}

void Rendezvous::barrier(const std::string& name, double seconds) {
    meet(name, seconds, {});
}

void Rendezvous::meet(const std::string& name, double seconds, const Fingerprints& fingerprints) {
    Writer message(Message::meet);
    message.text(name).u32(milliseconds(seconds)).u32(static_cast<uint32_t>(fingerprints.size()));
    for (const auto& [what, value] : fingerprints) message.text(what).text(value);
    request(message.str(), seconds);
}

void Rendezvous::set(const std::string& key, const std::string& value) {
    check(value.size() <= most_value_bytes, "the value of {} has {} bytes", key, value.size());
    request(Writer(Message::set).text(key).text(value).str(), set_seconds);
}

std::string Rendezvous::wait(const std::string& key, double seconds) {
    const std::string answer =
        request(Writer(Message::wait).text(key).u32(milliseconds(seconds)).str(), seconds);
    Reader in(answer);
    in.u8();
    return in.text(most_value_bytes);
}

}  // namespace longreach::ranks
