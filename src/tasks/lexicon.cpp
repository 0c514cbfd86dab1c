#include "tasks/lexicon.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/error.h"
#include "tasks/gpt2_words.h"

namespace longreach::tasks {

namespace {

constexpr uint64_t marks = 16, digit_ids = 10, filler_ids = 6;
constexpr uint64_t first_letter_digit = 8, first_digit = marks, first_filler = marks + digit_ids,
                   first_name = marks + digit_ids + filler_ids;

constexpr std::string_view consonants = "bdfgklmnprstvz", vowels = "aeiou";
constexpr uint64_t syllables = consonants.size() * vowels.size();

// Six letters each, so that a sample's length depends on the task alone.
constexpr std::array<std::string_view, 48> city_names{
    "Aachen", "Aarhus", "Ankara", "Athens", "Austin", "Beirut", "Bergen", "Berlin", "Bilbao", "Bogota",
    "Boston", "Bremen", "Cairns", "Dallas", "Darwin", "Denver", "Dublin", "Durban", "Gdansk", "Geneva",
    "Harare", "Havana", "Hobart", "Jeddah", "Kassel", "Kigali", "Krakow", "Lahore", "Lisbon", "London",
    "Luanda", "Lusaka", "Madrid", "Malaga", "Manila", "Maputo", "Muscat", "Naples", "Odense", "Prague",
    "Riyadh", "Skopje", "Sydney", "Taipei", "Toledo", "Verona", "Warsaw", "Zurich"};

constexpr std::string_view filler =
    "The river runs. The wood is old. A path goes on and on. We walk. It is far to go home. ";

const TokenList& gpt2_filler() {
    static const TokenList tokens = [] {
        TokenList out;
        gpt2_encode(out, " " + std::string(filler.substr(0, filler.size() - 1)));
        return out;
    }();
    return tokens;
}

uint64_t name_count(bool text, const data::TaskConfig& config) {
    return text ? syllables * syllables * syllables : static_cast<uint64_t>(config.ids) - first_name;
}

}  // namespace

Lexicon::Lexicon(const data::TaskConfig& config, int64_t vocab_size, uint64_t seed)
    : text_(config.is_text(vocab_size)),
      gpt2_(config.form == data::TaskForm::gpt2),
      first_(config.first_id(vocab_size)),
      names_(name_count(text_, config), seed, 1),
      variables_(text_ ? 26 * 26 * 26 * 26 * 26 : names_.size(), seed, 2),
      cities_(text_   ? city_names.size()
              : gpt2_ ? gpt2_cities
                      : names_.size(),
              seed, 3),
      symbols_(text_ ? 26 : names_.size(), seed, 4) {}

void Lexicon::say(TokenList& out, std::string_view words, Mark mark) const {
    if (gpt2_) return gpt2_encode(out, words);
    if (!text_) {
        if (mark != Mark::silent) out.push_back(id(static_cast<uint64_t>(mark)));
        return;
    }
    for (const char c : words) out.push_back(static_cast<unsigned char>(c));
}

void Lexicon::name(TokenList& out, uint64_t n) const {
    uint64_t word = names_(n);
    if (!text_) {
        out.push_back(id(first_name + word));
        return;
    }
    for (int s = 0; s < 3; ++s, word /= syllables) {
        out.push_back(consonants[word % syllables / vowels.size()]);
        out.push_back(vowels[word % vowels.size()]);
    }
}

void Lexicon::variable(TokenList& out, uint64_t n) const {
    uint64_t word = variables_(n);
    if (!text_) {
        out.push_back(id(first_name + word));
        return;
    }
    for (int s = 0; s < 5; ++s, word /= 26) out.push_back('A' + static_cast<int32_t>(word % 26));
}

void Lexicon::city(TokenList& out, uint64_t n) const {
    const uint64_t word = cities_(n);
    if (text_) return say(out, city_names[word]);
    if (gpt2_ && !out.empty() && out.back() == gpt2_space) out.pop_back();
    out.push_back(gpt2_ ? gpt2_city(word) : id(first_name + word));
}

void Lexicon::symbol(TokenList& out, uint64_t n) const {
    const uint64_t word = symbols_(n);
    out.push_back(text_ ? 'a' + static_cast<int32_t>(word) : id(first_name + word));
}

void Lexicon::number(TokenList& out, uint64_t value) const {
    if (gpt2_) return gpt2_encode(out, std::to_string(value));
    for (const char c : std::to_string(value))
        out.push_back(text_ ? c : id(first_digit + static_cast<uint64_t>(c - '0')));
}

void Lexicon::uuid(TokenList& out, uint64_t high, uint64_t low) const {
    // RFC 9562: the version is the third group's first digit, the variant the two highest bits of the fourth.
    high = (high & ~uint64_t{0xf000}) | 0x4000;
    low = (low & ~(uint64_t{3} << 62)) | uint64_t{2} << 62;
    const std::string digits = fmt::format("{:016x}{:016x}", high, low);
    for (size_t i = 0; i < digits.size(); ++i) {
        if (i == 8 || i == 12 || i == 16 || i == 20) say(out, "-");
        const bool letter = digits[i] >= 'a';
        const auto digit = static_cast<uint64_t>(digits[i] - (letter ? 'a' : '0'));
        out.push_back(text_ ? digits[i] : id((letter ? first_letter_digit : first_digit) + digit));
    }
}

void Lexicon::noise(TokenList& out, int64_t count) const {
    for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i)
        out.push_back(gpt2_   ? gpt2_filler()[i % gpt2_filler().size()]
                      : text_ ? filler[i % filler.size()]
                              : id(first_filler + i % filler_ids));
}

uint64_t Lexicon::names() const {
    return names_.size();
}
uint64_t Lexicon::cities() const {
    return cities_.size();
}
uint64_t Lexicon::symbols() const {
    return symbols_.size();
}

uint64_t random_number(Dice& dice, int64_t digits) {
    uint64_t smallest = 1;
    for (int64_t i = 1; i < digits; ++i) smallest *= 10;
    return smallest + dice.below(9 * smallest);
}

}  // namespace longreach::tasks
