#include "ptx/block.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace longreach::ptx {

void Block::run(Extent index) {
    index_ = index;
    std::fill(shared_.begin(), shared_.end(), std::byte{0xa5});
    shared_known_.assign(shared_.size(), false);
    for (size_t w = 0; w < warps_.size(); ++w) {
        Warp& warp = warps_[w];
        warp = Warp();
        warp.first = static_cast<int>(w) * 32;
        warp.lanes = std::min(32, threads_ - warp.first);
        warp.alive = warp.lanes == 32 ? ~0u : (1u << warp.lanes) - 1;
        warp.values.assign(entry_.registers.size() * 32, 0);
        warp.known.assign(entry_.registers.size(), 0);
        warp.local.assign(entry_.local_bytes * 32, std::byte{0xa5});
        warp.local_known.assign(entry_.local_bytes * 32, false);
        warp.arguments.assign(entry_.argument_bytes * 32, std::byte{});
    }
    start_hopper();
    for (;;) {
        bool moved = false, living = false;
        for (size_t k = 0; k < warps_.size(); ++k) {
            Warp& warp = warps_[launch_.last_first ? warps_.size() - 1 - k : k];
            while (advance(warp)) moved = true;
            living |= warp.alive != 0;
        }
        if (!living) break;
        if (release_barrier()) continue;
        if (!moved && !land_some()) standstill();
    }
    finish();
}

void Block::finish() const {
    if (!hopper_.loads.empty()) fault(*hopper_.loads.front().step, -1, "a copy under way at the block's end");
}

void Block::fault(const Step& s, int lane, const std::string& what) const {
    throw Fault(module_.path + ":" + std::to_string(s.in->line) + ": " + what + ", block " +
                std::to_string(index_.x) + "," + std::to_string(index_.y) + "," + std::to_string(index_.z) +
                (lane < 0 ? "" : ", thread " + std::to_string(warp_->first + lane)) + ": " + s.in->text);
}

bool Block::release_barrier() {
    uint32_t any = 0;
    for (const Warp& w : warps_) {
        if ((w.alive & ~w.at_barrier) != 0) return false;
        any |= w.at_barrier;
    }
    for (Warp& w : warps_) w.at_barrier = 0;
    return any != 0;
}

void Block::standstill() const {
    std::string text = module_.path + ": no thread can go on";
    for (const Warp& w : warps_)
        for (int lane = 0; lane < 32; ++lane)
            if (w.alive >> lane & 1)
                text += "\n  thread " + std::to_string(w.first + lane) + " at line " +
                        std::to_string(steps_[static_cast<size_t>(w.pc[lane])].in->line) +
                        (w.at_barrier >> lane & 1 ? " (barrier)" : " (waits for lanes)");
    for (const WarpgroupRegisters& group : hopper_.registers)
        if (group.step != nullptr)
            text += "\n  setmaxnreg at line " + std::to_string(group.step->in->line) + " of warpgroup " +
                    std::to_string(&group - hopper_.registers.data()) + ", which has " +
                    std::to_string(group.have) +
                    " registers a thread: " + std::to_string(std::popcount(group.came)) +
                    " warps came, the pool has " + std::to_string(hopper_.free_registers);
    throw Fault(text);
}

