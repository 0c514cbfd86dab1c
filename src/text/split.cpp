#include "text/split.h"

#include "base/error.h"
#include "base/hash.h"

namespace longreach::text {

void Split::check() const {
    require(every >= 0 && every != 1, ExitCode::usage,
            "every {} documents for validation leaves none for training", every);
    require(fraction >= 0 && fraction < 1, ExitCode::usage, "the validation fraction {} is not in [0, 1)",
            fraction);
    require(every == 0 || fraction == 0, ExitCode::usage,
            "choose validation documents by number or by fraction, not both");
}

bool Split::is_validation(std::string_view name, uint64_t number) const {
    if (every > 0) return number % static_cast<uint64_t>(every) == static_cast<uint64_t>(every) - 1;
    // The top 53 bits of the hash as a number in [0, 1).
    return static_cast<double>(xxh64(name) >> 11) * 0x1p-53 < fraction;
}

}  // namespace longreach::text
