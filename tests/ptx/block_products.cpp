// wgmma, setmaxnreg and stmatrix.
#include <bit>
#include <cstring>
#include <string>

#include "ptx/block.h"

namespace longreach::ptx {

namespace {

// "Matrix descriptor format" of the manual: bits 13-0 start address, 29-16 leading and 45-32 stride byte offset, each
// without its last four bits; 51-49 base offset; 63-62 swizzling, of which 1 is that of 128 bytes.
struct MatrixDescriptor {
    explicit MatrixDescriptor(uint64_t bits)
        : start((bits & 0x3fff) << 4),
          leading((bits >> 16 & 0x3fff) << 4),
          stride((bits >> 32 & 0x3fff) << 4),
          base(static_cast<int>(bits >> 49 & 7)),
          mode(static_cast<int>(bits >> 62)) {}
    uint64_t start, leading, stride;
    int base, mode;

    // Swizzled atoms are 8 lines of 128 bytes. K-major, a line holds 64 of k of one row, and atoms follow each other
    // along the rows; MN-major, it holds 64 rows of one k: atoms follow each other along k at the stride and along the
    // rows at the leading offset.
    uint64_t element(uint64_t row, uint64_t k, bool rows_together) const {
        const uint64_t line = rows_together ? k : row, within = rows_together ? row : k;
        uint64_t at = start + line / 8 * stride + line % 8 * 128 + within % 64 * 2;
        if (rows_together) at += within / 64 * leading;
        return at ^ (at >> 7 & 7) << 4;
    }
};

}  // namespace

// Ordinary instructions may not have registers of products under way.
void Block::watch_registers(Warp& w, const Step& s) {
    WarpProducts& p = hopper_.products[static_cast<size_t>(&w - warps_.data())];
    ++p.steps;
    if (!p.any || s.op == Op::products) return;
    for (const Operand& o : s.in->operands) {
        const bool reg = o.kind == Operand::Kind::reg || (o.kind == Operand::Kind::address && o.of_register);
        if (!reg) continue;
        const auto r = static_cast<size_t>(o.index);
        if (p.in_flight[r] != 0) fault(s, -1, "register " + entry_.registers[r] + " of a product under way");
        p.accessed[r] = p.steps;
    }
}

bool Block::products(const Step& s, uint32_t lanes) {
    if (!met(s, ~0u, lanes)) return false;
    WarpProducts& p = hopper_.products[static_cast<size_t>(warp_ - warps_.data())];
    const std::string& what = s.in->words[1];
    p.any = true;
    if (what == "fence") {
        p.fence = p.steps;
    } else if (what == "commit_group") {
        ++p.groups;
    } else if (what == "wait_group") {
        const auto pending = static_cast<int>(used(s, *s.a, 0));
        while (!p.open.empty() && p.open.front().group < p.groups - pending) finish_product(p);
    } else if (what == "mma_async") {
        issue_product(p, s);
    } else {
        unknown(module_, *s.in);
    }
    return true;
}

void Block::issue_product(WarpProducts& p, const Step& s) {
    // d, a, b, p, scales of a and b, and where a is a descriptor too two transpositions, else one
    const auto& words = s.in->words;
    const bool descriptor = s.count_b == 1;
    const bool types = words.size() == 8 && words[5] == "f32" && words[6] == "bf16" && words[7] == "bf16";
    if (!types || s.in->groups.size() != (descriptor ? 8u : 7u)) unknown(module_, *s.in);
    const std::string shape = "m64n" + std::to_string(s.count_a * 2) + "k16";
    if (words[4] != shape) fault(s, -1, "sums of " + shape + " given");
    for (int group : {4, 5})
        if (s.in->at(group).number != 1) unknown(module_, *s.in);
    WarpProduct fresh;
    fresh.step = &s;
    fresh.group = p.groups;
    fresh.a = descriptor ? used(s, *s.b, 0) : 0;
    fresh.b = used(s, *s.c, 0);
    fresh.add = used(s, *s.d, 0) != 0;
    for (int lane = 1; lane < 32; ++lane)
        if ((descriptor && used(s, *s.b, lane) != fresh.a) || used(s, *s.c, lane) != fresh.b ||
            (used(s, *s.d, lane) != 0) != fresh.add)
            fault(s, lane, "lanes of a warp with different operands");
    auto& log = hopper_.log[static_cast<size_t>(warp_ - warps_.data()) / 4];
    if (p.issued == log.size()) log.push_back(fresh);
    const WarpProduct& first = log[p.issued++];
    if (first.step != &s || first.a != fresh.a || first.b != fresh.b || first.add != fresh.add)
        fault(s, -1, "warps of a warpgroup with different products");
    const int registers = s.count_a + (descriptor ? 0 : s.count_b);
    for (int i = 0; i < registers; ++i) {
        const auto r = static_cast<size_t>(s.a[i].index);
        // Sums may go from product to product of one shape; the rest has to be fenced off.
        if (p.in_flight[r] == 0 && (p.fence == 0 || p.accessed[r] > p.fence))
            fault(s, -1, "no wgmma.fence since register " + entry_.registers[r] + " was used");
    }
    for (int i = 0; i < registers; ++i) ++p.in_flight[static_cast<size_t>(s.a[i].index)];
    p.open.push_back(fresh);
    if (launch_.copies_land_late) return;
    // At once: the registers stay out of reach until the wait.
    multiply(p.open.back());
    p.open.back().done = true;
}

void Block::finish_product(WarpProducts& p) {
    const WarpProduct first = p.open.front();
    const Step& s = *first.step;
    if (!first.done) multiply(first);
    const int registers = s.count_a + (s.count_b == 1 ? 0 : s.count_b);
    for (int i = 0; i < registers; ++i) --p.in_flight[static_cast<size_t>(s.a[i].index)];
    p.open.erase(p.open.begin());
}

void Block::multiply(const WarpProduct& product) {
    const Step& s = *product.step;
    const bool descriptor = s.count_b == 1;
    const auto columns = static_cast<uint64_t>(s.count_a) * 2;
    const uint64_t first_row = static_cast<uint64_t>(warp_ - warps_.data()) % 4 * 16;
    const auto read = [&](const MatrixDescriptor& d, uint64_t row, uint64_t k, bool rows_together) {
        if (d.mode != 1 || d.base != 0)
            fault(s, -1, "operands with the 128-byte swizzle and no base offset are known");
        const uint64_t at = d.element(row, k, rows_together);
        uint16_t bits;
        std::memcpy(&bits, place(s, Space::shared, at, 2, 0, 'r'), 2);
        demand_fenced(s, at, 2);
        return double{bf16_value(bits)};
    };
    double a[16][16], b[16][256];
    const bool a_transposed = descriptor && s.in->at(6).number != 0;
    const bool b_transposed = s.in->at(descriptor ? 7 : 6).number != 0;
    for (uint64_t r = 0; r < 16 && descriptor; ++r)
        for (uint64_t k = 0; k < 16; ++k)
            a[r][k] = read(MatrixDescriptor(product.a), first_row + r, k, a_transposed);
    for (uint64_t n = 0; n < columns; ++n)
        for (uint64_t k = 0; k < 16; ++k) b[k][n] = read(MatrixDescriptor(product.b), n, k, b_transposed);
    for (int lane = 0; lane < 32 && !descriptor; ++lane)
        for (int i = 0; i < 8;
             ++i) {  // half i % 2 of register i / 2: registers 1 and 3 are 8 rows down, 2 and 3 8 of k on
            const int row = lane / 4 + (i / 2 % 2 != 0 ? 8 : 0), k = lane % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0);
            a[row][k] = double{bf16_value(used(s, s.b[i / 2], lane) >> (16 * (i % 2)))};
        }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < s.count_a; ++i) {
            const int row = lane / 4 + (i % 4 >= 2 ? 8 : 0), column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = product.add ? double{f32_value(used(s, s.a[i], lane))} : 0.0;
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            unknown_ = -1;
            set(s.a[i], lane, f32_bits(static_cast<float>(sum)));
        }
}

