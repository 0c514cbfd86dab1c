// The rules of chart.css for readers without a browser: selectors of tags and classes, and variables. The dark
// palette is left out.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::plot {

using Properties = std::map<std::string, std::string>;

// What selectors look at: an element's tag and classes. The last is the element, the others are around it.
struct StyledElement {
    std::string tag;
    std::vector<std::string> classes;
};

class StyleRules {
  public:
    explicit StyleRules(std::string_view css);
    // Adds what the rules say about path.back(), with variables replaced. `properties` holds what it inherits.
    void apply(const std::vector<StyledElement>& path, Properties& properties) const;

  private:
    struct Rule {
        std::vector<StyledElement> selector;  // an empty tag matches any
        Properties declarations;
        size_t specificity = 0;
    };
    std::vector<Rule> rules_;  // the more specific ones last
};

}  // namespace longreach::plot
