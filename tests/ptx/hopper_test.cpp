// The pipeline of tests/simt/hopper_pipeline.h as nvcc emits it, run by the interpreter and compared with plain
// arithmetic; then the same PTX with a fault in it, which the interpreter or the numbers have to show.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "ptx/arithmetic.h"
#include "ptx/machine.h"

using namespace longreach::ptx;

namespace {

constexpr int queries = 128, keys = 170, columns = 64, tiles = 3, table_entries = 256;

uint16_t to_bf16(float x) {  // to nearest, ties to even
    uint32_t bits = f32_bits(x);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float real(uint16_t bits) {
    return bf16_value(bits);
}
std::vector<uint16_t> matrix(int rows, int seed) {
    std::vector<uint16_t> made;
    for (int i = 0; i < rows * columns; ++i)
        made.push_back(to_bf16(static_cast<float>((i * 37 + seed * 11 + i / columns * 5) % 61 - 30) / 32.0f));
    return made;
}

struct Problem {
    std::vector<uint16_t> q = matrix(queries, 1), k = matrix(keys, 2), v = matrix(keys, 3), out;
    std::vector<float> table;
    std::vector<bool> written;

    Problem() : out(queries * columns, 0x7fc1), written(out.size() * 2) {
        for (int i = 0; i < table_entries; ++i) table.push_back(static_cast<float>(i % 9) / 16.0f - 0.25f);
    }

    // Maps hold nothing but a number here: only the driver and the hardware know what is in one.
    Tensor tensor(int number) const {
        const std::vector<uint16_t>* const all[] = {&q, &k, &v, &out};
        Tensor t;
        t.base = reinterpret_cast<uint64_t>(all[number]->data());
        t.size[0] = columns;
        t.size[1] = static_cast<int64_t>(all[number]->size()) / columns;
        t.size[2] = 1;
        t.stride[0] = 2 * columns;
        t.stride[1] = t.stride[0] * static_cast<uint64_t>(t.size[1]);
        t.box[0] = t.box[1] = 64;
        t.box[2] = 1;
        t.swizzled = true;
        return t;
    }

    void run(const std::string& text, bool late, bool last_first) {
        const Module module = parse("hopper.ptx", text);
        const Entry& entry = module.entries.begin()->second;
        Launch launch;
        launch.block.x = 384;
        launch.shared_bytes = 52 * 1024;
        launch.copies_land_late = late;
        launch.last_first = last_first;
        launch.parameters.resize(entry.parameter_bytes);
        const auto set = [&](size_t parameter, auto value) {
            std::memcpy(&launch.parameters[entry.parameters[parameter].offset], &value, sizeof value);
        };
        for (int i = 0; i < 4; ++i) set(static_cast<size_t>(i), i);
        set(4, table.data());
        set(5, tiles);
        const auto within = [](uintptr_t at, size_t bytes, const auto& all) {
            const size_t offset = at - reinterpret_cast<uintptr_t>(all.data());
            return offset < all.size() * sizeof all[0] && bytes <= all.size() * sizeof all[0] - offset;
        };
        Memory memory;
        memory.read = [&](uintptr_t at, size_t bytes) {
            if (!within(at, bytes, q) && !within(at, bytes, k) && !within(at, bytes, v) &&
                !within(at, bytes, table))
                throw Fault("a read of what is no input");
        };
        memory.written = [&](uintptr_t at, size_t bytes) {
            if (!within(at, bytes, out)) throw Fault("a write to what is no output");
        };
        memory.tensor = [&](const std::byte* map) {
            int number = 0;
            std::memcpy(&number, map, sizeof number);
            return tensor(number);
        };
        longreach::ptx::run(*prepare(module, entry), launch, memory);
    }

    // The largest difference to a sum in double, in units of the rounding of the output.
    double worst() const {
        double most = 0;
        for (int i = 0; i < queries; ++i) {
            std::vector<double> o(columns), sizes(columns);
            for (int j = 0; j < keys; ++j) {
                float score = 0;  // exact: multiples of 2^-10 below 2^7
                for (int c = 0; c < columns; ++c)
                    score += real(q[static_cast<size_t>(i * columns + c)]) *
                             real(k[static_cast<size_t>(j * columns + c)]);
                const double p = real(to_bf16(score * table[static_cast<size_t>(j % table_entries)]));
                for (int c = 0; c < columns; ++c) {
                    const double one = p * real(v[static_cast<size_t>(j * columns + c)]);
                    o[static_cast<size_t>(c)] += one;
                    sizes[static_cast<size_t>(c)] += std::abs(one);
                }
            }
            for (size_t c = 0; c < columns; ++c) {
                const double got = real(out[static_cast<size_t>(i) * columns + c]);
                // Half an ulp of bf16, and fp32's roundings of 12 partial sums.
                const double bound = std::abs(o[c]) * 0x1p-8 + sizes[c] * 13 * 0x1p-24;
                most = std::max(most, std::isnan(got) ? INFINITY : std::abs(got - o[c]) / bound);
            }
        }
        return most;
    }
};

std::string emitted() {
    std::ifstream file(LONGREACH_HOPPER_PTX);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

struct Planted {
    const char *name, *expression, *replacement;
};
const Planted planted[] = {
    {"a and b exchanged", R"((%rd\d+), (%rd\d+)(, p, 1, 1, 0, 0))", "$2, $1$3"},
    {"the flag of the transposed b", ", p, 1, 1, 1;", ", p, 1, 1, 0;"},
    {"b transposed where it is not", ", p, 1, 1, 0, 0;", ", p, 1, 1, 0, 1;"},
    {"two registers of a exchanged", R"(\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}, (%rd\d+), p)",
     "{$1, $3, $2, $4}, $5, p"},
    {"the stride of another tile", "4611686293305360384", "4611686155866341376"},
    {"descriptors without the swizzle", "4611686293305360384", "274877906944"},
    {"one step along k too far", "4611686293305360386", "4611686293305360388"},
    {"sums added to what is there", R"(setp.ne.b32 p, (%r\d+), 0)", "setp.eq.b32 p, $1, 0"},
    {"a wait for one group fewer", R"(wgmma.wait_group.sync.aligned 0)", "wgmma.wait_group.sync.aligned 1"},
    {"no wgmma.fence", "wgmma.fence.sync.aligned;", ""},
    {"no commit", "wgmma.commit_group.sync.aligned;", ""},
    {"no proxy fence", "fence.proxy.async.shared::cta;", ""},
    {"bytes not announced", R"(arrive.expect_tx(.release.cta.shared::cta.b64 _, \[%r\d+\]), %r\d+)",
     "arrive$1"},
    {"parity always 0", R"((try_wait[^;]*\], )%r\d+;)", "$1 0;"},
    {"column and row exchanged", R"(\{(%r\d+), (%r\d+), (%r\d+)\}\], \[)", "{$2, $1, $3}], ["},
    {"registers of stmatrix exchanged", R"((stmatrix[^{]*\{)(%r\d+), (%r\d+))", "$1$3, $2"},
    {"the turn given to nobody", "bar.arrive 2", "bar.arrive 6"},
    {"a store not waited for", "cp.async.bulk.wait_group.read 0;", ""},
    {"registers not in steps of 8", "setmaxnreg.inc.sync.aligned.u32 240",
     "setmaxnreg.inc.sync.aligned.u32 236"},
    {"32 + 2 * 240 registers of 3 * 168", "setmaxnreg.dec.sync.aligned.u32 24",
     "setmaxnreg.dec.sync.aligned.u32 32"},
    {"nobody gives registers back", "setmaxnreg.dec.sync.aligned.u32 24;", ""},
};

}  // namespace

TEST_CASE("what nvcc emits of Hopper's instructions gives what plain arithmetic gives") {
    const std::string text = emitted();
    REQUIRE(!text.empty());
    for (bool late : {true, false})
        for (bool last_first : {false, true}) {
            CAPTURE(late);
            CAPTURE(last_first);
            Problem problem;
            problem.run(text, late, last_first);
            CHECK(problem.worst() <= 1);
        }
}

TEST_CASE("a fault in the emitted code of Hopper's instructions is found") {
    const std::string text = emitted();
    for (const Planted& one : planted) {
        INFO(std::string(one.name));
        const std::string changed = std::regex_replace(text, std::regex(one.expression), one.replacement);
        CHECK(changed != text);
        Problem problem;
        std::string said;
        try {
            problem.run(changed, true, false);
            const double worst = problem.worst();
            if (!(worst <= 1)) said = "results " + std::to_string(worst) + " times their bound away";
        } catch (const Fault& fault) {
            said = fault.what();
        }
        CHECK(!said.empty());
        std::printf("%-34s | %s\n", one.name, said.substr(0, 150).c_str());
    }
}
