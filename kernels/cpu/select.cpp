// Chooses the instruction set at run time and names data types.
#include <algorithm>
#include <string_view>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "base/error.h"
#include "kernels/amx.h"
#include "kernels/cpu_device.h"
#include "kernels/ops.h"

namespace longreach {

// One factory per instruction set, each defined in create.cpp compiled for that set.
namespace isa_generic {
std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles);
}
namespace isa_avx2 {
std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles);
}
namespace isa_avx512 {
std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles);
bool tiles_agree();
}  // namespace isa_avx512
namespace isa_neon {
std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles);
}
namespace isa_neon_bf16 {
std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles);
}

const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "f32";
        case DType::bf16:
            return "bf16";
        case DType::f64:
            return "f64";
        case DType::i32:
            return "i32";
    }
    return "?";
}

namespace {

#if defined(LONGREACH_HAS_AVX512)
Tiles tiles_of_this_cpu() {
    static const Tiles tiles = !__builtin_cpu_supports("avx512bf16") || !request_amx() ? Tiles::absent
                               : isa_avx512::tiles_agree()                             ? Tiles::usable
                                                                                       : Tiles::wrong;
    return tiles;
}
#endif

struct InstructionSet {
    const char* name;
    std::unique_ptr<Ops> (*create)(int threads, Precision precision, Tiles tiles);
    Tiles tiles = Tiles::absent;
};

#if defined(LONGREACH_HAS_NEON_BF16)
// BFDOT and the conversions to bf16. Only Linux says so here; elsewhere the answer is no.
bool has_arm_bf16() {
#if defined(__linux__)
    constexpr unsigned long bf16_bit = 1ul << 14;  // HWCAP2_BF16
    return (getauxval(AT_HWCAP2) & bf16_bit) != 0;
#else
    return false;
#endif
}
#endif

// Instruction sets that this build has (option LONGREACH_CPU) and this CPU can run, the best first.
std::vector<InstructionSet> usable_sets([[maybe_unused]] const CpuOptions& options) {
    std::vector<InstructionSet> sets;
#if defined(LONGREACH_HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        // Tiles only where they are wanted: a process that has asked for them saves 8 KiB more with every signal.
        const bool asks =
            options.isa == "avx512_amx" || (options.isa.empty() && options.precision == Precision::bf16);
        const Tiles tiles = asks ? tiles_of_this_cpu() : Tiles::absent;
        if (tiles == Tiles::usable) sets.push_back({"avx512_amx", isa_avx512::create, tiles});
        sets.push_back({"avx512", isa_avx512::create, tiles == Tiles::wrong ? tiles : Tiles::absent});
    }
#endif
#if defined(LONGREACH_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        sets.push_back({"avx2", isa_avx2::create});
#endif
#if defined(LONGREACH_HAS_NEON_BF16)
    if (has_arm_bf16()) sets.push_back({"neon_bf16", isa_neon_bf16::create});
#endif
#if defined(LONGREACH_HAS_NEON)
    sets.push_back({"neon", isa_neon::create});  // every 64-bit ARM has it
#endif
#if defined(LONGREACH_HAS_GENERIC)
    sets.push_back({"generic", isa_generic::create});
#endif
    return sets;
}

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options) {
    const std::vector<InstructionSet> sets = usable_sets(options);
    require(!sets.empty(), ExitCode::device,
            "this program was built for another CPU; build it with -DLONGREACH_CPU=all");
    const auto chosen = std::find_if(sets.begin(), sets.end(), [&](const InstructionSet& set) {
        return options.isa.empty() || options.isa == set.name;
    });
    require(chosen != sets.end(), ExitCode::device,
            "this CPU (or this build) does not have the instruction set '{}'", options.isa);
    bool has_bf16 = chosen->name == std::string_view("neon_bf16");
#if defined(LONGREACH_HAS_AVX512)
    has_bf16 = std::string_view(chosen->name).starts_with("avx512") && __builtin_cpu_supports("avx512bf16");
#endif
    require(options.precision == Precision::fp32 || has_bf16, ExitCode::device,
            "precision bf16 needs AVX512_BF16 or ARM's BF16 on a CPU; use system.precision fp32");
    return chosen->create(options.threads, options.precision, chosen->tiles);
}

}  // namespace longreach
