// How the models were made, for a paper: a paragraph, and the sources of the variants.
#include "report/methods.h"
#include "report/page_parts.h"
#include "report/sources.h"

namespace longreach::report {

namespace {

// Text in its own form, with a button that copies it.
std::string source(const char* kind, const std::string& text) {
    return filled("source", {{"kind", kind}, {"text", plot::escaped(text)}});
}

}  // namespace

Section methods_section(const PageContext& page) {
    Section section{"methods", "Methods", {}};
    const Methods methods = methods_of(page.collection, page.summary);
    if (methods.empty()) return section;
    section.html = paragraph(methods.text) +
                   filled("folded", {{"summary", "As LaTeX"}, {"body", source("LaTeX", methods.latex)}}) +
                   subheading("Sources") + source("BibTeX", bibliography(methods.keys));
    return section;
}

}  // namespace longreach::report
