#include "exchange/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace longreach::exchange {

namespace {

struct Architecture {
    const char *name, *model_type;
    bool interleaved = false;   // the two channels of a rotary pair stand next to each other
    bool raised_gains = false;  // gains are stored with 1 added
    // A model with this number of layers scales scores by its width over its heads, others by a head's size.
    int64_t wide_layers = 0;
};
constexpr Architecture architectures[] = {
    {.name = "llama", .model_type = "llama", .interleaved = true},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen3", .model_type = "qwen3"},
    {.name = "olmo2", .model_type = "olmo2"},
    {.name = "gemma", .model_type = "gemma", .raised_gains = true},
    {.name = "gemma2", .model_type = "gemma2", .raised_gains = true, .wide_layers = 46},
    {.name = "gemma3", .model_type = "gemma3_text", .raised_gains = true, .wide_layers = 62},
};

[[noreturn]] void refuse(const GgufFile& file, const std::string& key, const std::string& why) {
    fail(ExitCode::checkpoint, "{}: {}: {}", file.path(), key, why);
}

std::string text_of(const GgufFile& file, const std::string& key, const std::string& fallback) {
    const GgufValue* value = file.find(key);
    if (value == nullptr) return fallback;
    const std::string* text = value->scalar.to_string();
    if (text == nullptr) refuse(file, key, "expected a string");
    return *text;
}

const Architecture& architecture_of(const GgufFile& file) {
    const std::string name = text_of(file, "general.architecture", "");
    std::vector<std::string> known;
    for (const Architecture& architecture : architectures) {
        known.emplace_back(architecture.name);
        if (name == architecture.name) return architecture;
    }
    refuse(file, "general.architecture",
           fmt::format("{} is not supported; known are {}", shown(name), join(known, ", ")));
}

// The keys of an architecture, each of which is asked for or refused.
class Keys {
  public:
    Keys(const GgufFile& file, std::string architecture)
        : file_(file), prefix_(std::move(architecture) + ".") {}

    [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
        exchange::refuse(file_, prefix_ + key, why);
    }

    const GgufValue* find(const std::string& key) {
        asked_.insert(key);
        const GgufValue* value = file_.find(prefix_ + key);
        if (value != nullptr && value->list)
            refuse(key, "a list is not read; one value has to hold for all layers");
        return value;
    }

    std::optional<int64_t> integer(const std::string& key) {
        const GgufValue* value = find(key);
        if (value == nullptr) return std::nullopt;
        const std::optional<int64_t> number = value->scalar.to_int64();
        if (!number || *number < 0 || *number > int64_t{1} << 40)
            refuse(key, "expected an integer of at least 0");
        return number;
    }

    int64_t needed(const std::string& key) {
        const std::optional<int64_t> number = integer(key);
        if (!number) refuse(key, "is missing");
        if (*number == 0) refuse(key, "must be above 0");
        return *number;
    }

    std::optional<double> number(const std::string& key) {
        const GgufValue* value = find(key);
        if (value == nullptr) return std::nullopt;
        const std::optional<double> number = value->scalar.to_number();
        if (!number || !std::isfinite(*number)) refuse(key, "expected a finite number");
        return number;
    }

    void only(const std::string& key, double wanted) {
        if (const std::optional<double> found = number(key); found && *found != wanted)
            refuse(key, fmt::format("{} is not supported; only {} is", *found, wanted));
    }

    // A key that nobody asked for may change a logit, unless its value says that there is nothing.
    void refuse_others() const {
        for (const auto& [key, value] : file_.metadata()) {
            if (!key.starts_with(prefix_) || asked_.count(key.substr(prefix_.size())) > 0) continue;
            const bool none =
                !value.list && (value.scalar.to_bool() == false || value.scalar.to_number() == 0.0);
            if (!none) exchange::refuse(file_, key, "is not supported");
        }
    }

