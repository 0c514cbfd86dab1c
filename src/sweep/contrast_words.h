// The words of a contrast, in sweep files and in sweep.json.
#pragma once

#include "config/fields.h"
#include "sweep/contrast.h"

namespace longreach::sweep {

inline constexpr config::Named<ContrastOf> contrast_quantities[] = {
    {ContrastOf::loss, "loss", "the loss at that length"},
    {ContrastOf::gap, "gap", "the loss at that length minus the loss at the context of the last stage"},
    {ContrastOf::margin, "margin", "the mean log-odds margin of a task at that length"}};

inline constexpr config::Named<Expected> expected_signs[] = {
    {Expected::unsaid, "unsaid", "nothing: the verdict is above or below"},
    {Expected::negative, "negative", "the first arm has less"},
    {Expected::positive, "positive", "the first arm has more"},
    {Expected::none, "none", "no difference beyond the margin"}};

}  // namespace longreach::sweep
