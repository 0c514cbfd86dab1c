// Calls that the lanes of a mask make together, and every check of a memory access.
#include <link.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "simt/banks.h"
#include "simt/machine.h"
#include "simt/memory.h"

namespace longreach::simt {

namespace {

struct MatrixLoad {
    const void* row;
    uint32_t* out;
    bool transposed;
};
struct MatrixProduct {
    float* d;
    const uint32_t *a, *b;
    const float* c;
};

struct MatrixStore {
    void* row;
    const uint32_t* in;
};

float from_bf16(uint32_t bits) {
    bits <<= 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

// Matrix j's rows are those of lanes 8 j to 8 j + 7. Lane l gets the elements (l / 4, 2 (l % 4)) and the one
// to the right of it; transposed, (2 (l % 4), l / 4) and the one below.
void load_matrices(const std::array<WarpCall*, 32>& calls) {
    for (size_t lane = 0; lane < 32; ++lane) {
        auto* load = static_cast<MatrixLoad*>(calls[lane]->payload);
        for (size_t j = 0; j < 4; ++j) {
            auto element = [&](size_t row, size_t column) -> uint32_t {
                return static_cast<const uint16_t*>(
                    static_cast<MatrixLoad*>(calls[8 * j + row]->payload)->row)[column];
            };
            size_t slow = lane / 4, fast = lane % 4 * 2;
            load->out[j] = load->transposed ? element(fast, slow) | element(fast + 1, slow) << 16
                                            : element(slow, fast) | element(slow, fast + 1) << 16;
        }
    }
}

// The same places, the other way round.
void store_matrices(const std::array<WarpCall*, 32>& calls) {
    for (size_t lane = 0; lane < 32; ++lane)
        for (size_t j = 0; j < 4; ++j) {
            uint32_t pair = static_cast<MatrixStore*>(calls[lane]->payload)->in[j];
            auto* row =
                static_cast<uint16_t*>(static_cast<MatrixStore*>(calls[8 * j + lane / 4]->payload)->row);
            row[lane % 4 * 2] = static_cast<uint16_t>(pair);
            row[lane % 4 * 2 + 1] = static_cast<uint16_t>(pair >> 16);
        }
}

// Lane l = 4 g + t holds a: rows g and g + 8 of columns 2 t, 2 t + 1 and the same plus 8; b: rows (of k) 2 t,
// 2 t + 1 and plus 8 of column g; c and d: rows g and g + 8 of columns 2 t, 2 t + 1.
void multiply_matrices(const std::array<WarpCall*, 32>& calls) {
    float a[16][16], b[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        auto* in = static_cast<MatrixProduct*>(calls[lane]->payload);
        unsigned g = lane / 4, t = lane % 4;
        for (unsigned half = 0; half < 2; ++half) {
            for (unsigned i = 0; i < 4; ++i)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = from_bf16(in->a[i] >> (16 * half) & 0xffff);
            for (unsigned i = 0; i < 2; ++i)
                b[2 * t + i * 8 + half][g] = from_bf16(in->b[i] >> (16 * half) & 0xffff);
        }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
        auto* product = static_cast<MatrixProduct*>(calls[lane]->payload);
        for (unsigned i = 0; i < 4; ++i) {
            float sum = product->c[i];
            for (unsigned k = 0; k < 16; ++k) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            product->d[i] = sum;
        }
    }
}

void complete(const std::array<WarpCall*, 32>& calls, uint32_t mask, WarpOp op) {
    uint32_t votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1 && calls[lane]->value != 0) votes |= 1u << lane;
    constexpr uint64_t poison = uint64_t{poison_warp} << 32 | poison_warp;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (!(mask >> lane & 1)) continue;
        WarpCall& call = *calls[lane];
        if (op == WarpOp::shuffle)
            call.result = mask >> call.source & 1 ? calls[static_cast<size_t>(call.source)]->value : poison;
        if (op == WarpOp::ballot) call.result = votes;
        if (op == WarpOp::all) call.result = votes == mask;
        if (op == WarpOp::any) call.result = votes != 0;
    }
    if (op == WarpOp::ldmatrix) load_matrices(calls);
    if (op == WarpOp::stmatrix) store_matrices(calls);
    if (op == WarpOp::mma) multiply_matrices(calls);
}

// What each lane of the mask knew, all of them know now; their next accesses are new to the others.
void join_clocks(Warp& warp, size_t first, uint32_t mask) {
    if (machine().clocks.on()) machine().clocks.join_warp(first, mask);
    uint32_t known[32] = {};
    for (unsigned lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1)
            for (unsigned i = 0; i < 32; ++i) known[i] = std::max(known[i], warp.knows[lane][i]);
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (!(mask >> lane & 1)) continue;
        std::copy(known, known + 32, warp.knows[lane]);
        ++warp.knows[lane][lane];
    }
}

