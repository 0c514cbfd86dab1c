#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/tokenizer.h"

namespace longreach::tokenizer {

namespace {

// Of the words that are remembered: their length, the bytes of all and their tokens, and the probes for one.
constexpr size_t longest_remembered = 255, most_remembered = size_t{8} << 20, most_probes = 16;
constexpr std::string_view metaspace = "\u2581";

// The code point that ends at `end`; the text is well formed.
uint32_t code_point_before(std::string_view text, size_t end) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    return code_point_at(text.substr(begin));
}

size_t white_space_before(std::string_view text, size_t end, size_t limit) {
    while (end > limit && is_white_space(code_point_before(text, end))) {
        --end;
        while (end > limit && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    }
    return end;
}

size_t white_space_after(std::string_view text, size_t at) {
    while (at < text.size() && is_white_space(code_point_at(text.substr(at))))
        at += utf8_sequence(text.substr(at));
    return at;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
    return (begin == 0 || !is_word_character(code_point_before(text, begin))) &&
           (end == text.size() || !is_word_character(code_point_at(text.substr(end))));
}

}  // namespace

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)),
      rewriter_(tokenizer_->definition_.normalizer),
      splitter_(tokenizer_->definition_.splits),
      merger_(tokenizer_->merges_),
      words_(most_probes) {}

void Encoder::encode(std::string_view text, const Admits& admits, std::vector<int32_t>& ids) {
    size_t offset = 0;
    ready_count_ = 0;
    const auto pass = [&](size_t count) {
        text.remove_prefix(count);
        offset += count;
    };
    while (!text.empty()) {
        const size_t formed = well_formed_prefix(text);
        if (formed > 0) encode_well_formed(text.substr(0, formed), offset, admits, ids);
        pass(formed);
        const size_t malformed = malformed_prefix(text);
        if (malformed > 0) encode_words(text, std::array<size_t, 2>{0, malformed}, ids);
        pass(malformed);
    }
    flush(ids);
}

void Encoder::encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) {
    encode(
        text,
        [&](const AddedToken& token, size_t, size_t) {
            return !token.special || special == SpecialTokens::as_tokens;
        },
        ids);
}

// Appends the added tokens in `text` and hands what is between them to `between`.
template <class Between>
void Encoder::cut_added(const Tokenizer::AddedIndex& index, std::string_view text, const Admits& admits,
                        std::vector<int32_t>& ids, Between between) {
    size_t done = 0;
    for (size_t at = 0; at < text.size() && !index.tokens.empty();) {
        if (!index.begins[static_cast<unsigned char>(text[at])]) {
            ++at;
            continue;
        }
        const auto found = index.find(text.substr(at));
        if (!found) {
            ++at;
            continue;
        }
        const AddedToken& token = tokenizer_->definition_.added[found->first];
        size_t begin = at, end = at + found->second;
        at = end;
        if (!admits(token, begin, end)) continue;
        if (token.single_word && !is_single_word(text, begin, end)) continue;
        // White space that the token before took is not taken again.
        if (token.strip_left) begin = white_space_before(text, begin, done);
        if (token.strip_right) end = white_space_after(text, end);
        if (begin > done) between(text.substr(done, begin - done), done == 0);
        flush(ids);
        ids.push_back(token.id);
        done = end;
    }
    if (done < text.size()) between(text.substr(done), done == 0);
}

void Encoder::encode_well_formed(std::string_view text, size_t offset, const Admits& admits,
                                 std::vector<int32_t>& ids) {
    const auto in_text = [&](const AddedToken& token, size_t begin, size_t end) {
        return admits(token, offset + begin, offset + end);
    };
    cut_added(tokenizer_->original_, text, in_text, ids, [&](std::string_view between, bool first) {
        std::string scratch;
        const std::string_view normal = rewriter_.rewrite(between, scratch);
        const size_t at = offset + static_cast<size_t>(between.data() - text.data());
        const auto in_between = [&](const AddedToken& token, size_t, size_t) {
            return admits(token, at, at + between.size());
        };
        cut_added(tokenizer_->normalized_, normal, in_between, ids,
                  [&](std::string_view rest, bool rest_first) {
                      splitter_.split(rest, offset == 0 && first && rest_first,
                                      [&](std::string_view piece, std::span<const size_t> bounds) {
                                          encode_words(piece, bounds, ids);
                                      });
                  });
    });
}

