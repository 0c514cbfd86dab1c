// Micro-batches of samples of a task, for training on it. Only the answer's tokens are targets.
#pragma once

#include "data/loader.h"
#include "tasks/generator.h"

namespace longreach::tasks {

// A sample as the model's input: targets[i] is tokens[i + 1] where that is part of the answer, else -1.
void answer_targets(const Sample& sample, std::span<int32_t> targets);

// The sequence that begins after c tokens of the run is sample c of its length.
class TaskBatches : public data::BatchSource {
  public:
    explicit TaskBatches(TaskGenerator generator) : generator_(std::move(generator)) {}
    void fill(const data::BatchRequest& request, std::span<int32_t> tokens, std::span<int32_t> targets,
              std::span<int32_t> doc_start) override;
    int64_t scored_per_sequence(int64_t length) const override { return generator_.answer_tokens(length); }

  private:
    TaskGenerator generator_;
};

}  // namespace longreach::tasks
