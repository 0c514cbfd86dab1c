#include "ranks/control.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/text.h"
#include "ranks/channel.h"

namespace longreach::ranks {

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

class Heartbeat::Loop {
  public:
    Loop(const RankPlace& place, const std::string& token, const CollectiveLog& log, OnEnd on_end,
         const HeartbeatOptions& options)
        : log_(log),
          on_end_(std::move(on_end)),
          options_(options),
          channel_(place, token, Role::control, monotonic_seconds() + options.connect),
          wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        const SignalsElsewhere guard;
        thread_ = std::thread([this] { run(); });
    }
    ~Loop() { stop(); }

    void leave(ExitCode code, const std::string& reason) {
        bye_ = Writer(Message::bye)
                   .u8(static_cast<uint8_t>(code))
                   .text(std::string_view(reason).substr(0, 4096))
                   .str();
        stop();
    }

  private:
    void stop() {
        if (!thread_.joinable()) return;
        stop_ = true;
        const uint64_t one = 1;
        const ssize_t ignored = ::write(wake_.get(), &one, sizeof one);
        static_cast<void>(ignored);
        thread_.join();
    }
    void run();

    const CollectiveLog& log_;
    const OnEnd on_end_;
    const HeartbeatOptions options_;
    Channel channel_;
    Descriptor wake_;
    std::string bye_;  // written before stop_, read after it
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

void Heartbeat::Loop::run() {
    std::string reason;
    try {
        uint64_t known = 0;
        double last = monotonic_seconds(), unheard = 0;
        for (double next = last; !stop_;) {
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
            const std::optional<std::string> message = channel_.poll(next, wake_.get());
            if (message) {
                Reader in(*message);
                const auto kind = static_cast<Message>(in.u8());
                unheard = 0;
                if (kind == Message::end) {
                    reason = one_line(in.text(member_frame_bytes));
                    break;
                }
            }
            require(unheard <= options_.unheard, ExitCode::peer,
                    "rank 0 at {} has been silent for {:.0f} s: stopped, starved or cut off from the network",
                    channel_.where(), unheard);
        }
        if (stop_ && !bye_.empty()) channel_.send(bye_, monotonic_seconds() + 5);
    } catch (const Error& error) {
        if (reason.empty()) reason = error.what();
    }
    channel_.close();
    if (!reason.empty() && !stop_) on_end_(reason);
}

Heartbeat::Heartbeat(const RankPlace& place, const std::string& token, const CollectiveLog& log, OnEnd on_end,
                     const HeartbeatOptions& options)
    : loop_(std::make_unique<Loop>(place, token, log, std::move(on_end), options)) {}
Heartbeat::~Heartbeat() = default;
void Heartbeat::leave(ExitCode code, const std::string& reason) {
    loop_->leave(code, reason);
}

}  // namespace longreach::ranks
