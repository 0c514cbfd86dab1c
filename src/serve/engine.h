// One model for many requests: they wait, and the thread that owns the model answers them.
//
// What a request gets depends on the request alone, to the bit, on devices whose matrix products give a row the
// same bits whatever other rows there are (the CPU). On others it is so with a batch of 1.
//
// A pass over a long prompt takes seconds on a CPU. Requests of few tokens have a lane of their own meanwhile (Brief),
// whose turns come between the items of the pass's loops (base/interruption.h), for half of the time.
#pragma once

#include "serve/lane.h"

namespace longreach::serve {

class Engine {
  public:
    // A context of at least this many tokens has a lane for short texts.
    static constexpr int64_t long_context = 4096, brief_context = 1024;

    // For the lane of short texts: a second model like the first, with the same weights, and its own door to a device
    // with the same memory, which gives the same bits. Without them short texts wait.
    struct Brief {
        model::Transformer& model;
        Ops& ops;
    };
    Engine(model::Transformer& model, const Vocabulary& vocabulary, const EngineSize& size,
           std::optional<Brief> brief = {});
    ~Engine();
    void plan(model::Arena& arena, Ops& ops);

    // From any thread. Throws a Refusal: a prompt that is empty or too long, an answer that is, or a full queue.
    std::shared_ptr<Answer> submit(CompletionRequest request);
    // Memory for what a client gets without the model; as of answers.
    std::shared_ptr<void> take_memory(int64_t bytes) { return memory_.take(bytes); }
    // Answers requests until stop(), which is asked at least every tenth of a second; what is unanswered then
    // is refused. On the thread that owns the model.
    void run(Ops& ops, const model::FlatParams& weights, const std::function<bool()>& stop);

    int64_t waiting() const;  // choices
    const EngineSize& size() const { return size_; }
    const Vocabulary& vocabulary() const { return vocabulary_; }
    const EngineCounts& counts() const { return counts_; }

  private:
    std::shared_ptr<SharedPrompt> read_prompt(const CompletionRequest& request, size_t number) const;
    // Memory for the answer. Throws a Refusal if it is larger than an answer may be, or there is too little.
    std::shared_ptr<void> plan_answer(const CompletionRequest& request, int64_t prompt_tokens);

    const Vocabulary& vocabulary_;
    const EngineSize size_;
    const std::string
        no_documents_;  // why the model cannot continue the last of several documents; may be empty
    EngineCounts counts_;
    Budget memory_;
    Lane lane_;
    std::optional<Lane> brief_;
    Ops* brief_ops_ = nullptr;

    std::mutex mutex_;
    std::condition_variable work_;
    bool stopped_ = false;  // guarded by mutex_
};

}  // namespace longreach::serve
