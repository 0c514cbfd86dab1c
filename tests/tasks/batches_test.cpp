#include <doctest/doctest.h>

#include "tasks/haystack.h"
#include "tasks/task_batches.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Filled {
    tasks::TokenList tokens, targets;
    bool operator==(const Filled&) const = default;
};

// `count` sequences from token `consumed` of the run on, `together` in a micro-batch, through a loader.
Filled fill(data::TaskKind task, uint64_t consumed, int64_t count, int64_t together, int64_t length) {
    tasks::TaskBatches source(generator(task, true));
    data::Loader loader(source, {.max_tokens = together * length, .documents = false});
    Filled all;
    for (int64_t i = 0; i < count; i += together)
        loader.request({consumed + static_cast<uint64_t>(i * length), together, length});
    for (int64_t i = 0; i < count; i += together) {
        const data::MicroBatch batch = loader.take();
        all.tokens.insert(all.tokens.end(), batch.tokens.begin(), batch.tokens.end());
        all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
    }
    return all;
}

}  // namespace

TEST_CASE("what is trained on does not depend on micro-batches or on where the run began") {
    for (const data::TaskKind task :
         {data::TaskKind::needle, data::TaskKind::needle_s3, data::TaskKind::common_words}) {
        const Filled whole = fill(task, 0, 12, 12, 300);
        CHECK(fill(task, 0, 12, 1, 300) == whole);
        CHECK(fill(task, 0, 12, 4, 300) == whole);
        const Filled rest = fill(task, 5 * 300, 7, 7, 300);
        CHECK(std::equal(rest.tokens.begin(), rest.tokens.end(), whole.tokens.begin() + 5 * 300));
        CHECK(std::equal(rest.targets.begin(), rest.targets.end(), whole.targets.begin() + 5 * 300));
    }
}

TEST_CASE("only the answer's tokens are targets, as many as the source states") {
    for (const data::TaskKind task : data::all_tasks()) {
        CAPTURE(data::name_of(task));
        const int64_t length = 512;
        const Filled batch = fill(task, 0, 3, 3, length);
        tasks::TaskBatches source(generator(task, true));
        for (int64_t b = 0; b < 3; ++b) {
            const tasks::Sample s = generator(task, true).make(length, static_cast<uint64_t>(b * length));
            int64_t scored = 0;
            for (int64_t i = 0; i < length; ++i) {
                const size_t at = static_cast<size_t>(b * length + i);
                CHECK(batch.tokens[at] == s.tokens[static_cast<size_t>(i)]);
                const bool answers = i + 1 >= s.answer_begin && i + 1 < length;
                CHECK(batch.targets[at] == (answers ? s.tokens[static_cast<size_t>(i + 1)] : -1));
                scored += batch.targets[at] >= 0;
            }
            CHECK(scored == source.scored_per_sequence(length));
        }
    }
}
