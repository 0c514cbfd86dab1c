// The interpreter against the PTX manual, on code written by hand.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <doctest/doctest.h>
#include "ptx/arithmetic.h"
#include "ptx/machine.h"

using namespace longreach::ptx;

namespace {

// Runs one block of `threads` whose kernel gets one parameter, the address of `memory`.
struct Bench {
    std::vector<uint32_t> memory = std::vector<uint32_t>(1024, 0);
    std::vector<bool> known = std::vector<bool>(4096, true);
    unsigned threads = 32;
    size_t shared_bytes = 0;
    bool late = true, last_first = false;

    void run(const std::string& declarations, const std::string& body) {
        const std::string text =
            ".version 8.0\n.target sm_80\n.address_size 64\n" + declarations +
            ".visible .entry k(\n.param .u64 k_param_0\n)\n.maxntid 64, 1, 1\n{\n"
            ".reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<40>;\n.reg .f32 %f<40>;\n"
            ".reg .b64 %rd<20>;\n.reg .f64 %fd<9>;\n"
            "ld.param.u64 %rd0, [k_param_0];\nmov.u32 %r0, %tid.x;\n"
            "mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd2, %rd0, %rd1;\n" +
            body + "\nret;\n}\n";
        const Module module = parse("test.ptx", text);
        Launch launch;
        launch.block.x = threads;
        launch.shared_bytes = shared_bytes;
        launch.copies_land_late = late;
        launch.last_first = last_first;
        const auto address = reinterpret_cast<uint64_t>(memory.data());
        launch.parameters.resize(8);
        std::memcpy(launch.parameters.data(), &address, 8);
        Memory device;
        const auto first = [this](uintptr_t at, size_t bytes) {
            const size_t offset = at - reinterpret_cast<uintptr_t>(memory.data());
            if (offset + bytes > known.size()) throw Fault("out of bounds");
            return offset;
        };
        device.read = [&](uintptr_t at, size_t bytes) {
            for (size_t i = first(at, bytes), end = i + bytes; i < end; ++i)
                if (!known[i]) throw Fault("nobody wrote it");
        };
        device.written = [&](uintptr_t at, size_t bytes) {
            for (size_t i = first(at, bytes), end = i + bytes; i < end; ++i) known[i] = true;
        };
        longreach::ptx::run(*prepare(module, module.entries.at("k")), launch, device);
    }
    float real(size_t at) const { return f32_value(memory[at]); }
};

uint64_t computed(const std::string& opcode, std::vector<uint64_t> in) {
    std::vector<std::string> words;
    for (size_t at = 0; at <= opcode.size();) {
        const size_t dot = std::min(opcode.find('.', at), opcode.size());
        words.push_back(opcode.substr(at, dot - at));
        at = dot + 1;
    }
    const Compute how = words[0] == "setp" ? comparison_of(words) : compute_of(words);
    const bool known = how.run != nullptr;
    REQUIRE_MESSAGE(known, opcode);
    CHECK_MESSAGE(how.inputs == in.size(), opcode);
    in.resize(4);
    return how.run(how, in.data());
}
uint64_t f(float x) {
    return f32_bits(x);
}

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("integers as the manual defines them") {
    const uint64_t minus_one = 0xffffffff, lowest = 0x80000000;
    CHECK(computed("add.s32", {minus_one, 2}) == 1);
    CHECK(computed("sub.s64", {0, 1}) == ~uint64_t{0});
    CHECK(computed("mul.lo.s32", {0x10000, 0x10001}) == 0x10000);
    CHECK(computed("mul.hi.u32", {minus_one, minus_one}) == 0xfffffffe);
    CHECK(computed("mul.hi.s32", {minus_one, minus_one}) == 0);
    CHECK(computed("mul.wide.s32", {minus_one, 3}) == ~uint64_t{0} - 2);
    CHECK(computed("mul.wide.u32", {minus_one, 3}) == 0x2fffffffd);
    CHECK(computed("mul.wide.u16", {0xffff, 0xffff}) == 0xfffe0001);
    CHECK(computed("mad.lo.s32", {5, 7, minus_one}) == 34);
    CHECK(computed("mad.wide.s32", {minus_one, 1, uint64_t{1} << 40}) == (uint64_t{1} << 40) - 1);
    CHECK(computed("div.s32", {static_cast<uint32_t>(-7), 2}) == static_cast<uint32_t>(-3));
    CHECK(computed("rem.s32", {static_cast<uint32_t>(-7), 2}) == minus_one);
    CHECK(computed("div.u32", {minus_one, 2}) == 0x7fffffff);
    CHECK(computed("div.s32", {lowest, minus_one}) == lowest);
    CHECK(computed("shr.s32", {lowest, 40}) == minus_one);
    CHECK(computed("shr.u32", {lowest, 32}) == 0);
    CHECK(computed("shl.b32", {3, 31}) == lowest);
    CHECK(computed("shl.b64", {1, 40}) == uint64_t{1} << 40);
    CHECK(computed("min.s32", {minus_one, 1}) == minus_one);
    CHECK(computed("max.u32", {minus_one, 1}) == minus_one);
    CHECK(computed("abs.s32", {minus_one}) == 1);
    CHECK(computed("not.pred", {1}) == 0);
    CHECK(computed("and.pred", {1, 1}) == 1);
    CHECK(computed("popc.b32", {0xf0f0}) == 8);
    CHECK(computed("clz.b32", {1}) == 31);
    CHECK(computed("brev.b32", {1}) == lowest);
    CHECK(computed("bfind.shiftamt.u32", {0x00010000}) == 15);
    CHECK(computed("bfind.shiftamt.u32", {0}) == minus_one);
    CHECK(computed("bfe.u32", {0xabcd1234, 8, 8}) == 0x12);
    CHECK(computed("bfe.s32", {0xabcdf234, 8, 8}) == 0xfffffff2);
    CHECK(computed("bfi.b32", {0xff, 0x12345678, 8, 4}) == 0x12345f78);
    CHECK(computed("bfi.b32", {0xff, 0x12345678, 28, 8}) == 0xf2345678);
    CHECK(computed("bfi.b32", {0xff, 0x12345678, 32, 8}) == 0x12345678);
    CHECK(computed("bfi.b64", {1, 0, 63, 1}) == uint64_t{1} << 63);
    CHECK(computed("prmt.b32", {0x33221100, 0x77665544, 0x7510}) == 0x77551100);
    CHECK(computed("prmt.b32", {0x80, 0, 0x8888}) == minus_one);
    CHECK(computed("shf.l.wrap.b32", {0x80000000, 1, 1}) == 3);
    CHECK(computed("shf.r.clamp.b32", {1, 2, 40}) == 2);
    CHECK(computed("selp.b32", {1, 2, 0}) == 2);
}

TEST_CASE("real numbers as the manual defines them") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), tiny = 1e-40f;
    CHECK(computed("add.f32", {f(1), f(2)}) == f(3));
    CHECK(computed("add.ftz.f32", {f(tiny), f(0)}) == f(0));
    CHECK(computed("add.f32", {f(tiny), f(0)}) == f(tiny));
    // 1 + 2^-24 lies between 1 and its successor.
    CHECK(computed("add.rz.f32", {f(1), f(0x1p-24f)}) == f(1));
    CHECK(computed("add.rz.f32", {f(-1), f(-0x1.8p-24f)}) == f(-1));
    CHECK(computed("fma.rm.f32", {f(-1), f(1), f(-0x1p-30f)}) == f(std::nextafter(-1.0f, -2.0f)));
    CHECK(computed("fma.rn.f32", {f(1 + 0x1p-12f), f(1 + 0x1p-12f), f(-1)}) == f(0x1p-11f + 0x1p-24f));
    CHECK(computed("min.f32", {f(nan), f(1)}) == f(1));
    CHECK(std::isnan(f32_value(computed("max.NaN.f32", {f(nan), f(1)}))));
    CHECK(computed("min.f32", {f(0), f(-0.0f)}) == f(-0.0f));
    CHECK(computed("copysign.f32", {f(-2), f(3)}) == f(-3));
    CHECK(computed("neg.f32", {f(2)}) == f(-2));
    CHECK(computed("ex2.approx.ftz.f32", {f(-infinity)}) == f(0));
    CHECK(computed("ex2.approx.ftz.f32", {f(-130)}) == f(0));
    CHECK(computed("rcp.approx.ftz.f32", {f(4)}) == f(0.25f));
    CHECK(computed("sqrt.rn.f32", {f(2)}) == f(std::sqrt(2.0f)));
    CHECK(computed("div.rn.f32", {f(1), f(3)}) == f(1.0f / 3.0f));
    CHECK(computed("fma.rn.bf16x2", {0x3f803f80, 0x40004000, 0x40400000}) == 0x40a04000);
    CHECK(computed("testp.finite.f32", {f(infinity)}) == 0);
    CHECK(computed("setp.ltu.f32", {f(nan), f(1)}) == 1);
    CHECK(computed("setp.lt.f32", {f(nan), f(1)}) == 0);
    CHECK(computed("setp.lt.and.s32", {0xffffffff, 0, 1}) == 1);
    CHECK(computed("setp.lt.u32", {0xffffffff, 0}) == 0);
    CHECK(computed("setp.hs.u32", {3, 3}) == 1);
}

