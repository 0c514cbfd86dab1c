// The bytes of a text: of a file as it is, of what a gzip or Zstandard file unpacks to, or of standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/file.h"

namespace longreach::text {

class TextBytes {
  public:
    virtual ~TextBytes() = default;
    // Fills `out` as far as the text goes: less than `size` bytes mean its end. Error(ExitCode::data) for a
    // damaged archive, one that ends early or one of a kind that this build cannot unpack.
    virtual size_t read(char* out, size_t size) = 0;
    // Bytes consumed of the file so far, packed as it is.
    virtual uint64_t position() const = 0;
};

inline constexpr const char* standard_input = "-";

// `path` may be standard_input. The first bytes of a file decide what it is, not its name.
std::unique_ptr<TextBytes> open_text(const std::string& path, io::Links links);

// The name without the ending of an archive: "a/b.jsonl" of "a/b.jsonl.gz".
std::string unpacked_name(const std::string& name);

bool is_packed(const io::File& file);

}  // namespace longreach::text
