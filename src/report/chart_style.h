// The sources of style and script, embedded by CMake.
#pragma once

namespace longreach::report {

const char* chart_style();  // chart.css: palette and the parts of charts
const char* page_style();   // page.css
const char* page_script();  // page.js

}  // namespace longreach::report
