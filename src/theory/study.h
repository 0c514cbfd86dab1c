// The tables and diagrams of `longreach theory`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plot/heat_map.h"
#include "table/data_table.h"
#include "theory/phase.h"

namespace longreach::theory {

struct StudyOptions {
    std::vector<int64_t> ns;    // keys per query, each >= 2
    std::vector<int64_t> dims;  // of cosines, each >= 4
    int64_t samples = 400;      // of Monte Carlo, >= 2
    uint64_t seed = 1;
};

// Each begins with exact values. If the quantity can be sampled, the last
// table compares both: columns exact, sampled, standard_error, and deviations
// = (sampled - exact) / standard_error, reduced for skewed samples (Estimate).
std::vector<table::DataTable> extreme_tables(const StudyOptions& options);  // E[1 / w_max], normal scores
std::vector<table::DataTable> participation_tables(const StudyOptions& options);  // E[sum w^2], normal scores
std::vector<table::DataTable> entropy_tables(const StudyOptions& options);        // entropy, normal scores
std::vector<table::DataTable> cosine_tables(const StudyOptions& options);         // all three, cosines
std::vector<table::DataTable> gradient_tables(const StudyOptions& options);       // scale of most gradient

// One row per cell: rho, gamma, gamma over its critical value, lambda, eta; of an exact simplex lambda, and the limits of
// both for n -> infinity.
table::DataTable phase_table(const PhaseDiagram& diagram);
plot::HeatMap angle_ratio_map(const PhaseDiagram& diagram);
plot::HeatMap gradient_norm_map(const PhaseDiagram& diagram);

}  // namespace longreach::theory
