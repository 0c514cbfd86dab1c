// What one request can take from the others: memory, time, and the ends of their documents.
#include <cmath>
#include <cstdlib>
#include <new>

#include "serve/bench.h"

using namespace longreach;
using namespace longreach::test;
using serve::Refusal;

namespace {

std::atomic<size_t> largest_piece = SIZE_MAX;

}  // namespace

// All memory of this program: a piece larger than largest_piece is not to be had.
[[gnu::noinline]] void* operator new(size_t size) {
    void* memory = size <= largest_piece ? std::malloc(size) : nullptr;
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace {

std::vector<int32_t> letters(size_t count, int32_t first = 0) {
    std::vector<int32_t> out;
    for (size_t i = 0; i < count; ++i)
        out.push_back(97 + static_cast<int32_t>((i * i + static_cast<size_t>(first)) % 25));
    return out;
}

serve::CompletionRequest scored(std::vector<int32_t> prompt, int64_t tokens = 0) {
    serve::CompletionRequest r = request_for(std::move(prompt), tokens);
    r.echo = true;
    r.logprobs = 1;
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

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Losses as `longreach eval` has them under a document mask.
std::vector<double> masked_losses(const std::vector<int32_t>& text, const std::vector<int32_t>& starts) {
    EngineBench bench({.context = 96, .documents = {256}});
    const int64_t rows = static_cast<int64_t>(text.size()) - 1;
    model::Arena arena(bench.ops());
    model::DeviceBatch batch;
    batch.plan(arena, rows, {.documents = true});
    arena.commit();
    const std::vector<int32_t> inputs(text.begin(), text.end() - 1), targets(text.begin() + 1, text.end());
    bench.model().use_length(bench.ops(), rows);
    bench.model().forward(
        bench.ops(), bench.weights(),
        batch.upload(bench.ops(), rows, inputs, targets, std::span(starts).first(static_cast<size_t>(rows))));
    std::vector<float> losses(static_cast<size_t>(rows));
    bench.ops().download(losses.data(), bench.model().evaluation_losses(rows));
    std::vector<double> out{1};
    for (const float loss : losses) out.push_back(-double{loss});
    return out;
}

}  // namespace

TEST_CASE("limits: memory that is not to be had fails its request with 503, and the server goes on") {
    EngineBench bench({.context = 96});
    bench.start();
    const auto before = collect(*bench.engine.submit(scored(letters(80), 4)));
    for (const size_t most : {2000, 500, 100, 0}) {
        const auto answer = bench.engine.submit(scored(letters(80), 4));
        const auto generated = bench.engine.submit(request_for(letters(80, 3), 4));
        largest_piece = most;
        while (bench.engine.waiting() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        largest_piece = SIZE_MAX;
        for (const auto& failed : {answer, generated}) try {
                collect(*failed);  // what was answered before the memory was gone
            } catch (const Refusal& refusal) {
                CHECK(refusal.status() == 503);
            } catch (const std::bad_alloc&) {  // not even memory for the message
            }
    }
    CHECK(values_of(collect(*bench.engine.submit(scored(letters(80), 4)))[0]) == values_of(before[0]));
}

TEST_CASE("limits: a prompt is scored once for all its choices") {
    EngineBench bench({.context = 96});
    bench.start();
    serve::CompletionRequest r = scored(letters(60), 1);
    r.temperature = 1;
    const auto one = collect(*bench.engine.submit(r));
    r.n = 32;
    const auto many = collect(*bench.engine.submit(r), 32);
    CHECK(bench.engine.counts().scored == 2);
    CHECK(values_of(many[0]) == values_of(one[0]));
    for (const ChoiceResult& choice : many) CHECK(choice.tokens.size() == 61);
    CHECK(many[31].text != many[0].text);
}

TEST_CASE(
    "limits: an answer that could be too long is refused before any work, and answers share their memory") {
    EngineBench bench({.context = 96, .max_answer = 1 << 16});
    serve::CompletionRequest r = scored(letters(80));
    r.logprobs = 2;  // 80 * (4 + 4 * 40) bytes
    r.n = 6;
    CHECK(status_of([&] { bench.engine.submit(r); }) == 400);
    r.n = 4;
    std::vector<std::shared_ptr<serve::Answer>> answers;
    int refused = 0;
    for (int i = 0; i < 16 && refused == 0; ++i) {
        const int status = status_of([&] { answers.push_back(bench.engine.submit(r)); });
        if (status == 200) continue;
        CHECK(status == 503);
        ++refused;
    }
    CHECK(refused == 1);
    CHECK(answers.size() > 2);
    answers.clear();
    bench.start();
    for (int i = 0; i < 600 && bench.engine.waiting() > 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(collect(*bench.engine.submit(r), 4)[3].tokens.size() == 80);
}

TEST_CASE("limits: an answer that becomes longer than it may ends its request") {
    serve::Answer answer(100, nullptr);
    serve::Event event;
    event.text = std::string(90, 'a');
    answer.put(event);
    answer.put(event);
    CHECK(status_of([&] { answer.next(std::chrono::seconds(1)); }) == 400);
    CHECK(answer.cancelled());
}

TEST_CASE(
    "limits: a long pass serves short texts in between, with the same bits, and ends when nobody waits") {
    EngineBench bench({.context = 16384}), alone({.context = 16384});
    bench.start();
    alone.start();
    const auto expected = collect(*alone.engine.submit(scored(letters(30), 8)));
    const std::vector<int32_t> much = letters(12000), more = letters(16000);
    for (const bool scores : {true, false}) {
        const auto slow = bench.engine.submit(scores ? scored(much) : request_for(much, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        const auto quick = collect(*bench.engine.submit(scored(letters(30), 8)));
        CHECK(values_of(quick[0]) == values_of(expected[0]));
        CHECK(quick[0].text == expected[0].text);
        CHECK(!slow->next(std::chrono::milliseconds(0)));
        collect(*slow);
    }
    for (const bool scores : {true, false}) {
        const auto left = bench.engine.submit(scores ? scored(more) : request_for(more, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        CHECK(bench.engine.waiting() == 1);
        left->cancel();
        const auto begin = std::chrono::steady_clock::now();
        while (bench.engine.waiting() > 0 && seconds_since(begin) < 20)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        MESSAGE("a pass that nobody waits for went on for " << seconds_since(begin) << " s");
        CHECK(bench.engine.counts().scored == 3);
    }
    const auto last = bench.engine.submit(scored(more));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    bench.stop();
    CHECK(status_of([&] { collect(*last); }) == 503);
}

TEST_CASE("limits: the documents of a prompt are those of an evaluation, to the bit") {
    std::vector<int32_t> text = letters(80);
    text[0] = text[31] = text[60] = 256;
    const serve::DocumentRule before{256}, after{256, true};
    const std::vector<int32_t> starts = before.starts(text);
    CHECK(starts[30] == 0);
    CHECK(starts[31] == 31);
    CHECK(starts[79] == 60);
    CHECK(after.starts(text)[0] == 0);
    CHECK(after.starts(text)[31] == 1);
    CHECK(after.starts(text)[32] == 32);
    EngineBench bench({.context = 96, .documents = before}), one({.context = 96});
    bench.start();
    one.start();
    const auto masked = values_of(collect(*bench.engine.submit(scored(text)))[0]);
    CHECK(masked == masked_losses(text, starts));
    CHECK(values_of(collect(*one.engine.submit(scored(text)))[0]) != masked);
    // A continuation sees the last document alone, also where the scores of the prompt come with it.
    const auto last = collect(*one.engine.submit(request_for({text.begin() + 60, text.end()}, 12)));
    CHECK(collect(*bench.engine.submit(request_for(text, 12)))[0].text == last[0].text);
    const auto both = collect(*bench.engine.submit(scored(text, 12)));
    CHECK(both[0].text.ends_with(last[0].text));
    CHECK(both[0].tokens.size() == 92);
}

TEST_CASE("limits: what cannot continue the last document of a prompt says so") {
    model::ModelConfig config = byte_model();
    config.positions = 96;
    EngineBench bench({.context = 96, .documents = {256}}, config),
        ends({.context = 96, .documents = {256, true}});
    std::vector<int32_t> text = letters(40);
    text[20] = 256;
    bench.start();
    CHECK(status_of([&] { bench.engine.submit(request_for(text, 4)); }) == 400);
    CHECK(collect(*bench.engine.submit(scored(text)))[0].tokens.size() == 40);
    text[20] = 97;
    CHECK(collect(*bench.engine.submit(request_for(text, 4)))[0].finish != "");
    text.back() = 256;
    CHECK(status_of([&] { ends.engine.submit(request_for(text, 4)); }) == 400);
}
