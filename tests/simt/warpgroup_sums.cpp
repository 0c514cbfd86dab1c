// The arithmetic of a product, in a file of its own that is compiled to be fast.
#include "simt/warpgroup.h"

namespace longreach::simt {

namespace {

template <int columns>
void add(float* sums, const float* a, const float* b) {
    for (int row = 0; row < 64; ++row) {
        float line[columns];
        for (int n = 0; n < columns; ++n) line[n] = sums[row * columns + n];
        for (int k = 0; k < 16; ++k)
            for (int n = 0; n < columns; ++n) line[n] += a[row * 16 + k] * b[k * columns + n];
        for (int n = 0; n < columns; ++n) sums[row * columns + n] = line[n];
    }
}

}  // namespace

void add_product(float* sums, const float* a, const float* b, int columns) {
    if (columns == 64) add<64>(sums, a, b);
    if (columns == 96) add<96>(sums, a, b);
    if (columns == 128) add<128>(sums, a, b);
    if (columns == 256) add<256>(sums, a, b);
}

}  // namespace longreach::simt
