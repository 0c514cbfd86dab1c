// The models of every experiment, decoded step by step.
#include "eval/decoding.h"
#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("every tiny experiment decodes as its whole texts say") {
    const TempDir dir;
    const std::string data = make_long_corpus(dir / "data");
    DecodingOutcome all;
    uint32_t i = 0;
    for (const std::string& file : experiments()) {
        CAPTURE(file);
        const auto config = load_tiny_version(file, data, dir / "runs");
        const Text text{.sequences = 1, .prompt = 1 + i % 11, .room = 26, .post_hoc = config.value.eval.rope};
        const DecodingOutcome one = check_decoding(config.value.model, text, {.threads = 1}, i++);
        all.worst = std::max(all.worst, one.worst);
        all.ties += one.ties;
        all.steps += one.steps;
    }
    MESSAGE("largest error, as a fraction of its bound: ", all.worst, "; near ties: ", all.ties, " of ",
            all.steps);
    CHECK(all.ties * 100 <= all.steps);
}
