// What benchmarks need besides the clock: random numbers in device memory, and the rate at which that moves.
#pragma once

#include "kernels/ops.h"

namespace longreach::commands {

// Bytes per second of a large copy of random numbers, read plus written, best of a few.
double measure_copy(Ops& ops);

// Fills t, of any floating type, with random numbers of the standard normal distribution (or uniform ones in
// [0.5, 1.5)). A million of them, again and again: drawing more takes longer than what is to be timed.
enum class Random { normal, near_one };
void fill_random(Ops& ops, const Tensor& t, uint64_t seed, Random kind = Random::normal);

}  // namespace longreach::commands
