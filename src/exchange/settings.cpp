#include "exchange/settings.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace longreach::exchange {

namespace {
constexpr int64_t most = int64_t{1} << 40;  // products of two such numbers are checked where they are made
}

Settings::Settings(std::string_view text, const std::string& file)
    : Settings(json::parse(text, file, {.max_bytes = largest_settings, .code = ExitCode::checkpoint}), file,
               "") {
    require(value_.is_object(), ExitCode::checkpoint, "{} is not a JSON object", file);
}

Settings::Settings(json::Value value, std::string file, std::string prefix)
    : value_(std::move(value)), file_(std::move(file)), prefix_(std::move(prefix)) {}

const json::Value* Settings::find(const std::string& key) const {
    read_.insert(key);
    const json::Value* found = value_.find(key);
    return found != nullptr && found->is_null() ? nullptr : found;
}

bool Settings::has(const std::string& key) const {
    return find(key) != nullptr;
}

void Settings::fail_at(const std::string& key, const std::string& what) const {
    const json::Value* found = value_.find(key);
    const std::string place = found == nullptr || found->at().line == 0
                                  ? ""
                                  : fmt::format(":{}:{}", found->at().line, found->at().column);
    fail(ExitCode::checkpoint, "{}{}: {}{}: {}", file_, place, prefix_, one_line(key), what);
}

void Settings::refuse(const std::string& key, const std::string& reason) const {
    fail_at(key, reason);
}

int64_t Settings::integer(const std::string& key, int64_t fallback, int64_t least) const {
    const json::Value* found = find(key);
    if (found == nullptr) return fallback;
    const std::optional<int64_t> value = found->to_int64();
    if (!value || *value < least || *value > most)
        fail_at(key, fmt::format("expected an integer of at least {}", least));
    return *value;
}

int64_t Settings::needed(const std::string& key) const {
    if (find(key) == nullptr) fail_at(key, "is missing");
    return integer(key, 0, 1);
}

double Settings::number(const std::string& key, double fallback) const {
    const json::Value* found = find(key);
    if (found == nullptr) return fallback;
    const std::optional<double> value = found->to_number();
    if (!value || !std::isfinite(*value)) fail_at(key, "expected a number");
    return *value;
}

bool Settings::flag(const std::string& key, bool fallback) const {
    const json::Value* found = find(key);
    if (found == nullptr) return fallback;
    const std::optional<bool> value = found->to_bool();
    if (!value) fail_at(key, "expected true or false");
    return *value;
}

std::string Settings::text(const std::string& key, const std::string& fallback) const {
    const json::Value* found = find(key);
    if (found == nullptr) return fallback;
    const std::string* value = found->to_string();
    if (value == nullptr) fail_at(key, "expected a string");
    return *value;
}

std::vector<std::string> Settings::texts(const std::string& key) const {
    const json::Value* found = find(key);
    if (found == nullptr) return {};
    const json::Array* list = found->to_array();
    if (list == nullptr) fail_at(key, "expected a list of strings");
    std::vector<std::string> texts;
    for (const json::Value& element : *list) {
        if (!element.is_string()) fail_at(key, "expected a list of strings");
        texts.push_back(element.as_string());
    }
    return texts;
}

Settings Settings::section(const std::string& key) const {
    const json::Value* found = find(key);
    if (found == nullptr) return {json::Value::object(), file_, prefix_ + key + "."};
    if (!found->is_object()) fail_at(key, "expected an object");
    return {*found, file_, prefix_ + key + "."};
}

void Settings::only(const std::string& key, const json::Value& wanted) const {
    const json::Value* found = find(key);
    if (found == nullptr || *found == wanted) return;
    const std::optional<double> number = found->to_number();
    if (number && wanted.to_number() == number) return;  // 1 and 1.0
    fail_at(key, fmt::format("{} is not supported; only {} is", json::write(*found, json::Style::compact),
                             json::write(wanted, json::Style::compact)));
}

void Settings::ignore(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) read_.insert(key);
}

std::vector<std::string> Settings::unread() const {
    std::vector<std::string> keys;
    if (const json::Object* members = value_.to_object())
        for (const json::Member& member : *members)
            if (!member.value.is_null() && read_.count(member.key) == 0)
                keys.push_back(one_line(prefix_ + member.key));
    return keys;
}

}  // namespace longreach::exchange
