// Angle laws: by how much each channel pair of queries and keys turns at each position. Pair m is the channels
// m and m + d/2.
//
//     p * base^(-2*m/d)                   rotary positions
//     p * (theta / (T/L))                 position interpolation, when a sequence is longer than those trained on
//
// An angle may carry a growth g(p) by pair: the product of the pair of a query at i and a key at j is
// multiplied by exp(g(i) - g(j)).
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
    std::string near, far_query{}, far_key{}, far_from{}, growth{};  // growth "": lengths stay
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
    int64_t length = 0;           // 0: no change
    std::vector<double> theta{};  // by pair; empty if the trained angle is not proportional to p
    size_t pairs = 0;             // R: pairs that turn
};

// The angle of every pair as a formula of p alone. A trained one ends with the last pair that turns; a change has
// as many pairs as the angle it changes.
struct Angle {
    std::vector<Formula> near;
    std::vector<Formula> far_queries{}, far_keys{};  // empty: there are no far pairs
    int64_t far_from = 0;
    std::vector<Formula> growth{};  // empty: lengths stay

    // Queries are stored exp(g(p) - g(middle)) times as long and keys by its inverse, so that f32 holds both ends of a
    // sequence. "growth of pair 0 ...", if it does not hold a sequence of `length`; "": it does.
    std::string unrepresentable_growth(int64_t length) const;
    static constexpr double most_growth = 82;  // exp(82) = 4.1e35; f32 holds entries 800 times as large
    // "near(5) of pair 3 is nan": the first position below `rows` where an angle is not finite; "": there is none.
    std::string first_not_finite(int64_t rows) const;
    std::string key() const;  // equal for equal angles alone
};

// Throws FormulaError. `blamed` is then the index of the definition to blame, or -1 - i for near (0), far_query,
// far_key, far_from or growth (4).
Angle bind_angle(const AngleText& text, const AngleNumbers& numbers, int64_t& blamed);

// The angle at position 1 of every pair, if all angles are proportional to p.
std::optional<std::vector<double>> frequencies(const std::vector<Formula>& angles);

}  // namespace longreach::law
