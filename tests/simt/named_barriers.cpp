#include "simt/named_barriers.h"

#include <algorithm>

#include "simt/hopper.h"
#include "simt/machine.h"

namespace longreach::simt {

namespace {

[[noreturn]] void wrong(const std::string& text, const Place& place) {
    Machine& m = machine();
    Finding finding{Kind::named_barrier_misused,
                    m.name_thread(m.block, m.current) + " at " + place.text() + ": " + text};
    finding.place = place.text();
    m.fatal(std::move(finding));
}

}  // namespace

void NamedBarriers::start_block() {
    all_ = {};
    size_t warps = (machine().threads.size() + 31) / 32;
    lanes_.assign(warps, 0);
    places_.assign(warps, Place());
}

// The lanes of a warp come one by one here and count as one, when the last of them has come.
void NamedBarriers::arrive(int id, int threads, bool waits, const Place& place) {
    Machine& m = machine();
    auto self = static_cast<size_t>(m.current);
    size_t warp = self / 32, first = warp * 32;
    if (lanes_[warp] > 0 && !(places_[warp] == place))
        wrong("lanes of the warp are at another named barrier, " + places_[warp].text(), place);
    places_[warp] = place;
    m.running = false;
    m.threads[self].place = place;
    m.threads[self].wait = Wait::named;
    m.threads[self].waits_for = "wait at a named barrier for lanes of their warp";
    if (++lanes_[warp] < __builtin_popcount(m.warps[warp].exists)) {
        m.wait_here();
        return;
    }
    lanes_[warp] = 0;
    for (size_t t = first; t < first + 32 && t < m.threads.size(); ++t) {
        m.threads[t].waits_for = waits ? "wait at a named barrier" : "";
        if (!waits) m.wake(t);
        if (waits) m.sleep(t);
    }
    warp_arrives(id, threads, waits, place);
    m.pass_on();
}

void NamedBarriers::warp_arrives(int id, int threads, bool waits, const Place& place) {
    Machine& m = machine();
    size_t warp = static_cast<size_t>(m.current) / 32;
    if (id < 1 || id > 15) wrong("named barrier " + std::to_string(id) + "; 1 to 15 there are", place);
    if (threads <= 0 || threads % 32 != 0 || static_cast<size_t>(threads) > m.threads.size())
        wrong("named barrier " + std::to_string(id) + " for " + std::to_string(threads) +
                  " threads; whole warps of the block's " + std::to_string(m.threads.size()) +
                  " are possible",
              place);
    Barrier& barrier = all_[static_cast<size_t>(id)];
    if (barrier.threads != 0 && barrier.threads != threads)
        wrong("named barrier " + std::to_string(id) + " for " + std::to_string(threads) + " threads, at " +
                  barrier.warps.front().place.text() + " for " + std::to_string(barrier.threads),
              place);
    for (const Warp& other : barrier.warps)
        if (other.number == warp)
            wrong("the warp arrives at named barrier " + std::to_string(id) +
                      " again before those have come that it arrived for at " + other.place.text(),
                  place);
    check_generation(id, barrier, warp, place);
    barrier.threads = threads;
    barrier.warps.push_back({warp, waits, place, m.clocks.own(static_cast<int>(warp * 32))});
    for (size_t t = warp * 32; t < warp * 32 + 32 && t < m.threads.size(); ++t)
        m.clocks.release(static_cast<int>(t), barrier.clock);
    if (static_cast<int>(barrier.warps.size()) * 32 >= threads) complete(barrier);
}

// Who belongs to a generation must not depend on who comes first: an arrival for the next one has to be ordered after
// all arrivals of this one. A barrier that two groups of warps use at the same time is found so in every schedule.
void NamedBarriers::check_generation(int id, const Barrier& barrier, size_t warp, const Place& place) const {
    Machine& m = machine();
    for (const Warp& other : barrier.before) {
        bool behind = false;
        for (size_t t = warp * 32; t < warp * 32 + 32 && t < m.threads.size() && !behind; ++t)
            behind = m.clocks.row(static_cast<int>(t))[other.number * 32] >= other.clock;
        if (!behind)
            wrong("the warp arrives at named barrier " + std::to_string(id) +
                      ", and nothing orders that after the arrival of warp " + std::to_string(other.number) +
                      " at " + other.place.text() + " in the generation before, which it might have filled",
                  place);
    }
}

void NamedBarriers::complete(Barrier& barrier) {
    Machine& m = machine();
    for (const Warp& warp : barrier.warps) {
        if (!warp.waits) continue;
        for (size_t t = warp.number * 32; t < warp.number * 32 + 32 && t < m.threads.size(); ++t) {
            m.clocks.acquire(static_cast<int>(t), barrier.clock);
            m.wake(t);
        }
    }
    Barrier next;
    next.before = std::move(barrier.warps);
    barrier = std::move(next);
}

std::string NamedBarriers::table() const {
    std::string text;
    for (size_t id = 1; id < all_.size(); ++id) {
        const Barrier& barrier = all_[id];
        if (barrier.threads == 0) continue;
        text += "\n  named barrier " + std::to_string(id) + " of " + std::to_string(barrier.threads) +
                " threads:";
        for (const Warp& warp : barrier.warps)
            text += " warp " + std::to_string(warp.number) + (warp.waits ? " waits " : " arrived ") +
                    warp.place.text() + ";";
    }
    return text;
}

}  // namespace longreach::simt
