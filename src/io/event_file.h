// Writes TensorBoard's event files, which data/formats/events.md describes.
//
// A file is only appended to: a reader stops at a torn record, so a writer that continues after an
// interruption opens a new file, whose session_start() marks the older points that no longer count.
// Records gather in memory until flush(). Every failure is an Error; the caller decides how to treat it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/file.h"

namespace longreach::io {

// One parameter that distinguishes runs.
struct HyperParameter {
    std::string name;
    std::variant<double, bool, std::string> value;
};

// Several tags in one chart.
struct EventChart {
    std::string title;
    std::vector<std::string> tags;  // regular expressions, matched from the start of a tag
};

enum class SessionEnd { success = 1, failure = 2 };  // numbers of the format

// CRC-32C as records store it, masked: a plain CRC of data that contains CRCs is weak.
uint32_t masked_crc32c(std::string_view bytes);

class EventFile {
  public:
    // Creates a file in `directory`, which exists. Times: seconds since 1970. The name sorts after those of
    // all event files there, even if the clock was set back or another machine's runs ahead: readers take the
    // files of a directory in the order of their names.
    EventFile(const std::string& directory, double wall_time, Disk& disk = Disk::system());

    // Points of older files from `step` on no longer count.
    void session_start(int64_t step, double wall_time);
    void scalar(std::string_view tag, int64_t step, double value, double wall_time);
    // counts[i] values are between edges[i] and edges[i + 1].
    void histogram(std::string_view tag, int64_t step, std::span<const double> edges,
                   std::span<const double> counts, double wall_time);
    void text(std::string_view tag, int64_t step, std::string_view markdown, double wall_time);
    // The parameters of the run, and the tags by which it is judged.
    void hyperparameters(std::string_view name, const std::vector<HyperParameter>& parameters,
                         const std::vector<std::string>& metric_tags, double wall_time);
    void session_end(SessionEnd status, double wall_time);
    void layout(std::string_view title, const std::vector<EventChart>& charts, double wall_time);

    void flush();  // writes the gathered records
    const std::string& path() const { return file_.path(); }

  private:
    void record(std::string_view payload);

    File file_;
    std::string pending_;
};

}  // namespace longreach::io
