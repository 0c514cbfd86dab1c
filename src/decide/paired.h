// Means over seeds and differences between variants, with intervals for small numbers of seeds.
//
// A seed fixes the initial weights and the order of the data, so two variants with the same seed
// share much of their noise: their difference, seed by seed, is known far better than either mean.
#pragma once

#include <cstdint>
#include <vector>

namespace longreach::decide {

struct SeedValue {
    int64_t seed = 0;
    double value = 0;
};

// A mean and the interval that contains the true mean with the chosen confidence, if
// the values are independent and normally distributed. NaN: everything if there is no
// value or one that is not finite; everything but the mean if there is a single value.
struct MeanInterval {
    int64_t count = 0;  // values
    double mean = 0;
    double standard_deviation = 0;  // of one value (divided by count - 1)
    double standard_error = 0;      // of the mean
    double low = 0, high = 0;       // mean -+ student_quantile(confidence, count - 1) standard errors

    bool has_interval() const;
    // Whether 0 lies outside the interval: for a difference, whether its sign is settled at this confidence.
    bool excludes_zero() const;
};

MeanInterval mean_interval(const std::vector<double>& values, double confidence = 0.95);
MeanInterval mean_interval(const std::vector<SeedValue>& values, double confidence = 0.95);

// value - baseline for each seed that both have, in rising order
// of the seeds. Each seed appears at most once on each side.
std::vector<SeedValue> paired_differences(const std::vector<SeedValue>& values,
                                          const std::vector<SeedValue>& baseline);

// The mean of those differences and its interval.
MeanInterval paired_difference(const std::vector<SeedValue>& values, const std::vector<SeedValue>& baseline,
                               double confidence = 0.95);

// P(|T| < t) for Student's t with `degrees` >= 1 degrees of freedom.
double student_within(double t, int64_t degrees);

// The t with P(|T| < t) = confidence, 0 <= confidence < 1: the half-width of a two-sided interval.
double student_quantile(double confidence, int64_t degrees);

// P(X < x) for the sum X of the squares of `degrees` >= 1 standard normals.
double chi_square_within(double x, int64_t degrees);

// The interval that contains the standard deviation of one value with the chosen confidence, of normally distributed values.
struct SpreadInterval {
    double low = 0, high = 0;
};
SpreadInterval spread_interval(const MeanInterval& of, double confidence = 0.95);

// The fewest seeds, at most a million, whose 95% interval of a mean reaches at most `half` to each side, for values of this
// standard deviation; from a thousand on in steps of 1%.
int64_t seeds_for(double half, double standard_deviation);

}  // namespace longreach::decide
