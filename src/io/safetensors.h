// safetensors: named tensors in one file.
//
//     u64 N | N bytes of JSON, padded with spaces | tensor data without holes
//
// The reader accepts a strict subset of what the reference accepts: all rules of the reference, and it also
// refuses ambiguous files (duplicate names or keys, unknown fields) and names that are empty, hold control
// characters or climb out of a directory. Each rule has a message of its own. Nothing is
// allocated from a size the file only claims: header and tensors are compared with the file's length first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/file.h"

namespace longreach::io {

// Element types, by their names in the format.
enum class StoredType : uint8_t {
    boolean,
    f4,
    f6_e2m3,
    f6_e3m2,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    f8_e8m0,
    f8_e4m3fnuz,
    f8_e5m2fnuz,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    c64,
    f64,
    i64,
    u64
};
std::string_view name_of(StoredType type);  // "BF16"
int bits_of(StoredType type);

struct StoredTensor {
    std::string name;
    StoredType type = StoredType::f32;
    std::vector<int64_t> shape;   // empty: a scalar
    uint64_t begin = 0, end = 0;  // bytes, counted from the first tensor byte of the file
    uint64_t bytes() const { return end - begin; }
};

using Metadata = std::map<std::string, std::string>;

// Lays out a file: tensors by falling alignment, then by name, so that each is aligned; `__metadata__` first.
class SafetensorsWriter {
  public:
    // Ignores the begin and end given. `metadata` is added to {"format": "pt"}, which other readers look for.
    SafetensorsWriter(std::vector<StoredTensor> tensors, const Metadata& metadata = {});

    const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in file order
    uint64_t file_bytes() const;

    // Streams the file. `data` is called for each tensor in file order and
    // writes exactly tensor.bytes() bytes.
    using Data = std::function<void(const StoredTensor& tensor, ByteSink& out)>;
    void write(ByteSink& out, const Data& data) const;

  private:
    std::vector<StoredTensor> tensors_;
    std::string header_;  // with its length in front
};

class SafetensorsFile {
  public:
    // Errors have ExitCode::checkpoint, or ExitCode::disk if the disk fails.
    static SafetensorsFile open(const std::string& path, Links links = Links::follow,
                                Disk& disk = Disk::system());

    const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in file order
    const StoredTensor* find(std::string_view name) const;                 // null: no such tensor
    const Metadata& metadata() const { return metadata_; }

    // Bytes [offset, offset + size) of a tensor's data. Safe to call from several threads.
    void read(const StoredTensor& tensor, void* out, uint64_t size, uint64_t offset = 0) const;

  private:
    SafetensorsFile() = default;
    File file_;
    std::vector<StoredTensor> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // views of tensors_' names
    Metadata metadata_;
    uint64_t data_offset_ = 0;
};

}  // namespace longreach::io
