// Unpacks gzip and Zstandard piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace longreach::text {

class Unpacker {
  public:
    struct Step {
        size_t consumed = 0, produced = 0;
        std::string error;  // why the archive is damaged; empty if it is not
    };
    virtual ~Unpacker() = default;
    // Unpacks as much of `in` as fits `out`, at least one byte of either if both have room. Archives one after the
    // other in a file are one text.
    virtual Step step(std::span<const char> in, std::span<char> out) = 0;
    virtual bool between_members() const = 0;  // no archive is begun and not complete
};

// Which archive begins with these bytes: "gzip", "Zstandard", or "".
std::string_view archive_kind(std::string_view head);

// Null if this build was made without the library of that kind.
std::unique_ptr<Unpacker> make_unpacker(std::string_view kind);

}  // namespace longreach::text
