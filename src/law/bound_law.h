// A law with a meaning for every name: the model, the parameters, what of them learns.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "law/compile.h"
#include "law/law.h"

namespace longreach::law {

// Which layers and heads share a learned parameter.
enum class Sharing { fixed, model, layout, layer, head };
const char* learned(Sharing sharing);  // ", learned by head"; fixed: ""

struct Parameter {
    std::string name;
    // A number, a formula of h, H, l, layers, d and L, "uniform(a, b)", or "parity": the value with which the
    // law equals the unscaled model at n = L/2. A parameter that does not learn is that formula.
    std::string init = "0";
    Sharing learn = Sharing::fixed;
    bool positive = false;                                    // kept as its logarithm
    double least = -std::numeric_limits<double>::infinity();  // held in [least, most] where it is used
    double most = std::numeric_limits<double>::infinity();
    int64_t size = 1;  // of a vector, read by lookup
    double rate = 1;   // factor of its learning rate
};

// One of the formulas that make a score, and the parameters whose names it may use.
struct Stage {
    std::string formula;
    std::vector<size_t> parameters = {};  // indices into the parameters of the law
    bool of_factor = false;               // it changes the factor of z alone, and not what was added to it
};
// A number that a layer computes of each token for each head: a formula of x, of which w starts at random or at 0.
struct Term {
    std::string name, formula;
    std::vector<size_t> parameters = {};  // as those of a stage
    std::string init = "0";               // of b: a number, or a formula as Parameter::init has it
    bool zero_weights = false;            // w starts at 0
};
// Formulas that share all parameters.
std::vector<Stage> stages_of(const std::vector<std::string>& formulas, size_t parameters);

// The model that a law belongs to.
struct ModelNumbers {
    int64_t heads = 8, layer = 0, layers = 1, head_dim = 64, train_context = 2048;
    // The factor of z in the unscaled model, for `parity`. 0: 1, and sqrt(head_dim) in laws of dot.
    double parity = 0;
};

class BoundLaw {
  public:
    // Throws FormulaError if a stage, a term or an init is not valid. `stage` receives the index of the formula to blame,
    // or -1 - i for the init of parameter i. The formulas of terms come after those of stages, then the inits of terms.
    BoundLaw(const std::vector<Stage>& stages, const std::vector<Parameter>& parameters,
             const ModelNumbers& model, int64_t& stage, const std::vector<Term>& terms = {});

    const Law& law() const { return law_; }
    const std::vector<Parameter>& parameters() const { return parameters_; }
    const ModelNumbers& model() const { return model_; }
    const std::vector<Term>& terms() const { return terms_; }
    // Formulas have the x of term k as a parameter of this index.
    size_t input_of(size_t term) const { return parameters_.size() + term; }
    double first_bias(int64_t head, size_t term) const { return value(head, input_of(term)); }
    // Whether a formula or the first value of a parameter depends on the context trained on.
    bool uses_context() const { return uses_context_; }
    // Whether layers of one layout may have different tables.
    bool uses_layer() const { return uses_layer_; }
    // Whether its tables depend on the length of the sequence, T.
    bool uses_length() const;

    // The first value. Parameters that a model draws at random are at the middle of their range.
    double value(int64_t head, size_t parameter) const {
        return values_[static_cast<size_t>(head)][parameter];
    }
    // "uniform(a, b)": a and b; otherwise nothing.
    std::optional<std::pair<double, double>> drawn(size_t parameter) const { return drawn_[parameter]; }
    const Formula& first(size_t parameter) const { return first_[parameter]; }

    // Tables at the first values. Entry n - 1 belongs to n keys, entry t to distance t.
    std::vector<double> row(int64_t head, int64_t count) const {
        return table(law_.row, Variable::n, 1, head, count);
    }
    std::vector<double> gain(int64_t head, int64_t count) const {
        return table(law_.gain, Variable::t, 0, head, count);
    }
    std::vector<double> bias(int64_t head, int64_t count) const {
        return table(law_.bias, Variable::t, 0, head, count);
    }
    std::vector<double> row_square(int64_t head, int64_t count) const {
        return table(law_.row_square, Variable::n, 1, head, count);
    }