void Encoder::encode_words(std::string_view text, std::span<const size_t> bounds, std::vector<int32_t>& ids) {
    if (!tokenizer_->cut_before_metaspace_) return merge_words(text, bounds, ids);
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
        std::array<size_t, most_bounds> cuts{bounds[i]};
        size_t count = 1;
        const std::string_view before = text.substr(0, bounds[i + 1]);
        for (size_t at = bounds[i]; at < before.size(); cuts[count++] = at) {
            do at = std::min(before.find(metaspace, at + 1), before.size());
            while (at < before.size() && at >= bounds[i] + metaspace.size() &&
                   before.substr(at - metaspace.size(), metaspace.size()) == metaspace);
            if (count + 1 < most_bounds) continue;
            merge_words(text, std::span(cuts).first(count), ids);
            cuts[0] = cuts[count - 1];
            count = 1;
        }
        merge_words(text, std::span(cuts).first(count), ids);
    }
}

// In three passes, so that the memory for one word comes while others are at hand.
void Encoder::merge_words(std::string_view text, std::span<const size_t> bounds, std::vector<int32_t>& ids) {
    std::array<WordTable::Key, most_bounds - 1> keys;
    const size_t count = bounds.size() - 1;
    const auto is_short = [&](size_t i) { return bounds[i + 1] - bounds[i] <= longest_remembered; };
    for (size_t i = 0; i < count; ++i) {
        if (is_short(i)) keys[i] = WordTable::key_of(text, bounds[i], bounds[i + 1]);
        words_.expect_slot(keys[i]);
    }
    for (size_t i = 0; i < count; ++i) words_.expect_record(keys[i]);
    for (size_t i = 0; i < count; ++i) {
        const WordTable::Found found = is_short(i) ? words_.find(keys[i]) : WordTable::Found{};
        if (found.numbers == nullptr) {
            merge_word(text.substr(bounds[i], bounds[i + 1] - bounds[i]));
            flush(ids);
            ids.insert(ids.end(), symbols_.begin(), symbols_.end());
            if (!is_short(i)) continue;
            if (words_.bytes() > most_remembered) words_.clear();
            words_.add(keys[i], symbols_);
            continue;
        }
        if (ready_count_ + found.count + WordTable::readable > ready_.size()) flush(ids);
        // A copy of a constant size, and hardly ever a second one.
        for (size_t k = 0; k < found.count; k += WordTable::readable)
            std::memcpy(&ready_[ready_count_ + k], found.numbers + k, WordTable::readable * sizeof(int32_t));
        ready_count_ += found.count;
    }
}

void Encoder::merge_word(std::string_view word) {
    symbols_.clear();
    if (tokenizer_->definition_.ignore_merges) {
        const int32_t id = tokenizer_->id_of(word);
        if (id >= 0) symbols_.push_back(id);
    }
    if (!symbols_.empty()) return;
    append_characters(word);
    merger_.merge(symbols_);
}

void Encoder::flush(std::vector<int32_t>& ids) {
    ids.insert(ids.end(), ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(ready_count_));
    ready_count_ = 0;
}

void Encoder::append_characters(std::string_view word) {
    const Definition& definition = tokenizer_->definition_;
    bool after_unknown = false;
    for (size_t at = 0, size = 1; at < word.size(); at += size) {
        const unsigned char byte = static_cast<unsigned char>(word[at]);
        if (definition.byte_level) {
            if (tokenizer_->byte_ids_[byte] >= 0) {
                symbols_.push_back(tokenizer_->byte_ids_[byte]);
                after_unknown = false;
                continue;
            }
        } else {
            size = std::max<size_t>(utf8_sequence(word.substr(at)), 1);
            const int32_t found = tokenizer_->id_of(word.substr(at, size));
            if (found >= 0) {
                symbols_.push_back(found);
                after_unknown = false;
                continue;
            }
            const auto id = [&](size_t i) {
                return tokenizer_->byte_ids_[static_cast<unsigned char>(word[at + i])];
            };
            bool all = true;
            for (size_t i = 0; i < size; ++i) all = all && id(i) >= 0;
            for (size_t i = 0; all && i < size; ++i) symbols_.push_back(id(i));
            if (all) {
                after_unknown = false;
                continue;
            }
        }
        require(definition.unknown.has_value(), ExitCode::data,
                "{}: the vocabulary has no token for {} and no unknown token", definition.source,
                quoted(word.substr(at, size)));
        if (!(definition.fuse_unknown && after_unknown)) symbols_.push_back(*definition.unknown);
        after_unknown = true;
    }
}

}  // namespace longreach::tokenizer
