// Drawings as SVG and PDF files.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "plot/drawing.h"
#include "plot/helvetica.h"
#include "plot/markup.h"

namespace longreach::plot {

namespace {

std::string round_number(double value) {
    std::string text = fmt::format("{:.2f}", value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
    return text == "-0" ? "0" : text;
}

std::string numbers(const std::vector<double>& values) {
    std::vector<std::string> texts;
    for (const double v : values) texts.push_back(round_number(v));
    return join(texts, " ");
}

size_t count_of(const Segment& segment) {
    return segment.kind == 'Z' ? 0 : segment.kind == 'C' ? 6 : 2;
}

std::string svg_path(const std::vector<Segment>& path) {
    std::string out;
    for (const Segment& segment : path)
        out += segment.kind + numbers({segment.at.begin(), segment.at.begin() + count_of(segment)});
    return out;
}

std::string svg_shape(const Shape& shape) {
    std::string style = fmt::format(" fill=\"{}\"", shape.fill.empty() ? "none" : shape.fill);
    if (shape.opacity != 1) style += fmt::format(" opacity=\"{}\"", round_number(shape.opacity));
    if (shape.path.empty()) {
        if (shape.anchor != "start") style += fmt::format(" text-anchor=\"{}\"", shape.anchor);
        if (shape.bold) style += " font-weight=\"bold\"";
        return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}>{}</text>\n", round_number(shape.x),
                           round_number(shape.y), round_number(shape.size), style, escaped(shape.text));
    }
    if (!shape.stroke.empty()) {
        style += fmt::format(" stroke=\"{}\" stroke-width=\"{}\"", shape.stroke, round_number(shape.width));
        if (!shape.dash.empty()) style += fmt::format(" stroke-dasharray=\"{}\"", numbers(shape.dash));
        if (shape.round) style += " stroke-linecap=\"round\" stroke-linejoin=\"round\"";
    }
    if (shape.clip >= 0) style += fmt::format(" clip-path=\"url(#c{})\"", shape.clip);
    return fmt::format("<path d=\"{}\"{}/>\n", svg_path(shape.path), style);
}

// The content stream of a page. It names graphics states /A0, /A1, ... for the opacities that it uses.
class PdfContent {
  public:
    explicit PdfContent(const Drawing& drawing) {
        // The y axis of a page points upwards.
        out_ = fmt::format("0.75 0 0 -0.75 0 {} cm\n", round_number(0.75 * drawing.height));
        for (const Shape& shape : drawing.shapes) {
            out_ += "q\n";
            if (shape.clip >= 0) {
                const Rectangle& r = drawing.clips[static_cast<size_t>(shape.clip)];
                out_ += numbers({r.x, r.y, r.width, r.height}) + " re W n\n";
            }
            if (shape.opacity != 1)
                out_ += fmt::format(
                    "/A{} gs\n",
                    opacities_.try_emplace(round_number(shape.opacity), opacities_.size()).first->second);
            if (!shape.fill.empty()) out_ += colour(shape.fill) + " rg\n";
            if (shape.path.empty())
                text(shape);
            else
                path(shape);
            out_ += "Q\n";
        }
    }
    const std::string& text() const { return out_; }
    std::string states() const {
        std::string out;
        for (const auto& [opacity, index] : opacities_)
            out += fmt::format("/A{} << /ca {} /CA {} >> ", index, opacity, opacity);
        return out;
    }

