// GPT-2: LayerNorm, biases everywhere, a learned table of positions, the head tied to the embedding. Its matrices act from
// the other side, so they are transposed; queries, keys and values are parts of one.
#include <fmt/format.h>

#include "exchange/family.h"

namespace longreach::exchange {

namespace {

void add_places(Foreign& foreign) {
    auto& places = foreign.places;
    const std::string model = "transformer.", layer = "transformer.h.*.";
    places["embedding.weight"] = {.name = model + "wte.weight"};
    places["position_embedding.weight"] = {.name = model + "wpe.weight"};
    places["head.weight"] = {.name = "lm_head.weight"};
    const auto norm = [&](const std::string& ours, const std::string& theirs) {
        places[ours + ".gain"] = {.name = theirs + ".weight"};
        places[ours + ".bias"] = {.name = theirs + ".bias"};
    };
    norm("final_norm", model + "ln_f");
    norm("layers.*.attention_norm", layer + "ln_1");
    norm("layers.*.mlp_norm", layer + "ln_2");
    const auto linear = [&](const std::string& ours, const std::string& theirs, int64_t part, int64_t parts) {
        places[ours + ".weight"] = {
            .name = theirs + ".weight", .transposed = true, .part = part, .parts = parts};
        places[ours + ".bias"] = {.name = theirs + ".bias", .part = part, .parts = parts};
    };
    linear("layers.*.attention.q", layer + "attn.c_attn", 0, 3);
    linear("layers.*.attention.k", layer + "attn.c_attn", 1, 3);
    linear("layers.*.attention.v", layer + "attn.c_attn", 2, 3);
    linear("layers.*.attention.o", layer + "attn.c_proj", 0, 1);
    linear("layers.*.mlp.up", layer + "mlp.c_fc", 0, 1);
    linear("layers.*.mlp.down", layer + "mlp.c_proj", 0, 1);
    foreign.ignored = {"attn.bias", "attn.masked_bias"};  // stored masks
}

}  // namespace

void read_gpt2(const Settings& s, Foreign& foreign) {
    s.ignore({"architectures",
              "torch_dtype",
              "dtype",
              "transformers_version",
              "use_cache",
              "initializer_range",
              "bos_token_id",
              "eos_token_id",
              "pad_token_id",
              "_name_or_path",
              "resid_pdrop",
              "embd_pdrop",
              "attn_pdrop",
              "summary_type",
              "summary_use_proj",
              "summary_activation",
              "summary_proj_to_labels",
              "summary_first_dropout",
              "task_specific_params",
              "n_ctx",
              "reorder_and_upcast_attn"});
    s.only("scale_attn_weights", true);
    s.only("scale_attn_by_inverse_layer_idx", false);
    s.only("add_cross_attention", false);
    const std::string activation = s.text("activation_function", "gelu_new");
    if (activation != "gelu_pytorch_tanh") s.only("activation_function", "gelu_new");
    const int64_t width = s.needed("n_embd"), heads = s.needed("n_head"), positions = s.needed("n_positions");
    if (width % heads != 0) s.refuse("n_head", fmt::format("does not divide the width {}", width));
    foreign.model.set("layers", s.needed("n_layer"))
        .set("width", width)
        .set("vocab_size", s.needed("vocab_size"))
        .set("train_context", positions)
        .set("embedding_norm", false)
        .set("positions", positions)
        .set("norm", json::Value::object(
                         {{"kind", "layer"}, {"gain", true}, {"eps", s.number("layer_norm_epsilon", 1e-5)}}))
        .set("mlp",
             json::Value::object(
                 {{"kind", "gelu_tanh"}, {"hidden", s.integer("n_inner", 4 * width, 1)}, {"bias", true}}))
        .set("head", json::Value::object({{"tied", s.flag("tie_word_embeddings", true)}}))
        .set("attention", json::Value::object({{"heads", heads},
                                               {"head_dim", width / heads},
                                               {"angle", "nope"},
                                               {"qk", json::Value::object({{"kind", "none"}})},
                                               {"bias", "all"}}));
    add_places(foreign);
}

}  // namespace longreach::exchange
