// What the sweep decided, before anything that merely describes.
#include "base/text.h"
#include "plot/markup.h"
#include "report/contrasts.h"
#include "report/page_parts.h"

namespace longreach::report {

Section contrasts_section(const PageContext& page) {
    Section section{"contrasts", "Contrasts", {}};
    if (page.collection.contrasts.empty()) return section;
    std::vector<std::string> looks;
    for (const size_t seeds : decide::seeds_at_look) looks.push_back(fmt::format("{}", seeds));
    section.html = paragraph(fmt::format("These differences were named before the runs. The primary ones are "
                                         "looked at with {} seeds; each ends as soon "
                                         "as its interval leaves 0 or lies inside its margin. The intervals "
                                         "are those of Student's t at levels that "
                                         "keep all verdicts of the sweep right with 95%, over all looks and "
                                         "all primary contrasts. Descriptive ones have "
                                         "plain 95% intervals over all their seeds, as everything below.",
                                         alternatives(looks))) +
                   table_html(page, contrast_table(page.collection));
    std::string claims;
    for (const sweep::Contrast& c : page.collection.contrasts)
        if (!c.claim.empty())
            claims += fmt::format("<li><b>{}</b>: {}</li>", plot::escaped(c.name), plot::escaped(c.claim));
    if (!claims.empty()) section.html += fmt::format("<ul class=\"notes\">{}</ul>", claims);
    return section;
}

}  // namespace longreach::report
