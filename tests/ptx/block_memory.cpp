#include "ptx/block.h"

#include <cstring>

namespace longreach::ptx {

namespace {

// Generic addresses of what is not global, far from any pointer of the host.
constexpr uint64_t shared_window = uint64_t{1} << 56, local_window = uint64_t{1} << 57,
                   param_window = uint64_t{1} << 58, window_bytes = uint64_t{1} << 32;

}  // namespace

uint64_t Block::address(const Step& s, const Operand& o, int lane) const {
    if (!o.of_register) return o.number;
    Operand base = o;
    base.kind = Operand::Kind::reg;
    return used(s, base, lane) + o.number;
}

std::byte* Block::place(const Step& s, Space space, uint64_t at, size_t bytes, int lane, char why) {
    if (at % bytes != 0) fault(s, lane, "an address that is no multiple of " + std::to_string(bytes));
    if (space == Space::generic) {
        space = Space::global;
        const auto within = [&](uint64_t window) { return at - window < window_bytes; };
        if (within(shared_window))
            space = Space::shared, at -= shared_window;
        else if (within(local_window))
            space = Space::local, at -= local_window;
        else if (within(param_window))
            space = Space::param, at -= param_window;
    }
    const auto inside = [&](size_t size) {
        if (at > size || bytes > size - at)
            fault(s, lane, "byte " + std::to_string(at) + " of " + std::to_string(size));
    };
    const auto flags = [&](std::vector<bool>& known, size_t first) {
        for (size_t i = first; i < first + bytes; ++i) {
            if (why == 'w')
                known[i] = true;
            else if (why == 'r' && !known[i])
                fault(s, lane, "byte " + std::to_string(at) + " is read before it is written");
        }
    };
    switch (space) {
        case Space::shared:
            inside(shared_.size());
            flags(shared_known_, at);
            if (why == 'w' && hopper_.used) note_write(at, bytes, lane);
            return &shared_[at];
        case Space::local: {
            inside(entry_.local_bytes);
            const size_t first = static_cast<size_t>(lane) * entry_.local_bytes + at;
            flags(warp_->local_known, first);
            return &warp_->local[first];
        }
        case Space::param:
            if (at >= argument_base) {
                at -= argument_base;
                inside(entry_.argument_bytes);
                return argument(at, lane);
            }
            inside(launch_.parameters.size());
            if (why == 'w') fault(s, lane, "a parameter is written");
            return const_cast<std::byte*>(&launch_.parameters[at]);
        default:
            break;
    }
    for (const auto& [name, variable] : module_.variables)
        if (at - reinterpret_cast<uint64_t>(variable.data()) < variable.size())
            return reinterpret_cast<std::byte*>(at);
    try {
        (why == 'w' ? memory_.written : memory_.read)(at, bytes);
    } catch (const Fault& f) {
        fault(s, lane, f.what());
    }
    return reinterpret_cast<std::byte*>(at);
}

void Block::load(const Step& s, int lane) {
    const size_t one = static_cast<size_t>(bits_of(s.type)) / 8;
    const std::byte* from =
        place(s, s.space, address(s, *s.b, lane), one * static_cast<size_t>(s.elements), lane, 'r');
    for (int i = 0; i < s.count_a; ++i) {
        uint64_t v = 0;
        std::memcpy(&v, from + static_cast<size_t>(i) * one, one);
        set(s.a[i], lane, is_signed(s.type) ? sign_extended(v, bits_of(s.type)) : v);
    }
}

void Block::store(const Step& s, int lane) {
    const size_t one = static_cast<size_t>(bits_of(s.type)) / 8;
    std::byte* to =
        place(s, s.space, address(s, *s.a, lane), one * static_cast<size_t>(s.elements), lane, 'w');
    for (int i = 0; i < s.count_b; ++i) {
        const uint64_t v = used(s, s.b[i], lane);
        std::memcpy(to + static_cast<size_t>(i) * one, &v, one);
    }
}

void Block::convert_address(const Step& s, int lane) {
    const uint64_t window = s.space == Space::shared  ? shared_window
                            : s.space == Space::local ? local_window
                            : s.space == Space::param ? param_window
                                                      : 0;
    const uint64_t v = used(s, *s.b, lane);
    set(*s.a, lane, s.in->has("to") ? v - window : v + window);
}

void Block::atomic(const Step& s, int lane) {
    const bool returns = s.in->words[0] == "atom";
    if (!s.in->has("add") || bits_of(s.type) != 32 || is_float(s.type)) unknown(module_, *s.in);
    const uint64_t where = address(s, returns ? *s.b : *s.a, lane);
    std::byte* at = place(s, s.space, where, 4, lane, 'r');
    place(s, s.space, where, 4, lane, 'w');
    uint32_t before = 0;
    std::memcpy(&before, at, 4);
    const uint32_t after = before + static_cast<uint32_t>(used(s, returns ? *s.c : *s.b, lane));
    std::memcpy(at, &after, 4);
    if (returns) set(*s.a, lane, before);
}

void Block::copy(const Step& s, int lane) {
    if (!s.in->has("shared") || !s.in->has("global")) unknown(module_, *s.in);
    PendingCopy p;
    p.to = address(s, *s.a, lane);
    p.from = address(s, *s.b, lane);
    p.bytes = static_cast<int>(used(s, *s.c, lane));
    p.valid = s.d ? static_cast<int>(static_cast<int32_t>(used(s, *s.d, lane))) : p.bytes;
    if (p.bytes != 4 && p.bytes != 8 && p.bytes != 16) fault(s, lane, "a copy of 4, 8 or 16 bytes expected");
    if (s.in->has("cg") && p.bytes != 16) fault(s, lane, "cp.async.cg copies 16 bytes");
    if (p.valid < 0 || p.valid > p.bytes) fault(s, lane, "more bytes of the source than of the copy");
    if (p.from % static_cast<uint64_t>(p.bytes) != 0) fault(s, lane, "a source that is not aligned");
    // Until the copy lands its target holds nothing.
    place(s, Space::shared, p.to, static_cast<size_t>(p.bytes), lane, 'w');
    for (int i = 0; i < p.bytes; ++i) shared_known_[p.to + static_cast<uint64_t>(i)] = false;
    if (!launch_.copies_land_late) return land(s, p, lane);
    auto& groups = warp_->open[lane];
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back(p);
}

void Block::land(const Step& s, const PendingCopy& p, int lane) {
    std::byte* to = place(s, Space::shared, p.to, static_cast<size_t>(p.bytes), lane, 'w');
    std::memset(to, 0, static_cast<size_t>(p.bytes));
    for (int i = 0; i < p.valid; ++i)
        to[i] = *place(s, Space::global, p.from + static_cast<uint64_t>(i), 1, lane, 'r');
}

void Block::wait(const Step& s, int lane) {
    auto& groups = warp_->open[lane];
    if (groups.empty()) return;
    const bool all = s.in->has("wait_all");
    const uint64_t pending = all ? 0 : value(s, *s.a, lane);
    const size_t closed = groups.size() - 1;
    const size_t landing = all ? groups.size() : closed > pending ? closed - pending : 0;
    for (size_t g = 0; g < landing; ++g)
        for (const PendingCopy& p : groups[g]) land(s, p, lane);
    groups.erase(groups.begin(), groups.begin() + static_cast<ptrdiff_t>(landing));
}

}  // namespace longreach::ptx
