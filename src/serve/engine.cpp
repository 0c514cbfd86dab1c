#include "serve/engine.h"

#include <algorithm>

#include "base/rng.h"

namespace longreach::serve {

namespace {

using Clock = std::chrono::steady_clock;

// A prompt whose new part is longer than this share of it is read anew:
// a pass over n tokens takes less time than n steps.
constexpr int64_t prefix_gain = 8;

std::string spelled_out(const std::string& bytes) {
    TextStream stream;
    const std::string text = stream.add(bytes);
    if (text.size() == bytes.size() && text == bytes) return text;
    std::string hex = "bytes:";
    for (const char c : bytes) hex += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return hex;
}

}  // namespace

std::optional<Event> Answer::next(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, wait, [&] { return !events_.empty() || refusal_; });
    if (refusal_) throw Refusal(*refusal_);
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
}

void Answer::put(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.notify_one();
}

void Answer::fail(const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    if (!refusal_) refusal_ = refusal;
    cancelled_ = true;
    arrived_.notify_one();
}

struct Engine::Text {
    Text(const CompletionRequest& r, const Vocabulary& vocabulary, uint32_t number)
        : rng(static_cast<uint64_t>(r.seed), Purpose::sampling, number), stream(r.stop), bytes(vocabulary) {}

    std::shared_ptr<const CompletionRequest> request;
    std::shared_ptr<Answer> answer;
    size_t choice = 0;
    std::vector<int32_t> prompt;
    int64_t wanted = 0, generated = 0;  // tokens
    bool score = false;                 // the prompt's log-probabilities are still to be found
    bool scored_first() const { return score || wanted == 0; }
    Rng rng;  // by generated token
    TextStream stream;
    TokenText bytes;
    int64_t echoed = 0;  // characters of the prompt in the answer's text
    Clock::time_point until;
};

Engine::Engine(model::Transformer& model, const Vocabulary& vocabulary, const EngineSize& size)
    : model_(model),
      vocabulary_(vocabulary),
      size_(size),
      decoder_(model, {size.batch, size.context, size.context, size.context}),
      scorer_(model) {}

Engine::~Engine() = default;

void Engine::plan(model::Arena& arena, Ops& ops) {
    scorer_.plan(arena, ops, size_.context);
    decoder_.plan(arena, ops);
}

int64_t Engine::waiting() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(queue_.size()) + in_work_;
}

std::shared_ptr<Answer> Engine::submit(const CompletionRequest& request) {
    const auto shared = std::make_shared<const CompletionRequest>(request);
    auto answer = std::make_shared<Answer>();
    Texts texts;
    for (size_t p = 0; p < request.prompts.size(); ++p) {
        std::vector<int32_t> tokens;
        if (const std::string* text = std::get_if<std::string>(&request.prompts[p])) {
            if (request.begin_document && vocabulary_.boundary()) tokens.push_back(*vocabulary_.boundary());
            const std::vector<int32_t> rest = vocabulary_.encode(*text, false);
            tokens.insert(tokens.end(), rest.begin(), rest.end());
        } else {
            tokens = std::get<std::vector<int32_t>>(request.prompts[p]);
        }
        const int64_t count = static_cast<int64_t>(tokens.size());
        if (count == 0) throw Refusal(400, fmt::format("prompt {} has no token", p + 1), "prompt");
        if (count + request.max_tokens > size_.context)
            throw Refusal(400,
                          fmt::format("prompt {} has {} tokens; with max_tokens = {} that is more than the "
                                      "context of {} tokens (--context)",
                                      p + 1, count, request.max_tokens, size_.context),
                          "prompt");
        answer->prompt_tokens += count;
        for (int64_t i = 0; i < request.n; ++i) {
            auto text = std::make_unique<Text>(request, vocabulary_, static_cast<uint32_t>(i));
            text->request = shared;
            text->answer = answer;
            text->choice = texts.size();
            text->prompt = tokens;
            text->bytes.follow(tokens);
            text->wanted = request.max_tokens;
            text->score = request.echo && request.logprobs >= 0;
            text->until = Clock::now() + size_.time;
            texts.push_back(std::move(text));
        }
    }
    const std::lock_guard lock(mutex_);
    if (stopped_) throw Refusal(503, "the server is stopping");
    if (static_cast<int64_t>(queue_.size() + texts.size()) + in_work_ > size_.queue)
        throw Refusal(503, fmt::format("{} choices wait already; at most {} (--queue)",
                                       static_cast<int64_t>(queue_.size()) + in_work_, size_.queue));
    queue_.splice(queue_.end(), texts);
    work_.notify_one();
    return answer;
}

