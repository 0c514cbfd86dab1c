#include "commands/yardsticks.h"

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace longreach::commands {

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

double measure_copy(Ops& ops) {
    const int64_t bytes = std::min(ops.traits().copy_bytes, ops.free_bytes() / 4) / 4096 * 4096;
    void* memory = ops.allocate(2 * bytes);
    const Tensor to(memory, DType::f32, {1024, bytes / 4096});
    const Tensor from(static_cast<std::byte*>(memory) + bytes, DType::f32, {1024, bytes / 4096});
    fill_random(ops, from, 1);
    ops.copy(to, from);
    double best = 0;
    for (int i = 0; i < 5; ++i)
        best = std::max(best, 2.0 * static_cast<double>(bytes) / ops.seconds_of([&] { ops.copy(to, from); }));
    ops.release(memory, 2 * bytes);
    return best;
}

void fill_random(Ops& ops, const Tensor& t, uint64_t seed, Random kind) {
    check(t.contiguous(), "random numbers for a slice");
    const int64_t piece = std::min<int64_t>(t.count(), int64_t{1} << 20);
    const Rng rng(seed, Purpose::bench);
    std::vector<float> values(static_cast<size_t>(piece));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(kind == Random::normal ? rng.normal(i) : 0.5 + rng.uniform(i));
    void* memory = ops.allocate(piece * 4);
    const Tensor drawn(memory, DType::f32, {piece});
    ops.upload(drawn, values.data());
    const Tensor flat = t.shaped({t.count()});
    for (int64_t at = 0; at < t.count(); at += piece) {
        const int64_t n = std::min(piece, t.count() - at);
        ops.copy(flat.col_range(at, n), drawn.first(n));
    }
    ops.synchronize();
    ops.release(memory, piece * 4);
}

}  // namespace longreach::commands