TEST_CASE("conversions as the manual defines them") {
    CHECK(computed("cvt.rn.bf16.f32", {f(1 + 0x1p-8f)}) == 0x3f80);  // ties to even
    CHECK(computed("cvt.rn.bf16.f32", {f(1 + 0x1.8p-7f)}) == 0x3f82);
    CHECK(computed("cvt.rn.bf16x2.f32", {f(2), f(1)}) == 0x40003f80);
    CHECK(computed("cvt.f32.bf16", {0x4000}) == f(2));
    CHECK(computed("cvt.rzi.s32.f32", {f(-2.7f)}) == static_cast<uint32_t>(-2));
    CHECK(computed("cvt.rni.s32.f32", {f(2.5f)}) == 2);
    CHECK(computed("cvt.rzi.s32.f32", {f(3e10f)}) == 0x7fffffff);
    CHECK(computed("cvt.rzi.u32.f32", {f(-1)}) == 0);
    CHECK(computed("cvt.rmi.f32.f32", {f(-2.5f)}) == f(-3));
    CHECK(computed("cvt.rzi.f32.f32", {f(-2.5f)}) == f(-2));
    CHECK(computed("cvt.sat.f32.f32", {f(-3)}) == f(0));
    CHECK(computed("cvt.rn.f32.s32", {0xffffffff}) == f(-1));
    CHECK(computed("cvt.rn.f32.u32", {0xffffffff}) == f(0x1p32f));
    CHECK(computed("cvt.s64.s32", {0x80000000}) == 0xffffffff80000000);
    CHECK(computed("cvt.u64.u32", {0x80000000}) == 0x80000000);
    CHECK(computed("cvt.s32.s8", {0x80}) == 0xffffff80);
    CHECK(computed("cvt.sat.u8.s32", {0xffffffff}) == 0);
    CHECK(f32_value(computed("cvt.rn.f32.f64", {std::bit_cast<uint64_t>(0.1)})) == 0.1f);
}