std::string hex(uint32_t mask) {
    char text[16];
    std::snprintf(text, sizeof text, "%08x", mask);
    return text;
}

// The program and its libraries: constants may be read from there.
bool in_image(uintptr_t address) {
    static const auto ranges = [] {
        std::vector<std::pair<uintptr_t, uintptr_t>> all;
        dl_iterate_phdr(
            [](dl_phdr_info* info, size_t, void* out) {
                for (int i = 0; i < info->dlpi_phnum; ++i)
                    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
                        uintptr_t first = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                        static_cast<decltype(all)*>(out)->emplace_back(first,
                                                                       first + info->dlpi_phdr[i].p_memsz);
                    }
                return 0;
            },
            &all);
        return all;
    }();
    for (const auto& [first, end] : ranges)
        if (address >= first && address < end) return true;
    return false;
}

}  // namespace

uint64_t warp_call(WarpCall call) {
    Machine& m = machine();
    m.running = false;
    Thread& self = m.threads[static_cast<size_t>(m.current)];
    unsigned lane = static_cast<unsigned>(m.current) % 32;
    size_t first = static_cast<size_t>(m.current) / 32 * 32;
    Warp& warp = m.warps[first / 32];
    self.place = call.place;
    uint32_t mask = call.mask;
    if (!(mask >> lane & 1) || (mask & ~warp.exists) != 0) {
        Finding finding{
            Kind::warp_mask,
            m.name_thread(m.block, m.current) + ", lane " + std::to_string(lane) + ", calls " +
                name_of(call.op) + " at " + call.place.text() + " with mask " + hex(mask) +
                (mask >> lane & 1 ? ", which names lanes the block has not" : ", which leaves itself out")};
        finding.place = call.place.text();
        m.fatal(std::move(finding));
    }
    self.call = &call;
    self.wait = Wait::warp;
    warp.waiting |= 1u << lane;
    if ((warp.waiting & mask) != mask) {
        m.wait_here();
        return call.result;
    }
    std::array<WarpCall*, 32> calls{};
    bool all = true;
    for (size_t l = 0; all && l < 32; ++l)
        if (mask >> l & 1) {
            calls[l] = m.threads[first + l].call;
            all = calls[l]->mask == mask;
        }
    if (!all) {
        m.wait_here();
        return call.result;
    }
    for (size_t l = 0; l < 32; ++l) {
        if (!(mask >> l & 1)) continue;
        // __syncwarp may stand at several places of divergent code; the others have to be one instruction.
        if (calls[l]->op == call.op && (call.op == WarpOp::sync || calls[l]->place == call.place)) continue;
        Finding finding{Kind::warp_divergence,
                        "lanes of mask " + hex(mask) + " met at different calls: thread " +
                            std::to_string(first + l) + " at " + name_of(calls[l]->op) + " " +
                            calls[l]->place.text() + ", thread " + std::to_string(m.current) + " at " +
                            name_of(call.op) + " " + call.place.text()};
        finding.place = call.place.text();
        finding.other_place = calls[l]->place.text();
        finding.other_thread = static_cast<int>(first + l);
        m.fatal(std::move(finding));
    }
    complete(calls, mask, call.op);
    if (call.op == WarpOp::sync || options().shuffle_orders_memory) join_clocks(warp, first, mask);
    for (size_t l = 0; l < 32; ++l) {
        if (!(mask >> l & 1)) continue;
        m.wake(first + l);
    }
    warp.waiting &= ~mask;
    m.pass_on();
    return call.result;
}

