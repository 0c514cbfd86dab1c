#include "serve/lane.h"

#include <algorithm>

#include "base/interruption.h"

namespace longreach::serve {

namespace {

using Clock = std::chrono::steady_clock;

// A prompt whose new part is longer than this share of it is read as a whole:
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

std::vector<int32_t> continued_tokens(const SharedPrompt& prompt) {
    return {prompt.tokens.begin() + prompt.document, prompt.tokens.end()};
}

// The different prompts of a batch, in the order of the texts that continue them.
struct Prompts {
    std::vector<const SharedPrompt*> all;
    std::vector<int64_t> of_text;
    int64_t count() const { return static_cast<int64_t>(all.size()); }
    void add(const SharedPrompt& prompt) {
        of_text.push_back(place(prompt));
        if (of_text.back() == count()) all.push_back(&prompt);
    }
    int64_t place(const SharedPrompt& prompt) const {
        const auto found = std::find_if(all.begin(), all.end(),
                                        [&](const SharedPrompt* p) { return prompt.continued_as(*p); });
        return found - all.begin();
    }
};

}  // namespace

std::vector<int32_t> DocumentRule::starts(const std::vector<int32_t>& tokens) const {
    std::vector<int32_t> out;
    if (token < 0) return out;
    int32_t start = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[ends && i > 0 ? i - 1 : i] == token && (!ends || i > 0)) start = static_cast<int32_t>(i);
        out.push_back(start);
    }
    return out;
}

Text::Text(std::shared_ptr<const CompletionRequest> asked, std::shared_ptr<SharedPrompt> from,
           uint32_t number, const Vocabulary& vocabulary)
    : request(std::move(asked)),
      prompt(std::move(from)),
      wanted(request->max_tokens),
      score(request->echo && request->logprobs >= 0),
      rng(static_cast<uint64_t>(request->seed), Purpose::sampling, number),
      stream(request->stop),
      bytes(vocabulary) {
    bytes.follow(prompt->tokens);
}

Lane::Lane(model::Transformer& model, const Vocabulary& vocabulary, const EngineSize& size, int64_t context,
           EngineCounts& counts)
    : model_(model),
      vocabulary_(vocabulary),
      size_(size),
      context_(context),
      too_late_(fmt::format("not answered within {} seconds (--time)", size.time.count())),
      decoder_(model, {size.batch, context, context, context, size.context}),
      scorer_(model),
      counts_(counts) {}

void Lane::plan(model::Arena& arena, Ops& ops) {
    scorer_.plan(arena, ops, context_, size_.documents.token >= 0);
    decoder_.plan(arena, ops);
}

void Lane::add(Texts& texts) {
    for (Text& text : texts) {
        ++waiting_;
        text.place.reset(&waiting_, [](std::atomic<int64_t>* waiting) { --*waiting; });
    }
    const std::lock_guard lock(mutex_);
    queue_.splice(queue_.end(), texts);
}

bool Lane::ended(const Text& text) const {
    if (text.answer->cancelled()) return true;
    if (Clock::now() < text.until) return false;
    text.answer->fail(503, too_late_.c_str());
    return true;
}

// Whether the server stops or all of these have ended.
bool Lane::unwanted(const Texts& texts) const {
    if (*meanwhile_) (*meanwhile_)();
    return (*stop_)() ||
           std::all_of(texts.begin(), texts.end(), [&](const Text& text) { return ended(text); });
}

void Lane::finish(Text& text, const char* reason) {
    Event last{text.choice, nullptr, text.stream.finish(), {}, text.stream.stopped() ? "stop" : reason};
    text.place.reset();
    text.answer->put(std::move(last));
}

void Lane::fail(Texts& texts) const noexcept {
    const auto end = [&](int status, const char* message) {
        for (Text& text : texts)
            if (!ended(text)) text.answer->fail(status, message);
    };
    try {
        throw;
    } catch (const Interrupted&) {
        end(503, "the server is stopping");
    } catch (const std::bad_alloc&) {
        end(503, "there is not enough memory for this request now");
    } catch (const std::exception& error) {
        end(500, error.what());
    }
    texts.clear();
}

