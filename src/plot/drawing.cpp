// Reads the SVG of charts into shapes.
#include "plot/drawing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "plot/chart.h"
#include "plot/style_rules.h"

namespace longreach::plot {

namespace {

using Attributes = std::map<std::string, std::string>;

std::string unescaped(std::string_view text) {
    static constexpr std::pair<std::string_view, char> entities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
    std::string out;
    while (!text.empty()) {
        const auto entity = std::find_if(std::begin(entities), std::end(entities),
                                         [&](const auto& e) { return text.starts_with(e.first); });
        const bool found = entity != std::end(entities);
        out += found ? entity->second : text[0];
        text.remove_prefix(found ? entity->first.size() : 1);
    }
    return out;
}

double number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc(), "a drawing: no number in '{}'", text);
    return value;
}

std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> out;
    for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos;) {
        const size_t end = std::min(text.find(' ', at), text.size());
        out.push_back(text.substr(at, end - at));
        at = end;
    }
    return out;
}

// A half circle from `at` to (x, y), counterclockwise as it is seen: the only arcs here are those of round markers.
void half_circle(std::vector<Segment>& out, std::array<double, 2> at, double x, double y) {
    constexpr double kappa = 0.5522847498307936;  // of a quarter circle: 4 (sqrt 2 - 1) / 3
    const double cx = (at[0] + x) / 2, cy = (at[1] + y) / 2;
    const double rx = at[0] - cx, ry = at[1] - cy;  // the radius to the start
    const double tx = ry, ty = -rx;                 // the direction in which it sets out
    out.push_back({'C',
                   {at[0] + kappa * tx, at[1] + kappa * ty, cx + tx + kappa * rx, cy + ty + kappa * ry,
                    cx + tx, cy + ty}});
    out.push_back({'C', {cx + tx - kappa * rx, cy + ty - kappa * ry, x + kappa * tx, y + kappa * ty, x, y}});
}

std::vector<Segment> path_of(std::string_view d) {
    std::vector<Segment> out;
    std::array<double, 2> at{}, start{};
    while (!d.empty()) {
        const char command = d[0];
        d.remove_prefix(1);
        std::vector<double> v;
        for (;;) {
            d.remove_prefix(std::min(d.find_first_not_of(' '), d.size()));
            if (d.empty() || std::isalpha(static_cast<unsigned char>(d[0]))) break;
            double value = 0;
            const auto [end, error] = std::from_chars(d.data(), d.data() + d.size(), value);
            check(error == std::errc(), "a drawing: no number in the path at '{}'", d.substr(0, 20));
            d.remove_prefix(static_cast<size_t>(end - d.data()));
            v.push_back(value);
        }
        const size_t expected = command == 'z'                                                     ? 0
                                : command == 'a'                                                   ? 7
                                : std::string_view("HVhv").find(command) != std::string_view::npos ? 1
                                                                                                   : 2;
        check(v.size() == expected, "a drawing: {} numbers after '{}' of a path", v.size(), command);
        std::array<double, 2> to = at;
        switch (command) {
            case 'M':
            case 'L':
                to = {v[0], v[1]};
                break;
            case 'l':
                to = {at[0] + v[0], at[1] + v[1]};
                break;
            case 'H':
                to[0] = v[0];
                break;
            case 'V':
                to[1] = v[0];
                break;
            case 'h':
                to[0] += v[0];
                break;
            case 'v':
                to[1] += v[0];
                break;
            case 'a':
                half_circle(out, at, at[0] + v[5], at[1] + v[6]);
                to = {at[0] + v[5], at[1] + v[6]};
                break;
            case 'z':
                out.push_back({'Z', {}});
                to = start;
                break;
            default:
                check(false, "a drawing: unknown command '{}' of a path", command);
        }
        if (command == 'M') start = to;
        if (command != 'a' && command != 'z') out.push_back({command == 'M' ? 'M' : 'L', {to[0], to[1]}});
        at = to;
    }
    return out;
}

std::vector<Segment> rectangle_of(double x, double y, double w, double h) {
    return {{'M', {x, y}}, {'L', {x + w, y}}, {'L', {x + w, y + h}}, {'L', {x, y + h}}, {'Z', {}}};
}

std::vector<Segment> circle_of(double x, double y, double r) {
    std::vector<Segment> out{{'M', {x - r, y}}};
    half_circle(out, {x - r, y}, x + r, y);
    half_circle(out, {x + r, y}, x - r, y);
    out.push_back({'Z', {}});
    return out;
}

class Reader {
  public:
    explicit Reader(std::string_view svg) : text_(svg), rules_(chart_style()) {}

    Drawing drawing() {
        while (!text_.empty()) {
            const size_t open = text_.find('<');
            if (open == text_.npos) break;
            if (!levels_.empty()) levels_.back().content += text_.substr(0, open);
            const size_t close = text_.find('>', open);
            check(close != text_.npos, "a drawing: a tag without end");
            tag(text_.substr(open + 1, close - open - 1));
            text_.remove_prefix(close + 1);
        }
        check(levels_.empty(), "a drawing: an element without end");
        return out_;
    }

  private:
    struct Level {
        StyledElement element;
        Attributes attributes;
        Properties properties;
        int clip = -1;
        std::string content;
    };

