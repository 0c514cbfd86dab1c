#include "train/validated.h"

#include <algorithm>
#include <array>

#include "io/file.h"
#include "train/validation_set.h"

namespace longreach::train {

namespace {

constexpr const char* file_name = "validated.json";
constexpr uint64_t largest_file = 1 << 20;
// The only files to which an evaluation appends, besides those of further validation sets.
constexpr std::array<std::string_view, 4> record_files{"val.csv", "positions.csv", "tasks.csv", "probe.csv"};

std::optional<Validated> parse(const json::Value& v) {
    const auto integer = [&](const json::Value* value) -> std::optional<int64_t> {
        const auto n = value ? value->to_int64() : std::nullopt;
        return n && *n >= 0 ? n : std::nullopt;
    };
    const auto format = integer(v.find("format")), step = integer(v.find("step"));
    const json::Value *done = v.find("done"), *files = v.find("file_bytes");
    if (format != 1 || !step || !done || !done->is_array() || !files || !files->is_object())
        return std::nullopt;
    Validated out;
    out.step = *step;
    for (const json::Value& name : done->as_array()) {
        const std::string* text = name.to_string();
        const std::optional<Part> part = text != nullptr ? part_by_name(*text) : std::nullopt;
        if (!part) return std::nullopt;
        out.done.push_back(*part);
    }
    for (const json::Member& m : files->as_object()) {
        const auto bytes = integer(&m.value);
        const bool known = std::find(record_files.begin(), record_files.end(), m.key) != record_files.end() ||
                           is_set_record(m.key);
        if (!known || !bytes) return std::nullopt;
        out.file_bytes[m.key] = *bytes;
    }
    return out;
}

}  // namespace

std::string format_validated(const Validated& validated) {
    json::Value done = json::Value::array(), files = json::Value::object();
    for (const Part& part : validated.done) done.push(name_of(part));
    for (const auto& [name, bytes] : validated.file_bytes) files.set(name, bytes);
    return json::write(
        json::Value::object({{"format", 1}, {"step", validated.step}, {"done", done}, {"file_bytes", files}}),
        json::Style::pretty);
}

std::optional<Validated> read_validated(const std::string& directory) {
    const std::string path = io::join_path(directory, file_name);
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return std::nullopt;
    std::optional<Validated> found;
    try {
        found = parse(json::parse(io::read_file(path, largest_file, io::Links::refuse), path));
    } catch (const Error&) {
        return std::nullopt;
    }
    if (!found) return std::nullopt;
    for (const auto& [name, bytes] : found->file_bytes) {
        const std::string record = io::join_path(directory, name);
        if (io::kind_of(record, io::Links::refuse) != io::PathKind::file) return std::nullopt;
        if (io::File::open(record, io::Links::refuse).size() < static_cast<uint64_t>(bytes))
            return std::nullopt;
    }
    return found;
}

bool awaits_evaluation(const std::string& directory, const std::string& state_file,
                       const std::vector<Part>& due) {
    TrainState state;
    try {
        state = TrainState::from_json(
            json::parse(io::read_file(state_file, largest_file, io::Links::refuse), state_file));
    } catch (const Error&) {
        return true;  // damaged: only a resume can find out what is left to do
    }
    if (!state.pending) return false;
    const std::optional<Validated> validated = read_validated(directory);
    if (!validated || validated->step != state.step) return !due.empty();
    return std::any_of(due.begin(), due.end(), [&](const Part& part) {
        return std::find(validated->done.begin(), validated->done.end(), part) == validated->done.end();
    });
}

}  // namespace longreach::train
