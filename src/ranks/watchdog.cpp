#include "ranks/watchdog.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace longreach::ranks {

bool ended_in_order(int exit_code) {
    return exit_code == static_cast<int>(ExitCode::ok) || exit_code == static_cast<int>(ExitCode::stopped);
}

std::string rank_list(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) {
        if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    return text;
}

Watchdog::Watchdog(int ranks, const WatchdogOptions& options)
    : options_(options), ranks_(static_cast<size_t>(ranks)) {}

void Watchdog::arrived(int rank, const std::string& who, double now) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    r.present = true;
    r.who = who;
    r.last_beat = r.changed = now;
}

void Watchdog::beat(int rank, const CollectiveState& state, double now) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    if (state.step != r.state.step || state.begun != r.state.begun || state.finished != r.state.finished)
        r.changed = now;
    r.last_beat = now;
    r.state = {state.step, state.begun, state.finished, {}, state.busy};
    // Ranks that wait for a busy rank are not stuck.
    for (Rank& other : ranks_)
        if (!r.state.busy.empty() && other.state.finished + 1 > r.state.begun) other.changed = now;
    for (const CollectiveRecord& record : state.recent) {
        r.recent[record.sequence] = record;
        for (const Rank& other : ranks_) {
            const auto theirs = other.recent.find(record.sequence);
            if (theirs == other.recent.end() || theirs->second.same_call(record)) continue;
            if (differs_ && *differs_ <= record.sequence) continue;
            if (!differs_) differs_since_ = now;
            differs_ = record.sequence;
        }
    }
    // Once two ranks differ, the message needs their records.
    while (r.recent.size() > collective_slots && !differs_) r.recent.erase(r.recent.begin());
}

void Watchdog::left(int rank, int exit_code, const std::string& reason) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    r.left = true;
    r.exit_code = exit_code;
    r.reason = reason;
}

void Watchdog::lost(int rank) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    if (!r.left) r.lost = true;
}

double Watchdog::limit() const {
    const bool started =
        std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state.step >= 1; });
    return started ? options_.timeout : options_.first_timeout;
}

std::string Watchdog::last_word(const Rank& rank) const {
    if (rank.recent.empty()) return fmt::format("it has begun no collective (step {})", rank.state.step);
    const CollectiveRecord& newest = rank.recent.rbegin()->second;
    return fmt::format("its newest is {}, {}", describe(newest),
                       rank.state.finished >= newest.sequence ? "finished" : "not finished");
}

std::string Watchdog::condition(const Rank& rank, double now) const {
    if (rank.left) return "it has ended normally";
    const double age = now - rank.last_beat;
    const std::string& busy = rank.state.busy;
    if (silent(rank, now))
        return fmt::format("silent for {:.0f} s{}: stopped, starved or cut off from the network", age,
                           busy.empty() ? "" : " while " + busy);
    return fmt::format("alive, heard {:.1f} s ago: {}", age,
                       busy.empty() ? "slow, or busy with something else" : busy);
}

std::string Watchdog::failures() const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < ranks_.size(); ++i) {
        const Rank& r = ranks_[i];
        const std::string named = fmt::format("rank {} ({})", i, r.who);
        if (r.left && !ended_in_order(r.exit_code))
            parts.push_back(fmt::format("{} failed with exit code {}: {}", named, r.exit_code, r.reason));
        if (r.lost)
            parts.push_back(
                fmt::format("{} is gone: its connection closed without a goodbye, as when a process "
                            "is killed or crashes; {}",
                            named, last_word(r)));
    }
    return join(parts, "; ");
}

std::string Watchdog::mismatch(double now) {
    if (!differs_) return {};
    struct Group {
        CollectiveRecord call;
        std::vector<int> ranks;
    };
    std::vector<Group> groups;
    bool complete = true;
    for (size_t i = 0; i < ranks_.size(); ++i) {
        const auto found = ranks_[i].recent.find(*differs_);
        if (found == ranks_[i].recent.end()) {
            complete = false;
            continue;
        }
        auto same = std::find_if(groups.begin(), groups.end(),
                                 [&](const Group& g) { return g.call.same_call(found->second); });
        if (same == groups.end()) same = groups.insert(same, {found->second, {}});
        same->ranks.push_back(static_cast<int>(i));
    }
    if (!complete && now - differs_since_ < options_.gather) return {};
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group& a, const Group& b) { return a.ranks.size() > b.ranks.size(); });
    std::vector<std::string> sides;
    for (const Group& g : groups)
        sides.push_back(fmt::format("{} {} {} (step {})", rank_list(g.ranks),
                                    g.ranks.size() == 1 ? "calls" : "call", describe_call(g.call),
                                    g.call.step));
    return fmt::format("the ranks differ on collective {}: {}", *differs_, join(sides, ", "));
}

std::string Watchdog::stuck(double now) const {
    // The oldest collective in which a rank has waited too long, or waits while another rank is silent
    // for too long.
    const bool one_is_silent = !silent(now).empty();
    uint64_t sequence = std::numeric_limits<uint64_t>::max();
    double waited = 0;
    for (const Rank& r : ranks_) {
        if (!r.present || r.left || r.state.begun <= r.state.finished) continue;
        if (now - r.changed <= limit() && !one_is_silent) continue;
        sequence = std::min(sequence, r.state.finished + 1);
        waited = std::max(waited, now - r.changed);
    }
    if (waited == 0) return {};
    std::vector<int> waiting, passed;
    std::vector<std::string> behind, silent_ones;
    std::string call = fmt::format("collective {}", sequence);
    for (size_t i = 0; i < ranks_.size(); ++i) {
        const Rank& r = ranks_[i];
        const int rank = static_cast<int>(i);
        if (!r.present) {
            behind.push_back(fmt::format("rank {} has sent no heartbeat at all", rank));
        } else if (r.state.begun < sequence) {
            behind.push_back(fmt::format("rank {} ({}) has not begun it: {}; {}", rank, r.who,
                                         condition(r, now), last_word(r)));
        } else {
            (r.state.finished < sequence ? waiting : passed).push_back(rank);
            const auto found = r.recent.find(sequence);
            if (found != r.recent.end()) call = describe(found->second);
            if (!r.left && silent(r, now))
                silent_ones.push_back(fmt::format("rank {} ({}) is {}", rank, r.who, condition(r, now)));
        }
    }
    std::string text = fmt::format("no progress for {:.0f} s: {} {} in {}", waited, rank_list(waiting),
                                   waiting.size() == 1 ? "waits" : "wait", call);
    if (!passed.empty()) text += fmt::format(", which {} finished", rank_list(passed));
    if (behind.empty() && silent_ones.empty() && passed.empty())
        text += ", which all ranks have begun and none has finished: the network or a device hangs";
    behind.insert(behind.end(), silent_ones.begin(), silent_ones.end());
    for (const std::string& part : behind) text += "; " + part;
    return text;
}

std::string Watchdog::silent(double now) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < ranks_.size(); ++i) {
        const Rank& r = ranks_[i];
        if (r.present && !r.left && now - r.last_beat > limit())
            parts.push_back(fmt::format("rank {} ({}) is {}; {}", i, r.who, condition(r, now), last_word(r)));
    }
    return join(parts, "; ");
}

std::optional<std::string> Watchdog::verdict(double now) {
    if (verdict_.empty()) verdict_ = failures();
    if (verdict_.empty()) verdict_ = mismatch(now);
    if (verdict_.empty()) verdict_ = stuck(now);
    if (verdict_.empty()) verdict_ = silent(now);
    return verdict_.empty() ? std::nullopt : std::optional(verdict_);
}

}  // namespace longreach::ranks
