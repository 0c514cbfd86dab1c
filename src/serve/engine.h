// One model for many requests: they wait in a queue, and the thread that owns the model answers them.
//
//   scoring      the log-probabilities of a prompt (echo), one pass over it: eval::Scorer
//   generation   up to EngineSize::batch texts at once whose prompts have the same number of tokens, which is
//                what eval::Decoder takes; between two of its tokens the thread scores one waiting prompt
//
// What a request gets depends on the request alone, to the bit, on devices whose matrix products give a row the
// same bits whatever other rows there are (the CPU). On others it is so with a batch of 1.
//
// The prompts of the last generation are kept (PromptCache): `same`, whose result is the same to the bit, saves a
// prompt that is asked for again; `prefix` also what two prompts begin with alike, and the rest of the new one takes
// one step per token, which rounds otherwise than a pass.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "eval/decoder.h"
#include "eval/scorer.h"
#include "serve/request.h"
#include "serve/text_stream.h"
#include "serve/vocabulary.h"

namespace longreach::serve {

enum class PromptCache { off, same, prefix };

struct EngineSize {
    int64_t context = 0;             // tokens of a prompt and its continuation
    int64_t batch = 4;               // texts continued at once
    int64_t queue = 64;              // choices that wait or are answered
    std::chrono::seconds time{600};  // for a request
    PromptCache cache = PromptCache::same;
};

// A token of an answer, as text.
struct TokenReport {
    std::string text;
    int64_t offset = 0;                     // characters of the answer's text before it
    std::optional<double> log_probability;  // none for the first token of a prompt
    std::vector<std::pair<std::string, double>> top;
};

// A part of the answer to one choice.
struct Event {
    size_t choice = 0;
    std::string text;
    std::vector<TokenReport> tokens;  // if log-probabilities were asked for
    std::string finish;               // "stop" or "length" with the last part, else empty
};

// Where the parts of an answer arrive; one thread waits here, the engine's writes.
class Answer {
  public:
    // The next part; empty if none came in time. Throws the Refusal that ended the request.
    std::optional<Event> next(std::chrono::milliseconds wait);
    void cancel() { cancelled_ = true; }
    bool cancelled() const { return cancelled_; }
    int64_t prompt_tokens = 0;                  // of all prompts; set before the answer is handed out
    std::atomic<int64_t> generated_tokens = 0;  // so far

  private:
    friend class Engine;
    void put(Event event);
    void fail(const Refusal& refusal);

    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Event> events_;
    std::optional<Refusal> refusal_;
    std::atomic<bool> cancelled_ = false;
};

class Engine {
  public:
    Engine(model::Transformer& model, const Vocabulary& vocabulary, const EngineSize& size);
    ~Engine();
    void plan(model::Arena& arena, Ops& ops);

    // From any thread. Throws a Refusal: a prompt that is empty or too long, or a full queue.
    std::shared_ptr<Answer> submit(const CompletionRequest& request);
    // Answers requests until stop(), which is asked at least every tenth of a second; what is unanswered then
    // is refused. On the thread that owns the model.
    void run(Ops& ops, const model::FlatParams& weights, const std::function<bool()>& stop);

    int64_t waiting() const;  // choices
    const EngineSize& size() const { return size_; }
    const Vocabulary& vocabulary() const { return vocabulary_; }
    struct Counts {
        std::atomic<int64_t> passes = 0, steps = 0, scored = 0, reused = 0;  // reused: tokens of prompts
    };
    const Counts& counts() const { return counts_; }

  private:
    struct Text;  // a choice in work
    using Texts = std::list<std::unique_ptr<Text>>;

    std::unique_ptr<Text> take_work();
    void work_on(std::unique_ptr<Text> text);
    void work_on_batch();
    // What needs no generation, or comes before it.
    void score(Text& text);
    void report_prompt(Text& text, const eval::TextScores& scores);
    // Takes the waiting texts that can be continued together; false if none waits.
    bool begin_batch();
    std::vector<float> prefill();
    void step();
    // Draws the next token of each text from its logits [B, V].
    void advance(const std::vector<float>& logits);
    int32_t take_token(Text& text, const float* logits);
    bool ended(Text& text);  // cancelled or out of time
    void finish(Text& text, const char* reason);
    void refuse_all(const Refusal& refusal);

    model::Transformer& model_;
    const Vocabulary& vocabulary_;
    const EngineSize size_;
    eval::Decoder decoder_;
    eval::Scorer scorer_;
    Ops* ops_ = nullptr;  // while run() lasts
    const model::FlatParams* weights_ = nullptr;
    Counts counts_;

    mutable std::mutex mutex_;
    std::condition_variable work_;
    Texts queue_;           // waiting; guarded by mutex_
    int64_t in_work_ = 0;   // choices taken out of the queue and not finished; guarded by mutex_
    bool stopped_ = false;  // guarded by mutex_

    std::vector<std::unique_ptr<Text>> batch_;  // null: a choice that has ended
    std::vector<int32_t> last_;                 // the newest token of each
    // What the decoder holds: the tokens of each text, and the logits after the prompts.
    std::vector<std::vector<int32_t>> held_;
    int64_t held_prompt_ = 0;
    std::vector<float> held_logits_;
};

}  // namespace longreach::serve
