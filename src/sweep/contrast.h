// A contrast of a sweep: the difference of two variants that is to be decided, named before anything runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace longreach::sweep {

enum class ContrastOf { loss, gap, margin };
enum class Expected { unsaid, negative, positive, none };

// What is known of it once the sweep is planned, and what sweep.json holds: first minus second.
struct Contrast {
    std::string name, claim;
    std::string first, second;  // variants with their points
    int64_t at = 0;             // context length
    ContrastOf of = ContrastOf::loss;
    double margin = 0;  // differences up to it count as none; 0: not known
    bool primary = true;
    std::string evaluation = "plain";  // a label of results.csv
    std::string task;
    int64_t depth = -1;  // of the task, percent; -1: the mean over all
    Expected expect = Expected::unsaid;
    int64_t trained_at = 0;  // the context of the last stage; 0: the variants differ in it
};

json::Value contrasts_json(const std::vector<Contrast>& contrasts);

// The format of sweep.json.
inline constexpr int64_t sweep_list_format = 1;

// The contrasts of a sweep.json; none if it has no such list. Error(ExitCode::data) if it is malformed.
std::vector<Contrast> read_contrasts(const json::Value& sweep, const std::string& path);

}  // namespace longreach::sweep
