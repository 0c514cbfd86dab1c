// Texts in work on one model: they wait in a queue, are scored one by one, and continued together.
//
//   scoring      the log-probabilities of a prompt (echo), one pass over it: eval::Scorer; once for all its choices
//   generation   up to EngineSize::batch texts at once whose prompts have the same number of tokens, as
//                eval::Decoder takes them, equal ones once; between two of its tokens one prompt is scored
//
// The prompts of the last generation are kept (PromptCache): `same`, whose result is the same to the bit, saves a
// prompt that is asked for again; `prefix` also what two prompts begin with alike, and the rest of the new one takes
// one step per token, which rounds differently from a pass.
#pragma once

#include <functional>
#include <list>

#include "base/rng.h"
#include "eval/decoder.h"
#include "eval/scorer.h"
#include "serve/answer.h"
#include "serve/text_stream.h"
#include "serve/vocabulary.h"

namespace longreach::serve {

enum class PromptCache { off, same, prefix };

// Where documents begin in a prompt, for a model that was trained with a document mask.
struct DocumentRule {
    int32_t token = -1;  // -1: a prompt is one document
    bool ends = false;   // the token is the last of its document, not the first
    // For each token where its document begins, as data::TokenStream::document_starts; empty without a token.
    std::vector<int32_t> starts(const std::vector<int32_t>& tokens) const;
};

struct EngineSize {
    int64_t context = 0;             // tokens of a prompt and its continuation
    int64_t batch = 4;               // texts continued at once
    int64_t queue = 64;              // choices that wait or are answered
    std::chrono::seconds time{600};  // for a request
    PromptCache cache = PromptCache::same;
    int64_t max_answer = 32 << 20;  // bytes of an answer
    DocumentRule documents = {};
};

struct EngineCounts {
    std::atomic<int64_t> passes = 0, steps = 0, scored = 0, reused = 0;  // reused: tokens of prompts
};

// A prompt, of which its choices are made.
struct SharedPrompt {
    std::vector<int32_t> tokens;
    int64_t document = 0;  // where its last document begins: what a continuation sees
    int64_t continued() const { return static_cast<int64_t>(tokens.size()) - document; }
    bool continued_as(const SharedPrompt& other) const {
        return this == &other || std::equal(tokens.begin() + document, tokens.end(),
                                            other.tokens.begin() + other.document, other.tokens.end());
    }
    // The thread that owns the model writes these.
    std::shared_ptr<const PromptReport> report;
    std::vector<float> next;  // logits after the prompt, if it was scored with them
};

// A choice in work.
struct Text {
    Text(std::shared_ptr<const CompletionRequest> asked, std::shared_ptr<SharedPrompt> from, uint32_t number,
         const Vocabulary& vocabulary);
    bool scored_first() const { return score || wanted == 0; }

    std::shared_ptr<const CompletionRequest> request;
    std::shared_ptr<Answer> answer;
    size_t choice = 0;
    std::shared_ptr<SharedPrompt> prompt;
    int64_t wanted, generated = 0;  // tokens
    bool score;                     // the prompt's log-probabilities are still to be found
    Rng rng;                        // by generated token
    TextStream stream;
    TokenText bytes;
    int64_t echoed = 0;  // characters of the prompt in the answer's text
    std::chrono::steady_clock::time_point until;
    std::shared_ptr<std::atomic<int64_t>> place;  // among those that wait, until the last part of its answer
};
using Texts = std::list<Text>;

class Lane {
  public:
    // For texts of up to `context` tokens; positions are those of size.context.
    Lane(model::Transformer& model, const Vocabulary& vocabulary, const EngineSize& size, int64_t context,
         EngineCounts& counts);
    void plan(model::Arena& arena, Ops& ops);

    // From any thread.
    void add(Texts& texts);
    int64_t waiting() const { return waiting_; }  // choices, in work ones too

    // On the thread that owns the model: scores a prompt and continues the texts of the batch by a token, if any wait.
    // Work that nobody waits for any more ends, and so does all if stop(). meanwhile: called now and then in between.
    void turn(Ops& ops, const model::FlatParams& weights, const std::function<bool()>& stop,
              const std::function<void()>& meanwhile = {});
    // Tokens of the pass over prompts that is being made; 0: none is.
    int64_t in_pass() const { return in_pass_; }
    void refuse_all();

  private:
    Texts take_work();
    void work_on(Texts& work);
    void work_on_batch();
    // What needs no generation, or comes before it.
    void score(Text& text);
    std::shared_ptr<const PromptReport> report_of(const Text& text, const eval::TextScores& scores) const;
    void put_prompt(Text& text, const eval::TextScores& scores);
    // Takes the waiting texts that can be continued together; false if none waits.
    bool begin_batch();
    std::vector<float> prefill();
    void step();
    // Draws the next token of each text from its logits [B, V].
    void advance(const std::vector<float>& logits);
    int32_t take_token(Text& text, const float* logits);
    bool ended(const Text& text) const;  // cancelled or out of time
    bool unwanted(const Texts& texts) const;
    void finish(Text& text, const char* reason);
    // Ends these with what the exception that is being handled says.
    void fail(Texts& texts) const noexcept;
    void forget_batch();

    model::Transformer& model_;
    const Vocabulary& vocabulary_;
    const EngineSize size_;
    const int64_t context_;
    const std::string too_late_;
    eval::Decoder decoder_;
    eval::Scorer scorer_;
    EngineCounts& counts_;
    Ops* ops_ = nullptr;  // while turn() lasts
    const model::FlatParams* weights_ = nullptr;
    const std::function<bool()>* stop_ = nullptr;
    const std::function<void()>* meanwhile_ = nullptr;
    int64_t in_pass_ = 0;

    std::atomic<int64_t> waiting_ = 0;
    std::mutex mutex_;
    Texts queue_;  // waiting; guarded by mutex_
    Texts batch_;
    std::vector<Text*> rows_;    // the text of each row of the batch; null: it has ended
    std::vector<int32_t> last_;  // the newest token of each row
    // What the decoder holds: the tokens of each text, and the logits after the prompts.
    std::vector<std::vector<int32_t>> held_;
    int64_t held_prompt_ = 0;
    std::vector<float> held_logits_;
};

}  // namespace longreach::serve
