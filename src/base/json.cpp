#include "base/json.h"

#include <algorithm>
#include <numeric>

namespace longreach::json {
namespace {

std::string_view name_of(Kind kind) {
    constexpr std::string_view names[] = {"null", "boolean", "integer", "real", "string", "array", "object"};
    return names[static_cast<size_t>(kind)];
}

void check_kind(bool ok, std::string_view wanted, const Value& value) {
    check(ok, "JSON value is {}, not {}", name_of(value.kind()), wanted);
}

}  // namespace

Value::Value(Array value) : data_(std::move(value)) {}
Value::Value(Object value) : data_(std::move(value)) {}

Value Value::array(std::initializer_list<Value> elements) {
    return Value(Array(elements));
}
Value Value::object(std::initializer_list<Member> members) {
    return Value(Object(members));
}

Kind Value::kind() const {
    // By index of data_: both integer types are one kind.
    constexpr Kind kinds[] = {Kind::null, Kind::boolean, Kind::integer, Kind::integer,
                              Kind::real, Kind::string,  Kind::array,   Kind::object};
    return kinds[data_.index()];
}

std::optional<bool> Value::to_bool() const {
    const bool* b = std::get_if<bool>(&data_);
    return b ? std::optional(*b) : std::nullopt;
}

std::optional<int64_t> Value::to_int64() const {
    const int64_t* i = std::get_if<int64_t>(&data_);
    return i ? std::optional(*i) : std::nullopt;
}

std::optional<uint64_t> Value::to_uint64() const {
    if (const uint64_t* u = std::get_if<uint64_t>(&data_)) return *u;
    const int64_t* i = std::get_if<int64_t>(&data_);
    return i && *i >= 0 ? std::optional(static_cast<uint64_t>(*i)) : std::nullopt;
}

std::optional<double> Value::to_number() const {
    if (const double* d = std::get_if<double>(&data_)) return *d;
    if (const int64_t* i = std::get_if<int64_t>(&data_)) return static_cast<double>(*i);
    if (const uint64_t* u = std::get_if<uint64_t>(&data_)) return static_cast<double>(*u);
    return std::nullopt;
}

const std::string* Value::to_string() const {
    return std::get_if<std::string>(&data_);
}
const Array* Value::to_array() const {
    return std::get_if<Array>(&data_);
}
const Object* Value::to_object() const {
    return std::get_if<Object>(&data_);
}

bool Value::as_bool() const {
    check_kind(kind() == Kind::boolean, "boolean", *this);
    return std::get<bool>(data_);
}

int64_t Value::as_int64() const {
    const auto i = to_int64();
    check_kind(i.has_value(), "a signed 64-bit integer", *this);
    return *i;
}

uint64_t Value::as_uint64() const {
    const auto u = to_uint64();
    check_kind(u.has_value(), "an unsigned 64-bit integer", *this);
    return *u;
}

double Value::as_number() const {
    const auto d = to_number();
    check_kind(d.has_value(), "a number", *this);
    return *d;
}

const std::string& Value::as_string() const {
    check_kind(is_string(), "string", *this);
    return std::get<std::string>(data_);
}

const Array& Value::as_array() const {
    check_kind(is_array(), "array", *this);
    return std::get<Array>(data_);
}

Array& Value::as_array() {
    check_kind(is_array(), "array", *this);
    return std::get<Array>(data_);
}

const Object& Value::as_object() const {
    check_kind(is_object(), "object", *this);
    return std::get<Object>(data_);
}

Object& Value::as_object() {
    check_kind(is_object(), "object", *this);
    return std::get<Object>(data_);
}

const Value* Value::find(std::string_view key) const {
    if (const Object* object = to_object())
        for (const Member& member : *object)
            if (member.key == key) return &member.value;
    return nullptr;
}

Value* Value::find(std::string_view key) {
    return const_cast<Value*>(std::as_const(*this).find(key));
}

Value& Value::set(std::string_view key, Value value) {
    if (is_null()) data_ = Object();
    if (Value* old = find(key)) {
        *old = std::move(value);
    } else {
        as_object().push_back({std::string(key), std::move(value)});
    }
    return *this;
}

Value& Value::push(Value value) {
    if (is_null()) data_ = Array();
    as_array().push_back(std::move(value));
    return *this;
}

bool operator==(const Value& a, const Value& b) {
    return a.data_ == b.data_;
}
bool operator==(const Member& a, const Member& b) {
    return a.key == b.key && a.value == b.value;
}

void require_format(const Value& root, int64_t known, const std::string& path, ExitCode code) {
    const Value* format = root.find("format");
    const std::optional<int64_t> number = format != nullptr ? format->to_int64() : 1;
    require(number == known, code, "{}: this version reads format {} of this file, not {}", path, known,
            number ? std::to_string(*number) : "another");
}

std::vector<std::pair<size_t, size_t>> duplicates(const Object& object) {
    std::vector<std::pair<size_t, size_t>> found;
    if (object.size() <= 8) {  // the usual case, without an allocation
        for (size_t later = 1; later < object.size(); ++later)
            for (size_t first = 0; first < later; ++first)
                if (object[first].key == object[later].key) {
                    found.emplace_back(first, later);
                    break;
                }
        return found;
    }
    std::vector<size_t> order(object.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        const int way = object[a].key.compare(object[b].key);
        return way != 0 ? way < 0 : a < b;
    });
    size_t first = order[0];
    for (size_t i = 1; i < order.size(); ++i) {
        if (object[order[i]].key == object[first].key) {
            found.emplace_back(first, order[i]);
        } else {
            first = order[i];
        }
    }
    std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.second < b.second; });
    return found;
}

}  // namespace longreach::json
