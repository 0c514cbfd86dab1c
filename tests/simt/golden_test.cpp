// The emulation of kernels/cuda/ptx.cuh against what GPUs gave: every file of tests/cuda/golden, and what the
// harness records itself, which it has to repeat bit for bit.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cuda/golden.h"
#include "io/file.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

float number(uint32_t bits) {
    return std::bit_cast<float>(bits);
}
float from_bf16(uint32_t bits) {
    return number(bits << 16);
}

// By the operands of one element of the product.
struct Element {
    std::vector<float> a, b;
    float c = 0;
};
Element element_of(const Words& in, size_t lane, size_t i) {
    Element e{std::vector<float>(16), std::vector<float>(16), 0};
    const size_t row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
    for (size_t k = 0; k < 16; ++k) {
        // Lane 4 (row % 8) + k % 8 / 2 holds a [row, k], lane 4 col + k % 8 / 2 holds b [k, col].
        const size_t half = 16 * (k % 2), t = k % 8 / 2;
        e.a[k] = from_bf16(in[10 * (4 * (row % 8) + t) + row / 8 + 2 * (k / 8)] >> half & 0xffff);
        e.b[k] = from_bf16(in[10 * (4 * col + t) + 4 + k / 8] >> half & 0xffff);
    }
    e.c = number(in[10 * lane + 6 + i]);
    return e;
}

// Of the product of a warpgroup, word i of d [64, n].
Element element_of_group(const Words& in, size_t n, size_t i) {
    constexpr size_t depth = 32;
    const auto half = [&](size_t first_word, size_t at) {
        return from_bf16(in[first_word + at / 2] >> 16 * (at % 2) & 0xffff);
    };
    const size_t of_b = 64 * depth / 2, of_d = of_b + depth * n / 2;
    Element e;
    for (size_t k = 0; k < depth; ++k) {
        e.a.push_back(half(0, i / n * depth + k));
        e.b.push_back(half(of_b, k * n + i % n));
    }
    e.c = number(in[of_d + i]);
    return e;
}

// What is wrong with `device` as d of the element, given what the emulation makes of it; empty: nothing.
//
// A product of two bfloat16 is exact in f32 while it is normal. The emulation adds K + 1 terms one by one, in
// order of k, and rounds each time: at most K u S with u = 2^-24 and S = |c| + sum |a b| (the factor 1 + K
// u on it is in the slack below). PTX leaves a device the order and the rounding. One that aligns the terms
// to the largest and cuts off errs by less than a unit in the last place of the largest, 2 u S, for each term
// and once more for the result; in blocks of eight products, with their sum so far, that is 9 + 1 times
// for each block. Below the normal range the unit is 2^-149 for each product and term.
std::string fault_of_product(const Element& e, float emulated, float device) {
    double exact = e.c,
           size = std::isfinite(e.c) ? std::abs(static_cast<double>(e.c)) : 0.0;  // of finite terms
    bool nan = std::isnan(e.c), up = e.c == INFINITY, down = e.c == -INFINITY;
    for (size_t k = 0; k < e.a.size(); ++k) {
        const double term = static_cast<double>(e.a[k]) * static_cast<double>(e.b[k]);
        exact += term;
        if (std::isfinite(term)) size += std::abs(term);
        nan = nan || std::isnan(term);
        up = up || term == INFINITY;
        down = down || term == -INFINITY;
    }
    if (nan || (up && down)) return std::isnan(device) ? "" : "not NaN";
    const double slack = 1 + 0x1p-16, depth = static_cast<double>(e.a.size()),
                 rounding = 0x1p-24 * (depth + 2 * 10 * depth / 8), smallest = 0x1p-149 * 2 * (2 * depth + 1);
    // Where a partial sum of finite terms may leave the range, it depends on the order whether it does.
    if (size * slack >= static_cast<double>(std::numeric_limits<float>::max())) return "";
    if (up || down) return device == (up ? INFINITY : -INFINITY) ? "" : "not the infinity of its terms";
    const double bound = slack * rounding * size + smallest;
    const double error = std::abs(static_cast<double>(device) - static_cast<double>(emulated));
    if (error <= bound) return "";
    return fmt::format("{} instead of {} (exactly {}), bound {}", device, emulated, exact, bound);
}