TEST_CASE("lanes part at branches and meet again") {
    for (const bool last_first : {false, true}) {
        Bench b;
        b.threads = 64;
        b.last_first = last_first;
        // Thread t adds 1 in each of t rounds, then a warp counts its lanes.
        b.run("", R"(
            mov.u32 %r1, 0;
        $LOOP:
            setp.ge.u32 %p1, %r1, %r0;
            @%p1 bra $DONE;
            add.s32 %r1, %r1, 1;
            bra $LOOP;
        $DONE:
            activemask.b32 %r2;
            bar.warp.sync 0xffffffff;
            vote.sync.ballot.b32 %r3, %p1, 0xffffffff;
            popc.b32 %r4, %r3;
            mad.lo.s32 %r5, %r4, 1000, %r1;
            st.global.u32 [%rd2], %r5;)");
        for (uint32_t t = 0; t < 64; ++t) CHECK(b.memory[t] == 32000 + t);
    }
}

TEST_CASE("shuffles") {
    const auto shuffled = [](const std::string& how) {
        Bench b;
        b.run("", "add.s32 %r1, %r0, 100;\nshfl.sync." + how +
                      ", 0xffffffff;\nselp.b32 %r3, 1000, 0, %p1;\n" +
                      "add.s32 %r4, %r2, %r3;\nst.global.u32 [%rd2], %r4;");
        return b.memory;
    };
    const auto butterfly = shuffled("bfly.b32 %r2|%p1, %r1, 16, 31");
    const auto down = shuffled("down.b32 %r2|%p1, %r1, 3, 31");
    const auto up = shuffled("up.b32 %r2|%p1, %r1, 3, 0");
    const auto eighths = shuffled("idx.b32 %r2|%p1, %r1, 2, 6175");  // segments of 8: 0x181f
    for (uint32_t t = 0; t < 32; ++t) {
        CHECK(butterfly[t] == 1100 + (t ^ 16));
        CHECK(down[t] == (t + 3 < 32 ? 1103 + t : 100 + t));
        CHECK(up[t] == (t >= 3 ? 1097 + t : 100 + t));
        CHECK(eighths[t] == 1100 + t / 8 * 8 + 2);
    }
}

