// A heat map with a curve over it, as a self-contained SVG file.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace longreach::plot {

struct HeatMap {
    std::string title, x_label, y_label, value_label;
    double x_max = 1, y_max = 1;  // both axes start at 0
    int columns = 0, rows = 0;
    std::vector<double> values;                    // [rows, columns], row 0 at the bottom
    double low = 0, high = 1;                      // values outside take the colour of the nearer end
    std::vector<std::pair<double, double>> curve;  // points outside the axes are dropped
    std::string curve_label;
};

// Text follows the reader's light or dark setting.
std::string heat_map_svg(const HeatMap& map);

// "#rrggbb" for a share in [0, 1]: from dark blue over green to yellow, with increasing lightness.
std::string heat_colour(double share);

}  // namespace longreach::plot