// exp2_approx promises 2 ulp, 0 below the normal range, and takes subnormal arguments for 0.
std::string fault_of_exp2(uint32_t in, uint32_t out) {
    const double x = number(in), exact = std::exp2(x);
    const float y = number(out);
    if (std::isnan(x)) return std::isnan(y) ? "" : fmt::format("2^NaN = {}", y);
    const auto ulp = [](double of) { return std::ldexp(1.0, std::max(std::ilogb(of), -126) - 23); };
    const double largest = std::numeric_limits<float>::max();
    if (exact > largest && (std::isinf(exact) || exact - largest > 2 * ulp(largest)))
        return y == INFINITY ? "" : fmt::format("2^{} = {}", x, y);
    if (exact <= 0x1p-126 + 2 * ulp(0x1p-126) && y == 0) return "";
    // At the upper end two units may reach infinity.
    if (std::isinf(y) && y > 0 && exact > largest - 2 * ulp(largest)) return "";
    const double error = std::abs(static_cast<double>(y) - exact);
    return error <= 2 * ulp(exact) ? "" : fmt::format("2^{} = {} instead of {}", x, y, exact);
}

struct Replayed {
    size_t words = 0, faults = 0, same = 0;  // same: bit for bit as emulated
    std::string first;
};

Replayed replay(const GoldenFile& file) {
    Replayed r;
    const auto note = [&](const std::string& fault, const GoldenSet& set, size_t i) {
        if (fault.empty()) return;
        if (r.faults++ == 0) r.first = fmt::format("{}, word {}: {}", set.op, i, fault);
    };
    for (const GoldenSet& set : file.sets) {
        const Words emulated = run_golden(set.op, set.in);
        require(emulated.size() == set.out.size(), ExitCode::data, "{}: {} words of output instead of {}",
                set.op, set.out.size(), emulated.size());
        for (size_t i = 0; i < emulated.size(); ++i) {
            ++r.words;
            r.same += set.out[i] == emulated[i];
            if (set.op == "mma_m16n8k16_bf16") {
                note(fault_of_product(element_of(set.in, i / 4, i % 4), number(emulated[i]),
                                      number(set.out[i])),
                     set, i);
            } else if (set.op.starts_with("wgmma")) {
                note(fault_of_product(element_of_group(set.in, 64, i), number(emulated[i]),
                                      number(set.out[i])),
                     set, i);
            } else if (set.op == "exp2_approx") {
                note(fault_of_exp2(set.in[i], set.out[i]), set, i);
                note(fault_of_exp2(set.in[i], emulated[i]), set, i);
            } else if (set.out[i] != emulated[i]) {  // data moves, nothing is computed
                note(fmt::format("{:08x} instead of {:08x}", set.out[i], emulated[i]), set, i);
            }
        }
    }
    return r;
}

// Another plausible order of the additions: the last term first, in double, cut off at 24 bits.
float other_sum(const Element& e) {
    double sum = 0;
    for (size_t k = e.a.size(); k-- > 0;) {
        sum += static_cast<double>(e.a[k]) * static_cast<double>(e.b[k]);
        sum = static_cast<double>(number(std::bit_cast<uint32_t>(static_cast<float>(sum)) & ~1u));
    }
    return static_cast<float>(sum + static_cast<double>(e.c));
}

}  // namespace

TEST_CASE("golden vectors of every device that recorded some hold for the emulation") {
    const std::string folder = LONGREACH_GOLDEN;
    size_t files = 0;
    for (const std::string& name : io::list_directory(folder)) {
        if (!name.ends_with(".txt")) continue;
        const GoldenFile file =
            parse_golden(io::read_file(io::join_path(folder, name), 1 << 20, io::Links::refuse));
        CAPTURE(name);
        const Replayed r = replay(file);
        CHECK(r.words > 0);
        CHECK_MESSAGE(r.faults == 0, r.faults, " of ", r.words, " words; ", r.first);
        MESSAGE(file.device, ": ", r.same, " of ", r.words, " words bit for bit as emulated");
        ++files;
    }
    if (files == 0)
        MESSAGE(
            "no GPU has recorded golden vectors yet: cp.async, ldmatrix, mma and exp2 are emulated from "
            "their manual (mma as 17 terms added one after the other in f32). tools/gpu-check golden records "
            "some");
}

TEST_CASE("golden vectors recorded in the harness and read back repeat bit for bit") {
    const TempDir dir;
    const GoldenFile recorded = record_golden("SIMT harness", true);
    const std::string text = write_golden(recorded);
    CHECK(text.size() <= size_t{1} << 20);
    io::write_file_atomically(dir / "harness.txt", text);
    const GoldenFile file = parse_golden(io::read_file(dir / "harness.txt", 1 << 20, io::Links::refuse));
    CHECK(file.device == recorded.device);
    size_t kept = 0;
    for (const GoldenSet& set : recorded.sets) {
        CAPTURE(set.op);
        CHECK(unexpected_words(set) == 0);
        if (!set.expected.empty()) continue;
        REQUIRE(kept < file.sets.size());
        CHECK(file.sets[kept].op == set.op);
        CHECK((file.sets[kept].in == set.in));
        CHECK((file.sets[kept].out == set.out));
        ++kept;
    }
    CHECK(file.sets.size() == kept);
    CHECK(write_golden(file) == text);
    const Replayed r = replay(file);
    CHECK_MESSAGE(r.faults == 0, r.faults, " of ", r.words, " words; ", r.first);
    CHECK(r.same == r.words);
}

