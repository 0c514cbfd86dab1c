// Which documents are for validation.
#pragma once

#include <cstdint>
#include <string_view>

namespace longreach::text {

// Every n-th document (0: none), or a fraction chosen by a hash of their names; at most one of the two. A file's name is its
// path below the input, so the split is the same on every machine, and stays when documents are added (by fraction).
struct Split {
    int64_t every = 0;
    double fraction = 0;

    void check() const;                                                // an Error with ExitCode::usage
    bool is_validation(std::string_view name, uint64_t number) const;  // number: of the document, from 0
};

}  // namespace longreach::text
