// The laws that have a name. Each is a formula that anyone could write; the name saves the writing, and says
// where the law comes from.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "law/law.h"

namespace longreach::law {

// Which layers and heads share a learned parameter.
enum class Sharing { fixed, model, layout, layer, head };

struct Parameter {
    std::string name;
    // A number, a formula of h, H, l, layers, d and L, "uniform(a, b)", or "parity": the value with which the
    // law equals the unscaled model at n = L/2.
    std::string init = "0";
    Sharing learn = Sharing::fixed;
    bool positive = false;                                    // kept as its logarithm
    double least = -std::numeric_limits<double>::infinity();  // held in [least, most] where it is used
    double most = std::numeric_limits<double>::infinity();
    int64_t size = 1;  // of a vector, read by lookup
};

struct NamedLaw {
    const char* name;
    const char* formula;
    std::vector<Parameter> parameters;
    const char* what;
    const char*
        sources;  // keys of configs/references.bib, separated by spaces; "" where this program is the source
};

const std::vector<NamedLaw>& library();
const NamedLaw* find_law(std::string_view name);  // null: there is none

// The model that a law is evaluated for.
struct ModelNumbers {
    int64_t heads = 8, layer = 0, layers = 1, head_dim = 64, train_context = 2048;
};

// A law of one layer with its parameters at their first values. Those that a model draws at random are at
// the middle of their range.
class BoundLaw {
  public:
    // stages: formulas, applied in order. Throws FormulaError if one of them, or an init, is not valid;
    // `stage` receives the index of the formula to blame, or -1 - i for the init of parameter i.
    BoundLaw(const std::vector<std::string>& stages, const std::vector<Parameter>& parameters,
             const ModelNumbers& model, int64_t& stage);

    const Law& law() const { return law_; }
    const ModelNumbers& model() const { return model_; }
    double value(int64_t head, size_t parameter) const {
        return values_[static_cast<size_t>(head)][parameter][0];
    }
    // Entry n - 1 belongs to n keys, entry t to distance t.
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

  private:
    Values values_of(int64_t head) const;
    void set_initial(size_t parameter);
    void set_parity(size_t parameter);
    std::vector<double> table(const Formula& f, Variable over, int64_t first, int64_t head,
                              int64_t count) const;

    Law law_;
    std::vector<Parameter> parameters_;
    ModelNumbers model_;
    std::vector<std::vector<std::vector<double>>> values_;  // [head][parameter][element]
};

}  // namespace longreach::law
