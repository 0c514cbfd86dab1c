// The engine: scoring, generation, batches, the prompt cache, limits.
#include "serve/bench.h"

#include <cmath>

#include "base/rng.h"

using namespace longreach;
using namespace longreach::test;
using serve::Refusal;

namespace {

std::vector<int32_t> tokens_of(size_t count, uint32_t stream) {
    const Rng rng(7, Purpose::test, stream);
    std::vector<int32_t> out;
    for (size_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(rng.below(i, 256)));
    return out;
}

serve::CompletionRequest scored(std::vector<int32_t> prompt, int64_t tokens, int64_t top = 1) {
    serve::CompletionRequest r = request_for(std::move(prompt), tokens);
    r.echo = true;
    r.logprobs = top;
    return r;
}

int status_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Refusal& refusal) {
        return refusal.status();
    }
    return 200;
}

}  // namespace

TEST_CASE("engine: log-probabilities are the losses of an evaluation, to the bit") {
    EngineBench bench;
    const std::vector<int32_t> text = tokens_of(90, 1);
    bench.start();
    const auto whole = collect(*bench.engine.submit(scored(text, 0)));
    const auto continued = collect(*bench.engine.submit(scored(text, 1)));
    bench.stop();
    // As LengthEvaluator: a sequence of 89 tokens, whose targets are the next ones.
    model::Arena arena(bench.ops());
    model::DeviceBatch batch;
    batch.plan(arena, 89, {});
    arena.commit();
    const std::vector<int32_t> inputs(text.begin(), text.end() - 1), targets(text.begin() + 1, text.end());
    bench.model().use_length(bench.ops(), 89);
    bench.model().forward(bench.ops(), bench.weights(), batch.upload(bench.ops(), 89, inputs, targets, {}));
    std::vector<float> losses(89);
    std::vector<int32_t> best(89);
    bench.ops().download(losses.data(), bench.model().evaluation_losses(89));
    bench.ops().download(best.data(), bench.model().evaluation_best(89));

    REQUIRE(whole[0].tokens.size() == 90);
    REQUIRE(continued[0].tokens.size() == 91);
    CHECK(whole[0].finish == "length");
    CHECK(!whole[0].tokens[0].log_probability);
    for (size_t i = 0; i < 89; ++i) {
        const serve::TokenReport& token = whole[0].tokens[i + 1];
        CHECK(*token.log_probability == -double{losses[i]});
        REQUIRE(token.top.size() == 1);
        CHECK((token.top[0].second == *token.log_probability) == (best[i] == targets[i]));
        CHECK(token.top[0].second >= *token.log_probability);
        CHECK(*token.log_probability == *continued[0].tokens[i + 1].log_probability);
    }
    // A text that goes on with its most likely token: there both are one number, as lm_eval asks.
    EngineBench again;
    again.start();
    std::vector<int32_t> likely(text.begin(), text.begin() + 41);
    likely.push_back(best[40]);
    const auto greedy = collect(*again.engine.submit(scored(likely, 0)));
    CHECK(greedy[0].tokens[41].top.at(0).second == *greedy[0].tokens[41].log_probability);
}

TEST_CASE("engine: log-probabilities leave out the z-loss") {
    model::ModelConfig config = byte_model();
    EngineBench plain({.context = 96}, config);
    config.head.z_loss = 0.01;
    EngineBench with({.context = 96}, config);
    plain.start();
    with.start();
    const auto a = values_of(collect(*plain.engine.submit(scored(tokens_of(60, 1), 0)))[0]);
    const auto b = values_of(collect(*with.engine.submit(scored(tokens_of(60, 1), 0)))[0]);
    // One is a loss in f32, whose logarithm is of a sum of 257 terms in f32; the other is f64 throughout.
    for (size_t i = 1; i < a.size(); ++i)
        CHECK(std::abs(a[i] - b[i]) <= 258 * 0x1p-24 * (1 + std::abs(a[i])));
}