  private:
    static std::string colour(const std::string& hex) {
        std::vector<double> parts;
        for (const size_t at : {1, 3, 5}) parts.push_back(std::stoi(hex.substr(at, 2), nullptr, 16) / 255.0);
        return fmt::format("{:.3f}", fmt::join(parts, " "));
    }
    void path(const Shape& shape) {
        for (const Segment& segment : shape.path) {
            if (segment.kind == 'Z') {
                out_ += "h\n";
                continue;
            }
            const char* name = segment.kind == 'M' ? "m" : segment.kind == 'L' ? "l" : "c";
            out_ += fmt::format("{} {}\n",
                                numbers({segment.at.begin(), segment.at.begin() + count_of(segment)}), name);
        }
        if (!shape.stroke.empty()) {
            out_ += fmt::format("{} RG {} w\n", colour(shape.stroke), round_number(shape.width));
            if (shape.round) out_ += "1 J 1 j\n";
            if (!shape.dash.empty()) out_ += fmt::format("[{}] 0 d\n", numbers(shape.dash));
        }
        out_ += shape.stroke.empty() ? "f\n" : shape.fill.empty() ? "S\n" : "B\n";
    }
    void text(const Shape& shape) {
        const std::string codes = helvetica_codes(shape.text);
        const double width = shape.size * helvetica_width(codes, shape.bold) / 1000;
        const double x = shape.x - (shape.anchor == "middle" ? width / 2 : shape.anchor == "end" ? width : 0);
        std::string literal;
        for (const char c : codes) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte < 32 || byte > 126)
                literal += fmt::format("\\{:03o}", byte);
            else
                literal += (c == '(' || c == ')' || c == '\\' ? "\\" : "") + std::string(1, c);
        }
        out_ += fmt::format("BT /{} {} Tf 1 0 0 -1 {} {} Tm ({}) Tj ET\n", shape.bold ? "F2" : "F1",
                            round_number(shape.size), round_number(x), round_number(shape.y), literal);
    }

    std::string out_;
    std::map<std::string, size_t> opacities_;
};

// A text string of a document: UTF-16 in hexadecimal digits.
std::string pdf_text(std::string_view text) {
    std::string out = "<FEFF";
    for (const char32_t c : code_points(text)) {
        if (c < 0x10000) {
            out += fmt::format("{:04X}", static_cast<uint32_t>(c));
        } else {
            const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
            out += fmt::format("{:04X}{:04X}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        }
    }
    return out + ">";
}

}  // namespace

std::string svg_file(const Drawing& drawing) {
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"Helvetica, Arial, sans-serif\">\n<title>{2}</title>\n",
        round_number(drawing.width), round_number(drawing.height), escaped(drawing.title));
    for (size_t i = 0; i < drawing.clips.size(); ++i) {
        const Rectangle& r = drawing.clips[i];
        out += fmt::format(
            "<clipPath id=\"c{}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n", i,
            round_number(r.x), round_number(r.y), round_number(r.width), round_number(r.height));
    }
    for (const Shape& shape : drawing.shapes) out += svg_shape(shape);
    return out + "</svg>\n";
}

std::string pdf_file(const Drawing& drawing) {
    const PdfContent content(drawing);
    const auto font = [](const char* name) {
        return fmt::format("<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding 7 0 R >>", name);
    };
    const std::vector<std::string> objects{
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        fmt::format(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {} {}] /Contents 4 0 R /Resources << /Font << "
            "/F1 5 0 R /F2 6 0 R >> /ExtGState << {}>> >> >>",
            round_number(0.75 * drawing.width), round_number(0.75 * drawing.height), content.states()),
        fmt::format("<< /Length {} >>\nstream\n{}endstream", content.text().size(), content.text()),
        font("Helvetica"),
        font("Helvetica-Bold"),
        helvetica_encoding(),
        fmt::format("<< /Title {} /Producer (longreach) >>", pdf_text(drawing.title)),
    };
    std::string out = "%PDF-1.4\n", places;
    for (size_t i = 0; i < objects.size(); ++i) {
        places += fmt::format("{:010} 00000 n \n", out.size());
        out += fmt::format("{} 0 obj\n{}\nendobj\n", i + 1, objects[i]);
    }
    const size_t table = out.size();
    out += fmt::format("xref\n0 {}\n0000000000 65535 f \n{}", objects.size() + 1, places);
    return out + fmt::format("trailer\n<< /Size {} /Root 1 0 R /Info 8 0 R >>\nstartxref\n{}\n%%EOF\n",
                             objects.size() + 1, table);
}

}  // namespace longreach::plot
