#include "ranks/control.h"

#include <algorithm>

#include "base/text.h"

namespace longreach::ranks {

namespace {

constexpr double control_connect_seconds = 60;

}  // namespace

std::string encode_beat(const CollectiveState& state, uint64_t known) {
    std::vector<CollectiveRecord> fresh;
    for (const CollectiveRecord& record : state.recent)
        if (record.sequence > known) fresh.push_back(record);
    Writer out;
    out.i64(state.step).u64(state.begun).u64(state.finished).text(state.busy);
    out.u32(static_cast<uint32_t>(fresh.size()));
    for (const CollectiveRecord& r : fresh)
        out.u64(r.sequence)
            .i64(r.step)
            .u8(static_cast<uint8_t>(r.op))
            .u8(static_cast<uint8_t>(r.element))
            .u64(r.count);
    return out.str();
}

CollectiveState decode_beat(std::string_view body) {
    Reader in(body);
    CollectiveState state;
    state.step = in.i64();
    state.begun = in.u64();
    state.finished = in.u64();
    state.busy = one_line(in.text(most_busy_bytes));
    const uint32_t count = in.u32();
    require(state.finished <= state.begun && count <= collective_slots, ExitCode::peer,
            "a heartbeat contradicts itself");
    for (uint32_t i = 0; i < count; ++i) {
        CollectiveRecord r;
        r.sequence = in.u64();
        r.step = in.i64();
        const uint8_t op = in.u8(), element = in.u8();
        r.count = in.u64();
        const bool good = r.sequence >= 1 && r.sequence <= state.begun && is_collective_op(op) &&
                          is_element_type(element) &&
                          (state.recent.empty() || r.sequence > state.recent.back().sequence);
        require(good, ExitCode::peer, "a heartbeat has a record that cannot be");
        r.op = static_cast<CollectiveOp>(op);
        r.element = static_cast<ElementType>(element);
        state.recent.push_back(r);
    }
    in.end();
    return state;
}

Heartbeat::Heartbeat(const RankPlace& place, const std::string& token, const CollectiveLog& log, OnEnd on_end,
                     const HeartbeatOptions& options)
    : log_(log),
      on_end_(std::move(on_end)),
      options_(options),
      channel_(place, token, Role::control, monotonic_seconds() + control_connect_seconds) {
    const BlockedSignals guard;
    thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
    stop();
}

void Heartbeat::leave(ExitCode code, const std::string& reason) {
    stop();
    channel_.say_goodbye(code, reason);
}

void Heartbeat::stop() {
    if (!thread_.joinable()) return;
    stop_ = true;
    channel_.stop_receiving();  // wakes the thread
    thread_.join();
}

void Heartbeat::run() {
    std::string reason;
    try {
        uint64_t known = 0;
        double last = monotonic_seconds(), unheard = 0;
        for (double next = last; !stop_ && reason.empty();) {
            const double now = monotonic_seconds();
            // A pause of this process itself (SIGSTOP, suspend) says nothing about rank 0.
            unheard += std::min(now - last, 2 * options_.interval);
            last = now;
            if (now >= next) {
                const CollectiveState state = log_.state();
                channel_.send(Writer(Message::beat).text(encode_beat(state, known)).str(),
                              now + options_.unheard);
                known = state.begun;
                next = now + options_.interval;
            }
            if (const std::optional<std::string> message = channel_.poll(next)) {
                Reader in(*message);
                unheard = 0;
                if (in.kind() == Message::end) reason = one_line(in.text());
            }
            require(unheard <= options_.unheard, ExitCode::peer,
                    "rank 0 at {} has been silent for {:.0f} s: stopped, starved or cut off from the network",
                    channel_.where(), unheard);
        }
    } catch (const Error& error) {
        reason = error.what();
    }
    if (!reason.empty() && !stop_) on_end_(reason);
}

}  // namespace longreach::ranks
