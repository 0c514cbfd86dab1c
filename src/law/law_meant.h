// The names of laws that a text may have been meant as.
#pragma once

#include <string>
#include <string_view>

namespace longreach::law {

// "logn or logn_abc"; "" if the text is not one word, or like none of them.
std::string law_meant(std::string_view text);

}  // namespace longreach::law
