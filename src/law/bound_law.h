// A law with a meaning for every name: the model, the parameters, what of them learns.
#pragma once

#include <cstdint>
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
    // Throws FormulaError if a stage, or an init, is not valid; `stage` receives the index of the formula to
    // blame, or -1 - i for the init of parameter i.
    BoundLaw(const std::vector<Stage>& stages, const std::vector<Parameter>& parameters,
             const ModelNumbers& model, int64_t& stage);

    const Law& law() const { return law_; }
    const std::vector<Parameter>& parameters() const { return parameters_; }
    const ModelNumbers& model() const { return model_; }
    // Whether a formula or the first value of a parameter depends on the context trained on.
    bool uses_context() const { return uses_context_; }

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

    // The first n or t up to `longest` at which a table of first values does not fit into f32, as "row(5) is nan in
    // head 1"; "": there is none. Beyond 65536 entries, samples.
    std::string first_not_finite(int64_t longest) const;

    // A part of law() for the kernels: a function of n or t, h, T and what learns, as it is stored: positive
    // parameters by their logarithm, all before they are held in their range.
    Formula stored_form(const Formula& part) const;
    CompiledTable compile(const Formula& stored, Variable over) const;
    // Entry i, for head h, of a part in which nothing learns.
    std::vector<double> tabulate(const Formula& stored, Variable over, int64_t head, int64_t count,
                                 double length) const;

  private:
    Values values_of(int64_t head) const;
    void set_parity(size_t parameter);
    std::vector<double> table(const Formula& f, Variable over, int64_t first, int64_t head,
                              int64_t count) const;

    Law law_;
    std::vector<Parameter> parameters_;
    ModelNumbers model_;
    bool uses_context_ = false;
    std::vector<Formula> first_;  // value of each parameter; null for parity until it is found
    std::vector<std::optional<std::pair<double, double>>> drawn_;
    std::vector<std::vector<double>> values_;  // [head][parameter]
};

}  // namespace longreach::law