bool Engine::ended(Text& text) {
    if (text.answer->cancelled()) return true;
    if (Clock::now() < text.until) return false;
    text.answer->fail(
        Refusal(503, fmt::format("not answered within {} seconds (--time)", size_.time.count())));
    return true;
}

void Engine::finish(Text& text, const char* reason) {
    Event last{text.choice, text.stream.finish(), {}, text.stream.stopped() ? "stop" : reason};
    text.answer->put(std::move(last));
}

// --- scoring

void Engine::report_prompt(Text& text, const eval::TextScores& scores) {
    Event event;
    event.choice = text.choice;
    TextStream characters;
    TokenText bytes(vocabulary_);
    for (size_t i = 0; i < text.prompt.size(); ++i) {
        TokenReport token{spelled_out(vocabulary_.spelled(text.prompt[i])),
                          static_cast<int64_t>(characters.characters()),
                          std::nullopt,
                          {}};
        if (text.score && i > 0) {
            token.log_probability = scores.tokens[i - 1].log_probability;
            if (text.request->logprobs > 0)
                for (const eval::Candidate& c : scores.top[i - 1])
                    token.top.emplace_back(spelled_out(vocabulary_.spelled(c.token)), c.log_probability);
        }
        event.text += characters.add(bytes.next(text.prompt[i]));
        if (text.score) event.tokens.push_back(std::move(token));
    }
    event.text += characters.finish();
    text.echoed = static_cast<int64_t>(characters.characters());
    text.answer->put(std::move(event));
}

void Engine::score(Text& text) {
    if (!text.score) {
        if (text.request->echo) report_prompt(text, {});
        return finish(text, "length");
    }
    const bool next = text.wanted > 0;
    const eval::TextScores scores =
        scorer_.run(*ops_, *weights_, text.prompt, text.request->logprobs, next && text.wanted == 1);
    ++counts_.scored;
    report_prompt(text, scores);
    text.score = false;
    if (text.wanted == 1) take_token(text, scores.next.data());
    if (text.wanted == 0) finish(text, "length");
}

// --- generation

int32_t Engine::take_token(Text& text, const float* logits) {
    const CompletionRequest& r = *text.request;
    const int64_t vocabulary = vocabulary_.size();
    const int32_t token =
        r.temperature > 0
            ? eval::sample_token(logits, vocabulary, r.temperature, r.top_k,
                                 text.rng.uniform(static_cast<uint64_t>(text.generated)), r.top_p)
            : eval::most_likely(logits, vocabulary, 1)[0];
    const bool end = vocabulary_.boundary() == token;
    Event event{text.choice, "", {}, ""};
    if (r.logprobs >= 0) {
        const double sum = eval::log_sum_exp(logits, vocabulary);
        TokenReport report{spelled_out(vocabulary_.spelled(token)),
                           text.echoed + static_cast<int64_t>(text.stream.characters()),
                           double{logits[token]} - sum,
                           {}};
        for (const int32_t c : eval::most_likely(logits, vocabulary, r.logprobs))
            report.top.emplace_back(spelled_out(vocabulary_.spelled(c)), double{logits[c]} - sum);
        event.tokens.push_back(std::move(report));
    }
    ++text.generated;
    ++text.answer->generated_tokens;
    if (!end) event.text = text.stream.add(text.bytes.next(token));
    const bool over = end || text.stream.stopped() || text.generated == text.wanted;
    if (over) {
        event.text += text.stream.finish();
        event.finish = end || text.stream.stopped() ? "stop" : "length";
        text.wanted = text.generated;
    }
    if (over || !event.text.empty() || !event.tokens.empty()) text.answer->put(std::move(event));
    return token;
}

bool Engine::begin_batch() {
    const std::lock_guard lock(mutex_);
    batch_.clear();
    size_t length = 0;
    for (auto at = queue_.begin(); at != queue_.end();) {
        const size_t own = (*at)->prompt.size(), count = batch_.size() + 1;
        const bool fits = batch_.empty() || (own == length && count <= static_cast<size_t>(size_.batch) &&
                                             static_cast<int64_t>(own * count) <= size_.context);
        if ((*at)->scored_first() || !fits) {
            ++at;
            continue;
        }
        length = own;
        batch_.push_back(std::move(*at));
        at = queue_.erase(at);
    }
    in_work_ += static_cast<int64_t>(batch_.size());
    return !batch_.empty();
}