bool Block::advance(Warp& w) {
    warp_ = &w;
    const uint32_t blocked = w.at_barrier | w.at_named, ready = w.alive & ~blocked & ~w.at_meeting;
    if (ready == 0) return false;
    int pc = INT32_MAX;
    for (uint32_t l = ready; l != 0; l &= l - 1) pc = std::min(pc, w.pc[std::countr_zero(l)]);
    uint32_t lanes = 0;
    for (uint32_t l = w.alive & ~blocked; l != 0; l &= l - 1)
        if (w.pc[std::countr_zero(l)] == pc) lanes |= l & -l;
    const Step& s = steps_[static_cast<size_t>(pc)];
    uint32_t active = lanes;
    if (s.in->guard >= 0) {
        active = 0;
        for (uint32_t l = lanes; l != 0; l &= l - 1) {
            const int lane = std::countr_zero(l);
            Operand o;
            o.kind = Operand::Kind::reg;
            o.index = s.in->guard;
            if ((used(s, o, lane) != 0) != s.in->guard_negated) active |= 1u << lane;
        }
    }
    jumped_ = 0;
    if (hopper_.used && active != 0) watch_registers(w, s);
    if (active != 0 && !execute(w, s, active)) {
        w.at_meeting |= lanes;  // until the others come
        return true;
    }
    w.at_meeting &= ~lanes;
    for (uint32_t l = lanes & ~jumped_; l != 0; l &= l - 1) ++w.pc[std::countr_zero(l)];
    return true;
}

uint64_t Block::special(int index, int lane) const {
    const Extent& b = launch_.block;
    const auto t = static_cast<unsigned>(warp_->first + lane);
    switch (static_cast<Special>(index)) {
        case Special::tid_x:
            return t % b.x;
        case Special::tid_y:
            return t / b.x % b.y;
        case Special::tid_z:
            return t / b.x / b.y;
        case Special::ntid_x:
            return b.x;
        case Special::ntid_y:
            return b.y;
        case Special::ntid_z:
            return b.z;
        case Special::ctaid_x:
            return index_.x;
        case Special::ctaid_y:
            return index_.y;
        case Special::ctaid_z:
            return index_.z;
        case Special::nctaid_x:
            return launch_.grid.x;
        case Special::nctaid_y:
            return launch_.grid.y;
        case Special::nctaid_z:
            return launch_.grid.z;
        case Special::laneid:
            return static_cast<uint64_t>(lane);
        case Special::warpid:
            return static_cast<uint64_t>(warp_->first / 32);
    }
    return 0;
}

uint64_t Block::value(const Step& s, const Operand& o, int lane) const {
    switch (o.kind) {
        case Operand::Kind::reg: {
            const auto r = static_cast<size_t>(o.index);
            if (!(warp_->known[r] >> lane & 1)) unknown_ = o.index;
            const uint64_t v = warp_->values[r * 32 + static_cast<size_t>(lane)];
            return o.negated ? (v == 0 ? 1 : 0) : v;
        }
        case Operand::Kind::number:
            return o.number;
        case Operand::Kind::special:
            return special(o.index, lane);
        default:
            fault(s, lane, "an operand that has no value");
    }
}

uint64_t Block::used(const Step& s, const Operand& o, int lane) const {
    unknown_ = -1;
    const uint64_t v = value(s, o, lane);
    if (unknown_ >= 0)
        fault(s, lane,
              "register " + entry_.registers[static_cast<size_t>(unknown_)] +
                  " holds what was computed from a register nobody wrote");
    return v;
}

void Block::set(const Operand& o, int lane, uint64_t v) {
    if (o.kind == Operand::Kind::none) return;  // _
    const auto r = static_cast<size_t>(o.index);
    warp_->values[r * 32 + static_cast<size_t>(lane)] = v;
    const uint32_t bit = 1u << lane;
    warp_->known[r] = unknown_ < 0 ? warp_->known[r] | bit : warp_->known[r] & ~bit;
}

