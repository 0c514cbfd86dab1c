// The report as one HTML file that needs nothing else: no network, no library.
#pragma once

#include <string>

#include "report/collect.h"

namespace longreach::report {

std::string report_page(const Collection& collection);

// The main chart alone, loss by context length, as an SVG file; Error(ExitCode::data) without losses.
std::string report_picture(const Collection& collection);

}  // namespace longreach::report
