// Repeated text: a text as long as the training sequences, repeated to fill the context. From the second
// copy on, every token has occurred one text length before, so a model that uses its whole context can
// predict all of them. The same part of the stream without repetition serves as the comparison.
#pragma once

#include <functional>

#include "data/token_stream.h"
#include "eval/eval_config.h"
#include "measure/task_rows.h"
#include "model/device_batch.h"
#include "model/transformer.h"

namespace longreach::measure {

struct RepeatRequest {
    std::vector<int64_t> lengths;
    int64_t period = 0;  // tokens of a text
    int64_t tokens = 0;  // per length at most, but at least one sequence of the largest
    int64_t batch_tokens = 0;
    bool document_mask = true;  // for the unrepeated text; a repeated text is a single document
    eval::EvalPick pick = eval::EvalPick::spread;
    std::function<void(const std::string&)> progress{};  // may be empty
};

class RepeatEvaluator {
  public:
    // Device buffers for the largest batch; call where the model is planned.
    void plan(model::Arena& arena, int64_t batch_tokens, bool document_mask);
    // One row of the tasks "repeat" and "non_repeat" per length: accuracy is the share of tokens, over
    // all positions, that are the most likely ones; errors come from the variation over sequences.
    std::vector<TaskRow> run(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                             const data::TokenStream& stream, const RepeatRequest& request) const;

  private:
    model::DeviceBatch batch_;
};

}  // namespace longreach::measure
