// Runs in the directory of a sweep that its list does not name: of further seeds (--decide) or of other variants (--only),
// which an earlier command trained. Nothing deletes them, and no table has them.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace longreach::sweep {

// Their names, in order. listed: the runs of the list, by name.
std::vector<std::string> unlisted_runs(const std::string& directory, const std::set<std::string>& listed);

// One sentence; empty if there are none.
std::string unlisted_note(const std::string& directory, const std::set<std::string>& listed);

}  // namespace longreach::sweep
