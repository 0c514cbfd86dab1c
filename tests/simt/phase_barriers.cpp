#include "simt/phase_barriers.h"

#include <algorithm>
#include <limits>

#include "simt/hopper.h"
#include "simt/machine.h"

namespace longreach::simt {

namespace {

constexpr int64_t none = std::numeric_limits<int64_t>::min();
constexpr int most_fruitless = 64, most_arrivals = (1 << 20) - 1;

[[noreturn]] void wrong(Kind kind, const std::string& text, const Place& place) {
    Machine& m = machine();
    Finding finding{kind, m.name_thread(m.block, m.current) + " at " + place.text() + ": " + text};
    finding.place = place.text();
    m.fatal(std::move(finding));
}

}  // namespace

void PhaseBarriers::start_block() {
    all_.clear();
    waiters_.clear();
    fruitless_ = 0;
}

std::string PhaseBarriers::name(const State& barrier) const {
    return "the PhaseBarrier at " + machine().name_address(barrier.address);
}

void PhaseBarriers::end_block() {
    for (const State& barrier : all_) {
        if (!barrier.unseen && !barrier.brought) continue;
        Finding finding{Kind::async_unwaited,
                        "the block ended and nobody waited for the phase of " + name(barrier) +
                            " in which the copy of " + barrier.copy_place.text() + " came",
                        machine().block};
        finding.place = barrier.copy_place.text();
        machine().found(std::move(finding));
    }
}

void PhaseBarriers::initialise(uintptr_t at, int arrivals, const Place& place) {
    Machine& m = machine();
    if (at % 8 != 0) wrong(Kind::misaligned, "barrier_init of " + m.name_address(at), place);
    if (at < m.arena || at + 8 > m.arena + m.shape.shared_bytes)
        wrong(Kind::shared_out_of_bounds, "barrier_init of " + m.name_address(at), place);
    for (const State& other : all_)
        if (other.address == at)
            wrong(Kind::phase_barrier_misused,
                  "barrier_init of " + name(other) + ", initialised at " + other.place.text() + " before",
                  place);
    if (arrivals < 1 || arrivals > most_arrivals)
        wrong(Kind::phase_barrier_misused, "barrier_init for " + std::to_string(arrivals) + " arrivals",
              place);
    if (all_.size() == Clocks::most_engines)
        wrong(Kind::phase_barrier_misused,
              "more than " + std::to_string(Clocks::most_engines) + " barriers, the harness has no room",
              place);
    memory_access(at, 8, Use::write, place.numbered());
    if (m.watching) m.shared_shadow.set_barrier(at);
    State fresh;
    fresh.address = at;
    fresh.expected = fresh.pending = arrivals;
    fresh.initialiser = m.current;
    fresh.place = place;
    fresh.passed.assign(m.threads.size(), none);
    all_.push_back(std::move(fresh));
}

void PhaseBarriers::fence() {
    Machine& m = machine();
    for (State& barrier : all_)
        if (barrier.initialiser == m.current && barrier.fenced == 0) barrier.fenced = m.clocks.own(m.current);
    m.clocks.tick(m.current);
}

PhaseBarriers::State& PhaseBarriers::use(uintptr_t at, const char* what, const Place& place, bool by_engine) {
    Machine& m = machine();
    auto known = std::find_if(all_.begin(), all_.end(), [&](const State& one) { return one.address == at; });
    if (known == all_.end())
        wrong(Kind::phase_barrier_misused,
              std::string(what) + " on " + m.name_address(at) + ", where barrier_init() made no barrier",
              place);
    State& barrier = *known;
    if (!by_engine && m.current == barrier.initialiser) return barrier;
    bool ordered = barrier.fenced != 0 && m.clocks.row(m.current)[barrier.initialiser] >= barrier.fenced;
    if (ordered || barrier.blamed) return barrier;
    barrier.blamed = true;
    Finding finding{Kind::phase_barrier_unfenced, "", m.block, m.current};
    finding.message = m.name_thread(m.block, m.current) + " at " + place.text() + ": " + what + " on " +
                      name(barrier) + ", and " +
                      (barrier.fenced == 0 ? "no fence_barrier_init() stands after its barrier_init() at "
                                           : "nothing orders that after its barrier_init() at ") +
                      barrier.place.text();
    finding.place = place.text();
    finding.other_place = barrier.place.text();
    m.found(std::move(finding));
    return barrier;
}

void PhaseBarriers::complete(State& barrier) {
    Machine& m = machine();
    if (barrier.copies > 0) {
        Finding finding{Kind::phase_bytes,
                        "phase " + std::to_string(barrier.phase) + " of " + name(barrier) +
                            " completes while a copy of " + barrier.copy_place.text() +
                            " is under way to it: fewer bytes were announced than are copied",
                        m.block, m.current};
        finding.place = barrier.copy_place.text();
        m.fatal(std::move(finding));
    }
    if (barrier.unseen) {
        Finding finding{Kind::async_unwaited,
                        "phase " + std::to_string(barrier.phase) + " of " + name(barrier) +
                            " completes, and nobody waited for the copy of " + barrier.copy_place.text() +
                            " in the one before",
                        m.block};
        finding.place = barrier.copy_place.text();
        m.found(std::move(finding));
    }
    auto number = static_cast<unsigned>(&barrier - all_.data());
    ++barrier.phase;
    barrier.pending = barrier.expected;
    barrier.unseen = barrier.brought;
    barrier.brought = false;
    barrier.arriving.resize(m.clocks.columns());
    barrier.arriving[m.clocks.column(Clocks::first_engine + number)] = static_cast<uint32_t>(barrier.phase);
    barrier.completed = barrier.arriving;
    fruitless_ = 0;
    m.bulk_copies.phase_completed(number);
    auto wake = [&](const Waiter& waiter) {
        if (waiter.barrier != number || (barrier.phase & 1) == waiter.parity) return false;
        m.wake(static_cast<size_t>(waiter.thread));
        return true;
    };
    waiters_.erase(std::remove_if(waiters_.begin(), waiters_.end(), wake), waiters_.end());
}

void PhaseBarriers::settle(State& barrier) {
    if (barrier.pending > 0 || barrier.bytes > 0) return;
    if (barrier.bytes < 0) {
        Finding finding{Kind::phase_bytes,
                        "phase " + std::to_string(barrier.phase) + " of " + name(barrier) + " got " +
                            std::to_string(-barrier.bytes) + " bytes more than were announced",
                        machine().block, machine().current};
        finding.place = barrier.copy_place.text();
        machine().fatal(std::move(finding));
    }
    complete(barrier);
}

void PhaseBarriers::arrive(uintptr_t at, int bytes, const Place& place) {
    Machine& m = machine();
    State& barrier = use(at, bytes == 0 ? "barrier_arrive" : "barrier_arrive_expecting", place);
    if (barrier.pending == 0)
        wrong(Kind::phase_barrier_misused,
              "one arrival more than the " + std::to_string(barrier.expected) + " of phase " +
                  std::to_string(barrier.phase) + " on " + name(barrier),
              place);
    if (bytes < 0 || bytes > most_arrivals)
        wrong(Kind::phase_bytes, "announces " + std::to_string(bytes) + " bytes, beyond 2^20 - 1", place);
    m.clocks.release(m.current, barrier.arriving);
    --barrier.pending;
    barrier.bytes += bytes;
    settle(barrier);
    m.engines_may_move();
}

bool PhaseBarriers::passes(uintptr_t at, int parity, const Place& place) {
    if (parity != 0 && parity != 1)
        wrong(Kind::phase_barrier_misused, "waits for parity " + std::to_string(parity), place);
    return (use(at, "a wait", place).phase & 1) != parity;
}

void PhaseBarriers::suspend(const State& barrier, int parity, const Place& place, bool trying) {
    Machine& m = machine();
    waiters_.push_back({m.current, static_cast<size_t>(&barrier - all_.data()), parity, trying});
    Thread& self = m.threads[static_cast<size_t>(m.current)];
    self.place = place;
    m.running = false;
    self.wait = Wait::phase;
    self.waits_for = "wait for a PhaseBarrier";
    m.wait_here();
}

// A thread waits for the phases of a barrier one after the other, from the first (or the one said to lie before it) on.
// What passes it by is a phase that it did not mean: the parity is the same again.
void PhaseBarriers::wait(uintptr_t at, int parity, const Place& place) {
    Machine& m = machine();
    m.engines_may_move();
    while (!passes(at, parity, place)) suspend(use(at, "barrier_wait", place), parity, place, false);
    State& barrier = use(at, "barrier_wait", place);
    int64_t& last = barrier.passed[static_cast<size_t>(m.current)];
    int64_t meant = last == none ? -parity : last + 1, passed = barrier.phase - 1;
    if (passed != meant) {
        Finding finding{Kind::phase_wrapped, "", m.block, m.current};
        finding.message =
            m.name_thread(m.block, m.current) + " at " + place.text() + ": waits for parity " +
            std::to_string(parity) + " of " + name(barrier) + " and passes phase " + std::to_string(passed) +
            ", where " +
            (last == none ? "it has not waited yet" : "it has passed phase " + std::to_string(last));
        finding.place = place.text();
        m.found(std::move(finding));
    }
    last = passed;
    barrier.unseen = false;
    m.clocks.acquire(m.current, barrier.completed);
}

// A wait for a while, with an answer: the thread hands on once, for as long as others can go on.
bool PhaseBarriers::try_wait(uintptr_t at, int parity, const Place& place) {
    Machine& m = machine();
    m.engines_may_move();
    if (!passes(at, parity, place)) suspend(use(at, "barrier_try_wait", place), parity, place, true);
    if (!passes(at, parity, place)) return false;
    State& barrier = use(at, "barrier_try_wait", place);
    barrier.unseen = false;
    m.clocks.acquire(m.current, barrier.completed);
    return true;
}

bool PhaseBarriers::let_try_waits_return() {
    bool any = false;
    if (fruitless_ < most_fruitless)
        for (size_t i = waiters_.size(); i-- > 0;) {
            if (!waiters_[i].trying) continue;
            any = true;
            machine().wake(static_cast<size_t>(waiters_[i].thread));
            waiters_.erase(waiters_.begin() + static_cast<ptrdiff_t>(i));
        }
    if (any) ++fruitless_;
    return any;
}

size_t PhaseBarriers::of_copy(uintptr_t at, const Place& place) {
    State& barrier = use(at, "a copy", place, true);
    ++barrier.copies;
    barrier.copy_place = place;
    return static_cast<size_t>(&barrier - all_.data());
}

void PhaseBarriers::landed(size_t number, size_t bytes) {
    State& barrier = all_[number];
    --barrier.copies;
    barrier.brought = true;
    barrier.bytes -= static_cast<int64_t>(bytes);
    settle(barrier);
}

std::string PhaseBarriers::table() const {
    std::string text;
    for (size_t i = 0; i < all_.size(); ++i) {
        const State& barrier = all_[i];
        text += "\n  " + name(barrier) + ", initialised at " + barrier.place.text() + ": phase " +
                std::to_string(barrier.phase) + ", " + std::to_string(barrier.pending) + " of " +
                std::to_string(barrier.expected) + " arrivals and " + std::to_string(barrier.bytes) +
                " bytes missing";
        for (int parity : {0, 1}) {
            std::vector<int> who;
            for (const Waiter& waiter : waiters_)
                if (waiter.barrier == i && waiter.parity == parity) who.push_back(waiter.thread);
            std::sort(who.begin(), who.end());
            if (!who.empty())
                text += "; threads " + thread_ranges(who) + " wait for parity " + std::to_string(parity);
        }
    }
    return text;
}

}  // namespace longreach::simt
