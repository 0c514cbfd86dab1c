// Angle laws: by how much each channel pair of queries and keys turns at each position. Pair m is the channels
// m and m + d/2.
//
//     p * base^(-2*m/d)                   rotary positions
//     p * (theta / (T/L))                 position interpolation, when a sequence is longer than those trained on
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "law/formula.h"

namespace longreach::law {

// A name that stands for a formula. It may use the definitions before it.
struct Definition {
    std::string name, formula;
};

// An angle as it is written. A pair of a query and a key that are far_from or more apart turns by far_query and
// far_key instead; "": there are no such pairs.
struct AngleText {
    std::string near, far_query{}, far_key{}, far_from{};
    std::vector<Definition> definitions{};
};

// An angle with a name. Each formula is one that anyone could write.
struct NamedAngle {
    const char* name;
    AngleText text;
    bool trains;  // else it changes a trained angle
    const char* what;
    const char* sources;  // as NamedLaw has them
};
const std::vector<NamedAngle>& angle_library();
const NamedAngle* find_angle(std::string_view name);  // null: there is none

// What the variables of an angle stand for.
struct AngleNumbers {
    int64_t layer = 0, layers = 1, head_dim = 64, train_context = 2048;
    // Of a change to a trained angle: the sequence, and the angle that it changes.
    int64_t length = 0;           // 0: this is no change
    std::vector<double> theta{};  // by pair; empty if the trained angle is not proportional to p
    size_t pairs = 0;             // R: pairs that turn
};

// The angle of every pair as a formula of p alone. A trained one ends with the last pair that turns; a change has
// as many pairs as the angle it changes.
struct Angle {
    std::vector<Formula> near;
    std::vector<Formula> far_queries{}, far_keys{};  // empty: there are no far pairs
    int64_t far_from = 0;

    // "near(5) of pair 3 is nan": the first position below `rows` where an angle is not finite; "": there is none.
    std::string first_not_finite(int64_t rows) const;
    std::string key() const;  // equal for equal angles alone
};

// Throws FormulaError. `blamed` is then the index of the definition to blame, or -1 - i for near (0), far_query,
// far_key or far_from (3).
Angle bind_angle(const AngleText& text, const AngleNumbers& numbers, int64_t& blamed);

// The angle at position 1 of every pair, if all angles are proportional to p.
std::optional<std::vector<double>> frequencies(const std::vector<Formula>& angles);

}  // namespace longreach::law