  private:
    const GgufFile& file_;
    std::string prefix_;
    std::set<std::string> asked_;
};

// Llama 3 divides its frequencies by factors that the file holds as a tensor. Those of the published models follow from one
// number, the largest of them.
std::optional<json::Value> llama3_scaling(const GgufFile& file, double base) {
    const GgufTensor* tensor = file.find_tensor("rope_freqs.weight");
    if (tensor == nullptr) return std::nullopt;
    const auto unknown = [&](const char* why) {
        fail(ExitCode::checkpoint, "{}: rope_freqs.weight {}", file.path(), why);
    };
    if (tensor->shape.size() != 1) unknown("is not a list of factors");
    const std::vector<float> factors = file.read(*tensor);
    const double low = 1, high = 4, context = 8192,
                 factor = *std::max_element(factors.begin(), factors.end());
    const double pairs = static_cast<double>(factors.size());
    for (size_t i = 0; i < factors.size(); ++i) {
        const double turns =
            context / (2 * std::numbers::pi * std::pow(base, static_cast<double>(i) / pairs));
        const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
        const double expected = 1 / ((1 - smooth) / factor + smooth);
        if (!(std::abs(factors[i] - expected) <= 1e-4 * expected))
            unknown(
                "holds factors other than those of Llama 3 (low 1, high 4, 8192 tokens), which are not supported");
    }
    return json::Value::object({{"rope_type", "llama3"},
                                {"factor", factor},
                                {"low_freq_factor", low},
                                {"high_freq_factor", high},
                                {"original_max_position_embeddings", static_cast<int64_t>(context)}});
}

void add_rope(const GgufFile& file, Keys& keys, json::Value& config) {
    const double base = keys.number("rope.freq_base").value_or(10000);
    config.set("rope_theta", base);
    if (const auto local = keys.number("rope.freq_base_swa")) config.set("rope_local_base_freq", *local);
    keys.find("rope.scaling.finetuned");
    keys.only("rope.scaling.attn_factor", 1);
    const GgufValue* type_value = keys.find("rope.scaling.type");
    const std::string* type_text = type_value == nullptr ? nullptr : type_value->scalar.to_string();
    if (type_value != nullptr && type_text == nullptr) keys.refuse("rope.scaling.type", "expected a string");
    const std::optional<double> older = keys.number("rope.scale_linear"),
                                factor = keys.number("rope.scaling.factor");
    const std::string type = type_text != nullptr ? *type_text : older && *older != 1 ? "linear" : "none";
    const std::optional<int64_t> original = keys.integer("rope.scaling.original_context_length");
    const std::optional<double> fast = keys.number("rope.scaling.yarn_beta_fast"),
                                slow = keys.number("rope.scaling.yarn_beta_slow");
    const std::optional<json::Value> llama3 = llama3_scaling(file, base);
    if (llama3) {
        if (type != "none")
            keys.refuse("rope.scaling.type", "is not supported together with rope_freqs.weight");
        config.set("rope_scaling", *llama3);
    } else if (type == "linear") {
        config.set("rope_scaling", json::Value::object({{"rope_type", "linear"},
                                                        {"factor", factor.value_or(older.value_or(0))}}));
    } else if (type == "yarn") {
        json::Value scaling = json::Value::object({{"rope_type", "yarn"}, {"factor", factor.value_or(0)}});
        if (original) scaling.set("original_max_position_embeddings", *original);
        if (fast) scaling.set("beta_fast", *fast);
        if (slow) scaling.set("beta_slow", *slow);
        config.set("rope_scaling", scaling);
    } else if (type != "none") {
        keys.refuse("rope.scaling.type",
                    fmt::format("{} is not supported; none, linear and yarn are", shown(type)));
    }
}

void add_attention(const Architecture& architecture, Keys& keys, json::Value& config) {
    const int64_t heads = keys.needed("attention.head_count"), width = keys.needed("embedding_length");
    const int64_t head_dim = keys.integer("attention.key_length").value_or(width / heads);
    config.set("num_attention_heads", heads)
        .set("num_key_value_heads", keys.integer("attention.head_count_kv").value_or(heads))
        .set("head_dim", head_dim);
    for (const char* same : {"attention.value_length", "rope.dimension_count"})
        if (const std::optional<int64_t> size = keys.integer(same); size && *size != head_dim)
            keys.refuse(same,
                        fmt::format("{} is not supported; only the size of a key, {}, is", *size, head_dim));
    if (const GgufValue* causal = keys.find("attention.causal");
        causal != nullptr && causal->scalar.to_bool() != true)
        keys.refuse("attention.causal", "only true is supported");
    for (const auto& [key, setting] : {std::pair{"attn_logit_softcapping", "attn_logit_softcapping"},
                                       {"final_logit_softcapping", "final_logit_softcapping"}})
        if (const auto cap = keys.number(key)) config.set(setting, *cap);
    if (architecture.wide_layers > 0)
        config.set("query_pre_attn_scalar",
                   keys.needed("block_count") == architecture.wide_layers ? width / heads : head_dim);
    const std::optional<int64_t> window = keys.integer("attention.sliding_window");
    const std::string form = architecture.model_type;
    if (!window || *window == 0) return;
    if (form != "llama" && form != "gemma2" && form != "gemma3_text")
        keys.refuse("attention.sliding_window", "is not supported: the file does not say in which layers");
    if (form == "llama") config.set("model_type", "mistral");
    config.set("sliding_window", *window);
    if (const auto period = keys.integer("attention.sliding_window_pattern"))
        config.set("sliding_window_pattern", *period);
}

// The name in Hugging Face's layout; the name itself if it has none.
std::string hub_name(const Architecture& architecture, const std::string& name) {
    static const std::map<std::string, std::string> whole{
        {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
    static const std::map<std::string, std::string> of_layers{
        {"attn_norm", "input_layernorm"},
        {"attn_q", "self_attn.q_proj"},
        {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},
        {"attn_output", "self_attn.o_proj"},
        {"attn_q_norm", "self_attn.q_norm"},
        {"attn_k_norm", "self_attn.k_norm"},
        {"post_attention_norm", "post_attention_layernorm"},
        {"ffn_norm", "post_attention_layernorm"},
        {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"},
        {"post_ffw_norm", "post_feedforward_layernorm"},
    };
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return name;
    const std::string stem = name.substr(0, dot), end = name.substr(dot);
    if (const auto at = whole.find(stem); at != whole.end()) return at->second + end;
    const size_t number = stem.find('.');
    if (number == std::string::npos || stem.substr(0, number) != "blk") return name;
    const size_t rest = stem.find('.', number + 1);
    if (rest == std::string::npos) return name;
    const std::string layer = "model.layers." + stem.substr(number + 1, rest - number),
                      part = stem.substr(rest + 1);
    const std::string form = architecture.model_type;
    if (part == "ffn_norm" && (form == "gemma2" || form == "gemma3_text"))
        return layer + "pre_feedforward_layernorm" + end;
    const auto at = of_layers.find(part);
    return at == of_layers.end() ? name : layer + at->second + end;
}

// Rows from the order of pairs, 2 i and 2 i + 1 in each head, to that of halves, i and d / 2 + i.
std::vector<float> halves_of_pairs(const std::vector<float>& pairs, size_t rows, size_t heads) {
    const size_t columns = pairs.size() / rows, head_dim = rows / heads;
    std::vector<float> halves(pairs.size());
    for (size_t r = 0; r < rows; ++r) {
        const size_t head = r / head_dim, i = r % head_dim;
        const size_t from = head * head_dim + 2 * (i % (head_dim / 2)) + i / (head_dim / 2);
        std::copy_n(pairs.begin() + static_cast<std::ptrdiff_t>(from * columns), columns,
                    halves.begin() + static_cast<std::ptrdiff_t>(r * columns));
    }
    return halves;
}

}  // namespace

Settings gguf_settings(const GgufFile& file) {
    const Architecture& architecture = architecture_of(file);
    if (const std::string type = text_of(file, "general.type", "model"); type != "model")
        refuse(file, "general.type", fmt::format("{} is not supported; only model is", shown(type)));
    if (const GgufValue* parts = file.find("split.count"); parts != nullptr && parts->scalar.to_int64() != 1)
        refuse(file, "split.count",
               "a model in several files is not supported; join them first (llama-gguf-split --merge)");
    const GgufTensor* embedding = file.find_tensor("token_embd.weight");
    require(embedding != nullptr && embedding->shape.size() == 2, ExitCode::checkpoint,
            "{} has no matrix token_embd.weight", file.path());

    Keys keys(file, architecture.name);
    const auto has = [&](const char* name) { return file.find_tensor(name) != nullptr; };
    const std::optional<double> eps = keys.number("attention.layer_norm_rms_epsilon");
    if (!eps) keys.refuse("attention.layer_norm_rms_epsilon", "is missing");
    const int64_t vocab = embedding->shape[0];
    if (const auto told = keys.integer("vocab_size"); told && *told != vocab)
        keys.refuse("vocab_size", fmt::format("is {}; token_embd.weight has {} rows", *told, vocab));
    json::Value config = json::Value::object({{"model_type", architecture.model_type},
                                              {"vocab_size", vocab},
                                              {"num_hidden_layers", keys.needed("block_count")},
                                              {"max_position_embeddings", keys.needed("context_length")},
                                              {"hidden_size", keys.needed("embedding_length")},
                                              {"intermediate_size", keys.needed("feed_forward_length")},
                                              {"rms_norm_eps", *eps},
                                              {"tie_word_embeddings", !has("output.weight")}});
    if (has("blk.0.attn_output.bias")) config.set("attention_bias", true);
    if (has("blk.0.ffn_up.bias")) config.set("mlp_bias", true);
    add_attention(architecture, keys, config);
    add_rope(file, keys, config);
    keys.refuse_others();
    return Settings::made(std::move(config), file.path());
}

Weights gguf_weights(std::shared_ptr<const GgufFile> file, const Settings& settings) {
    const Architecture& architecture = architecture_of(*file);
    const auto heads = static_cast<size_t>(settings.needed("num_attention_heads")),
               kv_heads = static_cast<size_t>(settings.needed("num_key_value_heads"));
    Weights weights;
    for (const GgufTensor& tensor : file->tensors()) {
        if (tensor.name == "rope_freqs.weight") continue;  // in the settings
        const std::string name = hub_name(architecture, tensor.name);
        const size_t rows = tensor.shape.empty() ? 1 : static_cast<size_t>(tensor.shape[0]);
        const bool queries = name.find(".q_proj.") != std::string::npos,
                   paired = queries || name.find(".k_proj.") != std::string::npos;
        const size_t groups = queries ? heads : kv_heads;
        const bool reordered = architecture.interleaved && paired && rows % (2 * groups) == 0;
        const bool raised = architecture.raised_gains && name.ends_with("norm.weight");
        const bool added = weights.add(name, {tensor.shape, "", [=, at = &tensor] {
                                                  std::vector<float> values = file->read(*at);
                                                  if (reordered)
                                                      values = halves_of_pairs(values, rows, groups);
                                                  if (raised)
                                                      for (float& value : values) value -= 1;
                                                  return values;
                                              }});
        require(added, ExitCode::checkpoint, "{}: {} and another tensor are both {}", file->path(),
                tensor.name, name);
    }
    return weights;
}

}  // namespace longreach::exchange
