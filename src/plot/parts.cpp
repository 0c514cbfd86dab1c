#include "plot/parts.h"

#include "plot/markup.h"

namespace longreach::plot {

std::string svg_open(const std::string& id, const std::string& classes, const char* kind, double width,
                     double height, const std::string& title, const std::string& description,
                     const std::string& more) {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart {1}\" data-kind=\"{2}\" "
        "viewBox=\"0 0 {3:g} {4:g}\" width=\"{3:g}\" height=\"{4:g}\" tabindex=\"0\" role=\"img\" "
        "aria-labelledby=\"{0}-t {0}-d\"{7}><title id=\"{0}-t\">{5}</title><desc id=\"{0}-d\">{6}</desc>\n",
        identifier(id), classes, kind, width, height, escaped(title), escaped(description), more);
}

std::string standalone_open(double width, double height, const std::string& title,
                            const std::string& description) {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"alone\" viewBox=\"0 0 {0:g} {1:g}\" "
        "width=\"{0:g}\" height=\"{1:g}\" role=\"img\" aria-labelledby=\"title desc\">\n"
        "<title id=\"title\">{2}</title><desc id=\"desc\">{3}</desc>\n<style>{4}</style>\n"
        "<rect class=\"ground\" width=\"{0:g}\" height=\"{1:g}\" rx=\"8\"/>\n",
        width, height, escaped(title), escaped(description), chart_style());
}

std::string clip_path(const std::string& id, double x, double y, double width, double height) {
    return fmt::format(
        "<clipPath id=\"{}-c\"><rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\"/></clipPath>\n",
        identifier(id), x, y, width, height);
}

std::string svg_text(double x, double y, const char* classes, const char* anchor, const std::string& text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y,
                       classes, anchor, escaped(text));
}

std::string svg_line(double x1, double y1, double x2, double y2, const char* classes) {
    return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1,
                       y1, x2, y2, classes);
}

std::string marker_path(size_t marker, double x, double y, double r) {
    const double h = 0.9 * r, t = 1.15 * r, u = 1.3 * r;
    switch (marker % marker_count) {
        case 0:  // circle
            return fmt::format("M{:.1f} {:.1f}a{:.1f} {:.1f} 0 1 0 {:.1f} 0a{:.1f} {:.1f} 0 1 0 {:.1f} 0z",
                               x - r, y, r, r, 2 * r, r, r, -2 * r);
        case 1:  // square
            return fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z", x - h, y - h, 2 * h, 2 * h, -2 * h);
        case 2:  // triangle
            return fmt::format("M{:.1f} {:.1f}l{:.1f} {:.1f}h{:.1f}z", x, y - u, t, 1.9 * t, -2 * t);
        case 3:  // diamond
            return fmt::format("M{:.1f} {:.1f}l{:.1f} {:.1f}l{:.1f} {:.1f}l{:.1f} {:.1f}z", x, y - u, u, u,
                               -u, u, -u, -u);
        case 4:  // triangle pointing down
            return fmt::format("M{:.1f} {:.1f}l{:.1f} {:.1f}h{:.1f}z", x, y + u, t, -1.9 * t, -2 * t);
        case 5: {  // cross
            const double a = 0.45 * r, b = 0.85 * r;
            return fmt::format(
                "M{:.1f} "
                "{:.1f}h{:.1f}v{:.1f}h{:.1f}v{:.1f}h{:.1f}v{:.1f}h{:.1f}v{:.1f}h{:.1f}v{:.1f}h{:.1f}z",
                x - a, y - a - b, 2 * a, b, b, 2 * a, -b, b, -2 * a, -b, -b, -2 * a, b);
        }
        default:  // hexagon
            return fmt::format("M{:.1f} {:.1f}l{:.1f} {:.1f}v{:.1f}l{:.1f} {:.1f}l{:.1f} {:.1f}v{:.1f}z", x,
                               y - u, u, u / 2, u, -u, u / 2, -u, -u / 2, -u);
    }
}

SeriesStyle series_style(const std::string& name, size_t group, size_t evaluation) {
    // Eight groups differ in colour, the next eight repeat the colours with another dash;
    // markers have their own period. An evaluation shifts dash and marker in opposite
    // directions, or group 0 with evaluation 2 would look like group 8 with evaluation 1.
    const size_t back = evaluation * (marker_count - 1);
    return {name, group % colour_count, (group / colour_count + evaluation) % dash_count,
            (group + back) % marker_count, evaluation > 0};
}

std::string style_classes(const SeriesStyle& style) {
    return fmt::format("c{} d{}{}", style.colour % colour_count, style.dash % dash_count,
                       style.hollow ? " hollow" : "");
}

std::string swatch_svg(const SeriesStyle& style) {
    return fmt::format(
        "<svg class=\"swatch {}\" viewBox=\"0 0 28 12\" width=\"28\" height=\"12\" aria-hidden=\"true\">"
        "<path class=\"line\" d=\"M1 6H27\"/><path class=\"marker\" d=\"{}\"/></svg>",
        style_classes(style), marker_path(style.marker, 14, 6, 3.4));
}

}  // namespace longreach::plot
