// A model in a GGUF file as Hugging Face's layout has it: the same settings under the names of config.json, the same tensors under
// their names there, the same tokenizer.json. The forms (family.h) then read it like any other model.
#pragma once

#include <memory>

#include "exchange/gguf_file.h"
#include "exchange/settings.h"
#include "exchange/tokenizer_files.h"
#include "exchange/weights.h"

namespace longreach::exchange {

// The config.json of the model. Error(ExitCode::checkpoint) names the key that has no equal there.
Settings gguf_settings(const GgufFile& file);

// The tensors as that config.json asks for them. What the program that wrote the file changed is changed back: the order of the
// rows of queries and keys in Llama, 1 added to the gains of Gemma.
Weights gguf_weights(std::shared_ptr<const GgufFile> file, const Settings& settings);

// tokenizer.json and the files that go with it. A tokenizer that is not byte-level BPE with a known way to split words is a
// problem in the result.
TokenizerFiles gguf_tokenizer(const GgufFile& file);

}  // namespace longreach::exchange