TEST_CASE("engine: the most likely tokens of a place are all of its probability") {
    EngineBench bench;
    bench.start();
    const auto all = collect(*bench.engine.submit(scored(tokens_of(30, 2), 1, serve::byte_vocabulary)));
    // Sums of 257 probabilities from f32 losses: each log is right to 2^-24 of its size, at most 20.
    const double bound = 257 * 20 * 0x1p-24;
    for (size_t i = 1; i < all[0].tokens.size(); ++i) {
        double sum = 0, before = 1;
        REQUIRE(all[0].tokens[i].top.size() == serve::byte_vocabulary);
        for (const auto& [text, p] : all[0].tokens[i].top) {
            CHECK(p <= before);
            before = p;
            sum += std::exp(p);
        }
        CHECK(std::abs(sum - 1) < bound);
    }
}

TEST_CASE("engine: a request gets the same bits alone and among others") {
    std::vector<serve::CompletionRequest> requests;
    for (uint32_t i = 0; i < 6; ++i) {
        serve::CompletionRequest r = request_for(tokens_of(10 + i / 4, i), 20 + i);
        r.temperature = i % 2 == 0 ? 0.8 : 0;
        r.seed = i;
        r.n = 1 + i % 3;
        r.logprobs = 2;
        requests.push_back(r);
    }
    std::vector<std::vector<ChoiceResult>> alone;
    for (const serve::CompletionRequest& r : requests) {
        EngineBench bench({.context = 96, .batch = 1, .cache = serve::PromptCache::off});
        const auto answer = bench.engine.submit(r);
        bench.start();
        alone.push_back(collect(*answer, static_cast<size_t>(r.n)));
    }
    EngineBench bench({.context = 96, .batch = 8});
    std::vector<std::shared_ptr<serve::Answer>> answers;
    for (const serve::CompletionRequest& r : requests) answers.push_back(bench.engine.submit(r));
    bench.start();
    for (size_t i = 0; i < requests.size(); ++i) {
        const auto together = collect(*answers[i], static_cast<size_t>(requests[i].n));
        for (size_t c = 0; c < together.size(); ++c) {
            CAPTURE(i);
            CHECK(together[c].text == alone[i][c].text);
            CHECK(values_of(together[c]) == values_of(alone[i][c]));
        }
    }
    // 6 requests with 10 or 11 tokens of prompt, 11 choices: two or three passes.
    CHECK(bench.engine.counts().passes <= 3);
}

TEST_CASE("engine: seeds decide, and the number of a choice") {
    EngineBench bench;
    bench.start();
    serve::CompletionRequest r = request_for(tokens_of(8, 3), 24);
    r.temperature = 1;
    r.seed = 11;
    const auto once = collect(*bench.engine.submit(r));
    CHECK(collect(*bench.engine.submit(r))[0].text == once[0].text);
    r.n = 3;
    const auto three = collect(*bench.engine.submit(r), 3);
    CHECK(three[0].text == once[0].text);
    CHECK(three[1].text != three[0].text);
    CHECK(three[2].text != three[1].text);
    r.n = 1;
    r.seed = 12;
    CHECK(collect(*bench.engine.submit(r))[0].text != once[0].text);
    r.top_k = 1;
    serve::CompletionRequest greedy = request_for(tokens_of(8, 3), 24);
    const std::string likely = collect(*bench.engine.submit(greedy))[0].text;
    CHECK(collect(*bench.engine.submit(r))[0].text == likely);
    r.top_k = 0;
    r.top_p = 1e-9;
    CHECK(collect(*bench.engine.submit(r))[0].text == likely);
}

TEST_CASE("engine: a prompt that is asked for again is not computed again, and gives the same bits") {
    serve::CompletionRequest r = request_for(tokens_of(40, 4), 12);
    r.logprobs = 1;
    const auto run = [&](serve::PromptCache cache, int64_t reused) {
        EngineBench bench({.context = 96, .cache = cache});
        bench.start();
        const auto first = collect(*bench.engine.submit(r));
        const auto second = collect(*bench.engine.submit(r));
        CHECK(values_of(first[0]) == values_of(second[0]));
        CHECK(first[0].text == second[0].text);
        CHECK(bench.engine.counts().reused == reused);
        return values_of(second[0]);
    };
    CHECK(run(serve::PromptCache::same, 40) == run(serve::PromptCache::off, 0));
}

