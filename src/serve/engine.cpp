#include "serve/engine.h"

#include <algorithm>

namespace longreach::serve {

namespace {

using Clock = std::chrono::steady_clock;

// Of an entry in an answer's lists, a token and its number: as text, and as it is held (an estimate of the text; what
// has really arrived is counted).
constexpr int64_t entry_text = 40, entry_memory = 64;
// All answers together may hold this many times the bytes of the longest.
constexpr int64_t longest_answers = 4;

// What of a model keeps it from continuing the last document of a prompt as a text of its own.
std::string against_documents(const model::ModelConfig& config) {
    if (config.positions > 0) return "learned positions (model.positions)";
    for (const int64_t layer : config.distinct_layers()) {
        const model::AttentionConfig& attention = config.layer_attention(layer);
        if (!attention.attends()) continue;
        if (attention.chunk > 0) return "chunks of keys (attention.chunk)";
        if (attention.score_count == model::ScoreCount::sequence)
            return "scales that count the whole sequence (attention.score_count)";
    }
    return "";
}

}  // namespace

Engine::Engine(model::Transformer& model, const Vocabulary& vocabulary, const EngineSize& size,
               std::optional<Brief> brief)
    : vocabulary_(vocabulary),
      size_(size),
      no_documents_(against_documents(model.config())),
      memory_(longest_answers * size.max_answer),
      lane_(model, vocabulary, size, size.context, counts_) {
    if (!brief) return;
    brief_.emplace(brief->model, vocabulary, size, brief_context, counts_);
    brief_ops_ = &brief->ops;
}

Engine::~Engine() = default;

void Engine::plan(model::Arena& arena, Ops& ops) {
    lane_.plan(arena, ops);
    if (brief_) brief_->plan(arena, ops);
}

int64_t Engine::waiting() const {
    return lane_.waiting() + (brief_ ? brief_->waiting() : 0);
}

std::shared_ptr<SharedPrompt> Engine::read_prompt(const CompletionRequest& request, size_t number) const {
    const auto prompt = std::make_shared<SharedPrompt>();
    std::vector<int32_t>& tokens = prompt->tokens;
    if (const std::string* text = std::get_if<std::string>(&request.prompts[number])) {
        if (request.begin_document && vocabulary_.boundary()) tokens.push_back(*vocabulary_.boundary());
        const std::vector<int32_t> rest = vocabulary_.encode(*text, false);
        tokens.insert(tokens.end(), rest.begin(), rest.end());
    } else {
        tokens = std::get<std::vector<int32_t>>(request.prompts[number]);
    }
    const int64_t count = static_cast<int64_t>(tokens.size());
    if (count == 0) throw Refusal(400, fmt::format("prompt {} has no token", number + 1), "prompt");
    if (count + request.max_tokens > size_.context)
        throw Refusal(400,
                      fmt::format("prompt {} has {} tokens; with max_tokens = {} that is more than the "
                                  "context of {} tokens (--context)",
                                  number + 1, count, request.max_tokens, size_.context),
                      "prompt");
    if (size_.documents.token < 0) return prompt;
    const std::vector<int32_t> starts = size_.documents.starts(tokens);
    prompt->document = starts.back();
    if (request.max_tokens > 0 && prompt->document > 0 && !no_documents_.empty())
        throw Refusal(
            400,
            fmt::format("prompt {} has several documents, of which a model with {} can score all but "
                        "not continue the last: give that alone",
                        number + 1, no_documents_),
            "prompt");
    if (request.max_tokens > 0 && size_.documents.ends && tokens.back() == size_.documents.token)
        throw Refusal(400, fmt::format("prompt {} ends with the end of a document", number + 1), "prompt");
    return prompt;
}

std::shared_ptr<void> Engine::plan_answer(const CompletionRequest& request, int64_t prompt_tokens) {
    // In f64, which no product of these overflows.
    const double entries = request.logprobs >= 0 ? 2 + static_cast<double>(request.logprobs) : 0;
    const double prompts = request.echo ? static_cast<double>(prompt_tokens) : 0;
    const double generated = static_cast<double>(request.prompts.size()) * static_cast<double>(request.n) *
                             static_cast<double>(request.max_tokens);
    const double text = (prompts * static_cast<double>(request.n) + generated) * (4 + entries * entry_text);
    const double held =
        static_cast<double>(prompt_tokens) * 8 + (prompts + generated) * (16 + entries * entry_memory);
    if (text > static_cast<double>(size_.max_answer))
        throw Refusal(
            400,
            fmt::format("the answer could have {:.0f} MB; at most {:.0f} (--max-answer): ask for fewer "
                        "choices, log-probabilities or tokens at once",
                        text / 1e6, static_cast<double>(size_.max_answer) / 1e6),
            request.n > 1          ? "n"
            : request.logprobs > 0 ? "logprobs"
                                   : "max_tokens");
    return memory_.take(static_cast<int64_t>(held));
}

std::shared_ptr<Answer> Engine::submit(CompletionRequest request) {
    std::vector<std::shared_ptr<SharedPrompt>> prompts;
    int64_t tokens = 0, longest = 0;
    for (size_t p = 0; p < request.prompts.size(); ++p) {
        prompts.push_back(read_prompt(request, p));
        const int64_t own = static_cast<int64_t>(prompts.back()->tokens.size());
        tokens += own;
        longest = std::max(longest, own + request.max_tokens);
    }
    const auto answer = std::make_shared<Answer>(size_.max_answer, plan_answer(request, tokens));
    answer->prompt_tokens = tokens;
    request.prompts.clear();
    const auto shared = std::make_shared<const CompletionRequest>(std::move(request));
    Texts texts;
    for (const std::shared_ptr<SharedPrompt>& prompt : prompts)
        for (int64_t i = 0; i < shared->n; ++i) {
            const size_t choice = texts.size();
            Text& text = texts.emplace_back(shared, prompt, static_cast<uint32_t>(i), vocabulary_);
            text.answer = answer;
            text.choice = choice;
            text.until = Clock::now() + size_.time;
        }
    const std::lock_guard lock(mutex_);
    if (stopped_) throw Refusal(503, "the server is stopping");
    if (static_cast<int64_t>(texts.size()) + waiting() > size_.queue)
        throw Refusal(503,
                      fmt::format("{} choices wait already; at most {} (--queue)", waiting(), size_.queue));
    (brief_ && longest <= brief_context ? *brief_ : lane_).add(texts);
    work_.notify_one();
    return answer;
}

void Engine::run(Ops& ops, const model::FlatParams& weights, const std::function<bool()>& stop) {
    Clock::time_point next{};
    // A turn for short texts within a long pass, as long as they take no more than half of the time.
    const auto meanwhile = [&] {
        const Clock::time_point begin = Clock::now();
        if (lane_.in_pass() <= brief_context || brief_->waiting() == 0 || begin < next) return;
        brief_->turn(*brief_ops_, weights, stop);
        const Clock::time_point end = Clock::now();
        next = end + (end - begin);
    };
    while (!stop()) {
        lane_.turn(ops, weights, stop, brief_ ? meanwhile : std::function<void()>());
        if (brief_) brief_->turn(ops, weights, stop);
        std::unique_lock lock(mutex_);
        work_.wait_for(lock, std::chrono::milliseconds(100), [&] { return waiting() > 0; });
    }
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    lane_.refuse_all();
    if (brief_) brief_->refuse_all();
}

}  // namespace longreach::serve