TEST_CASE("shared, local and constant memory, carries, calls") {
    Bench b;
    b.threads = 64;
    b.shared_bytes = 256;
    b.run(
        ".extern .shared .align 16 .b8 arena[];\n.global .align 4 .b8 numbers[8] = {1, 0, 0, 0, 2, 0, 0, "
        "0};\n"
        ".func (.param .b32 back) twice(\n.param .b32 given\n)\n;\n",
        R"(
        .local .align 8 .b8 own[16];
        mov.u32 %r1, arena;
        mad.lo.s32 %r2, %r0, 4, %r1;
        st.shared.u32 [%r2], %r0;
        bar.sync 0;
        xor.b32 %r3, %r0, 63;
        shl.b32 %r3, %r3, 2;
        ld.shared.u32 %r4, [%r3];
        mov.u64 %rd3, own;
        cvta.local.u64 %rd4, %rd3;
        st.u32 [%rd4+4], %r4;
        ld.local.u32 %r5, [own+4];
        mov.u64 %rd5, numbers;
        ld.global.u32 %r6, [%rd5+4];
        add.cc.u32 %r7, 0xffffffff, %r6;
        addc.u32 %r8, 10, 0;
        mad.lo.s32 %r9, %r8, 100, %r5;
        st.global.u32 [%rd2], %r9;)");
    for (uint32_t t = 0; t < 64; ++t) CHECK(b.memory[t] == 1100 + (63 - t));

    const char* const function = R"(
.func (.param .b32 back) twice(.param .b32 given);
.func (.param .b32 back) twice(.param .b32 given)
{
    .reg .b32 %r<3>;
    ld.param.u32 %r0, [given];
    add.s32 %r1, %r0, %r0;
    st.param.b32 [back], %r1;
    ret;
}
)";
    b.run(function, R"(
        { .param .b32 in0; .param .b32 out0;
          st.param.b32 [in0], %r0;
          call.uni (out0), twice, (in0);
          ld.param.b32 %r1, [out0]; }
        st.global.u32 [%rd2], %r1;)");
    for (uint32_t t = 0; t < 64; ++t) CHECK(b.memory[t] == 2 * t);
}

TEST_CASE("a product of 16 x 16 and 16 x 8 through copies and ldmatrix") {
    std::mt19937 random(1);
    std::uniform_int_distribution<int> numbers(-4, 4);
    for (const bool late : {false, true}) {
        Bench b;
        b.late = late;
        b.shared_bytes = 1024;
        // A row by row at byte 0, B column by column at byte 512, bfloat16 each.
        double a[16][16], w[16][8];
        const auto put = [&](size_t element, double x) {
            const auto bits = static_cast<uint32_t>(f(static_cast<float>(x)) >> 16);
            b.memory[element / 2] |= bits << (16 * (element % 2));
        };
        for (size_t i = 0; i < 16; ++i)
            for (size_t k = 0; k < 16; ++k) put(i * 16 + k, a[i][k] = numbers(random));
        for (size_t j = 0; j < 8; ++j)
            for (size_t k = 0; k < 16; ++k) put(256 + j * 16 + k, w[k][j] = numbers(random));
        // 48 pieces of 16 bytes: thread t copies piece t, and below 16 also piece 32 + t.
        b.run(".extern .shared .align 16 .b8 arena[];\n", R"(
            shl.b32 %r1, %r0, 4;
            cvt.u64.u32 %rd3, %r1;
            add.s64 %rd4, %rd0, %rd3;
            mov.u32 %r20, 16;
            cp.async.cg.shared.global [%r1], [%rd4], 16, %r20;
            setp.lt.u32 %p1, %r0, 16;
            @%p1 cp.async.cg.shared.global [%r1+512], [%rd4+512], 16, %r20;
            cp.async.commit_group;
            cp.async.wait_group 0;
            bar.sync 0;
            and.b32 %r2, %r0, 15;
            shl.b32 %r2, %r2, 5;
            shr.u32 %r3, %r0, 4;
            shl.b32 %r3, %r3, 4;
            add.s32 %r4, %r2, %r3;
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r4];
            and.b32 %r9, %r0, 7;
            shl.b32 %r9, %r9, 5;
            shr.u32 %r10, %r0, 3;
            and.b32 %r10, %r10, 1;
            shl.b32 %r10, %r10, 4;
            add.s32 %r11, %r9, %r10;
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r12, %r13, %r14, %r15}, [%r11+512];
            mov.f32 %f0, 0f3F800000;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r5, %r6, %r7, %r8}, {%r12, %r13}, {%f0, %f0, %f0, %f0};
            shl.b32 %r16, %r0, 4;
            cvt.u64.u32 %rd5, %r16;
            add.s64 %rd6, %rd0, %rd5;
            st.global.v4.f32 [%rd6+1024], {%f1, %f2, %f3, %f4};)");
        for (size_t lane = 0; lane < 32; ++lane)
            for (size_t i = 0; i < 4; ++i) {
                const size_t row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + i % 2;
                double sum = 1;
                for (size_t k = 0; k < 16; ++k) sum += a[row][k] * w[k][column];
                CHECK(double{b.real(256 + lane * 4 + i)} == sum);
            }
    }
}

