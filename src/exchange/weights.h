// The tensors of a model in Hugging Face's layout: model.safetensors, or the
// shards that model.safetensors.index.json lists.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace longreach::exchange {

// Which file of the directory holds each tensor.
struct WeightIndex {
    std::map<std::string, std::string> files;  // by name of the tensor
    std::vector<std::string> shards;           // names, each once, in byte order
};
// Reads a model.safetensors.index.json. A name of a file is a plain name with the ending .safetensors: nothing outside
// the directory is ever opened.
WeightIndex parse_index(std::string_view text, const std::string& file);

class Weights {
  public:
    // Opens every shard and compares it with the index. Errors have ExitCode::checkpoint.
    static Weights open(const std::string& directory);

    struct Place {
        const io::SafetensorsFile* file;
        const io::StoredTensor* tensor;
    };
    const std::map<std::string, Place>& tensors() const { return places_; }
    const Place* find(const std::string& name) const;  // null: there is none
    // The values as f32, which f32, f16 and bf16 become exactly. Another type is an Error, of both functions.
    void require_readable(const std::string& name) const;
    std::vector<float> read(const std::string& name) const;

  private:
    std::string directory_;
    std::vector<std::unique_ptr<io::SafetensorsFile>> files_;
    std::map<std::string, Place> places_;
};

// f32 from the bits of an f16.
float half_value(uint16_t bits);

}  // namespace longreach::exchange