// setmaxnreg.inc waits until the block's pool has what it asks for; .dec gives to it.
bool Block::register_count(const Step& s, uint32_t lanes) {
    if (!met(s, ~0u, lanes)) return false;
    const auto wanted = static_cast<int64_t>(used(s, *s.a, 0));
    if (wanted < 24 || wanted > 256 || wanted % 8 != 0)
        fault(s, -1, "a multiple of 8 from 24 to 256 expected");
    const auto warp = static_cast<size_t>(warp_ - warps_.data());
    WarpgroupRegisters& group = hopper_.registers[warp / 4];
    if (group.step != nullptr && group.step != &s)
        fault(s, -1, "a warp of the warpgroup is at another setmaxnreg");
    if (s.in->has("inc") ? wanted < group.have : wanted > group.have)
        fault(s, -1, "a change in the other direction from " + std::to_string(group.have));
    group.step = &s;
    group.came |= 1u << warp % 4;
    if (!group.granted && group.came == 0xf) {
        const int64_t more = (wanted - group.have) * 128;
        if (more > hopper_.free_registers) return false;
        hopper_.free_registers -= more;
        group.have = wanted;
        group.granted = true;
        look_again();
    }
    if (!group.granted) return false;
    group.passed |= 1u << warp % 4;
    if (group.passed == 0xf) group = {.have = group.have};
    return true;
}

bool Block::stmatrix(const Step& s, uint32_t lanes) {
    if (!s.in->has("x4") || s.count_b != 4 || s.in->has("trans")) unknown(module_, *s.in);
    if (!met(s, ~0u, lanes)) return false;
    for (int row = 0; row < 32; ++row) {
        std::byte* to = place(s, Space::shared, address(s, *s.a, row), 16, row, 'w');
        for (int pair = 0; pair < 4; ++pair) {
            const auto two = static_cast<uint32_t>(used(s, s.b[row / 8], row % 8 * 4 + pair));
            std::memcpy(to + 4 * pair, &two, 4);
        }
    }
    return true;
}

}  // namespace longreach::ptx
