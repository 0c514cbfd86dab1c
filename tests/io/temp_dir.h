// A directory that lives as long as a test, and bytes in and out of files.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/file.h"

namespace longreach::test {

// In memory where the system offers it: the tests that count crash points sync thousands of files.
inline std::string temp_base() {
    const char* chosen = std::getenv("TMPDIR");
    if (chosen == nullptr && ::access("/dev/shm", W_OK) == 0) return "/dev/shm";
    return std::filesystem::temp_directory_path().string();
}

class TempDir {
  public:
    TempDir() {
        std::string pattern = io::join_path(temp_base(), "longreach.XXXXXX");
        check(::mkdtemp(pattern.data()) != nullptr, "no temporary directory {}", pattern);
        path_ = pattern;
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(std::string_view name) const { return io::join_path(path_, name); }

  private:
    std::string path_;
};

inline void put(const std::string& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    check(out.good(), "cannot write {}", path);
}

inline std::string get(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    check(in.good(), "cannot read {}", path);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The message of the Error `action` throws, with its exit code in front ("3: ..."); "no error" otherwise.
template <class Action>
std::string error_of(Action action) {
    try {
        action();
    } catch (const Error& error) {
        return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
    }
    return "no error";
}

// `text` with every `part` replaced by "x": messages without the name of a temporary directory.
inline std::string anonymous(const std::string& text, const std::string& part) {
    std::string result;
    size_t at = 0;
    for (size_t next; (next = text.find(part, at)) != std::string::npos; at = next + part.size())
        result.append(text, at, next - at).push_back('x');
    return result.append(text, at, std::string::npos);
}

inline bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

}  // namespace longreach::test
