// A model of this program as one that transformers has a class for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "exchange/family.h"
#include "model/model_config.h"

namespace longreach::exchange {

struct Stock {
    std::string architecture;                    // "LlamaForCausalLM"
    json::Value config = json::Value::object();  // config.json
    Foreign places;                              // of the tensors
    // Gains that the class has and the model lacks, because its norms are plain: theirs, and their length. All are 1.
    std::vector<std::pair<std::string, int64_t>> ones;
};

// The first class that computes exactly this model, of LlamaForCausalLM and Qwen3ForCausalLM. Empty if there is
// none; `why` then says for each class what the model has that it lacks.
std::optional<Stock> stock_form(const model::ModelConfig& model, std::string& why);

}  // namespace longreach::exchange