bool Block::execute(Warp& w, const Step& s, uint32_t lanes) {
    const auto each = [&](auto&& f) {
        for (uint32_t l = lanes; l != 0; l &= l - 1) {
            unknown_ = -1;
            f(std::countr_zero(l));
        }
    };
    unknown_ = -1;
    switch (s.op) {
        case Op::compute:
        case Op::setp:
            compute(s, lanes);
            return true;
        case Op::mov:
            if (s.count_a == 1 && s.count_b == 1 && s.b->kind != Operand::Kind::special) {
                uint64_t room[32], result[32];
                const Column from = column(s, *s.b, lanes, room);
                for (int lane = 0; lane < 32; ++lane) result[lane] = low_bits(from.of(lane), bits_of(s.type));
                settle(*s.a, lanes, from.known, result);
            } else {
                each([&](int lane) { move(s, lane); });
            }
            return true;
        case Op::load:
            each([&](int lane) { load(s, lane); });
            return true;
        case Op::store:
            each([&](int lane) { store(s, lane); });
            return true;
        case Op::cvta:
            each([&](int lane) { convert_address(s, lane); });
            return true;
        case Op::bra:
            each([&](int lane) { w.pc[lane] = s.a->index; });
            jumped_ = lanes;
            return true;
        case Op::call:
            each([&](int lane) { call(s, lane); });
            jumped_ = lanes;
            return true;
        case Op::ret:
            each([&](int lane) { end(s, lane); });
            jumped_ = lanes;
            return true;
        case Op::carry:
            each([&](int lane) { add_with_carry(s, lane); });
            return true;
        case Op::barrier:
            if (s.in->has("arrive") ||
                (s.count_a > 0 && (s.a->kind != Operand::Kind::number || s.a->number != 0)))
                return named_barrier(s, lanes);
            w.at_barrier |= lanes;
            return true;
        case Op::warpsync:
            return met(s, mask_of(s, *s.a, lanes), lanes);
        case Op::activemask:
            each([&](int lane) { set(*s.a, lane, lanes); });
            return true;
        case Op::shuffle:
            return shuffle(s, lanes);
        case Op::vote:
            return vote(s, lanes);
        case Op::atomic:
            each([&](int lane) { atomic(s, lane); });
            return true;
        case Op::ldmatrix:
            return ldmatrix(s, lanes);
        case Op::mma:
            return mma(s, lanes);
        case Op::copy:
            each([&](int lane) { copy(s, lane); });
            return true;
        case Op::commit:
            each([&](int lane) {
                if (w.open[lane].empty()) w.open[lane].emplace_back();
                w.open[lane].emplace_back();
            });
            return true;
        case Op::wait:
            each([&](int lane) { wait(s, lane); });
            return true;
        case Op::fence:
            return true;
        case Op::trap:
            fault(s, std::countr_zero(lanes), "a trap");
        default:
            return execute_hopper(s, lanes);
    }
    return true;
}

Block::Column Block::column(const Step& s, const Operand& o, uint32_t lanes, uint64_t* room) const {
    if (o.kind == Operand::Kind::number) return {&o.number, 0};
    if (o.kind == Operand::Kind::reg && !o.negated) {
        const auto r = static_cast<size_t>(o.index);
        return {&warp_->values[r * 32], 1, warp_->known[r]};
    }
    Column c{room};
    for (uint32_t l = lanes; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        unknown_ = -1;
        room[lane] = value(s, o, lane);
        if (unknown_ >= 0) c.known &= ~(1u << lane);
    }
    return c;
}

void Block::settle(const Operand& o, uint32_t lanes, uint32_t known, const uint64_t* values) {
    if (o.kind == Operand::Kind::none) return;  // _
    const auto r = static_cast<size_t>(o.index);
    for (uint32_t l = lanes; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        warp_->values[r * 32 + static_cast<size_t>(lane)] = values[lane];
    }
    warp_->known[r] = (warp_->known[r] & ~lanes) | (known & lanes);
}

