#include "tokenizer/learn.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/formats.h"

namespace longreach::tokenizer {

namespace {

using Pair = std::pair<int32_t, int32_t>;

uint64_t key_of(Pair pair) {
    return static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32 |
           static_cast<uint32_t>(pair.second);
}

Pair pair_of(uint64_t key) {
    return {static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & UINT32_MAX)};
}

// The bytes in the order of their letters: token 1 + i stands for byte i of them.
std::array<unsigned char, 256> bytes_by_letter() {
    std::array<unsigned char, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
    std::sort(bytes.begin(), bytes.end(),
              [](unsigned char a, unsigned char b) { return letter_of_byte(a) < letter_of_byte(b); });
    return bytes;
}

struct Word {
    std::vector<int32_t> symbols;
    int64_t count = 0;
};

class Learner {
  public:
    Learner(std::vector<Word> words, const LearnOptions& options)
        : words_(std::move(words)), options_(options) {
        learned_.tokens.emplace_back(boundary_name);
        for (const unsigned char byte : bytes_by_letter())
            learned_.tokens.emplace_back(1, static_cast<char>(byte));
        // Not the boundary: pairs may spell its name, which is then a token of its own.
        for (size_t id = 1; id < learned_.tokens.size(); ++id)
            ids_.emplace(learned_.tokens[id], static_cast<int32_t>(id));
    }

    Learned learn() {
        count_pairs();
        while (static_cast<int64_t>(learned_.tokens.size()) < options_.vocab && !heap_.empty()) {
            const Candidate best = heap_.front();
            std::pop_heap(heap_.begin(), heap_.end(), worse);
            heap_.pop_back();
            // Counts only fall between a push and the pop, or a later push states the larger one.
            const int64_t count = counts_[best.key];
            if (count != best.count) {
                push(best.key, count);
                continue;
            }
            merge(pair_of(best.key));
        }
        return std::move(learned_);
    }

  private:
    struct Candidate {
        int64_t count;
        uint64_t key;
    };
    static bool worse(const Candidate& a, const Candidate& b) {
        return a.count != b.count ? a.count < b.count : a.key > b.key;
    }

    void push(uint64_t key, int64_t count) {
        if (count < std::max<int64_t>(options_.min_count, 1)) return;
        heap_.push_back({count, key});
        std::push_heap(heap_.begin(), heap_.end(), worse);
    }

    void count_pairs() {
        for (size_t w = 0; w < words_.size(); ++w) {
            const Word& word = words_[w];
            for (size_t i = 0; i + 1 < word.symbols.size(); ++i)
                change({word.symbols[i], word.symbols[i + 1]}, word.count, static_cast<uint32_t>(w));
        }
        push_grown();
    }

    // The pair occurs `by` times more in a word.
    void change(Pair pair, int64_t by, uint32_t word) {
        const uint64_t key = key_of(pair);
        counts_[key] += by;
        if (by <= 0) return;
        std::vector<uint32_t>& words = places_[key];
        if (words.empty() || words.back() != word) words.push_back(word);
        grown_.push_back(key);
    }

    void push_grown() {
        std::sort(grown_.begin(), grown_.end());
        grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
        for (const uint64_t key : grown_) push(key, counts_[key]);
        grown_.clear();
    }

    void merge(Pair pair) {
        const std::string token = learned_.tokens[static_cast<size_t>(pair.first)] +
                                  learned_.tokens[static_cast<size_t>(pair.second)];
        // Two pairs can spell one token.
        const int32_t next = static_cast<int32_t>(learned_.tokens.size());
        const auto [found, added] = ids_.emplace(token, next);
        if (added) learned_.tokens.push_back(token);
        const int32_t id = found->second;
        learned_.merges.push_back({pair.first, pair.second, id});

        const auto places = places_.find(key_of(pair));
        std::vector<uint32_t> words = std::move(places->second);
        places_.erase(places);
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        for (const uint32_t w : words) merge_in(w, pair, id);
        counts_.erase(key_of(pair));
        push_grown();
    }

    void merge_in(uint32_t w, Pair pair, int32_t id) {
        std::vector<int32_t>& symbols = words_[w].symbols;
        const int64_t count = words_[w].count;
        size_t out = 0;
        for (size_t i = 0; i < symbols.size();) {
            const bool here =
                i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
            if (!here) {
                symbols[out++] = symbols[i++];
                continue;
            }
            if (out > 0) {
                change({symbols[out - 1], pair.first}, -count, w);
                change({symbols[out - 1], id}, count, w);
            }
            i += 2;
            if (i < symbols.size()) {
                change({pair.second, symbols[i]}, -count, w);
                change({id, symbols[i]}, count, w);
            }
            symbols[out++] = id;
        }
        symbols.resize(out);
    }