// --- scoring

std::shared_ptr<const PromptReport> Lane::report_of(const Text& text, const eval::TextScores& scores) const {
    const auto report = std::make_shared<PromptReport>();
    TextStream characters;
    TokenText bytes(vocabulary_);
    const std::vector<int32_t>& tokens = text.prompt->tokens;
    if (text.score) report->tokens.reserve(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        heed_interruption();
        if (text.score) {
            TokenReport& token = report->tokens.emplace_back();
            token.text = spelled_out(vocabulary_.spelled(tokens[i]));
            token.offset = static_cast<int64_t>(characters.characters());
            if (i > 0) token.log_probability = scores.tokens[i - 1].log_probability;
            if (i > 0 && text.request->logprobs > 0) {
                token.top.reserve(scores.top[i - 1].size());
                for (const eval::Candidate& c : scores.top[i - 1])
                    token.top.emplace_back(spelled_out(vocabulary_.spelled(c.token)), c.log_probability);
            }
        }
        report->text += characters.add(bytes.next(tokens[i]));
    }
    report->text += characters.finish();
    report->characters = static_cast<int64_t>(characters.characters());
    return report;
}

void Lane::put_prompt(Text& text, const eval::TextScores& scores) {
    SharedPrompt& prompt = *text.prompt;
    if (!prompt.report) prompt.report = report_of(text, scores);
    text.echoed = prompt.report->characters;
    text.answer->put({text.choice, prompt.report, "", {}, ""});
}

void Lane::score(Text& text) {
    if (!text.score) {
        if (text.request->echo) put_prompt(text, {});
        return finish(text, "length");
    }
    SharedPrompt& prompt = *text.prompt;
    eval::TextScores scores;
    if (!prompt.report) {
        in_pass_ = static_cast<int64_t>(prompt.tokens.size());
        scores = scorer_.run(*ops_, *weights_, prompt.tokens, size_.documents.starts(prompt.tokens),
                             text.request->logprobs, text.wanted == 1);
        prompt.next = std::move(scores.next);
        ++counts_.scored;
    }
    put_prompt(text, scores);
    text.score = false;
    if (text.wanted == 1) take_token(text, prompt.next.data());
    if (text.wanted == 0) finish(text, "length");
}

// --- generation

int32_t Lane::take_token(Text& text, const float* logits) {
    const CompletionRequest& r = *text.request;
    const int64_t vocabulary = vocabulary_.size();
    const int32_t token =
        r.temperature > 0
            ? eval::sample_token(logits, vocabulary, r.temperature, r.top_k,
                                 text.rng.uniform(static_cast<uint64_t>(text.generated)), r.top_p)
            : eval::most_likely(logits, vocabulary, 1)[0];
    const bool end =
        vocabulary_.boundary() == token || std::find(r.ends.begin(), r.ends.end(), token) != r.ends.end();
    Event event;
    event.choice = text.choice;
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
        text.place.reset();
    }
    if (over || !event.text.empty() || !event.tokens.empty()) text.answer->put(std::move(event));
    return token;
}

bool Lane::begin_batch() {
    const std::lock_guard lock(mutex_);
    Prompts prompts;
    for (auto at = queue_.begin(); at != queue_.end();) {
        const auto text = at++;
        if (static_cast<int64_t>(batch_.size()) == size_.batch) break;
        if (text->scored_first()) continue;
        const int64_t own = text->prompt->continued();
        if (!batch_.empty() && own != batch_.front().prompt->continued()) continue;
        const int64_t read = std::max(prompts.count(), prompts.place(*text->prompt) + 1);
        if (!batch_.empty() && own * read > context_) continue;
        batch_.splice(batch_.end(), queue_, text);
        prompts.add(*text->prompt);  // without memory for it the text fails with its batch
    }
    return !batch_.empty();
}

void Lane::forget_batch() {
    batch_.clear();
    rows_.clear();
    held_prompt_ = 0;
}

