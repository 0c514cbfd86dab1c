// A sweep file, then the one config it can name ("variant.json"). Small sweeps are planned as well.
#include "fuzz/target.h"
#include "sweep/sweep_plan.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

constexpr size_t most_runs = 8;

size_t runs_of(const sweep::SweepConfig& sweep) {
    size_t runs = sweep.variants.size() * sweep.seeds.size() * std::max<size_t>(sweep.list.size(), 1);
    for (const sweep::SweepAxis& axis : sweep.grid_axes)
        if (runs <= most_runs) runs *= axis.values.size();
    if (!sweep.zip_axes.empty() && runs <= most_runs) runs *= sweep.zip_axes[0].values.size();
    return runs;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    const std::vector<std::string_view> parts = parts_of(text_of(data, size));
    const std::string file = scratch.put("sweep.json", parts[0]);
    scratch.put("variant.json", parts.size() > 1 ? parts[1] : "{}");
    std::vector<std::string> overrides;
    for (size_t i = 2; i < parts.size(); ++i) overrides.emplace_back(parts[i]);
    accepts([&] {
        const sweep::SweepConfig sweep = sweep::load_sweep(file, overrides);
        if (runs_of(sweep) <= most_runs) sweep::sweep_json(sweep::plan_sweep(sweep));
    });
    return 0;
}
