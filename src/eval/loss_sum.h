// A mean as a (sum, count) pair until the last division.
#pragma once

#include <cstdint>

namespace longreach::eval {

struct LossSum {
    double sum = 0;
    int64_t count = 0;
    double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
    void add(double loss) {
        sum += loss;
        ++count;
    }
};

// The scored tokens of a document.
struct DocumentSums {
    LossSum loss;
    double hits = 0;  // tokens of them that are the model's most likely ones
};

}  // namespace longreach::eval
