// Text for haystacks, and generators over it.
#pragma once

#include <string>

#include "text/synth.h"
#include "io/temp_dir.h"
#include "tasks/generator.h"

namespace longreach::test {

inline constexpr int64_t text_vocab = 257, id_vocab = 2000;

// 200 KB of the synthetic corpus: letters, spaces and numbers of five digits.
struct Haystack {
    TempDir dir;
    data::TokenStream stream;
    Haystack() : stream(make()) {}

  private:
    data::TokenStream make() {
        text::SynthOptions options;
        options.output = dir / "data";
        options.train_bytes = 200'000;
        options.val_bytes = 1'000;
        options.min_document = 500;
        options.max_document = 5'000;
        options.max_distance = 2'000;
        text::synthesize(options);
        return data::TokenStream::open({dir / "data/train_*.bin"}, {.vocab = text_vocab});
    }
};

inline const data::TokenStream& haystack() {
    static const Haystack h;
    return h.stream;
}

inline tasks::TaskGenerator generator(data::TaskKind task, bool text, uint64_t seed = 1,
                                      data::TaskConfig config = {}) {
    return tasks::TaskGenerator(task, config, text ? text_vocab : id_vocab, seed, &haystack());
}

// The shortest of the lengths used here that holds every task, in steps that are no powers of two.
inline std::vector<int64_t> lengths(bool text) {
    return text ? std::vector<int64_t>{256, 300, 511, 777, 1024, 4096, 5001}
                : std::vector<int64_t>{64, 65, 256, 1000, 4096};
}

inline std::string as_text(const tasks::Sample& s, int64_t begin, int64_t end) {
    std::string out;
    for (int64_t i = begin; i < end; ++i) {
        const int32_t token = s.tokens[static_cast<size_t>(i)];
        out += token < 256 ? static_cast<char>(token) : '\0';
    }
    return out;
}

}  // namespace longreach::test
