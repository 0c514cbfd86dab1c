// An evaluation stopped between batches and taken up again ends with the bits of an undisturbed one.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "base/hash.h"
#include "ranks/thread_comm.h"
#include "eval/bench.h"
#include "eval/partial_sums.h"

using namespace longreach;
using namespace longreach::test;

namespace {

eval::EvalRequest small_request() {
    eval::EvalRequest r;
    r.lengths = {8, 16, 48};
    r.tokens = 192;
    r.batch_tokens = 48;
    r.seed = 5;
    return r;
}

bool same(const eval::LossSum& a, const eval::LossSum& b) {
    return std::bit_cast<uint64_t>(a.sum) == std::bit_cast<uint64_t>(b.sum) && a.count == b.count;
}

bool same(const std::vector<eval::LossSum>& a, const std::vector<eval::LossSum>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const eval::LossSum& x, const eval::LossSum& y) { return same(x, y); });
}

bool same(const std::vector<eval::LengthResult>& a, const std::vector<eval::LengthResult>& b) {
    if (a.size() != b.size()) return false;
    bool equal = true;
    for (size_t i = 0; i < a.size(); ++i)
        equal =
            equal && a[i].length == b[i].length && same(a[i].loss, b[i].loss) && same(a[i].hits, b[i].hits) &&
            same(a[i].by_sequence, b[i].by_sequence) && same(a[i].by_document, b[i].by_document) &&
            a[i].documents == b[i].documents &&
            std::bit_cast<uint64_t>(a[i].standard_error) == std::bit_cast<uint64_t>(b[i].standard_error) &&
            std::bit_cast<uint64_t>(a[i].top1_error) == std::bit_cast<uint64_t>(b[i].top1_error);
    return equal;
}

// Runs until `rounds` batches are done, or to the end; `sums` is what is left and taken up.
struct Attempt {
    std::vector<eval::LengthResult> results;
    bool stopped = false;
};
Attempt attempt(const Corpus& corpus, const eval::EvalRequest& request, int ranks, int rounds,
                std::string& sums, uint64_t context = 7) {
    Attempt out;
    run_ranks(ranks, [&](ranks::Comm& comm) {
        eval::EvalRequest own = request;
        eval::Pause pause;
        int asked = 0;
        // One rank alone is asked to stop.
        pause.asked = [&] { return ++asked >= rounds && comm.rank() == comm.ranks() - 1; };
        pause.resumable = true;
        pause.context = [&] { return context; };
        if (comm.rank() == 0) pause.sums = sums;
        own.pause = &pause;
        Bench bench(tiny_model(2), own, comm.rank(), comm.ranks());
        std::vector<eval::LengthResult> results = bench.run(comm, corpus.stream, own);
        check(!pause.stopped || results.empty(), "a stopped evaluation has results");
        if (comm.rank() != 0) return;
        out = {std::move(results), pause.stopped};
        if (pause.stopped) sums = pause.sums;
    });
    return out;
}

// Stopped after any number of batches, or pieces of them, it goes on to the same bits.
void check_stops(const Corpus& corpus, const eval::EvalRequest& request) {
    const std::vector<eval::LengthResult> whole = evaluate(tiny_model(2), corpus, request);
    REQUIRE(whole.size() == request.lengths.size());
    for (const int ranks : {1, 2}) {
        int stops = 0;
        for (int rounds = 1; rounds < 20; ++rounds) {
            CAPTURE(ranks);
            CAPTURE(rounds);
            std::string sums;
            const Attempt first = attempt(corpus, request, ranks, rounds, sums);
            if (!first.stopped) {  // it was complete by then
                CHECK(same(first.results, whole));
                break;
            }
            ++stops;
            // On another number of ranks, too.
            for (const int later : {ranks, 3 - ranks}) {
                std::string left = sums;
                const Attempt second = attempt(corpus, request, later, 1000, left);
                CHECK(!second.stopped);
                CHECK(same(second.results, whole));
            }
        }
        CHECK(stops > 4);
    }
}

}  // namespace

