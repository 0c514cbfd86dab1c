// For benchmarks: medians, random numbers in device memory, and the speed of that memory.
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace longreach::commands {

double median(std::vector<double> values);  // of at least one

// Bytes per second of a large copy of random numbers, read plus written, best of a few.
double measure_copy(Ops& ops);

// Fills t, of any floating type, with random numbers of the standard normal distribution (or uniform in
// [0.5, 1.5)). A million of them are repeated, because drawing more takes longer than the benchmark.
enum class Random { normal, near_one };
void fill_random(Ops& ops, const Tensor& t, uint64_t seed, Random kind = Random::normal);

}  // namespace longreach::commands
