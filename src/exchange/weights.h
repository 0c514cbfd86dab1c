// The tensors of a model by their names in Hugging Face's layout: of model.safetensors, or of the shards that
// model.safetensors.index.json lists, or of another file whose reader adds them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace longreach::exchange {

// Which file of the directory holds each tensor.
struct WeightIndex {
    std::map<std::string, std::string> files;  // by name of the tensor
    std::vector<std::string> shards;           // names, each once, in byte order
};
// Reads a model.safetensors.index.json. A name of a file is a plain name with the ending .safetensors: nothing outside
// the directory is ever opened.
WeightIndex parse_index(std::string_view text, const std::string& file);

struct ForeignTensor {
    std::vector<int64_t> shape;
    std::string refusal = {};                  // why it has no values as f32; empty: it has
    std::function<std::vector<float>()> read;  // the values as f32, which f32, f16 and bf16 become exactly
};

class Weights {
  public:
    // Opens every shard and compares it with the index. Errors have ExitCode::checkpoint.
    static Weights open(const std::string& directory);

    // False if there is one of that name.
    bool add(const std::string& name, ForeignTensor tensor);
    const std::map<std::string, ForeignTensor>& tensors() const { return tensors_; }
    const ForeignTensor* find(const std::string& name) const;  // null: there is none

  private:
    std::map<std::string, ForeignTensor> tensors_;
};

// f32 from the bits of an f16.
float half_value(uint16_t bits);

}  // namespace longreach::exchange
