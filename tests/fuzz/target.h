// What the fuzz targets share. Each *_fuzz.cpp defines one LLVMFuzzerTestOneInput, which hands any
// bytes to one parser: libFuzzer calls it (tools/fuzz), and so does replay.cpp (the test fuzz_replay),
// under a name per target.
//
// A parser may accept its input or throw an Error that blames it. A crash, a sanitizer's finding, any other
// exception, an Error that calls itself a bug of the program, and a broken promise (holds) are findings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "io/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace longreach::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

inline void holds(bool promise, const char* what) {
    if (!promise) throw std::logic_error(what);
}

// Whether `action` ended without an Error.
template <class Action>
bool accepts(Action action) {
    try {
        action();
        return true;
    } catch (const Error& error) {
        if (error.code() == ExitCode::internal) throw;
        return false;
    }
}

// Inputs made of several texts, separated by a byte that UTF-8 does not have. At least one part.
constexpr char separator = '\xff';
inline std::vector<std::string_view> parts_of(std::string_view text) {
    std::vector<std::string_view> parts;
    for (size_t at; (at = text.find(separator)) != std::string_view::npos; text.remove_prefix(at + 1))
        parts.push_back(text.substr(0, at));
    parts.push_back(text);
    return parts;
}

// Files for parsers that read files: in memory (test::temp_base), under one name that is
// written again each time.
class Scratch {
  public:
    std::string put(std::string_view name, std::string_view bytes) const {
        const std::string path = directory_ / name;
        test::put(path, bytes);
        return path;
    }
    std::string operator/(std::string_view name) const { return directory_ / name; }
    const std::string& path() const { return directory_.path(); }

  private:
    test::TempDir directory_;
};

}  // namespace longreach::fuzz
