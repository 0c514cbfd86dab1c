#include "law/law_meant.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "law/library.h"

namespace longreach::law {

std::string law_meant(std::string_view text) {
    constexpr size_t longest = 60;  // a word of a megabyte is not worth comparing
    const bool word = text.size() <= longest && std::all_of(text.begin(), text.end(), [](char c) {
                          return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
                      });
    if (!word) return "";
    std::vector<std::string> names;
    for (const NamedLaw& named : library()) names.push_back(named.name);
    return alternatives(nearest(text, names, 3));
}

}  // namespace longreach::law
