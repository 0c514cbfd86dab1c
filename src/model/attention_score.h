// The score of a layer as one law: the formulas and names under `score`, with `params`.
#pragma once

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "law/library.h"
#include "model/model_config.h"
#include "model/post_hoc.h"

namespace longreach::model {

// What the config says, before the model's numbers are known.
struct ScoreText {
    std::vector<law::Stage> stages;
    // Of each stage: relative to the attention section, ".score.0", or a whole path, "eval.score".
    std::vector<std::string> keys;
    std::vector<law::Parameter> parameters;
    std::vector<std::string> tensors;  // of each parameter that learns: its name in the model's files
    std::vector<law::Term> terms;
};
ScoreText score_text(const AttentionConfig& attention, const ScoreChange& change = {});

bool starts_at_parity(const ScoreText& text);

// One line: the formulas, and what their parameters are.
std::string written_out(const ScoreText& text);

// A part of the law as the kernels get it.
struct ScorePart {
    law::Formula formula;  // of n or t, h, T and stored parameters
    law::CompiledTable value;
    struct Derivative {    // by a stored parameter
        size_t parameter;  // or the x of a term: BoundLaw::input_of
        law::Formula formula;
        law::CompiledTable value;
        law::Formula element;  // of a vector: index of the element that an entry reads
    };
    std::vector<Derivative> derivatives{};
    bool by_head = false;   // the table has a row for each head
    bool of_token = false;  // it reads terms: a number for each token and head, not a table
    bool learned() const { return value.learned; }
};

// The law of one layer.
struct LayerScore {
    law::BoundLaw law;
    std::vector<std::string> tensors{};  // by parameter; "": it does not learn
    double base = 1;        // s_base: the factor of <q, k> before the law; of unit vectors, of their cosine
    law::Formula factor{};  // of base, at the T of an evaluation; null: 1
    ScorePart row{}, gain{}, bias{}, square{};  // row: by n; square: row_square, by n
    bool has_row = false;                       // the row factor is not 1
    bool has_distance = false;                  // gain is not 1, or bias not 0, or a square is added
    bool has_square = false;
    ScorePart between{},
        key{};  // of terms; key: the bias of the key with its sign turned, as AttentionSpec::forget has it
    bool has_sums = false;  // one of them is not 0
    bool counts = false;    // something depends on n
    std::string fading{};   // the term that fades the channels of <q, k>; "": none
    bool learns() const { return row.learned() || gain.learned() || bias.learned() || has_sums; }
    // All parts; those that the layer does not have are empty or constant.
    std::array<const ScorePart*, 6> parts() const { return {&row, &gain, &bias, &square, &between, &key}; }
};
// The parameters of formulas that `change` adds do not learn. Throws ScoreError.
LayerScore layer_score(const ModelConfig& model, int64_t layer, const ScoreChange& change = {});

// The term w of z_between(w) in the score; "": there is none.
std::string fading_term(const AttentionConfig& attention);
// What a layer with such a term sums, as the score z + between(w) of H d heads, one for each channel of a query.
LayerScore layer_fading(const ModelConfig& model, int64_t layer);

// What a layer whose angle has a step (angle_step) sums, as the score z + between(step) of its key heads.
LayerScore layer_steps(const ModelConfig& model, int64_t layer);

// k, if nothing learns and bias = k (gain^2 - 1) in every head at every distance below `rows`, to the rounding of double;
// 0: there is none, or tables depend on T, with which it would change.
double bias_of_gain(const LayerScore& score, int64_t rows);

// A law that cannot be used, with the key to blame.
class ScoreError : public std::runtime_error {
  public:
    ScoreError(const std::string& message, std::string key)
        : std::runtime_error(message), key_(std::move(key)) {}
    // The path of the key, given that of the attention section.
    std::string path(const std::string& section) const { return key_[0] == '.' ? section + key_ : key_; }

  private:
    std::string key_;
};

}  // namespace longreach::model
