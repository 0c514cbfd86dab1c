// Chooses the instruction set at run time and names data types.
#include <omp.h>
#include <sched.h>

#include "base/error.h"
#include "kernels/ops.h"

namespace longreach {

// One factory per instruction set, each defined in create.cpp compiled for that set.
namespace isa_generic {
std::unique_ptr<Ops> create(int threads, Precision precision);
}
#if defined(LONGREACH_X86)
namespace isa_avx2 {
std::unique_ptr<Ops> create(int threads, Precision precision);
}
namespace isa_avx512 {
std::unique_ptr<Ops> create(int threads, Precision precision);
}
#endif

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

bool supported(const std::string& isa) {
    if (isa == "generic") return true;
#if defined(LONGREACH_X86)
    if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return false;
}

int available_threads() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return omp_get_num_procs();
}

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options) {
    std::string isa = options.isa;
    if (isa.empty()) isa = supported("avx512") ? "avx512" : supported("avx2") ? "avx2" : "generic";
    require(supported(isa), ExitCode::device,
            "this CPU (or this build) does not have the instruction set '{}'", isa);
    bool has_bf16 = false;
#if defined(LONGREACH_X86)
    has_bf16 = isa == "avx512" && __builtin_cpu_supports("avx512bf16");
#endif
    require(options.precision == Precision::fp32 || has_bf16, ExitCode::device,
            "precision bf16 needs AVX512_BF16 on a CPU; use system.precision fp32");
    const int threads = options.threads > 0 ? options.threads : available_threads();
#if defined(LONGREACH_X86)
    if (isa == "avx512") return isa_avx512::create(threads, options.precision);
    if (isa == "avx2") return isa_avx2::create(threads, options.precision);
#endif
    return isa_generic::create(threads, options.precision);
}

}  // namespace longreach
