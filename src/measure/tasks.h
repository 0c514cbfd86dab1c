// Scores a model on tasks: does it find the answer to a question, by length and depth.
//
// Answers are scored by teacher forcing: the input contains the right answer, and a reference counts as
// right if each of its tokens is the most likely next token. That is the case for all references
// exactly if greedy decoding produces the answer: up to the first wrong token, both see the same input.
//
//   accuracy   mean share of an answer's references (numbers, words) that are right, each with the right ones
//              before it in the input; a task with one reference: share of exact matches
//   margin     mean of log p(answer) - log p(decoy), sums over the answer's tokens in nats; the decoy is
//              in a second input that is the same up to the answer; none for samples without decoys
//   loss       mean over samples of the mean nats per answer token
//
// Standard errors are over samples; one sample has none. Several ranks share the batches of a row as
// LengthEvaluator does: the bits of a result do not depend on how many there are.
#pragma once

#include <functional>
#include <span>

#include "eval/collector.h"
#include "eval/pause.h"
#include "measure/task_rows.h"
#include "model/device_batch.h"
#include "model/transformer.h"
#include "tasks/generator.h"

namespace longreach::measure {

struct TaskRequest {
    std::vector<data::TaskKind> tasks;
    std::vector<int64_t> lengths;
    std::vector<int64_t> depths;  // percent, for tasks with a single answer; empty: random positions
    int64_t samples = 0;          // per task, length and depth
    int64_t batch_tokens = 0;     // evaluated at once; at least one sequence of the largest length
    data::TaskConfig config;      // how tasks are written; its kind and seed are ignored
    uint64_t seed = 0;
    const tasks::SampleSource* questions = nullptr;    // one more task, after the others; may be null
    std::function<void(const std::string&)> progress;  // may be empty
    eval::Pause* pause = nullptr;                      // null: cannot be stopped
};

// The share of references of the sample that are right; best[i]:
// the most likely token at the position of the answer's i-th token.
double share_right(const tasks::Sample& sample, std::span<const int32_t> best);

class TaskEvaluator {
  public:
    // Device buffers for the largest batch; call where the model
    // is planned. With document_mask, a sample is one document.
    void plan(model::Arena& arena, int64_t batch_tokens, bool document_mask, int rank = 0, int ranks = 1);
    // Essay haystacks are taken from the stream. Throws if a task does not fit a length, before the first
    // pass. Called by all ranks with the same arguments; rank 0 gets the rows, the others none.
    std::vector<TaskRow> run(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                             const model::FlatParams& weights, const data::TokenStream& stream,
                             const TaskRequest& request) const;

  private:
    // Empty on ranks other than 0.
    std::optional<TaskRow> run_one(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                                   const model::FlatParams& weights, const tasks::SampleSource& source,
                                   const TaskRequest& request, int64_t length, double depth) const;
    // The findings of the sequences [first, first + count). Where there are decoys, sample i is sequence 2 i, and
    // 2 i + 1 has its decoy.
    std::vector<double> run_batch(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                                  const tasks::SampleSource& source, int64_t length, double depth,
                                  size_t first, size_t count) const;
    model::DeviceBatch batch_;
    eval::Collector collector_;
};

// Accuracy of one task as a grid, a row per depth and a column per length; "" if no row has a depth.
std::string depth_grid(const std::vector<TaskRow>& rows, const std::string& task);

}  // namespace longreach::measure
