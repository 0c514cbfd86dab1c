// The problems found while a config is loaded.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace longreach::config {

class ProblemList {
  public:
    struct Problem {
        std::string path;  // of the value, as --set names it
        json::Position at;
        std::string message;
        std::string other = {};  // path of the second half of a contradiction, or ""
        json::Position other_at = {};
    };

    // A problem that repeats an earlier one is dropped: the same words about the same key, or about a key of
    // that name which nobody wrote (a variation has what the section it starts from has).
    void add(Problem problem) {
        for (const Problem& earlier : problems_)
            if (repeats(problem, earlier)) return;
        if (problems_.size() < kept) problems_.push_back(std::move(problem));
        ++count_;
    }
    bool empty() const { return count_ == 0; }
    size_t count() const { return count_; }  // all that were added

    // Ordered by position; values that were not written come last. At most `kept` of them.
    std::vector<Problem> sorted() const;

    static constexpr size_t kept =
        200;  // a file of nothing but errors should not fill the terminal for minutes

  private:
    static bool repeats(const Problem& a, const Problem& b) {
        const auto last = [](const std::string& path) { return path.substr(path.rfind('.') + 1); };
        if (a.message != b.message) return false;
        if (a.path == b.path) return a.at.line == b.at.line && a.at.column == b.at.column;
        return a.at.source == 0 && last(a.path) == last(b.path);
    }

    std::vector<Problem> problems_;
    size_t count_ = 0;
};

}  // namespace longreach::config
