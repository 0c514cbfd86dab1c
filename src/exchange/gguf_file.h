// GGUF: metadata and named tensors in one file, as llama.cpp writes it.
//
//     "GGUF" | u32 version | u64 tensors | u64 keys
//     keys:    string key | u32 type | value        a string is a u64 length and its bytes, a list a u32 type, a u64 count and values
//     tensors: string name | u32 dimensions | u64 each, the fastest first | u32 type | u64 offset
//     data at the next multiple of general.alignment (32), from which offsets count
//
// Versions 2 and 3, little-endian. Nothing is allocated from a size that the file only claims: counts and lengths are compared with
// what the file holds, and the part before the data has at most 64 MiB.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "exchange/gguf_types.h"
#include "io/file.h"

namespace longreach::exchange {

struct GgufValue {
    bool list = false;
    // Null for a list; f32 as the shortest decimal that reads back to its bits.
    json::Value scalar = nullptr;
    std::vector<std::string> texts = {};  // of a list of strings, any bytes
    std::vector<double> numbers = {};     // of any other list
};

struct GgufTensor {
    std::string name;
    std::vector<int64_t> shape;  // the fastest dimension last
    const BlockType* type = nullptr;
    uint64_t begin = 0, bytes = 0;  // in the file
};

class GgufFile {
  public:
    // Errors have ExitCode::checkpoint, or ExitCode::disk if the disk fails.
    static GgufFile open(const std::string& path, io::Links links = io::Links::follow);

    const std::string& path() const { return file_.path(); }
    const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
    const GgufValue* find(const std::string& key) const;  // null: no such key
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufTensor* find_tensor(const std::string& name) const;  // null: no such tensor

    std::vector<float> read(const GgufTensor& tensor) const;

  private:
    io::File file_;
    std::map<std::string, GgufValue> metadata_;
    std::vector<GgufTensor> tensors_;  // in the order of their data
    std::map<std::string, size_t> by_name_;
};

}  // namespace longreach::exchange
