#include "decide/looks.h"

#include <algorithm>
#include <cmath>

namespace longreach::decide {

namespace {

// The number of differences before the first one that is not finite: it ends the looks.
size_t usable(const std::vector<double>& differences) {
    const auto end =
        std::find_if(differences.begin(), differences.end(), [](double d) { return !std::isfinite(d); });
    return static_cast<size_t>(end - differences.begin());
}

void look_at(const Question& question, double level, Answer& answer) {
    const auto end = question.differences.begin() + static_cast<std::ptrdiff_t>(answer.seeds);
    answer.confidence = 1 - level / static_cast<double>(seeds_at_look.size());
    answer.interval =
        mean_interval(std::vector<double>(question.differences.begin(), end), answer.confidence);
    answer.differs = answer.interval.excludes_zero();
    answer.within = answer.interval.low > -question.margin && answer.interval.high < question.margin;
}

}  // namespace

std::vector<Answer> decide(const std::vector<Question>& questions) {
    std::vector<Answer> answers(questions.size());
    size_t different = 0;
    for (size_t look = 1; look <= seeds_at_look.size(); ++look) {
        std::vector<size_t> open;
        for (size_t i = 0; i < questions.size(); ++i) {
            if (!answers[i].open() || usable(questions[i].differences) < seeds_at_look[look - 1]) continue;
            answers[i].look = look;
            answers[i].seeds = seeds_at_look[look - 1];
            open.push_back(i);
        }
        for (bool again = true; again;) {
            again = false;
            const double level =
                error_rate / (static_cast<double>(questions.size()) - static_cast<double>(different) / 2);
            for (const size_t i : open) {
                look_at(questions[i], level, answers[i]);
                different += answers[i].differs;
                again |= answers[i].differs;
            }
            std::erase_if(open, [&](size_t i) { return !answers[i].open(); });
        }
    }
    return answers;
}

}  // namespace longreach::decide
