// What finished (or running) runs left in their directories, read back for comparison.
#pragma once

#include <string>
#include <vector>

namespace longreach {

struct LengthLoss {
    int64_t length = 0;
    double loss = 0, standard_error = 0;
};

struct RunResults {
    std::string name;  // last part of the path
    std::string path;
    int64_t step = 0;                 // of the newest validation
    std::vector<LengthLoss> lengths;  // rising
};

// The newest validation in <path>/val.csv; Error(ExitCode::data) if there is none or it is not understood.
RunResults read_results(const std::string& path);

}  // namespace longreach
