#include "tasks/gpt2_words.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace longreach::tasks {

namespace {

using Word = std::pair<std::string_view, int32_t>;

constexpr Word words[] = {{"The", 464},      {" The", 383},   {" special", 2041}, {" magic", 5536},
                          {" number", 1271}, {" is", 318},    {".", 13},          {" ", 220},
                          {"\n", 198},       {"=", 28},       {";", 26},          {" river", 7850},
                          {" runs", 4539},   {" wood", 4898}, {" old", 1468},     {" A", 317},
                          {" path", 3108},   {" goes", 2925}, {" on", 319},       {" and", 290},
                          {" We", 775},      {" walk", 2513}, {" It", 632},       {" far", 1290},
                          {" to", 284},      {" go", 467},    {" home", 1363}};

constexpr std::array<Word, gpt2_cities> city_words{
    {{" Amsterdam", 24377}, {" Ankara", 28760},  {" Athens", 21891},    {" Austin", 9533},
     {" Baghdad", 19761},   {" Bangkok", 35007}, {" Barcelona", 15142}, {" Beijing", 11618},
     {" Beirut", 40702},    {" Berlin", 11307},  {" Boston", 6182},     {" Budapest", 40959},
     {" Cairo", 23732},     {" Chicago", 4842},  {" Dallas", 8533},     {" Darwin", 21450},
     {" Delhi", 12517},     {" Denver", 10656},  {" Dublin", 18220},    {" Geneva", 20552},
     {" Hamburg", 32526},   {" Havana", 40274},  {" Helsinki", 47688},  {" Istanbul", 25299},
     {" Jakarta", 49251},   {" Karachi", 46154}, {" Lima", 41578},      {" Lisbon", 41898},
     {" London", 3576},     {" Madrid", 14708},  {" Manila", 31721},    {" Montreal", 12871},
     {" Moscow", 9070},     {" Munich", 22418},  {" Naples", 49404},    {" Oslo", 39636},
     {" Paris", 6342},      {" Prague", 37079},  {" Riyadh", 37236},    {" Rome", 10598},
     {" Seoul", 22372},     {" Sydney", 11852},  {" Tokyo", 11790},     {" Toledo", 36026},
     {" Toronto", 6586},    {" Vienna", 23825},  {" Warsaw", 32955},    {" Zurich", 43412}}};

}  // namespace

void gpt2_encode(std::vector<int32_t>& out, std::string_view text) {
    while (!text.empty()) {
        Word longest{};
        const auto look = [&](const Word& word) {
            if (text.starts_with(word.first) && word.first.size() > longest.first.size()) longest = word;
        };
        std::for_each(std::begin(words), std::end(words), look);
        if (text[0] >= '0' && text[0] <= '9') look({text.substr(0, 1), gpt2_digit + text[0] - '0'});
        check(!longest.first.empty(), "no word of GPT-2's here: {}", text);
        out.push_back(longest.second);
        text.remove_prefix(longest.first.size());
    }
}

int32_t gpt2_city(uint64_t n) {
    return city_words[n].second;
}

}  // namespace longreach::tasks
