#include "train/validated.h"

#include <algorithm>

#include "io/file.h"
#include "train/evaluation.h"
#include "train/train_state.h"

namespace longreach::train {

namespace {

constexpr uint64_t largest_file = 1 << 20;

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
        if (text == nullptr) return std::nullopt;
        out.done.push_back(*text);
    }
    for (const json::Member& m : files->as_object()) {
        const auto bytes = integer(&m.value);
        if (!is_evaluation_record(m.key) || !bytes) return std::nullopt;
        out.file_bytes[m.key] = *bytes;
    }
    return out;
}

}  // namespace

std::string format_validated(const Validated& validated) {
    json::Value done = json::Value::array(), files = json::Value::object();
    for (const std::string& name : validated.done) done.push(name);
    for (const auto& [name, bytes] : validated.file_bytes) files.set(name, bytes);
    return json::write(
        json::Value::object({{"format", 1}, {"step", validated.step}, {"done", done}, {"file_bytes", files}}),
        json::Style::pretty);
}

std::optional<Validated> read_validated(const std::string& directory) {
    const std::string path = io::join_path(directory, validated_file);
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
                       const std::vector<std::string>& due) {
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
    return std::any_of(due.begin(), due.end(), [&](const std::string& name) {
        return std::find(validated->done.begin(), validated->done.end(), name) == validated->done.end();
    });
}

}  // namespace longreach::train
