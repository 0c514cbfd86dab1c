#include <cmath>

#include <fmt/format.h>

#include "law/law.h"
#include "train/experiment.h"

namespace longreach::train {

void LossConfig::fields(config::Fields& f) {
    f.text(
        "weight", weight,
        {.help =
             "weight of a training loss by position, a formula of p (position in the document, or in the "
             "sequence without a document mask), n = p + 1, L and T, divided by its mean over the sequence; "
             "reported losses stay without weights; empty: 1",
         .words = "training losses weighted by position, {}"});
}

std::vector<float> LossConfig::weights(int64_t context, int64_t train_context) const {
    if (weight.empty()) return {};
    using law::Variable;
    constexpr Variable variables[] = {Variable::p, Variable::n, Variable::L, Variable::T};
    const auto known = [&](const law::Formula& f) {
        return law::resolve(
            f, {{Variable::L, law::as_double(train_context)}, {Variable::T, law::as_double(context)}});
    };
    const law::Formula written = law::parse_finite(weight, variables, {});
    law::check_solvers(
        written,
        [&](const law::Formula& part) {
            const law::Formula f = known(part);
            return f->kind == law::Node::Kind::number ? std::optional(f->number) : std::nullopt;
        },
        false);
    const law::Formula f = law::substitute(known(written), Variable::n, law::parse("p + 1", variables, {}));
    const std::vector<double> values = law::tabulate(f, Variable::p, 0, context, {});
    double sum = 0;
    for (size_t p = 0; p < values.size(); ++p) {
        const float value = static_cast<float>(values[p]);
        if (!std::isfinite(value) || value < 0)
            throw Error(ExitCode::usage,
                        fmt::format("{:.6g} at position {}: expected a number of at least 0, within f32",
                                    values[p], p));
        sum += double{value};
    }
    if (sum == 0) throw Error(ExitCode::usage, fmt::format("0 at every position below {}", context));
    const double scale = static_cast<double>(context) / sum;
    std::vector<float> weights;
    for (const double value : values)
        weights.push_back(static_cast<float>(scale * double{static_cast<float>(value)}));
    return weights;
}

}  // namespace longreach::train
