// Repeated text: a text as long as the sequences of training, followed by itself again and again. From its
// second copy on, every token has occurred one text length before; a model that uses its whole context can
// predict them all. The same stretches of the stream, not repeated, are the comparison.
#pragma once

#include <functional>

#include "data/token_stream.h"
#include "eval/eval_config.h"
#include "eval/task_rows.h"
#include "model/device_batch.h"
#include "model/transformer.h"

namespace longreach::eval {

struct RepeatRequest {
    std::vector<int64_t> lengths;
    int64_t period = 0;  // tokens of a text
    int64_t tokens = 0;  // per length at most, but at least one sequence of the largest
    int64_t batch_tokens = 0;
    bool document_mask = true;  // of the unrepeated text; a repeated one is a single document
    EvalPick pick = EvalPick::spread;
    std::function<void(const std::string&)> progress{};  // may be empty
};

class RepeatEvaluator {
  public:
    // Device buffers for the largest batch; plan like the model's.
    void plan(model::Arena& arena, int64_t batch_tokens, bool document_mask);
    // Rows of the tasks "repeat" and "non_repeat" per length: accuracy is the share of tokens that are the
    // model's most likely ones, over all positions; errors come from the variation over sequences.
    std::vector<TaskRow> run(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                             const data::TokenStream& stream, const RepeatRequest& request) const;

  private:
    model::DeviceBatch batch_;
};

}  // namespace longreach::eval
