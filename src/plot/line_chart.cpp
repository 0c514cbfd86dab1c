#include <algorithm>
#include <limits>

#include "plot/parts.h"
#include "plot/markup.h"
#include "table/readable.h"

namespace longreach::plot {

namespace {

struct Frame {
    double width, height, left, right, top, bottom;  // margins
    int x_ticks, y_ticks;
    double radius;  // of markers
    bool labels;    // names at the ends of the lines
    const char* classes;
};

// labels: the number of names at the ends of the lines of a wide chart, which take 14 pixels each.
Frame frame_of(ChartSize size, size_t labels) {
    switch (size) {
        case ChartSize::wide: {
            const double height = std::max(396.0, 90 + 14 * static_cast<double>(labels));
            return {760, height, 50, labels > 0 ? 132.0 : 16.0, 46, 44, 12, 6, 3.6, labels > 0, "wide"};
        }
        case ChartSize::narrow:
            return {360, 316, 42, 14, 44, 42, 6, 5, 3.2, false, "narrow"};
        case ChartSize::panel:
            break;
    }
    return {260, 190, 42, 10, 24, 24, 4, 4, 2.4, false, "panel"};
}

struct Range {
    double low = INFINITY, high = -INFINITY;
    void include(double v) {
        if (!drawable(v)) return;
        low = std::min(low, v);
        high = std::max(high, v);
    }
    bool empty() const { return !(high >= low); }
};

bool has_place(double v, const Scale& axis) {
    return drawable(v) && (v > 0 || !axis.logarithmic);
}

// The range of an axis, slightly wider than the values and never empty.
Range padded(Range r, bool logarithmic) {
    if (logarithmic) {
        if (r.empty()) return {1, 2};
        // Within the range of doubles, which the margin might exceed.
        const Range powers = padded({std::log2(r.low), std::log2(r.high)}, false);
        return {std::max(std::exp2(powers.low), std::numeric_limits<double>::min()),
                std::min(std::exp2(powers.high), std::numeric_limits<double>::max())};
    }
    if (r.empty()) return {0, 1};
    if (r.high == r.low) {
        const double around = r.low == 0 ? 1 : 0.05 * std::abs(r.low);
        return {r.low - around, r.high + around};
    }
    const double margin = 0.04 * (r.high - r.low);
    return {r.low - margin, r.high + margin};
}

// A path through the points, interrupted at values that are not finite and at points that are not joined.
std::string path_of(const std::vector<ChartPoint>& points, const Scale& x, const Scale& y) {
    std::string d;
    bool pen = false;
    for (const ChartPoint& p : points) {
        if (!has_place(p.y, y)) {
            pen = false;
            continue;
        }
        d += fmt::format("{}{:.1f} {:.1f}", pen && p.joined ? "L" : "M", x.at(p.x), y.at(p.y));
        pen = true;
    }
    return d;
}

std::string band_of(const std::vector<ChartPoint>& points, const Scale& x, const Scale& y) {
    std::string out;
    for (size_t begin = 0; begin < points.size();) {
        const auto banded = [&](size_t i) {
            return has_place(points[i].low, y) && has_place(points[i].high, y) &&
                   (i == begin || points[i].joined);
        };
        size_t end = begin;
        while (end < points.size() && banded(end)) ++end;
        if (end - begin >= 2) {
            for (size_t i = begin; i < end; ++i)
                out += fmt::format("{}{:.1f} {:.1f}", i == begin ? "M" : "L", x.at(points[i].x),
                                   y.at(points[i].high));
            for (size_t i = end; i-- > begin;)
                out += fmt::format("L{:.1f} {:.1f}", x.at(points[i].x), y.at(points[i].low));
            out += "z";
        }
        begin = std::max(end, begin + 1);
    }
    return out;
}

struct EndLabel {
    size_t series;
    double x, wanted, y;
};

// Moves labels apart until none overlap, keeping their order, inside the frame and as little
// as possible: labels that would touch form a block around the mean of their wanted positions.
void spread(std::vector<EndLabel>& labels, double top, double bottom, double step) {
    std::sort(labels.begin(), labels.end(),
              [](const EndLabel& a, const EndLabel& b) { return a.wanted < b.wanted; });
    struct Block {
        double first, count;  // position of its first label, number of labels
    };
    std::vector<Block> blocks;
    for (const EndLabel& label : labels) {
        blocks.push_back({label.wanted, 1});
        while (blocks.size() > 1) {
            const Block b = blocks.back();
            Block& a = blocks[blocks.size() - 2];
            if (a.first + a.count * step <= b.first) break;
            a.first = (a.count * a.first + b.count * (b.first - a.count * step)) / (a.count + b.count);
            a.count += b.count;
            blocks.pop_back();
        }
    }
    size_t i = 0;
    for (const Block& block : blocks)
        for (double k = 0; k < block.count; ++k) labels[i++].y = block.first + k * step;
    double least = top;
    for (EndLabel& label : labels) {
        label.y = std::max(label.y, least);
        least = label.y + step;
    }
    double most = bottom;
    for (size_t k = labels.size(); k-- > 0;) {
        labels[k].y = std::min(labels[k].y, most);
        most = labels[k].y - step;
    }
}

class LineDrawing {
  public:
    LineDrawing(const LineChart& chart, const std::vector<SeriesStyle>& styles, ChartSize size)
        : chart_(chart), styles_(styles), size_(size) {
        size_t named = 0;
        for (const ChartLine& line : chart.lines) named += !line.faint && !line.points.empty();
        frame_ = frame_of(size, named);
        // The texts of marks take a line above the frame.
        if (size != ChartSize::panel && chart.marks.empty()) frame_.top -= 16;
        many_ = size == ChartSize::panel && named > 6;
        Range x, y;
        for (const ChartLine& line : chart.lines)
            for (const ChartPoint& p : line.points) {
                x.include(p.x);
                for (double v : {p.y, p.low, p.high})
                    if (v > 0 || !chart.log_y) y.include(v);
                for (double v : p.seeds)
                    if (v > 0 || !chart.log_y) y.include(v);
            }
        for (const Position& mark : chart.marks)
            if (chart.log_x) x.include(mark.x);
        if (x.empty()) x = {1, 2};
        if (x.low == x.high) x = chart.log_x ? Range{x.low / 2, x.high * 2} : Range{x.low - 1, x.high + 1};
        y = padded(y, chart.log_y);
        if (drawable(chart.y_low)) y.low = chart.y_low;
        if (drawable(chart.y_high)) y.high = chart.y_high;
        x_ = {x.low, x.high, frame_.left + 8, frame_.width - frame_.right - 8, chart.log_x};
        y_ = {y.low, y.high, frame_.height - frame_.bottom, frame_.top, chart.log_y};
    }

