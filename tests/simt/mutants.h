// Kernels broken on purpose. Each comes as a template: wrong = false is the correct twin.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "simt/simt.h"

namespace longreach::mutants {

struct Mutant {
    const char* name;
    simt::Kind kind;                     // what the harness has to report
    std::function<int(bool wrong)> run;  // under the schedules; how many passed without a finding
};

constexpr int schedules = 12;

std::vector<Mutant> synchronisation();
std::vector<Mutant> memory();
std::vector<Mutant> copies();
std::vector<Mutant> streams();

// Runs kernel<...>(out, in) with in[i] = (i % 7) / 8 + 1, one allocation each,
// out zeroed before each schedule.
template <class T = float>
int run(void (*kernel)(T*, const T*), const cuda::Launch& at, size_t outputs, size_t inputs) {
    std::vector<T> values(inputs);
    for (size_t i = 0; i < inputs; ++i) values[i] = T(static_cast<float>(i % 7) / 8.0f + 1.0f);
    simt::DeviceArray<T> in(values), out(outputs);
    return simt::run_schedules(
        schedules, [&] { out.zero(); }, [&] { cuda::launch(kernel, at, out.data(), in.data()); },
        {out.output()});
}

}  // namespace longreach::mutants

#define LAUNCH(grid, block, shared_bytes)  \
    cuda::Launch {                         \
        grid, block, shared_bytes, nullptr \
    }
// One entry of a list: both instances of a kernel template with one launch.
#define MUTANT(kind, text, name, at, outputs, inputs)                                               \
    {                                                                                               \
        text, simt::Kind::kind,                                                                     \
            [](bool wrong) { return run(wrong ? &name<true> : &name<false>, at, outputs, inputs); } \
    }