    void tag(std::string_view inside) {
        if (inside.starts_with('/')) {
            check(!levels_.empty(), "a drawing: an end without beginning");
            end();
            levels_.pop_back();
            return;
        }
        const bool empty = inside.ends_with('/');
        if (empty) inside.remove_suffix(1);
        Level level;
        const size_t name = std::min(inside.find(' '), inside.size());
        level.element.tag = inside.substr(0, name);
        for (std::string_view rest = inside.substr(name); !rest.empty();) {
            const size_t equals = rest.find("=\"");
            if (equals == rest.npos) break;
            const size_t quote = rest.find('"', equals + 2);
            check(quote != rest.npos, "a drawing: a value without end");
            level.attributes.emplace(rest.substr(1, equals - 1),
                                     unescaped(rest.substr(equals + 2, quote - equals - 2)));
            rest.remove_prefix(quote + 1);
        }
        level.element.classes = words(value(level, "class"));
        if (!levels_.empty()) {
            level.properties = levels_.back().properties;
            level.properties.erase("opacity");  // is not inherited
            level.clip = levels_.back().clip;
        }
        for (const char* presentation : {"fill", "text-anchor"})
            if (level.attributes.contains(presentation))
                level.properties[presentation] = level.attributes.at(presentation);
        if (const std::string clip = value(level, "clip-path"); !clip.empty())
            level.clip = clips_.at(clip.substr(5, clip.size() - 6));  // url(#NAME)
        levels_.push_back(std::move(level));
        std::vector<StyledElement> path;
        for (const Level& l : levels_) path.push_back(l.element);
        rules_.apply(path, levels_.back().properties);
        begin();
        if (empty) {
            end();
            levels_.pop_back();
        }
    }

    static std::string value(const Level& level, const char* name) {
        const auto found = level.attributes.find(name);
        return found == level.attributes.end() ? "" : found->second;
    }
    double length(const char* name) const {
        const std::string text = value(levels_.back(), name);
        return text.empty() ? 0 : number(text);
    }
    std::string property(const char* name, const char* otherwise) const {
        const auto found = levels_.back().properties.find(name);
        return found == levels_.back().properties.end() ? otherwise : found->second;
    }

    void begin() {
        const std::string& tag = levels_.back().element.tag;
        if (tag == "svg") {
            check(levels_.size() == 1, "a drawing inside another");
            out_.width = length("width");
            out_.height = length("height");
        } else if (tag == "rect" && levels_.size() > 1 &&
                   levels_[levels_.size() - 2].element.tag == "clipPath") {
            clips_[value(levels_[levels_.size() - 2], "id")] = static_cast<int>(out_.clips.size());
            out_.clips.push_back({length("x"), length("y"), length("width"), length("height")});
        } else if (tag == "rect") {
            add(rectangle_of(length("x"), length("y"), length("width"), length("height")));
        } else if (tag == "circle") {
            add(circle_of(length("cx"), length("cy"), length("r")));
        } else if (tag == "line") {
            add({{'M', {length("x1"), length("y1")}}, {'L', {length("x2"), length("y2")}}});
        } else if (tag == "path") {
            add(path_of(value(levels_.back(), "d")));
        }
    }

    void end() {
        const Level& level = levels_.back();
        if (level.element.tag == "title" && out_.title.empty()) out_.title = unescaped(level.content);
        if (level.element.tag != "text") return;
        Shape shape = styled();
        shape.text = unescaped(level.content);
        shape.x = length("x");
        shape.y = length("y");
        shape.anchor = property("text-anchor", "start");
        shape.stroke.clear();
        for (const std::string& word : words(property("font", "")))
            if (word.ends_with("px")) shape.size = number(word);
        if (const std::string size = property("font-size", ""); !size.empty()) shape.size = number(size);
        shape.bold = property("font-weight", "400") >= std::string("600");
        if (!shape.text.empty()) out_.shapes.push_back(shape);
    }

    void add(std::vector<Segment> path) {
        Shape shape = styled();
        if (path.empty() || (shape.fill.empty() && shape.stroke.empty())) return;
        shape.path = std::move(path);
        out_.shapes.push_back(std::move(shape));
    }

    Shape styled() const {
        const auto colour = [](const std::string& text) {
            return text == "none" || text == "transparent" ? std::string()
                   : text.size() == 4 ? std::string{'#', text[1], text[1], text[2], text[2], text[3], text[3]}
                                      : text;
        };
        Shape shape;
        shape.fill = colour(property("fill", "#000000"));
        shape.stroke = colour(property("stroke", "none"));
        shape.width = number(property("stroke-width", "1"));
        shape.opacity = number(property("opacity", "1"));
        for (const std::string& word : words(property("stroke-dasharray", "none")))
            if (word != "none") shape.dash.push_back(number(word));
        shape.round = property("stroke-linecap", "butt") == "round";
        shape.clip = levels_.back().clip;
        return shape;
    }

    std::string_view text_;
    StyleRules rules_;
    std::vector<Level> levels_;
    std::map<std::string, int> clips_;
    Drawing out_;
};

}  // namespace

Drawing read_drawing(const std::string& svg) {
    return Reader(svg).drawing();
}

void place(Drawing& sheet, const Drawing& part, double x, double y) {
    const int first = static_cast<int>(sheet.clips.size());
    for (Rectangle clip : part.clips) {
        clip.x += x;
        clip.y += y;
        sheet.clips.push_back(clip);
    }
    for (Shape shape : part.shapes) {
        shape.x += x;
        shape.y += y;
        for (Segment& segment : shape.path)
            for (size_t i = 0; i < segment.at.size(); ++i) segment.at[i] += i % 2 == 0 ? x : y;
        if (shape.clip >= 0) shape.clip += first;
        sheet.shapes.push_back(std::move(shape));
    }
}

}  // namespace longreach::plot