    std::string body() const {
        return clip_path(chart_.id + "-" + frame_.classes, frame_.left, frame_.top - 4,
                         frame_.width - frame_.left - frame_.right,
                         frame_.height - frame_.top - frame_.bottom + 8) +
               axes() + lines() + (frame_.labels ? labels() : "");
    }

    std::string svg() const {
        std::string places;
        for (const Position& p : chart_.places)
            places += fmt::format("{}{:.1f}:{}", places.empty() ? "" : "|", x_.at(p.x), p.text);
        const std::string id = fmt::format("{}-{}", chart_.id, frame_.classes);
        return svg_open(id, frame_.classes, "lines", frame_.width, frame_.height, chart_.title,
                        chart_.description,
                        fmt::format(" data-top=\"{:g}\" data-bottom=\"{:g}\" data-places=\"{}\"", frame_.top,
                                    frame_.height - frame_.bottom, escaped(places))) +
               body() + "</svg>\n";
    }
    const Frame& frame() const { return frame_; }

  private:
    std::string axes() const {
        std::string out;
        const double right = frame_.width - frame_.right, bottom = frame_.height - frame_.bottom;
        std::vector<Tick> levels;
        if (chart_.log_y) levels = power_ticks(y_.low, y_.high, frame_.y_ticks);
        // A range of less than a doubling contains fewer than two powers of two.
        if (levels.size() < 2) levels = round_ticks(y_.low, y_.high, frame_.y_ticks);
        for (const Tick& tick : levels) {
            const double y = y_.at(tick.value);
            out += svg_line(frame_.left, y, right, y, "grid");
            out += svg_text(frame_.left - 7, y + 4, "tick", "end", tick.text);
        }
        std::vector<Tick> ticks = chart_.x_ticks;
        if (ticks.empty())
            ticks = chart_.log_x ? power_ticks(x_.low, x_.high, frame_.x_ticks)
                                 : round_ticks(x_.low, x_.high, frame_.x_ticks - 2);
        out += svg_line(frame_.left, bottom, right, bottom, "axis");
        const size_t stride = std::max<size_t>(1, (ticks.size() + frame_.x_ticks - 1) / frame_.x_ticks);
        for (size_t i = 0; i < ticks.size(); i += stride) {
            const double x = x_.at(ticks[i].value);
            out += svg_line(x, bottom, x, bottom + 5, "axis");
            out += svg_text(x, bottom + 18, "tick", "middle", ticks[i].text);
        }
        if (size_ == ChartSize::panel) {
            out += svg_text(2, 14, "panel-title", "start", chart_.title);
        } else {
            out += svg_text(2, 14, "label", "start", chart_.y_label);
            out += svg_text((frame_.left + right) / 2, frame_.height - 6, "label", "middle", chart_.x_label);
        }
        double free_from = 0;  // the next text of a mark may begin here
        for (const Position& mark : chart_.marks) {
            const double x = x_.at(mark.x);
            if (x < frame_.left || x > right) continue;
            out += svg_line(x, frame_.top - 4, x, bottom, "mark");
            if (size_ == ChartSize::panel || mark.text.empty()) continue;
            // Centred above its line, within the picture.
            const double half = 3.1 * static_cast<double>(mark.text.size());
            const double centre = std::clamp(x, 2 + half, frame_.width - half - 2);
            if (centre - half < free_from) continue;
            out += svg_text(centre, frame_.top - 9, "mark-text", "middle", mark.text);
            free_from = centre + half + 6;
        }
        if (chart_.diagonal) {
            const double low = std::max(x_.low, y_.low), high = std::min(x_.high, y_.high);
            if (high > low) out += svg_line(x_.at(low), y_.at(low), x_.at(high), y_.at(high), "mark");
        }
        return out;
    }

