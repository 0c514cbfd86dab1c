// The files of the page, embedded by CMake.
#pragma once

namespace longreach::report {

const char* page_html();    // page.html: its pieces, each under a line "<!-- name -->"
const char* page_style();   // page.css
const char* page_script();  // page.js

}  // namespace longreach::report
