// Whether fmt_static.cpp is complete for what the program formats.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

int main(int count, char** words) {
    const double values[] = {1.5, 1e300 * count};
    fmt::print(stderr, "{} {:.3f} {:>8} {:L} {}\n", fmt::join(values, ","), 1.0f * static_cast<float>(count),
               words[0], count, fmt::format(fmt::runtime("{:%Y}"), fmt::gmtime(std::time_t{0})));
    return 0;
}