TEST_CASE(
    "engine: equal prompts are read once, and their choices fill a batch that their tokens would not fit") {
    serve::CompletionRequest r = request_for(tokens_of(60, 4), 12);
    r.temperature = 1;
    EngineBench alone({.context = 96}), together({.context = 96});
    const auto one = together.engine.submit(r), other = together.engine.submit(r);
    r.n = 2;
    const auto two = together.engine.submit(r);
    alone.start();
    const auto expected = collect(*alone.engine.submit(r), 2);
    CHECK(alone.engine.counts().reused == 60);
    CHECK(expected[0].text != expected[1].text);
    together.start();
    const auto results = collect(*two, 2);
    CHECK(results[0].text == expected[0].text);
    CHECK(results[1].text == expected[1].text);
    CHECK(collect(*one)[0].text == expected[0].text);
    CHECK(collect(*other)[0].text == expected[0].text);
    CHECK(together.engine.counts().passes == 1);
    CHECK(together.engine.counts().reused == 180);
}

TEST_CASE("engine: a state that cannot go back is computed anew") {
    model::ModelConfig config = byte_model();
    config.residual.smear = true;
    EngineBench bench({.context = 96}, config);
    bench.start();
    const serve::CompletionRequest r = request_for(tokens_of(40, 4), 12);
    const auto first = collect(*bench.engine.submit(r));
    CHECK(collect(*bench.engine.submit(r))[0].text == first[0].text);
    CHECK(bench.engine.counts().reused == 0);
}

TEST_CASE("engine: prefix reads on from what two prompts begin with alike") {
    EngineBench bench({.context = 96, .cache = serve::PromptCache::prefix}), fresh;
    bench.start();
    fresh.start();
    std::vector<int32_t> prompt = tokens_of(60, 5);
    collect(*bench.engine.submit(request_for(prompt, 8)));
    prompt[57] = 1;  // 57 tokens alike, 3 new: under an eighth
    serve::CompletionRequest r = request_for(prompt, 1);
    r.logprobs = 0;
    const double reused = values_of(collect(*bench.engine.submit(r))[0])[0];
    CHECK(bench.engine.counts().reused == 57);
    // A step and a pass round differently: tests/eval/decoding.h bounds a logit by steps * sqrt(width) roundings of the
    // largest logit, for each of the two.
    const double bound = 2 * 2 * (20 * 2 + 8) * std::sqrt(257.0) * 0x1p-24 * (1 + 20);
    CHECK(std::abs(reused - values_of(collect(*fresh.engine.submit(r))[0])[0]) < bound);
    prompt[20] = 2;  // 20 alike: a pass is faster
    collect(*bench.engine.submit(request_for(prompt, 1)));
    CHECK(bench.engine.counts().reused == 57);
}

TEST_CASE("engine: stop strings and the end of a document end a text") {
    EngineBench bench;
    bench.start();
    serve::CompletionRequest r = request_for(tokens_of(8, 6), 40);
    r.temperature = 1;
    const std::string text = collect(*bench.engine.submit(r))[0].text;
    // Three characters out of its middle, which several tokens make.
    size_t at = text.size() / 2;
    while ((text[at] & 0xC0) == 0x80) ++at;
    size_t end = at;
    for (int i = 0; i < 3; ++i) end += utf8_sequence(std::string_view(text).substr(end));
    r.stop = {text.substr(at, end - at)};
    const auto stopped = collect(*bench.engine.submit(r));
    CHECK(stopped[0].finish == "stop");
    CHECK(stopped[0].text == text.substr(0, text.find(r.stop[0])));
    // The document's token: first found by its seed.
    bool ended = false;
    r.stop.clear();
    for (r.seed = 0; r.seed < 400 && !ended; ++r.seed) {
        r.temperature = 100;
        const auto result = collect(*bench.engine.submit(r));
        ended = result[0].finish == "stop";
        if (!ended) CHECK(result[0].finish == "length");
    }
    CHECK(ended);
}

