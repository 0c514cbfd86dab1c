// The page as files for a paper.
#pragma once

#include <string>
#include <vector>

#include "report/collect.h"

namespace longreach::report {

struct PaperFile {
    std::string name, content;
};

// Every chart as SVG and as PDF, tables.tex, methods.tex and references.bib. Names depend on what is shown, not on
// the runs, so that a paper which includes them can be made again from other runs.
std::vector<PaperFile> paper_files(const Collection& collection);

}  // namespace longreach::report