void Block::compute(const Step& s, uint32_t lanes) {
    // setp p|q: q is the opposite.
    const bool pair = s.op == Op::setp && s.in->groups.size() > s.compute.inputs + 1;
    const Operand* const from[] = {pair ? s.c : s.b, pair ? s.d : s.c, pair ? s.e : s.d, s.e};
    uint64_t room[4][32];
    Column in[4];
    uint32_t known = ~0u;
    for (size_t i = 0; i < s.compute.inputs; ++i) {
        in[i] = column(s, *from[i], lanes, room[i]);
        known &= in[i].known;
    }
    static constexpr uint64_t nothing = 0;
    for (size_t i = s.compute.inputs; i < 4; ++i) in[i] = {&nothing, 0};
    uint64_t result[32];
    for (uint32_t l = lanes; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        const uint64_t values[4] = {in[0].of(lane), in[1].of(lane), in[2].of(lane), in[3].of(lane)};
        result[lane] = s.compute.run(s.compute, values);
        const uint32_t bit = 1u << lane;  // what is not selected need not be known
        if (s.compute.selects && in[2].known & in[values[2] != 0 ? 0 : 1].known & bit) known |= bit;
    }
    settle(*s.a, lanes, known, result);
    if (!pair) return;
    for (uint64_t& one : result) one = one == 0 ? 1 : 0;
    settle(*s.b, lanes, known, result);
}

void Block::add_with_carry(const Step& s, int lane) {
    const std::string& w = s.in->words[0];
    if (bits_of(s.type) != 32) unknown(module_, *s.in);
    uint64_t a = low_bits(value(s, *s.b, lane), 32), b = low_bits(value(s, *s.c, lane), 32);
    if (w.starts_with("mad")) {
        a = s.in->has("hi") ? a * b >> 32 : low_bits(a * b, 32);
        b = low_bits(value(s, *s.d, lane), 32);
    }
    const uint64_t carry = w.back() == 'c' && warp_->carry[lane] ? 1 : 0;
    const uint64_t sum = w.starts_with("sub") ? a - b - carry : a + b + carry;
    if (s.in->has("cc")) warp_->carry[lane] = sum >> 32 != 0;
    set(*s.a, lane, low_bits(sum, 32));
}

std::byte* Block::argument(size_t at, int lane) {
    return &warp_->arguments[static_cast<size_t>(lane) * entry_.argument_bytes + at];
}

void Block::call(const Step& s, int lane) {
    if (s.in->groups.size() != 3) unknown(module_, *s.in);
    const Function& f = entry_.functions.at(s.b->index);
    for (size_t i = 0; i < f.parameters.size(); ++i)
        std::memcpy(argument(f.parameters[i].offset, lane), argument(s.c[i].number - argument_base, lane),
                    f.parameters[i].bytes);
    warp_->calls[lane].push_back({warp_->pc[lane] + 1, &f, s.a});
    warp_->pc[lane] = s.b->index;
}

void Block::end(const Step& s, int lane) {
    auto& calls = warp_->calls[lane];
    if (!calls.empty()) {
        const auto [pc, f, results] = calls.back();
        calls.pop_back();
        for (size_t i = 0; i < f->returns.size(); ++i)
            std::memcpy(argument(results[i].number - argument_base, lane),
                        argument(f->returns[i].offset, lane), f->returns[i].bytes);
        warp_->pc[lane] = pc;
        return;
    }
    for (const auto& group : warp_->open[lane])
        if (!group.empty()) fault(s, lane, "copies that nobody waited for");
    end_hopper(s, lane);
    warp_->alive &= ~(1u << lane);
}

void Block::move(const Step& s, int lane) {
    const auto pieces = [&](int count) { return bits_of(s.type) / count; };
    if (s.count_a > 1) {  // apart
        const uint64_t v = value(s, *s.b, lane);
        const int bits = pieces(s.count_a);
        for (int i = 0; i < s.count_a; ++i) set(s.a[i], lane, low_bits(v >> (i * bits), bits));
    } else if (s.count_b > 1) {  // together
        const int bits = pieces(s.count_b);
        uint64_t v = 0;
        for (int i = 0; i < s.count_b; ++i) v |= low_bits(value(s, s.b[i], lane), bits) << (i * bits);
        set(*s.a, lane, v);
    } else {
        set(*s.a, lane, low_bits(value(s, *s.b, lane), bits_of(s.type)));
    }
}

}  // namespace longreach::ptx