    // The first n or t up to `longest` at which the law, or its derivative by what learns, is not a finite f32 number:
    // "the bias is -inf at t = 3 in head 1"; "": there is none. Beyond 65536 entries, samples. Takes T as `longest`.
    std::string first_not_finite(int64_t longest) const;

    // Of what reads tokens, at the first values of the terms: the first n up to `longest` at which it is not finite, the sum
    // over all keys of a query included. "": there is none, or nothing reads tokens.
    std::string first_overflow_of_terms(int64_t longest) const;

    // Why a parameter is in no table; "": it is in one.
    std::string unused(size_t parameter) const;
    // Why no score up to `longest` keys changes with a parameter; "": one does.
    // Fixed parameters have their values, learned ones several.
    std::string without_effect(size_t parameter, int64_t longest) const;

    // The first t at which f32 holds the bias only to multiples above 2^-12 although the key may have weight: the bias
    // is within 30 of the largest at smaller distances. "from t = 205 on, ..."; "": nowhere.
    std::string first_coarse_bias(int64_t longest) const;

    // A part of law(), or a summand that cancels, with the names of its parameters.
    std::string written(const Formula& part) const;

    // A part of law() for the kernels: a function of n or t, h, T and what learns, as it is stored: positive
    // parameters by their logarithm, all before they are held in their range.
    Formula stored_form(const Formula& part) const;
    CompiledTable compile(const Formula& stored, Variable over) const;
    // Entry i, for head h, of a part in which nothing learns.
    std::vector<double> tabulate(const Formula& stored, Variable over, int64_t head, int64_t count,
                                 double length) const;

  private:
    // The tables that attention reads, with the words for them.
    struct Part {
        const char* name;
        const Formula* formula;
        Variable over;
        bool of_token = false;  // it reads terms
    };
    std::vector<Part> parts() const;

    Values values_of(int64_t head) const;
    void set_parity(size_t parameter);
    void check_first_values(int64_t& stage) const;
    // Whether tables of `f` differ by head at the first values; 1 or the number of heads.
    int64_t heads_of(const Formula& f) const;
    // With numbers for all that is known in a head but n, t and T, and constants folded. open: parameters that stay.
    Formula at_head(const Formula& f, int64_t head, const std::function<bool(size_t)>& open) const;
    bool learns(size_t parameter) const {  // the x of a term is not a parameter
        return parameter < parameters_.size() && parameters_[parameter].learn != Sharing::fixed;
    }
    // first: the number of the first term to blame.
    void put_terms(const TermPlaces& places, int64_t first, int64_t& stage);
    void set_first_biases(int64_t first, int64_t& stage);
    void note_uses(const Formula& f) {
        uses_context_ = uses_context_ || uses(f, Variable::L);
        uses_layer_ = uses_layer_ || uses(f, Variable::l);
    }
    std::string first_not_finite(const Part& part, const Formula& f, int64_t longest) const;
    std::string first_negative_root(int64_t longest) const;
    std::string first_sum_not_finite(int64_t longest) const;
    bool moves(const Part& part, size_t parameter, int64_t longest) const;
    std::vector<double> table(const Formula& f, Variable over, int64_t first, int64_t head,
                              int64_t count) const;

    Law law_;
    std::vector<Parameter> parameters_;
    std::vector<Term> terms_;
    ModelNumbers model_;
    bool uses_context_ = false, uses_layer_ = false;
    std::vector<Formula> first_;  // value of each parameter; null for parity until it is found
    std::vector<std::optional<std::pair<double, double>>> drawn_;
    std::vector<std::vector<double>> values_;  // [head][parameter, then b of each term]
};

}  // namespace longreach::law
