// What a score law does to attention over keys whose scores <query, key> are independent normals.
#pragma once

#include <cstdint>
#include <vector>

#include "law/library.h"
#include "plot/chart.h"
#include "table/data_table.h"
#include "theory/sampled_softmax.h"

namespace longreach::theory {

// Attention of a query that counts n keys, at distances 0 to n - 1.
struct Concentration {
    int64_t n = 0;
    Estimate inverse_largest;           // 1 / w_max
    Estimate entropy;                   // -sum w log w, nats
    std::vector<double> mass;           // expected weight of distance 0, then of [1, 10), [10, 100), ...
    std::vector<double> range_entropy;  // of the weights within each of them, scaled to sum 1; mean
};

// By Monte Carlo, with the same samples for every law: z is standard normal, and dot is normal with the
// variance of the cosine of random directions, 1 / d.
Concentration concentration(const law::BoundLaw& law, int64_t head, int64_t n, int64_t samples,
                            uint64_t seed);

struct LawStudy {
    std::vector<int64_t> heads;  // rows of the tables
    std::vector<int64_t> ns;     // numbers of keys
    int64_t samples = 100;
    uint64_t seed = 1;
};
// Factor by number of keys; gain and bias by distance; concentration.
std::vector<table::DataTable> law_tables(const law::BoundLaw& law, const LawStudy& study);
// Factor over n, gain and bias over t, on a logarithmic axis, with a line for each head. A table whose values
// are all equal has no chart.
std::vector<plot::LineChart> law_charts(const law::BoundLaw& law, const LawStudy& study);

}  // namespace longreach::theory
