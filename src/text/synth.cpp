#include "text/synth.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "base/units.h"
#include "text/shard_output.h"

namespace longreach::text {

namespace {

constexpr uint64_t word_count = 256, successors = 8;
constexpr uint32_t lexicon_stream = ~uint32_t{0};  // no document has this index

// Random numbers taken one after the other.
class Draws {
  public:
    Draws(uint64_t seed, uint32_t stream) : rng_(seed, Purpose::synth, stream) {}
    uint64_t below(uint64_t n) { return rng_.below(next_++, n); }

    // In [low, high]: an octave [2^k, 2^(k+1)) that meets the interval, then a number in it,
    // until one is inside.
    uint64_t over_octaves(uint64_t low, uint64_t high) {
        const int first = static_cast<int>(std::bit_width(low)) - 1,
                  last = static_cast<int>(std::bit_width(high)) - 1;
        for (;;) {
            const uint64_t octave =
                uint64_t{1} << (first + static_cast<int>(below(static_cast<uint64_t>(last - first + 1))));
            const uint64_t value = octave + below(octave);
            if (value >= low && value <= high) return value;
        }
    }

  private:
    Rng rng_;
    uint64_t next_ = 0;
};

std::string syllables(Draws& draws, int count) {
    constexpr std::string_view consonants = "bdfgklmnprstvz", vowels = "aeiou";
    std::string word;
    for (int i = 0; i < count; ++i) {
        word += consonants[draws.below(consonants.size())];
        word += vowels[draws.below(vowels.size())];
    }
    return word;
}

// The words of the filler and the chain that orders them; the same in all documents of a seed.
struct Lexicon {
    std::vector<std::string> words;
    std::vector<std::array<uint16_t, successors>> next;

    explicit Lexicon(uint64_t seed) {
        Draws draws(seed, lexicon_stream);
        std::set<std::string> used;
        while (words.size() < word_count) {
            const std::string word = syllables(draws, 1 + static_cast<int>(draws.below(3)));
            if (used.insert(word).second) words.push_back(word);
        }
        next.resize(word_count);
        for (auto& row : next)
            for (uint16_t& word : row) word = static_cast<uint16_t>(draws.below(word_count));
    }

    // Successor i has probability 2^-(i+1) (the last two alike).
    size_t follow(size_t word, Draws& draws) const {
        const uint64_t coin = draws.below(uint64_t{1} << (successors - 1));
        return next[word][static_cast<size_t>(std::countr_zero(coin | uint64_t{1} << (successors - 1)))];
    }
};

struct Question {
    uint64_t due = 0;     // position at which it should be asked
    uint64_t stated = 0;  // position of the fact's digits
    std::string name, digits;
    bool operator>(const Question& other) const { return due > other.due; }
};

void check_options(const SynthOptions& o) {
    require(o.min_document >= 64 && o.min_document <= o.max_document, ExitCode::usage,
            "documents of {} to {} bytes: at least 64, and the second no smaller", o.min_document,
            o.max_document);
    require(o.min_distance >= 16 && o.min_distance <= o.max_distance, ExitCode::usage,
            "distances of {} to {} bytes: at least 16, and the second no smaller", o.min_distance,
            o.max_distance);
    require(o.max_document <= uint64_t{1} << 30 && o.max_distance <= uint64_t{1} << 40, ExitCode::usage,
            "documents have at most 2^30 bytes and distances at most 2^40");
    require(o.fact_every >= 48, ExitCode::usage, "a fact every {} bytes leaves no room; at least 48",
            o.fact_every);
}

SynthDocument make_document(const SynthOptions& options, const Lexicon& lexicon, uint32_t index) {
    Draws draws(options.seed, index);
    const uint64_t length = draws.over_octaves(options.min_document, options.max_document);
    SynthDocument document;
    std::string& text = document.text;
    std::set<std::string> names;
    std::priority_queue<Question, std::vector<Question>, std::greater<>> questions;
    size_t word = draws.below(word_count);
    uint64_t next_fact = draws.below(options.fact_every);
    while (text.size() < length) {
        if (!questions.empty() && questions.top().due <= text.size()) {
            const Question q = questions.top();
            questions.pop();
            text += "What is " + q.name + "? ";
            if (text.size() + q.digits.size() <= length)
                document.recalls.push_back({text.size(), text.size() - q.stated});
            text += q.digits + ". ";
        } else if (next_fact <= text.size()) {
            std::string name;
            do {
                name = syllables(draws, 3);
            } while (!names.insert(name).second);
            name[0] = static_cast<char>(name[0] - 'a' + 'A');
            const std::string digits = fmt::format("{:05}", draws.below(100000));
            text += name + " is ";
            const uint64_t stated = text.size();
            text += digits + ". ";
            const uint64_t distance = draws.over_octaves(options.min_distance, options.max_distance);
            if (stated + distance < length) questions.push({stated + distance, stated, name, digits});
            next_fact += options.fact_every / 2 + draws.below(options.fact_every);
        } else {
            const uint64_t words = 3 + draws.below(10);
            for (uint64_t i = 0; i < words; ++i) {
                word = lexicon.follow(word, draws);
                text += i > 0 ? " " : "";
                text += lexicon.words[word];
            }
            text += ". ";
        }
    }
    text.resize(length);
    return document;
}

data::SplitResult write_split(const SynthOptions& options, const Lexicon& lexicon, const char* name,
                              uint32_t first_index, uint64_t bytes, ShardOutput& output, uint64_t& recalls) {
    data::ShardSet shards(output.place(), name, options.max_shard_tokens, data::byte_header());
    uint32_t index = first_index;
    for (uint64_t written = 0; written < bytes; ++index) {
        const SynthDocument document = make_document(options, lexicon, index);
        shards.begin_document();
        shards.append_bytes(document.text);
        if (shards.end_document()) output.record(name, {shards.complete()});
        written += document.text.size();
        recalls += document.recalls.size();
    }
    return shards.finish();
}

}  // namespace

SynthDocument synth_document(const SynthOptions& options, uint32_t index) {
    check_options(options);
    return make_document(options, Lexicon(options.seed), index);
}

SynthResult synthesize(const SynthOptions& options) {
    check_options(options);
    const uint64_t bytes = options.train_bytes + options.val_bytes;
    require(bytes >= 1 && bytes / options.min_document < validation_index, ExitCode::usage,
            "{} bytes of documents of {} bytes or more: nothing, or more than 2^30 documents", bytes,
            options.min_document);
    ShardOutput output({.directory = options.output,
                        .replace = options.replace,
                        .bytes = 2 * (bytes + 2 * options.max_document) + bytes / 32});
    const Lexicon lexicon(options.seed);
    SynthResult result;
    result.train = write_split(options, lexicon, "train", 0, options.train_bytes, output, result.recalls);
    result.val =
        write_split(options, lexicon, "val", validation_index, options.val_bytes, output, result.recalls);
    result.others = output.finish(result.train, result.val);
    return result;
}

std::string to_text(const SynthResult& result) {
    std::string text;
    const auto line = [&](const char* name, const data::SplitResult& split) {
        if (split.shards.empty()) return;
        text += fmt::format("{:<6} {} tokens in {} documents, {} shards, fingerprint {}\n", name,
                            human_count(static_cast<double>(split.tokens)), split.documents,
                            split.shards.size(), format_hash64(split.fingerprint));
    };
    line("train", result.train);
    line("val", result.val);
    return text + fmt::format("{} recalled facts\n", result.recalls) + name_others(result.others);
}

}  // namespace longreach::text
