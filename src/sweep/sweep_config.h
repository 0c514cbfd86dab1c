// A sweep file: the runs to train, the evaluations of each run, and the number of simultaneous runs.
//
//     runs = variants x (grid x zip x list) x seeds
//
// It is read like a config (comments, "base", --set). Its values keep their positions when they are
// copied into the configs of the runs, so that errors are reported with the line of the sweep file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/document.h"
#include "config/fields.h"
#include "config/problems.h"
#include "sweep/contrast.h"

namespace longreach::sweep {

// Values for the fields of an experiment, in the order written.
using Settings = std::vector<config::PlacedValue>;

struct SweepVariant {
    std::string name;
    json::Value config, set = json::Value::object();
    void fields(config::Fields& f);
    // Filled in by check().
    std::vector<std::string> files;
    Settings settings;
};

struct SweepPoint {
    std::string name;
    json::Value set = json::Value::object();
    void fields(config::Fields& f);
    Settings settings;
};

struct SweepEvaluation {
    std::string name;
    std::vector<std::string> variants;
    json::Value set = json::Value::object();
    std::vector<int64_t> lengths;
    int64_t tokens = 0;
    std::vector<std::string> tasks;
    std::vector<int64_t> depths;
    int64_t samples = 0;
    bool repeat = false, probe = false;
    void fields(config::Fields& f);
    Settings settings;
};

// A contrast as the file has it: of two variants, whose runs decide what it leaves out.
struct SweepContrast : Contrast {
    std::vector<std::string> arms;
    void fields(config::Fields& f);
    // Where a field was written, or else the contrast. Filled in by check(), as are first and second.
    std::map<std::string, config::Origin> origins;
    bool left_out = false;  // an arm is not among the variants that are kept
};

// One key of a grid or a zip.
struct SweepAxis {
    std::string path;   // "model.attention.params.tau.init"
    std::string label;  // "tau": what names show
    Settings values;
};

struct SweepConfig {
    std::string name, dir = "runs";
    std::vector<std::string> over;
    std::vector<SweepVariant> variants;
    json::Value grid = json::Value::object(), zip = json::Value::object();
    std::vector<SweepPoint> list;
    std::vector<int64_t> seeds{1};
    std::string baseline;
    json::Value set = json::Value::object();
    std::vector<SweepEvaluation> evaluations;
    std::vector<SweepContrast> contrasts;
    bool skip_contradictory = false;
    int64_t jobs = 0, threads = 0;
    void fields(config::Fields& f);
    // Fills in the members below, then checks. File names are relative to the file that contains them.
    void check(config::Problems& problems);

    std::vector<std::string> over_files;
    std::vector<SweepAxis> grid_axes, zip_axes;
    Settings settings;   // for every run
    Settings overrides;  // of the command line, for every run: they win

    std::string directory() const;  // <dir>/<name>
};

// Reads and checks a sweep file. An override of an experiment's field ("model.width=64")
// applies to every run, any other to the sweep itself ("seeds=[1]"). `over` lists config
// files to apply on top of every variant, after those of the sweep file; they extend the
// sweep's name ("cpu.json": <name>-cpu) unless an override sets it.
SweepConfig load_sweep(const std::string& file, const std::vector<std::string>& overrides,
                       const std::vector<std::string>& over = {});

// Keeps the variants of these names, with their points and evaluations. If the baseline is not
// among them, the first one takes its place. All contrasts stay, for their number decides the level of each.
void keep_variants(SweepConfig& sweep, const std::vector<std::string>& names);

// JSON Schema (draft 2020-12) of a sweep file.
json::Value sweep_schema();

// Whether a name is valid in a file name: letters, digits, '_', '-', '.'; no leading '.'.
bool is_file_name(std::string_view name);

}  // namespace longreach::sweep
