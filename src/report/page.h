// The report as one HTML file that needs nothing else: no network, no library.
#pragma once

#include <string>

#include "report/collect.h"
#include "report/extracts.h"

namespace longreach::report {

struct PageOptions {
    int reload_seconds = 0;        // the page loads itself again that often; 0: never
    Extracts* extracts = nullptr;  // receives the charts and tables of the page
};
std::string report_page(const Collection& collection, const PageOptions& options = {});

// The main chart alone, loss by context length, as an SVG file; Error(ExitCode::data) without losses.
std::string report_picture(const Collection& collection);

}  // namespace longreach::report