TEST_CASE("engine: echo, offsets and counts") {
    EngineBench bench;
    bench.start();
    serve::CompletionRequest r;
    r.prompts = {std::string("h\xC3\xA9llo")};
    r.temperature = 0;
    r.echo = true;
    r.logprobs = 0;
    r.max_tokens = 3;
    const auto answer = bench.engine.submit(r);
    CHECK(answer->prompt_tokens == 7);
    const auto result = collect(*answer);
    CHECK(answer->generated_tokens <= 3);
    CHECK(result[0].text.starts_with("h\xC3\xA9llo"));
    REQUIRE(result[0].tokens.size() >= 8);
    CHECK(result[0].tokens[0].text == "<|endoftext|>");
    CHECK(result[0].tokens[2].text == "bytes:\\xc3");
    std::vector<int64_t> offsets;
    for (size_t i = 0; i < 8; ++i) offsets.push_back(result[0].tokens[i].offset);
    CHECK(offsets == std::vector<int64_t>{0, 0, 1, 1, 2, 3, 4, 5});
    r.logprobs = -1;
    CHECK(collect(*bench.engine.submit(r))[0].text == result[0].text);
    r.max_tokens = 0;
    CHECK(collect(*bench.engine.submit(r))[0].text == "h\xC3\xA9llo");
    r.begin_document = false;
    CHECK(bench.engine.submit(r)->prompt_tokens == 6);
}

TEST_CASE("engine: limits are named before any work") {
    EngineBench bench({.context = 96, .queue = 3});
    CHECK(status_of([&] { bench.engine.submit(request_for(tokens_of(90, 1), 7)); }) == 400);
    CHECK(status_of([&] { bench.engine.submit(request_for({}, 7)); }) == 400);
    serve::CompletionRequest r = request_for(tokens_of(9, 1), 7);
    r.n = 3;
    bench.engine.submit(r);
    CHECK(bench.engine.waiting() == 3);
    CHECK(status_of([&] { bench.engine.submit(request_for(tokens_of(9, 1), 7)); }) == 503);
}

TEST_CASE(
    "engine: a client that leaves stops its decoding; an old request is given up; the end refuses the rest") {
    EngineBench bench({.context = 96});
    const auto left = bench.engine.submit(request_for(tokens_of(9, 1), 80));
    left->cancel();
    bench.start();
    CHECK(collect(*bench.engine.submit(request_for(tokens_of(9, 1), 1)))[0].finish != "");
    CHECK(bench.engine.counts().steps == 0);
    EngineBench slow({.context = 96, .time = std::chrono::seconds(0)});
    slow.start();
    CHECK(status_of([&] { collect(*slow.engine.submit(request_for(tokens_of(9, 1), 1))); }) == 503);
    EngineBench ending;
    const auto waiting = ending.engine.submit(request_for(tokens_of(9, 1), 1));
    ending.stop();
    ending.engine.run(ending.ops(), ending.weights(), [] { return true; });
    CHECK(status_of([&] { collect(*waiting); }) == 503);
    CHECK(status_of([&] { ending.engine.submit(request_for(tokens_of(9, 1), 1)); }) == 503);
}

TEST_CASE("engine: numbers that are none fail one request, and the engine goes on") {
    EngineBench bench({.context = 96}, byte_model(), NAN);
    bench.start();
    CHECK(status_of([&] { collect(*bench.engine.submit(request_for(tokens_of(9, 1), 4))); }) == 500);
    CHECK(status_of([&] { collect(*bench.engine.submit(scored(tokens_of(9, 1), 0))); }) == 500);
    for (int i = 0; i < 600 && bench.engine.waiting() > 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(bench.engine.waiting() == 0);
}
