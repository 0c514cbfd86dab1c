// Cosine and sine of an angle that a token's sums make, which may have millions of radians: in double, and from one source for
// the host and the GPU.
//
// The angle less the nearest multiple k of pi/2 is r, |r| <= pi/4. k times the upper half of pi/2 (33 bits) is exact for
// |k| < 2^20; beyond it each doubling of the angle doubles the error, which is 2^-32 at 2^21. The series of sine and cosine
// end where the next term is below 2^-53.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define LONGREACH_ANGLE_FUNCTION __host__ __device__ inline
#else
#define LONGREACH_ANGLE_FUNCTION inline
#endif

namespace longreach {

struct TokenAngle {
    float cosine, sine;
};

LONGREACH_ANGLE_FUNCTION TokenAngle token_angle(double angle) {
    constexpr double upper = 0x1.921fb544p+0, lower = 0x1.0b4611a626331p-34;  // their sum is pi/2
    const double k = std::floor(angle * 0.63661977236758134308 + 0.5);
    const double r = (angle - k * upper) - k * lower, s = r * r;
    double of_sine = 1, cosine = 1;  // of_sine: the series over r
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (int n = 14; n > 0; n -= 2) {
        of_sine = 1 - s * (1.0 / (n * (n + 1))) * of_sine;
        cosine = 1 - s * (1.0 / (n * (n - 1))) * cosine;
    }
    const double sine = r * of_sine;
    const double quarter = k - 4 * std::floor(k * 0.25);
    const bool odd = quarter == 1 || quarter == 3;
    const double c = odd ? sine : cosine, q = odd ? cosine : sine;
    return {static_cast<float>(quarter == 1 || quarter == 2 ? -c : c),
            static_cast<float>(quarter >= 2 ? -q : q)};
}

}  // namespace longreach