    std::vector<Word> words_;
    const LearnOptions options_;
    Learned learned_;
    std::unordered_map<std::string, int32_t> ids_;
    std::unordered_map<uint64_t, int64_t> counts_;
    std::unordered_map<uint64_t, std::vector<uint32_t>> places_;  // words that hold the pair, or held it
    std::vector<uint64_t> grown_;  // pairs whose count has grown since they were pushed
    std::vector<Candidate> heap_;
};

// tokenizer.json of a byte-level BPE. split: into GPT-2's words before merging.
json::Value byte_level_json(json::Object vocab, json::Array merges, int32_t boundary_id, bool split) {
    const json::Value byte_level = json::Value::object(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", split}});
    const json::Value boundary = json::Value::object({{"id", boundary_id},
                                                      {"content", boundary_name},
                                                      {"single_word", false},
                                                      {"lstrip", false},
                                                      {"rstrip", false},
                                                      {"normalized", false},
                                                      {"special", true}});
    json::Value model = json::Value::object({{"type", "BPE"},
                                             {"dropout", nullptr},
                                             {"unk_token", nullptr},
                                             {"continuing_subword_prefix", nullptr},
                                             {"end_of_word_suffix", nullptr},
                                             {"fuse_unk", false},
                                             {"byte_fallback", false},
                                             {"ignore_merges", false}});
    model.set("vocab", std::move(vocab)).set("merges", std::move(merges));
    return json::Value::object({{"version", "1.0"},
                                {"truncation", nullptr},
                                {"padding", nullptr},
                                {"added_tokens", json::Value::array({boundary})},
                                {"normalizer", nullptr},
                                {"pre_tokenizer", byte_level},
                                {"post_processor", nullptr},
                                {"decoder", byte_level},
                                {"model", std::move(model)}});
}

}  // namespace

WordCounter::WordCounter() : splitter_({PatternSplit{Pattern(gpt2_pattern, "the pattern of GPT-2")}}) {}

void WordCounter::add(std::string_view document) {
    while (!document.empty()) {
        const size_t formed = well_formed_prefix(document);
        splitter_.split(document.substr(0, formed), false,
                        [&](std::string_view text, std::span<const size_t> bounds) { count(text, bounds); });
        document.remove_prefix(formed);
        const size_t malformed = malformed_prefix(document);
        if (malformed > 0) count(document, std::array<size_t, 2>{0, malformed});
        document.remove_prefix(malformed);
    }
}

void WordCounter::add(const WordCounter& other) {
    other.places_.for_each([&](std::string_view word, const int32_t* place) {
        count(WordTable::key_of(word, 0, word.size()), other.counts_[static_cast<size_t>(*place)]);
    });
}

// In passes, as Encoder::merge_words.
void WordCounter::count(std::string_view text, std::span<const size_t> bounds) {
    std::array<WordTable::Key, most_bounds - 1> keys;
    const size_t words = bounds.size() - 1;
    for (size_t i = 0; i < words; ++i) {
        keys[i] = WordTable::key_of(text, bounds[i], bounds[i + 1]);
        places_.expect_slot(keys[i]);
    }
    for (size_t i = 0; i < words; ++i) places_.expect_record(keys[i]);
    for (size_t i = 0; i < words; ++i) count(keys[i], 1);
}

void WordCounter::count(const WordTable::Key& word, int64_t times) {
    const WordTable::Found found = places_.find(word);
    if (found.numbers == nullptr) {
        check(counts_.size() < INT32_MAX, "{} different words", counts_.size());
        places_.add(word, std::array{static_cast<int32_t>(counts_.size())});
        counts_.push_back(times);
    } else {
        counts_[static_cast<size_t>(*found.numbers)] += times;
    }
    words_ += static_cast<uint64_t>(times);
}

Learned WordCounter::learn(const LearnOptions& options) const {
    require(options.vocab >= learned_first_tokens, ExitCode::usage,
            "a vocabulary of {} tokens; {} are needed for the bytes and {}", options.vocab,
            learned_first_tokens, boundary_name);
    std::array<int32_t, 256> ids{};
    const std::array<unsigned char, 256> bytes = bytes_by_letter();
    for (size_t i = 0; i < bytes.size(); ++i) ids[bytes[i]] = static_cast<int32_t>(i) + 1;
    std::vector<Word> words;
    words.reserve(counts_.size());
    places_.for_each([&](std::string_view text, const int32_t* place) {
        words.push_back({{}, counts_[static_cast<size_t>(*place)]});
        for (const char byte : text) words.back().symbols.push_back(ids[static_cast<unsigned char>(byte)]);
    });
    return Learner(std::move(words), options).learn();
}

json::Value to_json(const Learned& learned) {
    json::Object vocab;
    json::Array merges;
    const auto letters = [&](int32_t id) { return to_letters(learned.tokens[static_cast<size_t>(id)]); };
    for (size_t id = 0; id < learned.tokens.size(); ++id)
        vocab.push_back({id == 0 ? learned.tokens[id] : letters(static_cast<int32_t>(id)), id});
    for (const Merge& merge : learned.merges)
        merges.push_back(json::Value::array({letters(merge.left), letters(merge.right)}));
    return byte_level_json(std::move(vocab), std::move(merges), 0, true);
}

json::Value bytes_as_json() {
    json::Object vocab;
    for (int byte = 0; byte < byte_boundary; ++byte)
        vocab.push_back({to_letters(std::string(1, static_cast<char>(byte))), byte});
    vocab.push_back({boundary_name, byte_boundary});
    return byte_level_json(std::move(vocab), {}, byte_boundary, false);
}

}  // namespace longreach::tokenizer