TEST_CASE("faults are reported with line, thread and instruction") {
    const auto fault = [](const std::string& body, size_t shared_bytes = 64, unsigned threads = 32) {
        Bench b;
        b.shared_bytes = shared_bytes;
        b.threads = threads;
        b.known[400] = false;
        try {
            b.run(".extern .shared .align 16 .b8 arena[];\n", body);
        } catch (const std::runtime_error& e) {
            return std::string(e.what());
        }
        return std::string("none");
    };
    const auto says = [](const std::string& text, const std::string& part) {
        CHECK_MESSAGE(text.find(part) != std::string::npos, text);
    };
    CHECK(
        fault(
            "add.s32 %r1, %r2, %r0; mov.u32 %r3, 1; selp.b32 %r4, %r3, %r1, 1; st.global.u32 [%rd2], %r4;") ==
        "none");
    says(fault("add.s32 %r1, %r2, %r0;\nst.global.u32 [%rd2], %r1;"),
         "test.ptx:21: register %r1 holds what was computed from a register nobody wrote, block 0,0,0, "
         "thread 0: st.global.u32");
    says(fault("@%p1 bra $L;\n$L:"), "register %p1");
    says(fault("ld.shared.u32 %r1, [arena+8];"), "byte 8 is read before it is written");
    says(fault("ld.shared.u32 %r1, [arena+64];"), "byte 64 of 64");
    says(fault("st.global.u32 [%rd0+2], %r0;"), "no multiple of 4");
    says(fault("ld.global.u32 %r1, [%rd0+400];"), "nobody wrote it");
    says(fault("st.global.u32 [%rd0+4096], %r0;"), "out of bounds");
    says(fault(".local .align 4 .b8 own[4];\nld.local.u32 %r1, [own];"),
         "byte 0 is read before it is written");
    says(fault("setp.eq.u32 %p1, %r0, 3;\n@%p1 bra $L;\nbar.sync 0;\nret;\n$L:\nbar.warp.sync 0xffffffff;"),
         "no thread can go on");
    says(fault("setp.eq.u32 %p1, %r0, 3;\n@%p1 ret;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffffffff;"),
         "the mask names lanes that have ended");
    says(fault("cp.async.cg.shared.global [arena], [%rd0], 16;\ncp.async.commit_group;\nret;"),
         "copies that nobody waited for");
    says(fault("cp.async.cg.shared.global [arena], [%rd0], 16;\ncp.async.commit_group;\nld.shared.u32 %r1, "
               "[arena];"),
         "byte 0 is read before it is written");
    says(fault("cp.async.cg.shared.global [arena], [%rd0], 8;"), "copies 16 bytes");
    says(fault("dp4a.u32.u32 %r1, %r0, %r0, %r0;"), "not known: dp4a");
    says(fault("trap;"), "a trap");
}