// The logits after the prompts of the batch; the decoder then holds them.
std::vector<float> Lane::prefill() {
    const int64_t sequences = static_cast<int64_t>(batch_.size()),
                  length = batch_.front().prompt->continued();
    Prompts different;
    std::vector<std::vector<int32_t>> prompts;
    for (const Text& text : batch_) {
        different.add(*text.prompt);
        prompts.push_back(continued_tokens(*text.prompt));
    }
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
        for (const SharedPrompt* prompt : different.all)
            all.insert(all.end(), prompt->tokens.begin() + prompt->document, prompt->tokens.end());
        in_pass_ = static_cast<int64_t>(all.size());
        counts_.reused += (sequences - different.count()) * length;
        decoder_.prefill(*ops_, *weights_, all, different.count(), std::move(different.of_text));
    }
    ++counts_.passes;
    held_logits_ = decoder_.logits(*ops_);
    held_ = std::move(prompts);
    held_prompt_ = length;
    return held_logits_;
}

void Lane::advance(const std::vector<float>& logits) {
    last_.clear();
    for (size_t b = 0; b < rows_.size(); ++b) {
        Text*& text = rows_[b];
        const auto drop = [&] {
            batch_.remove_if([&](const Text& other) { return &other == text; });
            text = nullptr;
        };
        if (text != nullptr && ended(*text)) drop();
        if (text == nullptr) {
            last_.push_back(held_[b].back());  // its row is computed and not read
            continue;
        }
        last_.push_back(take_token(*text, logits.data() + static_cast<int64_t>(b) * vocabulary_.size()));
        if (text->generated == text->wanted) drop();
    }
}

void Lane::step() {
    for (size_t b = 0; b < held_.size(); ++b) held_[b].push_back(last_[b]);
    decoder_.step(*ops_, *weights_, last_);
    ++counts_.steps;
    advance(decoder_.logits(*ops_));
}

// --- the thread

void Lane::work_on_batch() {
    try {
        const bool going_on = !batch_.empty();
        if (!going_on && !begin_batch()) return;
        const Interruption interruption([&] { return unwanted(batch_); });
        if (going_on) return step();
        rows_.clear();
        for (Text& text : batch_) {
            text.answer->begin_work();
            rows_.push_back(&text);
            if (text.request->echo && text.request->logprobs < 0) put_prompt(text, {});
        }
        const std::vector<float> logits = prefill();
        in_pass_ = 0;
        advance(logits);
    } catch (...) {
        fail(batch_);
        forget_batch();
    }
    in_pass_ = 0;
}

void Lane::work_on(Texts& work) {
    if (work.empty()) return;
    Text& text = work.front();
    text.answer->begin_work();
    try {
        const Interruption interruption([&] { return unwanted(work); });
        score(text);
    } catch (...) {
        fail(work);
    }
    in_pass_ = 0;
    if (work.empty() || text.generated == text.wanted || text.answer->cancelled()) return work.clear();
    const std::lock_guard lock(mutex_);
    queue_.splice(queue_.begin(), work);
}

// The first waiting text that takes a pass of its own; none if there is none.
Texts Lane::take_work() {
    Texts ended_texts, work;  // those that ended are destroyed without the lock
    const std::lock_guard lock(mutex_);
    for (auto at = queue_.begin(); at != queue_.end();) {
        const auto text = at++;
        if (ended(*text)) {
            ended_texts.splice(ended_texts.end(), queue_, text);
        } else if (work.empty() && text->scored_first()) {
            work.splice(work.end(), queue_, text);
        }
    }
    return work;
}

void Lane::turn(Ops& ops, const model::FlatParams& weights, const std::function<bool()>& stop,
                const std::function<void()>& meanwhile) {
    ops_ = &ops;
    weights_ = &weights;
    stop_ = &stop;
    meanwhile_ = &meanwhile;
    Texts work = take_work();
    work_on(work);
    work_on_batch();
}

void Lane::refuse_all() {
    Texts all;
    {
        const std::lock_guard lock(mutex_);
        all.splice(all.end(), queue_);
        all.splice(all.end(), batch_);
    }
    for (Text& text : all) text.answer->fail(503, "the server is stopping");
    forget_batch();
}

}  // namespace longreach::serve
