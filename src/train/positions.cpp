#include "train/positions.h"

#include "base/error.h"
#include "base/rng.h"
#include "model/attention_angle.h"

namespace longreach::train {

void PositionsConfig::fields(config::Fields& f) {
    f.integer(
        "range", range, {.min = 0, .max = int64_t{1} << 20, .tokens = true},
        {.help =
             "the positions of the tokens of a training sequence are drawn below this, rising, anew in every step "
             "and the same for all sequences of a step; angles read them, distances in scores do not; an "
             "evaluation counts from 0 as ever; 0: not drawn",
         .words = "positions in training drawn below {}",
         .sources = "ruoss2023 shimizu2026"});
}

std::vector<int64_t> PositionsConfig::drawn(uint64_t seed, int64_t step, int64_t context) const {
    check(context <= range, "{} positions below {}", context, range);
    const Rng rng(seed, Purpose::positions, static_cast<uint32_t>(step));
    std::vector<int64_t> positions;
    // Each is taken with the probability that it is among those still needed.
    for (int64_t p = 0; static_cast<int64_t>(positions.size()) < context; ++p) {
        const auto needed = static_cast<uint64_t>(context) - positions.size();
        if (rng.below(static_cast<uint64_t>(p), static_cast<uint64_t>(range - p)) < needed)
            positions.push_back(p);
    }
    return positions;
}

void check_positions(const PositionsConfig& positions, const model::ModelConfig& model, int64_t context,
                     config::Problems& p) {
    const int64_t range = positions.range;
    if (range == 0) return;
    if (range < context)
        return p.add("positions.range",
                     fmt::format("a sequence has {} positions, more than {}", context, range), "stages");
    bool turns = false;
    for (const int64_t l : model.distinct_attention_layers()) {
        const law::Angle angle = model::trained_angle(model, l);
        const std::string path = model.layout_path(l) + ".angle", turn = angle.first_not_finite(range);
        turns = turns || !angle.near.empty();
        if (!turn.empty()) p.add(path, fmt::format("not a finite number: {}", turn), "positions.range");
        if (!model::angle_step(model.layer_attention(l)).empty())
            p.add(path, "the tokens decide how far it turns, not their positions", "positions.range");
        if (!angle.growth.empty())
            p.add(path, "lengths that grow with the position need positions that follow each other",
                  "positions.range");
    }
    if (!turns) p.no_effect("positions.range", "no layer has an angle", "model.attention.angle");
}

}  // namespace longreach::train
