#include "report/page.h"

#include <fmt/format.h>

#include <cctype>

#include "base/build_info.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "report/page_source.h"
#include "report/page_parts.h"
#include "report/two_ways.h"

namespace longreach::report {

namespace {

std::string lowered(std::string title) {
    title[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(title[0])));
    return title;
}

std::string base64(std::string_view bytes) {
    constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < bytes.size(); i += 3) {
        uint32_t group = 0;
        for (size_t k = i; k < i + 3; ++k)
            group = group << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0u);
        for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : digits[group >> (18 - 6 * k) & 63];
    }
    return out;
}

// The source expression that allows an inline style or script with exactly this text.
std::string source_hash(const std::string& text) {
    return "'sha256-" + base64(sha256(text)) + "'";
}

constexpr const char* without_scripts =
    "[data-piece][hidden]{display:block!important}.menus,.views,.copy{display:none!important}";

}  // namespace

std::string report_page(const Collection& collection, const PageOptions& options) {
    const Summary summary = summarize(collection);
    const PageContext page{collection, summary, options.extracts};
    std::vector<Section> sections{contrasts_section(page), overview_section(page), run_section(page)};
    if (summary.tasks.empty()) {
        for (const auto make : {lengths_section, two_ways_section, differences_section, training_section,
                                positions_section, key_tokens_section, diagnostics_section, tasks_section})
            sections.push_back(make(page));
    } else {
        for (const auto make : {tasks_section, training_section, diagnostics_section})
            sections.push_back(make(page));
        for (const auto make : {lengths_section, two_ways_section, differences_section, positions_section,
                                key_tokens_section}) {
            Section section = make(page);
            section.title = "Text: " + lowered(section.title);
            sections.push_back(section);
        }
    }
    sections.push_back(apart_section(page));
    for (size_t i = 0; i < collection.sets.size(); ++i) {
        const Collection view = set_view(collection, collection.sets[i]);
        const Summary losses = summarize(view);
        sections.push_back(set_section({view, losses, options.extracts, fmt::format("-set{}", i + 1)}));
    }
    sections.push_back(setup_section(page));
    sections.push_back(methods_section(page));
    std::string contents, body;
    for (const Section& section : sections) {
        if (section.html.empty()) continue;
        const std::string title = plot::escaped(section.title);
        contents += fmt::format("<li><a href=\"#{}\">{}</a></li>", section.id, title);
        body += filled("section", {{"id", section.id}, {"title", title}, {"body", section.html}});
    }
    std::string what =
        counted(collection.groups.size(), "variant") + ", " + counted(collection.runs.size(), "run");
    if (collection.groups.size() > 1) what += ", compared with " + collection.baseline_name();
    const std::string style = std::string(plot::chart_style()) + page_style(), script = page_script();
    // The policy in page.html admits nothing from outside and no other script,
    // whatever a name contains; its icon keeps a browser from requesting one.
    return filled("page", {{"style_hashes", source_hash(style) + " " + source_hash(without_scripts)},
                           {"script_hash", source_hash(script)},
                           {"title", plot::escaped(collection.title)},
                           {"style", style},
                           {"without_scripts", without_scripts},
                           {"reload", options.reload_seconds > 0
                                          ? fmt::format(" data-reload=\"{}\"", options.reload_seconds)
                                          : std::string()},
                           {"what", plot::escaped(what)},
                           {"contents", contents},
                           {"sections", body},
                           {"version", plot::escaped(build_info().version)},
                           {"script", script}});
}

std::string report_picture(const Collection& collection) {
    const Summary summary = summarize(collection);
    const PageContext page{collection, summary};
    const plot::LineChart chart = length_chart(page);
    require(!chart.lines.empty(), ExitCode::data, "{}: no losses by length to draw yet", collection.title);
    return plot::standalone_svg(chart, page.styles());
}

}  // namespace longreach::report
