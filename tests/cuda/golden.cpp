#include "cuda/golden.h"

#include <array>
#include <bit>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"

namespace longreach::test {

namespace {

constexpr std::string_view first_line = "longreach golden vectors 1";

// Random words, the same ones everywhere.
class Drawn {
  public:
    uint32_t word() { return static_cast<uint32_t>(rng_.below(at_++, uint64_t{1} << 32)); }
    uint32_t below(uint32_t end) { return static_cast<uint32_t>(rng_.below(at_++, end)); }
    float normal() { return static_cast<float>(rng_.normal(at_++)); }
    float uniform(float from, float to) {
        return from + (to - from) * static_cast<float>(rng_.uniform(at_++));
    }

  private:
    Rng rng_{1, Purpose::test};
    uint64_t at_ = 0;
};

uint32_t bits(float x) {
    return std::bit_cast<uint32_t>(x);
}
// The upper half: rounded toward zero, which is as good a random bfloat16 as any.
uint32_t bf16(float x) {
    return bits(x) >> 16;
}

// A product by rows and columns, laid out as ptx.cuh says.
struct Product {
    std::array<std::array<uint32_t, 16>, 16> a{};  // bfloat16
    std::array<std::array<uint32_t, 8>, 16> b{};   // bfloat16
    std::array<std::array<uint32_t, 8>, 16> c{};   // f32
    GoldenSet set() const {
        GoldenSet s{"mma_m16n8k16_bf16", {}, {}};
        for (size_t lane = 0; lane < 32; ++lane) {
            const size_t g = lane / 4, t = lane % 4;
            for (size_t i = 0; i < 4; ++i) {
                const size_t row = g + 8 * (i % 2), col = 2 * t + 8 * (i / 2);
                s.in.push_back(a[row][col] | a[row][col + 1] << 16);
            }
            for (size_t i = 0; i < 2; ++i)
                s.in.push_back(b[2 * t + 8 * i][g] | b[2 * t + 8 * i + 1][g] << 16);
            for (size_t i = 0; i < 4; ++i) s.in.push_back(c[g + 8 * (i / 2)][2 * t + i % 2]);
        }
        return s;
    }
    template <class DrawA, class DrawB, class DrawC>
    static Product of(DrawA draw_a, DrawB draw_b, DrawC draw_c) {
        Product p;
        for (auto& row : p.a)
            for (uint32_t& x : row) x = draw_a();
        for (auto& row : p.b)
            for (uint32_t& x : row) x = draw_b();
        for (auto& row : p.c)
            for (uint32_t& x : row) x = draw_c();
        return p;
    }
};

constexpr std::array<uint32_t, 12> edges_bf16 = {
    0x0000, 0x8000,  // zeros
    0x0001, 0x8001,  // the smallest subnormals
    0x007f, 0x0080,  // the largest subnormal, the smallest normal
    0x7f7f, 0xff7f,  // the largest
    0x7f80, 0xff80,  // infinities
    0x7fc0, 0x3f80,  // not a number, one
};
constexpr std::array<uint32_t, 12> edges_f32 = {0x00000000, 0x80000000, 0x00000001, 0x80000001,
                                                0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                                0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000};

void add_products(std::vector<GoldenSet>& sets, Drawn& drawn) {
    const auto zero = [] { return uint32_t{0}; };
    const auto normal = [&] { return bf16(drawn.normal()); };
    const auto any = [&] { return drawn.word() & 0xffff; };
    // Which element goes where: powers of two, so that every sum is exact in any order.
    for (uint32_t k = 0; k < 4; ++k)
        sets.push_back(Product::of([&] { return bf16(static_cast<float>(1u << drawn.below(4))); },
                                   [&] { return bf16(static_cast<float>(1u << drawn.below(4))); },
                                   [&] { return bits(static_cast<float>(drawn.below(64))); })
                           .set());
    for (int i = 0; i < 24; ++i)
        sets.push_back(Product::of(normal, normal, [&] { return bits(drawn.normal()); }).set());
    for (int i = 0; i < 6; ++i) sets.push_back(Product::of(normal, normal, zero).set());
    // Every exponent with every other.
    for (int i = 0; i < 12; ++i) sets.push_back(Product::of(any, any, [&] { return drawn.word(); }).set());
    for (int i = 0; i < 6; ++i)
        sets.push_back(Product::of(
                           [&] {
                               return bf16(drawn.normal() *
                                           static_cast<float>(std::uint64_t{1} << drawn.below(40)));
                           },
                           normal, [&] { return bits(drawn.normal()); })
                           .set());
    // Cancellation: each term stands next to its negative, the rest is small.
    for (int i = 0; i < 6; ++i) {
        Product p = Product::of(normal, normal, [&] { return bits(0x1p-20f * drawn.normal()); });
        for (auto& row : p.a)
            for (size_t k = 0; k < 8; ++k) row[15 - k] = row[k] ^ 0x8000;
        for (size_t k = 0; k < 8; ++k) p.b[15 - k] = p.b[k];
        sets.push_back(p.set());
    }
    // One edge value in an otherwise tame product, then edges everywhere.
    for (uint32_t edge : edges_bf16) {
        Product p = Product::of(normal, normal, [&] { return bits(drawn.normal()); });
        p.a[3][5] = p.a[12][9] = edge;
        p.b[14][6] = edge;
        sets.push_back(p.set());
    }
    for (uint32_t edge : edges_f32) {
        Product p = Product::of(normal, normal, [&] { return bits(drawn.normal()); });
        p.c[2][1] = p.c[9][7] = edge;
        sets.push_back(p.set());
    }
    for (int i = 0; i < 6; ++i)
        sets.push_back(Product::of([&] { return edges_bf16[drawn.below(12)]; },
                                   [&] { return edges_bf16[drawn.below(12)]; },
                                   [&] { return edges_f32[drawn.below(12)]; })
                           .set());
    // Subnormal results and inputs alone.
    for (int i = 0; i < 3; ++i)
        sets.push_back(
            Product::of([&] { return drawn.below(0x80); }, normal, [&] { return drawn.below(1u << 23); })
                .set());
    for (int i = 0; i < 3; ++i)
        sets.push_back(Product::of([&] { return bf16(0x1p-66f * drawn.normal()); },
                                   [&] { return bf16(0x1p-66f * drawn.normal()); }, zero)
                           .set());
}

void add_moves(std::vector<GoldenSet>& sets, Drawn& drawn) {
    for (uint32_t round = 0; round < 6; ++round) {
        GoldenSet s{"cp_async_16", {}, {}};
        for (uint32_t lane = 0; lane < 32; ++lane) {
            s.in.push_back((lane + 3 * round) % 17);
            for (int i = 0; i < 4; ++i) s.in.push_back(drawn.word());
        }
        sets.push_back(s);
    }
    for (const char* op : {"ldmatrix_x4", "ldmatrix_x4_trans"})
        for (int round = 0; round < 6; ++round) {
            GoldenSet s{op, {}, {}};
            for (int i = 0; i < 128; ++i) s.in.push_back(drawn.word());
            // In order first, then any rows, one of them named twice now and then.
            for (uint32_t lane = 0; lane < 32; ++lane) s.in.push_back(round == 0 ? lane : drawn.below(32));
            sets.push_back(s);
        }
}

void add_functions(std::vector<GoldenSet>& sets, Drawn& drawn) {
    GoldenSet s{"exp2_approx", {}, {}};
    for (uint32_t edge : edges_f32) s.in.push_back(edge);
    // Whole numbers and their neighbours, past both ends of the range.
    for (int n = -152; n <= 130; ++n) {
        const uint32_t x = bits(static_cast<float>(n));
        for (uint32_t near : {x - 1, x, x + 1}) s.in.push_back(near);
    }
    for (int i = 0; i < 4096; ++i) s.in.push_back(bits(drawn.uniform(-30, 2)));
    for (int i = 0; i < 2048; ++i) s.in.push_back(bits(drawn.uniform(-150, 130)));
    for (int i = 0; i < 1024; ++i) s.in.push_back(drawn.word());
    sets.push_back(s);
    GoldenSet same{"anew", {}, {}};
    for (int i = 0; i < 64; ++i) same.in.push_back(drawn.word());
    sets.push_back(same);
}

// Two bfloat16 a word.
Words packed(const std::vector<uint32_t>& halves) {
    Words words(halves.size() / 2);
    for (size_t i = 0; i < halves.size(); ++i) words[i / 2] |= halves[i] << 16 * (i % 2);
    return words;
}
template <class Draw>
std::vector<uint32_t> drawn_matrix(size_t count, Draw draw) {
    std::vector<uint32_t> all(count);
    for (uint32_t& one : all) one = draw();
    return all;
}

// d [64, n] + a [64, 32] b [32, n]. exact: of small multiples of 1/16, so that every order of additions gives one sum.
GoldenSet wgmma(Drawn& drawn, const std::string& op, size_t n, bool exact) {
    const auto small = [&] { return (static_cast<float>(drawn.below(65)) - 32.0f) / 16.0f; };
    const auto operand = [&] { return bf16(exact ? small() : drawn.normal()); };
    const auto a = drawn_matrix(size_t{64} * 32, operand), b = drawn_matrix(32 * n, operand),
               d = drawn_matrix(64 * n, [&] { return bits(exact ? small() : drawn.normal()); });
    GoldenSet set{op, packed(a), {}, {}};
    for (uint32_t word : packed(b)) set.in.push_back(word);
    set.in.insert(set.in.end(), d.begin(), d.end());
    if (!exact) return set;
    const auto value = [](uint32_t half) { return std::bit_cast<float>(half << 16); };
    for (size_t row = 0; row < 64; ++row)
        for (size_t column = 0; column < n; ++column) {
            auto sum = std::bit_cast<float>(d[row * n + column]);
            for (size_t k = 0; k < 32; ++k) sum += value(a[row * 32 + k]) * value(b[k * n + column]);
            set.expected.push_back(bits(sum));
        }
    return set;
}

void add_boxes(std::vector<GoldenSet>& sets, Drawn& drawn) {
    constexpr int columns = golden_columns, rows = golden_rows, sequences = golden_sequences;
    const int places[][3] = {{0, 0, 0}, {64, 8, 1}, {8, 32, 2}, {0, -3, 1}, {-8, 39, 0}};
    for (bool stores : {false, true})
        for (const auto& at : places) {
            if (stores && (at[0] < 0 || at[1] < 0)) continue;
            auto tensor =
                drawn_matrix(size_t{columns} * rows * sequences, [&] { return drawn.word() & 0xffff; });
            auto box = drawn_matrix(size_t{16} * 64, [&] { return drawn.word() & 0xffff; });
            GoldenSet set{stores ? "tensor_store" : "tensor_copy", packed(tensor), {}, {}};
            for (int i : at) set.in.push_back(static_cast<uint32_t>(i));
            if (stores)
                for (uint32_t word : packed(box)) set.in.push_back(word);
            for (int row = 0; row < 16; ++row)
                for (int column = 0; column < 64; ++column) {
                    const int of_row = at[1] + row, of_column = at[0] + column;
                    const bool inside = of_row >= 0 && of_row < rows && of_column >= 0 && of_column < columns;
                    // Chunk c of 8 columns of a row lies at c ^ (row % 8).
                    uint32_t& here =
                        box[static_cast<size_t>(row * 64 + (column / 8 ^ row % 8) * 8 + column % 8)];
                    auto* const there =
                        inside ? &tensor[static_cast<size_t>((at[2] * rows + of_row) * columns + of_column)]
                               : nullptr;
                    if (stores && inside) *there = here;
                    if (!stores) here = inside ? *there : 0;
                }
            set.expected = packed(stores ? tensor : box);
            sets.push_back(set);
        }
}

// The next word of the text, or nothing at its end.
std::string_view next_word(std::string_view& text) {
    const size_t begin = std::min(text.find_first_not_of(" \n"), text.size());
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    text.remove_prefix(end);
    return word;
}

template <class Number>
Number number(std::string_view word, int base) {
    Number n{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n, base);
    require(error == std::errc() && end == word.data() + word.size(), ExitCode::data,
            "golden vectors: '{}' is not a number", word);
    return n;
}

}  // namespace

std::vector<GoldenSet> golden_inputs() {
    Drawn drawn;
    std::vector<GoldenSet> sets;
    add_moves(sets, drawn);
    add_products(sets, drawn);
    add_functions(sets, drawn);
    return sets;
}

std::vector<GoldenSet> golden_inputs_sm90() {
    Drawn drawn;
    std::vector<GoldenSet> sets;
    const std::pair<const char*, size_t> products[] = {{"wgmma_64", 64},
                                                       {"wgmma_96", 96},
                                                       {"wgmma_128", 128},
                                                       {"wgmma_256", 256},
                                                       {"wgmma_256_strided", 256},
                                                       {"wgmma_64_registers", 64},
                                                       {"wgmma_96_registers", 96},
                                                       {"wgmma_128_registers", 128},
                                                       {"wgmma_64_registers_strided", 64},
                                                       {"wgmma_96_registers_strided", 96},
                                                       {"wgmma_128_registers_strided", 128}};
    for (const auto& [op, n] : products) sets.push_back(wgmma(drawn, op, n, true));
    for (const char* op : {"wgmma_64", "wgmma_64_registers", "wgmma_64_registers_strided"})
        sets.push_back(wgmma(drawn, op, 64, false));
    add_boxes(sets, drawn);
    const auto same = [&](const char* op, size_t count, uint32_t more) {
        GoldenSet set{op, {}, {}};
        for (size_t i = 0; i < count; ++i) {
            set.in.push_back(drawn.word());
            set.expected.push_back(set.in.back() + more);
        }
        sets.push_back(set);
    };
    same("bulk_copy", 512, 0);
    same("stmatrix_x4", 128, 0);
    same("setmaxnreg_24_240", 384, 1);
    same("setmaxnreg_40_232", 384, 1);
    same("setmaxnreg_32_160", 512, 1);
    return sets;
}

GoldenFile record_golden(const std::string& device, bool hopper) {
    GoldenFile file{device, golden_inputs()};
    if (hopper)
        for (GoldenSet& set : golden_inputs_sm90()) file.sets.push_back(std::move(set));
    for (GoldenSet& set : file.sets) {
        try {
            set.out = run_golden(set.op, set.in);
        } catch (const Error& e) {
            fail(e.code(), "set {} of {}: {}", &set - file.sets.data(), file.sets.size(), e.what());
        }
    }
    return file;
}

size_t unexpected_words(const GoldenSet& set) {
    if (set.expected.empty()) return 0;
    if (set.out.size() != set.expected.size()) return std::max(set.out.size(), set.expected.size());
    size_t differ = 0;
    for (size_t i = 0; i < set.out.size(); ++i) differ += set.out[i] != set.expected[i];
    return differ;
}

std::string write_golden(const GoldenFile& file) {
    std::string text = fmt::format("{}\ndevice {}\n", first_line, file.device);
    const auto words = [&](const Words& all) {
        for (size_t i = 0; i < all.size(); ++i)
            text += fmt::format("{:08x}{}", all[i], i % 16 == 15 || i + 1 == all.size() ? '\n' : ' ');
    };
    for (const GoldenSet& set : file.sets) {
        if (!set.expected.empty()) continue;  // checked when it was recorded
        text += fmt::format("set {} {} {}\n", set.op, set.in.size(), set.out.size());
        words(set.in);
        words(set.out);
    }
    return text;
}

GoldenFile parse_golden(const std::string& text) {
    std::string_view rest = text;
    const auto line = [&] {
        const size_t end = std::min(rest.find('\n'), rest.size());
        const std::string_view found = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        return found;
    };
    require(line() == first_line, ExitCode::data, "no golden vectors: the first line is not '{}'",
            first_line);
    const std::string_view device = line();
    require(device.starts_with("device "), ExitCode::data, "golden vectors without a device");
    GoldenFile file{std::string(device.substr(7)), {}};
    for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
        require(word == "set", ExitCode::data, "golden vectors: '{}' where a set begins", word);
        GoldenSet set{std::string(next_word(rest)), {}, {}};
        const auto inputs = number<size_t>(next_word(rest), 10),
                   outputs = number<size_t>(next_word(rest), 10);
        require(inputs + outputs <= text.size(), ExitCode::data, "golden vectors: a set of {} words",
                inputs + outputs);
        for (size_t i = 0; i < inputs; ++i) set.in.push_back(number<uint32_t>(next_word(rest), 16));
        for (size_t i = 0; i < outputs; ++i) set.out.push_back(number<uint32_t>(next_word(rest), 16));
        file.sets.push_back(std::move(set));
    }
    return file;
}

}  // namespace longreach::test
