// Chooses the instruction set at run time and names data types.
#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/ops.h"

namespace longreach {

// One factory per instruction set, each defined in create.cpp compiled for that set.
namespace isa_generic {
std::unique_ptr<Ops> create(int threads, Precision precision);
}
namespace isa_avx2 {
std::unique_ptr<Ops> create(int threads, Precision precision);
}
namespace isa_avx512 {
std::unique_ptr<Ops> create(int threads, Precision precision);
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

struct InstructionSet {
    const char* name;
    std::unique_ptr<Ops> (*create)(int threads, Precision precision);
};

// Instruction sets that this build has (option LONGREACH_CPU) and this CPU can run, the best first.
std::vector<InstructionSet> usable_sets() {
    std::vector<InstructionSet> sets;
#if defined(LONGREACH_HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        sets.push_back({"avx512", isa_avx512::create});
#endif
#if defined(LONGREACH_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        sets.push_back({"avx2", isa_avx2::create});
#endif
#if defined(LONGREACH_HAS_GENERIC)
    sets.push_back({"generic", isa_generic::create});
#endif
    return sets;
}

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options) {
    const std::vector<InstructionSet> sets = usable_sets();
    require(!sets.empty(), ExitCode::device,
            "this program was built for another CPU; build it with -DLONGREACH_CPU=all");
    const auto chosen = std::find_if(sets.begin(), sets.end(), [&](const InstructionSet& set) {
        return options.isa.empty() || options.isa == set.name;
    });
    require(chosen != sets.end(), ExitCode::device,
            "this CPU (or this build) does not have the instruction set '{}'", options.isa);
    bool has_bf16 = false;
#if defined(LONGREACH_HAS_AVX512)
    has_bf16 = chosen->name == std::string_view("avx512") && __builtin_cpu_supports("avx512bf16");
#endif
    require(options.precision == Precision::fp32 || has_bf16, ExitCode::device,
            "precision bf16 needs AVX512_BF16 on a CPU; use system.precision fp32");
    return chosen->create(options.threads, options.precision);
}

}  // namespace longreach
