#include "tasks/task_batches.h"

#include <algorithm>

#include "base/error.h"

namespace longreach::tasks {

void answer_targets(const Sample& sample, std::span<int32_t> targets) {
    std::fill(targets.begin(), targets.end(), -1);
    for (size_t i = static_cast<size_t>(sample.answer_begin); i < sample.tokens.size(); ++i)
        targets[i - 1] = sample.tokens[i];
}

void TaskBatches::fill(const data::BatchRequest& request, std::span<int32_t> tokens,
                       std::span<int32_t> targets, std::span<int32_t> doc_start) {
    check(doc_start.empty(), "a sample of a task is one document: nobody may ask where others begin");
    const size_t length = static_cast<size_t>(request.length);
    for (size_t b = 0; b < static_cast<size_t>(request.batch); ++b) {
        const Sample sample = generator_.make(request.length, request.consumed + b * length);
        std::copy(sample.tokens.begin(), sample.tokens.end(), tokens.begin() + b * length);
        answer_targets(sample, targets.subspan(b * length, length));
    }
}

}  // namespace longreach::tasks
