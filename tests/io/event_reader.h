// A reader of event files that shares nothing with the writer: its own checksum (bit by bit),
// framing and protobuf decoder.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace longreach::test {

inline uint32_t slow_masked_crc(std::string_view bytes) {
    uint32_t rest = 0xFFFFFFFFu;
    for (const char c : bytes) {
        rest ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit) rest = (rest & 1) != 0 ? (rest >> 1) ^ 0x82F63B78u : rest >> 1;
    }
    rest = ~rest;
    return ((rest >> 15) | (rest << 17)) + 0xA282EAD8u;
}

template <class T>
T number_at(std::string_view bytes, size_t at = 0) {
    check(at <= bytes.size() && bytes.size() - at >= sizeof(T), "a number ends after its {} bytes",
          bytes.size());
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

struct Records {
    std::vector<std::string> payloads;
    size_t torn = 0;  // bytes after the last whole record
};

inline Records read_records(std::string_view bytes) {
    Records out;
    for (;;) {
        out.torn = bytes.size();
        if (bytes.size() < 16) return out;
        const auto length = number_at<uint64_t>(bytes);
        if (number_at<uint32_t>(bytes, 8) != slow_masked_crc(bytes.substr(0, 8))) return out;
        if (length > bytes.size() - 16) return out;
        const std::string_view payload = bytes.substr(12, length);
        if (number_at<uint32_t>(bytes, 12 + length) != slow_masked_crc(payload)) return out;
        out.payloads.emplace_back(payload);
        bytes.remove_prefix(16 + length);
    }
}

// The fields of one message, in order: every value as its bytes, integers as 8 of them.
class Decoded {
  public:
    explicit Decoded(std::string_view bytes) {
        while (!bytes.empty()) {
            const uint64_t key = varint(bytes);
            uint64_t size = 0, number = 0;
            switch (key & 7) {
                case 0:
                    number = varint(bytes);
                    all_[key >> 3].emplace_back(reinterpret_cast<const char*>(&number), sizeof number);
                    continue;
                case 1:
                    size = 8;
                    break;
                case 2:
                    size = varint(bytes);
                    break;
                case 5:
                    size = 4;
                    break;
                default:
                    fail(ExitCode::data, "wire type {}", key & 7);
            }
            check(size <= bytes.size(), "a field of {} bytes in {}", size, bytes.size());
            all_[key >> 3].emplace_back(bytes.substr(0, size));
            bytes.remove_prefix(size);
        }
    }
    bool has(uint64_t field) const { return all_.count(field) != 0; }
    const std::vector<std::string>& all(uint64_t field) const {
        static const std::vector<std::string> none;
        return has(field) ? all_.at(field) : none;
    }
    std::string text(uint64_t field) const { return has(field) ? all_.at(field).back() : ""; }
    Decoded message(uint64_t field) const { return Decoded(text(field)); }
    int64_t integer(uint64_t field) const { return has(field) ? number_at<int64_t>(text(field)) : 0; }
    double float64(uint64_t field) const { return has(field) ? number_at<double>(text(field)) : 0; }
    float float32(uint64_t field) const { return has(field) ? number_at<float>(text(field)) : 0; }

  private:
    static uint64_t varint(std::string_view& bytes) {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
            check(!bytes.empty() && shift < 64, "a broken varint");
            const auto byte = static_cast<unsigned char>(bytes.front());
            bytes.remove_prefix(1);
            value |= static_cast<uint64_t>(byte & 127) << shift;
            if (byte < 128) return value;
        }
    }
    std::map<uint64_t, std::vector<std::string>> all_;
};

// An Event, as far as this program writes it.
struct Event {
    double wall_time = 0;
    int64_t step = 0;
    std::string version;      // of the first record
    int64_t session = 0;      // 1: start
    std::string tag, plugin;  // of a summary's one value
    Decoded value{""};
    float scalar() const { return value.float32(2); }
    Decoded tensor() const { return value.message(8); }
    std::string content() const { return value.message(9).message(1).text(2); }  // of the plugin
};

inline std::vector<Event> events_of(std::string_view bytes) {
    const Records records = read_records(bytes);
    check(records.torn == 0, "{} bytes after the last whole record", records.torn);
    std::vector<Event> events;
    for (const std::string& payload : records.payloads) {
        const Decoded f(payload);
        Event e;
        e.wall_time = f.float64(1);
        e.step = f.integer(2);
        e.version = f.text(3);
        e.session = f.message(7).integer(1);
        check(f.message(5).all(1).size() <= 1, "a summary of several values");
        e.value = f.message(5).message(1);
        e.tag = e.value.text(1);
        e.plugin = e.value.message(9).message(1).text(1);
        events.push_back(e);
    }
    return events;
}

}  // namespace longreach::test