namespace {

// 8 bfloat16 of shared memory, read or written as a row of a matrix by the lane that gives its address.
void row_access(const void* row, WarpOp op, const Place& place) {
    Machine& m = machine();
    auto address = reinterpret_cast<uintptr_t>(row);
    if (address % 16 != 0 || address - m.arena >= arena_most) {
        Finding finding{address % 16 != 0 ? Kind::misaligned : Kind::shared_out_of_bounds,
                        m.name_thread(m.block, m.current) + ": " + name_of(op) + " of a row at " +
                            m.name_address(address)};
        finding.place = place.text();
        m.fatal(std::move(finding));
    }
    memory_access(address, 16, op == WarpOp::stmatrix ? Use::write : Use::read, place.numbered());
}

}  // namespace

void stmatrix_x4(void* row, const uint32_t (&in)[4], const Place& place) {
    row_access(row, WarpOp::stmatrix, place);
    MatrixStore store{row, in};
    warp_call({WarpOp::stmatrix, ~0u, 0, 0, &store, place});
}

void ldmatrix_x4(uint32_t (&out)[4], const void* row, bool transposed, const Place& place) {
    row_access(row, WarpOp::ldmatrix, place);
    MatrixLoad load{row, out, transposed};
    warp_call({WarpOp::ldmatrix, ~0u, 0, 0, &load, place});
}

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                       const Place& place) {
    float result[4];
    MatrixProduct product{result, a, b, c};
    warp_call({WarpOp::mma, ~0u, 0, 0, &product, place});
    std::copy(result, result + 4, d);
}

void atomic_access(uintptr_t address, size_t bytes, const Place& place) {
    memory_access(address, bytes, Use::atomic, place.numbered());
}

namespace {

[[noreturn, gnu::cold]] void stop_access(Kind kind, uintptr_t address, size_t bytes, Use use, uintptr_t place,
                                         const std::string& why) {
    Machine& m = machine();
    Finding found{kind, ""};
    found.place = Place(place).text();
    found.message = m.name_address(address) + ": " + m.name_thread(m.block, m.current) +
                    (use == Use::read ? " reads " : " writes ") + std::to_string(bytes) + " bytes at " +
                    found.place + why;
    m.fatal(std::move(found));
}

}  // namespace

void memory_access(uintptr_t address, size_t bytes, Use use, uintptr_t place) {
    Machine& m = machine();
    if (!m.watching) return;
    if (address - (m.arena - arena_red_zone) < arena_most + 2 * arena_red_zone) {
        if (address < m.arena || address + bytes > m.arena + m.shape.shared_bytes)
            stop_access(Kind::shared_out_of_bounds, address, bytes, use, place,
                        ", the launch has " + std::to_string(m.shape.shared_bytes));
        if (options().count_bank_conflicts) banks_access(address - m.arena, bytes, place);
        m.shared_shadow.access(address, bytes, use, place);
        return;
    }
    if (device_memory().contains(address)) {
        DeviceMemory::Allocation* in = device_memory().find(address);
        if (in == nullptr || in->freed || address < in->base || address + bytes > in->base + in->bytes)
            stop_access(Kind::global_out_of_bounds, address, bytes, use, place, "");
        if (m.copies.any() && use != Use::read) m.copies.check_source(address, bytes, place);
        if (m.bulk_copies.any() && use != Use::read) m.bulk_copies.check_source(address, bytes, place);
        in->shadow->access(address, bytes, use, place);
        return;
    }
    if (m.stacks.contains(address)) return m.warpgroups.access_stack(address, bytes, use, place);
    if (use == Use::read &&
        (address - reinterpret_cast<uintptr_t>(m.shape.parameters) < m.shape.parameter_bytes ||
         in_image(address)))
        return;
    stop_access(Kind::host_access, address, bytes, use, place, ": memory of the host, or no memory");
}

}  // namespace longreach::simt
