#include "ranks/rendezvous.h"

#include <algorithm>

#include "base/text.h"

namespace longreach::ranks {

namespace {

constexpr double answer_seconds = 60;  // for requests that rank 0 answers at once
constexpr double slack_seconds = 15;   // beyond a deadline that rank 0 itself keeps

uint32_t milliseconds(double seconds) {
    return static_cast<uint32_t>(std::clamp(seconds * 1000, 0.0, 4e9));
}

void check_key(const std::string& key) {
    check(!key.empty() && key.size() <= most_key_bytes, "a key of {} bytes", key.size());
}

}  // namespace

Rendezvous::Rendezvous(const RankPlace& place, const std::string& token, double connect_seconds)
    : channel_(place, token, Role::store, monotonic_seconds() + connect_seconds) {}

std::string Rendezvous::request(const std::string& message, double seconds) {
    const double deadline = monotonic_seconds() + seconds;
    std::string answer;
    try {
        channel_.send(message, deadline);
        answer = channel_.receive(deadline);
    } catch (const Error&) {
        // Before it closed the connection, rank 0 may have said why.
        std::optional<std::string> last = channel_.last_message();
        if (!last || static_cast<Message>(last->front()) != Message::failed) throw;
        answer = std::move(*last);
    }
    Reader in(answer);
    if (static_cast<Message>(in.u8()) != Message::failed) return answer;
    const uint8_t code = in.u8();
    const bool known = code >= 1 && code <= static_cast<uint8_t>(ExitCode::locked);
    throw Error(known ? static_cast<ExitCode>(code) : ExitCode::peer, one_line(in.text(member_frame_bytes)));
}

void Rendezvous::join(const std::vector<Fingerprint>& fingerprints, double seconds) {
    check(fingerprints.size() <= most_fingerprints, "{} fingerprints", fingerprints.size());
    Writer message(Message::join);
    message.u32(static_cast<uint32_t>(fingerprints.size()));
    for (const Fingerprint& f : fingerprints) {
        check_key(f.name);
        check(f.value.size() <= most_key_bytes, "the fingerprint {} has {} bytes", f.name, f.value.size());
        message.text(f.name).text(f.value);
    }
    request(message.str(), seconds);
}

void Rendezvous::set(const std::string& key, const std::string& value) {
    check_key(key);
    check(value.size() <= most_value_bytes, "the value of {} has {} bytes", key, value.size());
    request(Writer(Message::set).text(key).text(value).str(), answer_seconds);
}

std::string Rendezvous::wait(const std::string& key, double seconds) {
    check_key(key);
    const std::string answer =
        request(Writer(Message::wait).text(key).u32(milliseconds(seconds)).str(), seconds + slack_seconds);
    Reader in(answer);
    in.u8();
    return in.text(most_value_bytes);
}

void Rendezvous::barrier(const std::string& name, double seconds) {
    check_key(name);
    request(Writer(Message::barrier).text(name).u32(milliseconds(seconds)).str(), seconds + slack_seconds);
}

void Rendezvous::leave(ExitCode code, const std::string& reason) {
    const Writer message =
        Writer(Message::bye).u8(static_cast<uint8_t>(code)).text(std::string_view(reason).substr(0, 4096));
    try {
        channel_.send(message.str(), monotonic_seconds() + answer_seconds);
    } catch (const Error&) {
        // Rank 0 has ended already.
    }
    channel_.close();
}

}  // namespace longreach::ranks
