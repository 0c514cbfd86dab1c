// Models in the forms of other programs: what their settings mean as a model of this one, and where each of its tensors
// is in their files.
//
// A form is one function from settings to a `Foreign`. What a form does differently from this program is folded
// into the weights where that is exact (Place), and said in data/MODELS.md; what neither the config nor a
// Place can say is refused by name.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "exchange/settings.h"

namespace longreach::exchange {

// Where a tensor of ours is in theirs: ours = factor * (theirs + added), theirs transposed first if need be, and of
// `parts` equal groups of rows only the group `part`.
struct Place {
    std::string name;
    bool transposed = false;
    int64_t part = 0, parts = 1;
    double added = 0, factor = 1;
    bool plain() const { return !transposed && parts == 1 && added == 0 && factor == 1; }
};

struct Foreign {
    std::string family;                         // "Llama", for messages
    json::Value model = json::Value::object();  // the section "model" of a config
    std::map<std::string, Place> places;  // by name of ours; "*" stands for the number of a layer in both
    // If not empty: every tensor has this prefix and our name, and there are no places.
    std::string prefix;
    // Ends of the names of tensors that hold no weights, such as stored masks.
    std::vector<std::string> ignored;

    // The place of one of our tensors. It throws an Error(internal) if the form has none.
    Place place(const std::string& ours) const;
    bool ignores(const std::string& theirs) const;
};

// Error(ExitCode::checkpoint) names the setting that is not supported.
Foreign read_form(const Settings& settings);

// The forms, by model_type. A reader adds model and places to `foreign`.
using FormReader = void (*)(const Settings& settings, Foreign& foreign);
struct Form {
    const char* model_type;
    const char* family;
    FormReader read;
};
const std::vector<Form>& forms();

// --- parts that forms share

// Angles of rotary positions: sets `position` of an attention section. settings: with rope_theta, rope_scaling or
// rope_parameters. group: of the rope_parameters, "" if they have no groups.
struct Rope {
    double base = 10000;  // if the settings name none
    int64_t context = 0;  // max_position_embeddings
    std::string group;
};
void set_rotary(json::Value& attention, double base);  // every pair turns
void set_rope(json::Value& attention, const Settings& settings, const Rope& rope);

// The two kinds of a layer in layer_types, and sliding_window of the second: null stands for none, and 4096 where it is
// left out of the settings.
inline constexpr const char* full_attention = "full_attention";
inline constexpr const char* sliding_attention = "sliding_attention";
int64_t window_of(const Settings& settings);

// Gives every layer its attention: `plain`, with what `changes` says for the layer's kind laid over it.
void set_layers(json::Value& model, const json::Value& plain, const std::vector<std::string>& kinds,
                const std::map<std::string, json::Value>& changes);

// The names of the tensors that Llama and its descendants share; what a model does not have is not asked for.
void add_llama_places(Foreign& foreign);

void read_llama(const Settings& settings, Foreign& foreign);
void read_mistral(const Settings& settings, Foreign& foreign);
void read_qwen2(const Settings& settings, Foreign& foreign);
void read_qwen3(const Settings& settings, Foreign& foreign);
void read_olmo2(const Settings& settings, Foreign& foreign);
void read_gemma(const Settings& settings, Foreign& foreign);
void read_gemma2(const Settings& settings, Foreign& foreign);
void read_gemma3(const Settings& settings, Foreign& foreign);
void read_gpt2(const Settings& settings, Foreign& foreign);
void read_own(const Settings& settings, Foreign& foreign);

}  // namespace longreach::exchange
