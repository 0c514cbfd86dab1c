// The settings of a model in Hugging Face's layout: config.json, read member by member.
//
// Every error names the file, the place and the setting. A member that nobody asks for is reported by unread(), so that
// a setting this program does not know is not lost in silence.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/json.h"

namespace longreach::exchange {

constexpr uint64_t largest_settings = 1 << 20;  // bytes of a config.json

class Settings {
  public:
    // text: a JSON object. file: its name in messages.
    Settings(std::string_view text, const std::string& file);
    // Of an object that no text holds.
    static Settings made(json::Value value, const std::string& file) { return {std::move(value), file, ""}; }

    bool has(const std::string& key) const;  // and it is not null
    // The value of a member; `fallback` if it is missing or null. A value of another kind, or a number outside
    // the range, is an Error(ExitCode::checkpoint).
    int64_t integer(const std::string& key, int64_t fallback, int64_t least = 0) const;
    double number(const std::string& key, double fallback) const;
    bool flag(const std::string& key, bool fallback) const;
    std::string text(const std::string& key, const std::string& fallback) const;
    std::vector<std::string> texts(const std::string& key) const;
    // As above, for members without which there is no model.
    int64_t needed(const std::string& key) const;
    // The object at `key` as settings of its own ("rope_scaling.factor" in messages); empty if missing or null.
    Settings section(const std::string& key) const;
    bool empty() const { return value_.to_object() == nullptr || value_.to_object()->empty(); }
    const json::Value& value() const { return value_; }
    const std::string& file() const { return file_; }

    // Error(ExitCode::checkpoint) that this form of a model is not supported.
    [[noreturn]] void refuse(const std::string& key, const std::string& reason) const;
    // refuse() unless the member is missing, null or `wanted`.
    void only(const std::string& key, const json::Value& wanted) const;
    void ignore(std::initializer_list<const char*> keys) const;  // they change no logit
    std::vector<std::string> unread() const;

  private:
    Settings(json::Value value, std::string file, std::string prefix);
    const json::Value* find(const std::string& key) const;
    [[noreturn]] void fail_at(const std::string& key, const std::string& what) const;

    json::Value value_;
    std::string file_, prefix_;
    mutable std::set<std::string> read_;
};

}  // namespace longreach::exchange
