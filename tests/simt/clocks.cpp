#include "simt/clocks.h"

#include <algorithm>

#include "simt/machine.h"

namespace longreach::simt {

namespace {

void raise(uint32_t* to, const uint32_t* from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

void Clocks::start_block(size_t threads) {
    on_ = false;
    threads_ = threads;
}

void Clocks::turn_on() {
    if (on_) return;
    on_ = true;
    rows_.assign(threads_ * columns(), 0);
    fences_.assign(threads_, {});
    const Machine& m = machine();
    for (size_t t = 0; t < threads_; ++t)
        for (size_t lane = 0; lane < 32 && t / 32 * 32 + lane < threads_; ++lane)
            row(static_cast<int>(t))[t / 32 * 32 + lane] = m.warps[t / 32].knows[t % 32][lane];
}

void Clocks::release(int thread, Clock& into) {
    into.resize(columns());
    raise(into.data(), row(thread), columns());
    tick(thread);
}

void Clocks::acquire(int thread, const Clock& from) {
    if (!from.empty()) raise(row(thread), from.data(), columns());
}

void Clocks::join(const std::vector<int>& who) {
    Clock known(columns());
    for (int thread : who) raise(known.data(), row(thread), columns());
    for (int thread : who) {
        std::copy(known.begin(), known.end(), row(thread));
        tick(thread);
    }
}

void Clocks::join_warp(size_t first, uint32_t mask) {
    std::vector<int> who;
    for (size_t lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) who.push_back(static_cast<int>(first + lane));
    join(who);
}

void Clocks::join_block() {
    std::vector<int> who(threads_);
    for (size_t t = 0; t < threads_; ++t) who[t] = static_cast<int>(t);
    join(who);
}

void Clocks::fence(int thread) {
    fences_[static_cast<size_t>(thread)].push_back(own(thread));
    tick(thread);
}

bool Clocks::fenced(unsigned thread, uint32_t written, uint32_t known) const {
    const std::vector<uint32_t>& all = fences_[thread];
    auto behind = std::lower_bound(all.begin(), all.end(), written);
    return behind != all.end() && *behind <= known;
}

}  // namespace longreach::simt
