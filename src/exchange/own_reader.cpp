// A model that this program exported with its own code.
#include "exchange/family.h"

namespace longreach::exchange {

void read_own(const Settings& s, Foreign& foreign) {
    s.ignore({"architectures", "auto_map", "vocab_size", "hidden_size", "num_hidden_layers",
              "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
              "tie_word_embeddings", "longreach", "torch_dtype", "dtype", "longreach_version",
              "transformers_version", "bos_token_id", "eos_token_id"});
    foreign.model = s.section("longreach_model").value();
    if (foreign.model.find("train_context") == nullptr || !foreign.model.find("train_context")->to_int64())
        s.refuse("longreach_model", "is not the model of a config");
    foreign.prefix = "tree.";
}

}  // namespace longreach::exchange
