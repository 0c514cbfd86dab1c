// What a page shows, for the files written with it.
#pragma once

#include <string>
#include <vector>

#include "table/data_table.h"

namespace longreach::report {

struct Picture {
    std::string name = {};  // of its file
    std::string title = {};
    std::vector<std::string> charts = {};  // SVG; several are panels of one picture
    std::vector<size_t> legend = {};       // series that the charts do not name in full
};

// In the order of the page.
struct Extracts {
    std::vector<Picture> pictures;
    std::vector<table::DataTable> tables;  // each with a name
};

}  // namespace longreach::report
