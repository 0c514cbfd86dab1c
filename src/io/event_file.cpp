#include "io/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/process.h"

namespace longreach::io {

namespace {

template <class T>
std::string bytes_of(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

// A protobuf message under construction. Numbers that are 0 are left out, as the format requires.
class Message {
  public:
    Message& integer(uint32_t field, int64_t value) {
        if (value == 0) return *this;
        key(field, 0);
        varint(static_cast<uint64_t>(value));
        return *this;
    }
    Message& flag(uint32_t field, bool value) { return integer(field, value ? 1 : 0); }
    Message& float64(uint32_t field, double value) {
        if (std::bit_cast<uint64_t>(value) == 0) return *this;
        return given_float64(field, value);
    }
    // For fields whose presence is significant: written even if 0.
    Message& given_float64(uint32_t field, double value) {
        key(field, 1);
        bytes_ += bytes_of(value);
        return *this;
    }
    Message& given_float32(uint32_t field, float value) {
        key(field, 5);
        bytes_ += bytes_of(value);
        return *this;
    }
    Message& given_flag(uint32_t field, bool value) {
        key(field, 0);
        varint(value ? 1 : 0);
        return *this;
    }
    Message& text(uint32_t field, std::string_view value) {
        key(field, 2);
        varint(value.size());
        bytes_ += value;
        return *this;
    }
    Message& message(uint32_t field, const Message& value) { return text(field, value.bytes_); }

    const std::string& bytes() const { return bytes_; }

  private:
    void key(uint32_t field, uint32_t wire_type) { varint(field << 3 | wire_type); }
    void varint(uint64_t value) {
        for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
        bytes_ += static_cast<char>(value);
    }

    std::string bytes_;
};

// Numbers of the fields and of the choices are those of TensorBoard's .proto files.
enum TensorType { type_float = 1, type_double = 2, type_string = 7 };
enum DataClass { class_tensor = 2 };

Message event(int64_t step, double wall_time) {
    Message m;
    m.given_float64(1, wall_time).integer(2, step);
    return m;
}

std::string summary(int64_t step, double wall_time, const Message& value) {
    return event(step, wall_time).message(5, Message().message(1, value)).bytes();
}

Message shape_of(std::initializer_list<int64_t> dimensions) {
    Message shape;
    for (const int64_t size : dimensions) shape.message(2, Message().integer(1, size));
    return shape;
}

Message string_tensor(std::string_view text) {
    return Message().integer(1, type_string).message(2, shape_of({})).text(8, text);
}

Message metadata(std::string_view plugin, std::string_view content) {
    Message data;
    data.text(1, plugin);
    if (!content.empty()) data.text(2, content);
    return Message().message(1, data).integer(4, class_tensor);
}

Message tensor_value(std::string_view tag, const Message& about, const Message& tensor) {
    return Message().text(1, tag).message(8, tensor).message(9, about);
}

// The hparams plugin keeps its data in the description; the tensor is required but not used.
Message hyperparameter_value(std::string_view tag, const Message& content) {
    const Message nothing = Message().integer(1, type_float).message(2, shape_of({0}));
    return tensor_value(tag, metadata("hparams", content.bytes()), nothing);
}

constexpr std::string_view name_prefix = "events.out.tfevents.";
constexpr size_t time_digits = 10;  // of every name, so that names sort like times
constexpr int64_t last_time = 9'999'999'999;

// Seconds in the name of an event file; 0 for other files.
int64_t time_in(std::string_view name) {
    if (!name.starts_with(name_prefix)) return 0;
    name.remove_prefix(name_prefix.size());
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits != time_digits) return 0;
    int64_t seconds = 0;
    for (const char c : name.substr(0, digits)) seconds = seconds * 10 + (c - '0');
    return seconds;
}

std::string host_name() {
    std::string name = longreach::host_name();
    for (char& c : name) {
        const bool plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
        if (!plain) c = '_';
    }
    return name.empty() ? "host" : name;
}

File create(const std::string& directory, double wall_time, Disk& disk) {
    int64_t seconds = static_cast<int64_t>(std::clamp(wall_time, 0.0, static_cast<double>(last_time)));
    for (const std::string& name : list_directory(directory)) seconds = std::max(seconds, time_in(name) + 1);
    seconds = std::min(seconds, last_time);
    const std::string host = host_name();
    for (int counter = 0;; ++counter) {
        const std::string name =
            fmt::format("{}{:0{}}.{}.{}.{}", name_prefix, seconds, time_digits, host, getpid(), counter);
        const std::string path = join_path(directory, name);
        if (kind_of(path, Links::refuse) == PathKind::missing) return File::create(path, disk);
    }
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
    return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

EventFile::EventFile(const std::string& directory, double wall_time, Disk& disk)
    : file_(create(directory, wall_time, disk)) {
    record(event(0, wall_time).text(3, "brain.Event:2").bytes());
}

void EventFile::record(std::string_view payload) {
    const std::string length = bytes_of(uint64_t{payload.size()});
    pending_ += length;
    pending_ += bytes_of(masked_crc32c(length));
    pending_ += payload;
    pending_ += bytes_of(masked_crc32c(payload));
}

void EventFile::session_start(int64_t step, double wall_time) {
    constexpr int64_t start = 1;
    record(event(step, wall_time).message(7, Message().integer(1, start)).bytes());
}

void EventFile::scalar(std::string_view tag, int64_t step, double value, double wall_time) {
    record(summary(step, wall_time, Message().text(1, tag).given_float32(2, static_cast<float>(value))));
}

void EventFile::histogram(std::string_view tag, int64_t step, std::span<const double> edges,
                          std::span<const double> counts, double wall_time) {
    check(edges.size() == counts.size() + 1, "{} edges for {} counts", edges.size(), counts.size());
    std::string rows;
    for (size_t i = 0; i < counts.size(); ++i)
        rows += bytes_of(edges[i]) + bytes_of(edges[i + 1]) + bytes_of(counts[i]);
    const Message tensor = Message()
                               .integer(1, type_double)
                               .message(2, shape_of({static_cast<int64_t>(counts.size()), 3}))
                               .text(4, rows);
    record(summary(step, wall_time, tensor_value(tag, metadata("histograms", {}), tensor)));
}

void EventFile::text(std::string_view tag, int64_t step, std::string_view markdown, double wall_time) {
    record(summary(step, wall_time, tensor_value(tag, metadata("text", {}), string_tensor(markdown))));
}

void EventFile::hyperparameters(std::string_view name, const std::vector<HyperParameter>& parameters,
                                const std::vector<std::string>& metric_tags, double wall_time) {
    Message experiment, session;
    experiment.float64(3, wall_time);
    for (const HyperParameter& p : parameters) {
        enum { a_string = 1, a_bool = 2, a_number = 3 };
        int64_t type = a_string;
        Message value;
        if (const double* number = std::get_if<double>(&p.value)) {
            type = a_number;
            value.given_float64(2, *number);
        } else if (const bool* flag = std::get_if<bool>(&p.value)) {
            type = a_bool;
            value.given_flag(4, *flag);
        } else {
            value.text(3, std::get<std::string>(p.value));
        }
        experiment.message(4, Message().text(1, p.name).integer(4, type));
        session.message(1, Message().text(1, p.name).message(2, value));
    }
    for (const std::string& tag : metric_tags)
        experiment.message(5, Message().message(1, Message().text(2, tag)));
    experiment.text(6, name);
    session.text(4, name).float64(5, wall_time);
    record(summary(0, wall_time,
                   hyperparameter_value("_hparams_/experiment", Message().message(2, experiment))));
    record(summary(0, wall_time,
                   hyperparameter_value("_hparams_/session_start_info", Message().message(3, session))));
}

void EventFile::session_end(SessionEnd status, double wall_time) {
    const Message end = Message().integer(1, static_cast<int64_t>(status)).float64(2, wall_time);
    record(
        summary(0, wall_time, hyperparameter_value("_hparams_/session_end_info", Message().message(4, end))));
}

void EventFile::layout(std::string_view title, const std::vector<EventChart>& charts, double wall_time) {
    Message category;
    category.text(1, title);
    for (const EventChart& chart : charts) {
        Message lines;
        for (const std::string& tag : chart.tags) lines.text(1, tag);
        category.message(2, Message().text(1, chart.title).message(2, lines));
    }
    const Message layout = Message().message(2, category);
    record(summary(0, wall_time,
                   tensor_value("custom_scalars__config__", metadata("custom_scalars", {}),
                                string_tensor(layout.bytes()))));
}

void EventFile::flush() {
    file_.write(pending_);
    pending_.clear();
}

}  // namespace longreach::io