TEST_CASE("golden vectors: the copies and loads are those of a layout written down independently") {
    for (const GoldenSet& set : golden_inputs()) {
        if (set.op == "cp_async_16") {
            const Words out = run_golden(set.op, set.in);
            for (size_t byte = 0; byte < 512; ++byte) {
                const size_t lane = byte / 16;
                const uint32_t source = set.in[5 * lane + 1 + byte % 16 / 4] >> (8 * (byte % 4)) & 0xff;
                CHECK((out[byte / 4] >> (8 * (byte % 4)) & 0xff) ==
                      (byte % 16 < set.in[5 * lane] ? source : 0));
            }
        } else if (set.op.starts_with("ldmatrix")) {
            const Words out = run_golden(set.op, set.in);
            for (size_t lane = 0; lane < 32; ++lane)
                for (size_t j = 0; j < 8; ++j) {
                    const size_t matrix = j / 2;
                    size_t row = lane / 4, col = 2 * (lane % 4) + j % 2;
                    if (set.op.ends_with("trans")) std::swap(row, col);
                    const uint32_t word = set.in[4 * set.in[128 + 8 * matrix + row] + col / 2];
                    CHECK((out[4 * lane + matrix] >> (16 * (j % 2)) & 0xffff) ==
                          (word >> (16 * (col % 2)) & 0xffff));
                }
        }
    }
}

TEST_CASE("golden vectors: another order of additions passes, wrong outputs of every kind are found") {
    const GoldenFile right = record_golden("SIMT harness", true);
    GoldenFile other = right;
    size_t changed = 0;
    for (GoldenSet& set : other.sets)
        if (set.op == "mma_m16n8k16_bf16")
            for (size_t i = 0; i < set.out.size(); ++i) {
                const float sum = other_sum(element_of(set.in, i / 4, i % 4));
                // NaN and the ends of the range are the rule's own business.
                if (!std::isfinite(sum) || !std::isfinite(number(set.out[i]))) continue;
                changed += std::bit_cast<uint32_t>(sum) != set.out[i];
                set.out[i] = std::bit_cast<uint32_t>(sum);
            }
    CHECK(changed > 100);
    const Replayed r = replay(other);
    CHECK_MESSAGE(r.faults == 0, r.faults, " of ", r.words, " words; ", r.first);

    // The second set of products is of powers of two, the last of exp2's numbers are arbitrary ones.
    for (const std::string op :
         {"cp_async_16", "ldmatrix_x4", "ldmatrix_x4_trans", "mma_m16n8k16_bf16", "exp2_approx", "anew"}) {
        CAPTURE(op);
        GoldenFile wrong{right.device, {}};
        for (const GoldenSet& set : right.sets)
            if (set.op == op && wrong.sets.empty()) wrong.sets.push_back(set);
        REQUIRE(wrong.sets.size() == 1);
        // A word whose value is an ordinary number: for exp2 one of those between -30 and 2.
        const size_t at = op == "exp2_approx" ? 1000 : 37;
        wrong.sets[0].out[at] += op == "mma_m16n8k16_bf16" ? 64 : 4;
        CHECK(replay(wrong).faults == 1);
    }
    // Lanes of a product in each other's place.
    GoldenFile swapped{right.device, {}};
    for (const GoldenSet& set : right.sets)
        if (set.op == "mma_m16n8k16_bf16") swapped.sets.push_back(set);
    std::swap(swapped.sets[5].out[0], swapped.sets[5].out[4]);
    CHECK(replay(swapped).faults == 2);
}

TEST_CASE("golden vectors: a damaged file is refused") {
    const std::string text = write_golden({"x", {{"anew", {1, 2}, {1, 2}}}});
    CHECK(parse_golden(text).sets.size() == 1);
    for (const std::string& bad :
         {std::string("nothing\n"), std::string("longreach golden vectors 1\nset"), text + "sets",
          text + "set anew 1 1 00000001", text + "set anew 1 1 0000000x 1", text + "set anew 99999999999 1"})
        CHECK_THROWS_AS(parse_golden(bad), Error);
    CHECK_THROWS_AS(run_golden("cp_async_16", {1, 2}), Error);
    CHECK_THROWS_AS(run_golden("nothing", {1, 2}), Error);
}