TEST_CASE("pause: an evaluation stopped after any number of batches goes on to the same bits") {
    check_stops(Corpus(document_lengths(12, 10, 40)), small_request());
}

TEST_CASE("pause: stopped between the pieces of a sequence, it reads the sequence again") {
    eval::EvalRequest request = small_request();
    request.lengths = {256, 1024};
    request.tokens = 4096;
    request.batch_tokens = 512;
    request.piece = 256;
    check_stops(Corpus(document_lengths(12, 300, 500)), request);
}

TEST_CASE("pause: stopped again and again, every attempt gets further") {
    const Corpus corpus(document_lengths(12, 10, 40));
    const eval::EvalRequest request = small_request();
    std::string sums;
    int attempts = 0;
    Attempt last;
    do {
        last = attempt(corpus, request, 1, 1, sums);
        ++attempts;
    } while (last.stopped && attempts < 100);
    CHECK(attempts > 4);
    CHECK(same(last.results, evaluate(tiny_model(2), corpus, request)));
}

TEST_CASE("pause: sums that are damaged, or of another request or other weights, are not used") {
    const Corpus corpus(document_lengths(12, 10, 40));
    const eval::EvalRequest request = small_request();
    std::string sums;
    REQUIRE(attempt(corpus, request, 1, 3, sums).stopped);
    const std::vector<eval::LengthResult> whole = evaluate(tiny_model(2), corpus, request);
    // Sums with another loss would show.
    const auto read = eval::PartialSums::read(sums, eval::PartialSums::read(sums, 0, 12) ? 0 : 1, 12);
    CHECK(!read.has_value());
    for (size_t at = 0; at < sums.size(); at += 7) {
        std::string damaged = sums;
        damaged[at] = static_cast<char>(damaged[at] ^ 16);
        CHECK(same(attempt(corpus, request, 1, 1000, damaged).results, whole));
    }
    for (size_t size = 0; size < sums.size(); size += 13) {
        std::string shorter = sums.substr(0, size);
        CHECK(same(attempt(corpus, request, 1, 1000, shorter).results, whole));
    }
    eval::EvalRequest other = request;
    other.tokens = 96;
    std::string left = sums;
    CHECK(same(attempt(corpus, other, 1, 1000, left).results, evaluate(tiny_model(2), corpus, other)));
}

TEST_CASE("pause: sums read back are those written, and no byte string makes the reader fail") {
    eval::PartialSums sums;
    sums.context = 3;
    sums.next = 4;
    sums.lengths = {{{1.5, 2}, {1, 2}, {{1, 1}, {0.5, 1}}, {{1.5, 2}}, {{}, {{1.5, 2}, 1}, {}}},
                    {{std::nan(""), 1}, {0, 1}, {}, {{std::nan(""), 1}}, {{{std::nan(""), 1}}, {}, {}}}};
    const std::string bytes = sums.write();
    const auto read = eval::PartialSums::read(bytes, 3, 3);
    REQUIRE(read.has_value());
    CHECK(read->next == 4);
    CHECK(read->write() == bytes);
    CHECK(read->lengths[0].documents[1].hits == 1);
    CHECK(!eval::PartialSums::read(bytes, 4, 3));
    CHECK(!eval::PartialSums::read(bytes, 3, 1));
    CHECK(!eval::PartialSums::read(bytes + "x", 3, 3));
    for (size_t size = 0; size < bytes.size(); ++size)
        CHECK(!eval::PartialSums::read(bytes.substr(0, size), 3, 3));
    sums.lengths[0].documents[1].hits = 3;  // of two tokens
    CHECK(!eval::PartialSums::read(sums.write(), 3, 3));
    // With a right hash over a wrong body.
    for (size_t at = 16; at < bytes.size() - 8; ++at) {
        std::string body = bytes.substr(0, bytes.size() - 8);
        body[at] = static_cast<char>(body[at] ^ 0xff);
        const uint64_t hash = xxh64(body);
        for (int byte = 0; byte < 8; ++byte) body += static_cast<char>(hash >> (8 * byte));
        eval::PartialSums::read(body, 3, 3);
    }
}