// The logits after the prompts of the batch; the decoder then holds them.
std::vector<float> Engine::prefill() {
    const int64_t sequences = static_cast<int64_t>(batch_.size()),
                  length = static_cast<int64_t>(batch_[0]->prompt.size());
    std::vector<std::vector<int32_t>> prompts;
    for (const auto& text : batch_) prompts.push_back(text->prompt);
    const bool usable = size_.cache != PromptCache::off && decoder_.can_rewind() &&
                        held_.size() == prompts.size() && held_prompt_ > 0;
    bool same = usable && held_prompt_ == length;
    for (size_t b = 0; same && b < prompts.size(); ++b)
        same = std::equal(prompts[b].begin(), prompts[b].end(), held_[b].begin());
    if (same) {
        decoder_.rewind(length);
        held_ = prompts;
        counts_.reused += sequences * length;
        return held_logits_;
    }
    int64_t common = 0;
    if (usable && size_.cache == PromptCache::prefix && sequences == 1) {
        const auto [a, b] =
            std::mismatch(held_[0].begin(), held_[0].end(), prompts[0].begin(), prompts[0].end());
        common = std::min<int64_t>(a - held_[0].begin(), length - 1);
        if ((length - common) * prefix_gain > length) common = 0;
    }
    held_prompt_ = 0;  // until all is well
    if (common > 0) {
        decoder_.rewind(common);
        for (int64_t i = common; i < length; ++i)
            decoder_.step(*ops_, *weights_, {prompts[0][static_cast<size_t>(i)]});
        counts_.reused += common;
    } else {
        std::vector<int32_t> all;
        for (const auto& prompt : prompts) all.insert(all.end(), prompt.begin(), prompt.end());
        decoder_.prefill(*ops_, *weights_, all, sequences);
    }
    ++counts_.passes;
    held_logits_ = decoder_.logits(*ops_);
    held_ = std::move(prompts);
    held_prompt_ = length;
    return held_logits_;
}

void Engine::advance(const std::vector<float>& logits) {
    last_.clear();
    bool any = false;
    for (size_t b = 0; b < batch_.size(); ++b) {
        std::unique_ptr<Text>& text = batch_[b];
        if (text && ended(*text)) text.reset();
        if (!text) {
            last_.push_back(held_[b].back());  // its row is computed and not read
            continue;
        }
        last_.push_back(take_token(*text, logits.data() + static_cast<int64_t>(b) * vocabulary_.size()));
        if (text->generated == text->wanted) text.reset();
        any = any || text;
    }
    if (!any) batch_.clear();
}

void Engine::step() {
    for (size_t b = 0; b < held_.size(); ++b) held_[b].push_back(last_[b]);
    decoder_.step(*ops_, *weights_, last_);
    ++counts_.steps;
    advance(decoder_.logits(*ops_));
}

// --- the thread

void Engine::work_on_batch() {
    try {
        if (!batch_.empty()) return step();
        if (!begin_batch()) return;
        for (const auto& text : batch_)
            if (text->request->echo && text->request->logprobs < 0) report_prompt(*text, {});
        advance(prefill());
    } catch (const Error& error) {
        for (const auto& text : batch_)
            if (text) text->answer->fail(Refusal(500, error.what()));
        batch_.clear();
        held_prompt_ = 0;
    }
}

void Engine::work_on(std::unique_ptr<Text> text) {
    try {
        score(*text);
    } catch (const Error& error) {
        text->answer->fail(Refusal(500, error.what()));
    }
    if (text->generated == text->wanted || text->answer->cancelled()) return;
    const std::lock_guard lock(mutex_);
    queue_.push_front(std::move(text));
}

// The first waiting text that takes a pass of its own; null if there is none.
std::unique_ptr<Engine::Text> Engine::take_work() {
    std::unique_lock lock(mutex_);
    in_work_ = std::count_if(batch_.begin(), batch_.end(), [](const auto& text) { return text != nullptr; });
    if (queue_.empty() && batch_.empty()) work_.wait_for(lock, std::chrono::milliseconds(100));
    queue_.remove_if([&](const std::unique_ptr<Text>& text) { return ended(*text); });
    const auto first =
        std::find_if(queue_.begin(), queue_.end(), [](const auto& text) { return text->scored_first(); });
    if (first == queue_.end()) return nullptr;
    std::unique_ptr<Text> text = std::move(*first);
    queue_.erase(first);
    ++in_work_;
    return text;
}

void Engine::refuse_all(const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& text : queue_) text->answer->fail(refusal);
    for (const auto& text : batch_)
        if (text) text->answer->fail(refusal);
    queue_.clear();
    batch_.clear();
    in_work_ = 0;
}

void Engine::run(Ops& ops, const model::FlatParams& weights, const std::function<bool()>& stop) {
    ops_ = &ops;
    weights_ = &weights;
    while (!stop()) {
        if (std::unique_ptr<Text> text = take_work()) work_on(std::move(text));
        work_on_batch();
    }
    refuse_all(Refusal(503, "the server is stopping"));
    ops_ = nullptr;
    weights_ = nullptr;
}

}  // namespace longreach::serve