    std::string lines() const {
        const std::string id = identifier(fmt::format("{}-{}", chart_.id, frame_.classes));
        std::string out = fmt::format("<g clip-path=\"url(#{}-c)\">\n", id);
        for (const bool faint : {true, false})
            for (const ChartLine& line : chart_.lines)
                if (line.faint == faint && !line.points.empty()) out += one_line(line);
        return out + "</g>\n";
    }

    std::string one_line(const ChartLine& line) const {
        const SeriesStyle& style = styles_[line.series];
        if (line.faint)
            return fmt::format(
                "<g class=\"series faint {}\" data-g=\"{}\"><path class=\"line\" d=\"{}\"/></g>\n",
                style_classes(style), line.series, path_of(line.points, x_, y_));
        std::string xs, ys, values, markers, seeds;
        for (size_t i = 0; i < line.points.size(); ++i) {
            const ChartPoint& p = line.points[i];
            // Without a marker, a point that no line connects to a neighbour would be invisible.
            const bool alone =
                (i == 0 || !p.joined) && (i + 1 == line.points.size() || !line.points[i + 1].joined);
            const bool finite = has_place(p.y, y_);
            const char* comma = xs.empty() ? "" : "|";
            xs += fmt::format("{}{:.1f}", comma, x_.at(p.x));
            ys += finite ? fmt::format("{}{:.1f}", comma, y_.at(p.y)) : comma;
            values += comma + p.text;
            if (finite && ((line.markers && !many_) || alone))
                markers += marker_path(style.marker, x_.at(p.x), y_.at(p.y), frame_.radius);
            for (const double v : p.seeds)
                if (has_place(v, y_))
                    seeds += fmt::format("<circle class=\"seed\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.4\"/>",
                                         x_.at(p.x), y_.at(v));
        }
        const std::string band = band_of(line.points, x_, y_);
        return fmt::format(
            "<g class=\"series {}\" data-g=\"{}\" data-n=\"{}\" data-x=\"{}\" data-y=\"{}\" data-v=\"{}\">{}"
            "<path class=\"line\" d=\"{}\"/>{}{}</g>\n",
            style_classes(style), line.series, escaped(style.name), xs, ys, escaped(values),
            band.empty() ? "" : fmt::format("<path class=\"band\" d=\"{}\"/>", band),
            path_of(line.points, x_, y_), seeds,
            markers.empty() ? "" : fmt::format("<path class=\"marker\" d=\"{}\"/>", markers));
    }

    std::string labels() const {
        std::vector<EndLabel> ends;
        for (const ChartLine& line : chart_.lines) {
            if (line.faint) continue;
            for (size_t i = line.points.size(); i-- > 0;) {
                const ChartPoint& p = line.points[i];
                if (!has_place(p.y, y_)) continue;
                const double y = std::clamp(y_.at(p.y), frame_.top, frame_.height - frame_.bottom);
                ends.push_back({line.series, x_.at(p.x), y, y});
                break;
            }
        }
        spread(ends, frame_.top, frame_.height - frame_.bottom, 14);
        const double x = frame_.width - frame_.right + 8;
        std::string out;
        for (const EndLabel& end : ends) {
            const SeriesStyle& style = styles_[end.series];
            out += fmt::format("<g class=\"end {}\" data-g=\"{}\">", style_classes(style), end.series);
            if (std::abs(end.y - end.wanted) > 2 || end.x < x - 24)
                out += fmt::format("<path class=\"leader\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>", end.x + 5,
                                   end.wanted, x - 3, end.y);
            out += svg_text(x, end.y + 4, "name", "start", table::shortened(style.name, label_characters)) +
                   "</g>";
        }
        return out;
    }

    const LineChart& chart_;
    const std::vector<SeriesStyle>& styles_;
    ChartSize size_;
    bool many_ = false;  // in a small panel the markers of its lines would cover each other
    Frame frame_;
    Scale x_, y_;
};

}  // namespace

std::string line_svg(const LineChart& chart, const std::vector<SeriesStyle>& styles, ChartSize size) {
    return LineDrawing(chart, styles, size).svg();
}

std::string standalone_svg(const LineChart& chart, const std::vector<SeriesStyle>& styles) {
    const LineDrawing drawing(chart, styles, ChartSize::wide);
    const Frame& frame = drawing.frame();
    // Space around the chart, and for the heading above it.
    constexpr double margin = 16, heading = 24;
    const double width = frame.width + 2 * margin, height = frame.height + 2 * margin + heading;
    return standalone_open(width, height, chart.title, chart.description) +
           svg_text(margin, margin + 15, "heading", "start", chart.title) +
           fmt::format("<svg class=\"chart\" x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\">\n", margin,
                       margin + heading, frame.width, frame.height) +
           drawing.body() + "</svg>\n</svg>\n";
}

}  // namespace longreach::plot
