// longreach laws of an angle: how fast each channel pair turns.
#pragma once

#include "law/angle.h"
#include "table/text_table.h"

namespace longreach::commands {

struct AngleStudy {
    std::string angle;  // a name or a formula of p, m, d and L
    std::vector<law::Definition> definitions;
    int64_t head_dim = 64, train_context = 2048;
    int64_t length = 65536;  // of the sequence, for angles that change a trained one
};
void list_angles(const table::Terminal& terminal);
// Prints formula, source and a table by pair. Throws Error if the angle is not valid.
void show_angle(const AngleStudy& study, const table::Terminal& terminal);

}  // namespace longreach::commands
