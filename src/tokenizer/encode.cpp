#include <array>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/tokenizer.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t remembered_words = size_t{1} << 16;
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

// A short word and its tokens: one cache line. The key is the word, zeros, and its length in the last byte; no word
// has the key 0.
struct alignas(64) Encoder::Remembered {
    static constexpr size_t longest_word = 23, most_ids = 9;
    using Key = std::array<uint64_t, 3>;
    Key key{};
    uint32_t count = 0;
    std::array<int32_t, most_ids> ids{};

    static Key key_of(std::string_view word) {
        Key key{};
        std::memcpy(key.data(), word.data(), word.size());
        key[2] |= static_cast<uint64_t>(word.size()) << 56;
        return key;
    }
    static size_t slot_of(const Key& key) {
        uint64_t mixed = (key[0] ^ (key[1] << 31 | key[1] >> 33) * 0x9E3779B97F4A7C15U) * 0xC2B2AE3D27D4EB4FU;
        mixed = (mixed ^ mixed >> 32 ^ key[2]) * 0x9E3779B97F4A7C15U;
        return static_cast<size_t>(mixed >> 40) % remembered_words;
    }
};

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)),
      rewriter_(tokenizer_->definition_.normalizer),
      splitter_(tokenizer_->definition_.splits),
      merger_(tokenizer_->merges_),
      remembered_(remembered_words) {}

Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, const Admits& admits, std::vector<int32_t>& ids) {
    size_t offset = 0;
    const auto pass = [&](size_t count) {
        text.remove_prefix(count);
        offset += count;
    };
    while (!text.empty()) {
        const size_t formed = well_formed_prefix(text);
        if (formed > 0) encode_well_formed(text.substr(0, formed), offset, admits, ids);
        pass(formed);
        const size_t malformed = malformed_prefix(text);
        if (malformed > 0) encode_word(text.substr(0, malformed), ids);
        pass(malformed);
    }
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
        if (index.lengths[static_cast<unsigned char>(text[at])].empty()) {
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
                                      [&](std::string_view word) { encode_word(word, ids); });
                  });
    });
}

void Encoder::encode_word(std::string_view word, std::vector<int32_t>& ids) {
    if (!tokenizer_->cut_before_metaspace_) return merge_word(word, ids);
    size_t begin = 0;
    for (size_t at = word.find(metaspace, 1); at != std::string_view::npos;
         at = word.find(metaspace, at + 1)) {
        if (at >= metaspace.size() && word.substr(at - metaspace.size(), metaspace.size()) == metaspace)
            continue;
        merge_word(word.substr(begin, at - begin), ids);
        begin = at;
    }
    merge_word(word.substr(begin), ids);
}

void Encoder::merge_word(std::string_view word, std::vector<int32_t>& ids) {
    const bool is_short = word.size() <= Remembered::longest_word;
    Remembered* place = nullptr;
    if (is_short) {
        const Remembered::Key key = Remembered::key_of(word);
        place = &remembered_[Remembered::slot_of(key)];
        if (place->key == key) {
            ids.insert(ids.end(), place->ids.begin(), place->ids.begin() + place->count);
            return;
        }
    }
    symbols_.clear();
    if (tokenizer_->definition_.ignore_merges) {
        const auto found = tokenizer_->ids_.find(word);
        if (found != tokenizer_->ids_.end()) symbols_.push_back(found->second);
    }
    if (symbols_.empty()) {
        append_characters(word);
        merger_.merge(symbols_);
    }
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    if (!is_short || symbols_.size() > Remembered::most_ids) return;
    place->key = Remembered::key_of(word);
    place->count = static_cast<uint32_t>(symbols_.size());
    std::copy(symbols_.begin(), symbols_.end(), place->ids.begin());
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
            const auto found = tokenizer_->ids_.find(word.substr(at, size));
            if (found != tokenizer_->ids_.end()) {
                symbols_.push_back(found->second);
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
