// An engine with a small random model, whose thread runs while an object exists.
#pragma once

#include <doctest/doctest.h>

#include <thread>

#include "base/text.h"
#include "model/arena.h"
#include "serve/engine.h"

namespace longreach::test {

// Reads bytes, so that its texts are text of a kind: any bytes at all.
inline model::ModelConfig byte_model() {
    model::ModelConfig m;
    m.layers = 2;
    m.width = 16;
    m.vocab_size = serve::byte_vocabulary;
    m.mlp.hidden = 24;
    m.attention.heads = 2;
    m.attention.head_dim = 8;
    m.init.zero_projections = false;
    m.init.zero_head = false;
    m.train_context = 96;
    return m;
}

class EngineBench {
  public:
    explicit EngineBench(const serve::EngineSize& size = {.context = 96},
                         const model::ModelConfig& config = byte_model(), float poison = 0)
        : ops_(make_cpu_ops({.threads = 1})),
          brief_ops_(make_cpu_ops({.threads = 1})),
          arena_(*ops_),
          model_(config, size.context),
          brief_(config, size.context),
          vocabulary_(config.vocab_size, nullptr),
          engine(model_, vocabulary_, size,
                 size.context >= serve::Engine::long_context
                     ? std::optional(serve::Engine::Brief{brief_, *brief_ops_})
                     : std::nullopt) {
        weights_ = model::plan_weights(arena_, model_.params());
        model_.plan_tables(arena_);
        brief_.plan_tables(arena_);
        engine.plan(arena_, *ops_);
        arena_.commit();
        model_.fill_tables(*ops_);
        brief_.fill_tables(*ops_);
        std::vector<float> host;
        model::initialise(model_.params(), 5, host);
        // Larger than a new model's, so that its predictions are far from uniform.
        for (float& w : host) w = w * 3 + poison;
        ops_->upload(weights_.flat, host.data());
        weights_.round(*ops_);
    }
    ~EngineBench() { stop(); }

    Ops& ops() { return *ops_; }
    model::Transformer& model() { return model_; }
    const model::FlatParams& weights() const { return weights_; }
    void start() {
        thread_ = std::thread([this] { engine.run(*ops_, weights_, [this] { return stopping_.load(); }); });
    }
    void stop() {
        stopping_ = true;
        if (thread_.joinable()) thread_.join();
    }

  private:
    std::unique_ptr<Ops> ops_, brief_ops_;
    model::Arena arena_;
    model::Transformer model_, brief_;
    serve::Vocabulary vocabulary_;
    model::FlatParams weights_;
    std::atomic<bool> stopping_ = false;
    std::thread thread_;

  public:
    serve::Engine engine;
};

inline serve::CompletionRequest request_for(std::vector<int32_t> prompt, int64_t tokens) {
    serve::CompletionRequest r;
    r.prompts.emplace_back(std::move(prompt));
    r.max_tokens = tokens;
    r.temperature = 0;
    return r;
}

struct ChoiceResult {
    std::string text, finish;
    std::vector<serve::TokenReport> tokens;
};
// All parts of an answer, by choice.
inline std::vector<ChoiceResult> collect(serve::Answer& answer, size_t choices = 1) {
    std::vector<ChoiceResult> out(choices);
    for (size_t left = choices; left > 0;) {
        const auto event = answer.next(std::chrono::seconds(60));
        REQUIRE(event);
        ChoiceResult& to = out.at(event->choice);
        CHECK(to.finish.empty());
        CHECK(is_utf8(event->text));
        if (event->prompt) {
            CHECK(is_utf8(event->prompt->text));
            to.text += event->prompt->text;
            to.tokens.insert(to.tokens.end(), event->prompt->tokens.begin(), event->prompt->tokens.end());
        }
        to.text += event->text;
        to.tokens.insert(to.tokens.end(), event->tokens.begin(), event->tokens.end());
        to.finish = event->finish;
        left -= event->finish.empty() ? 0 : 1;
    }
    return out;
}

inline std::vector<double> values_of(const ChoiceResult& choice) {
    std::vector<double> out;
    for (const serve::TokenReport& token : choice.tokens) out.push_back(token.log_probability.value_or(1));
    return out;
}

}  // namespace longreach::test
