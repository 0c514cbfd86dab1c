// A score law as a user writes it: what is accepted can be written, read again, differentiated and evaluated.
#include <cmath>

#include "fuzz/target.h"
#include "law/bound_law.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::vector<std::string> names = {"c", "tau", "w"};
    const std::string text(text_of(data, size));
    law::Formula formula;
    try {
        formula = law::parse(text, law::score_variables, names);
    } catch (const law::FormulaError& e) {
        holds(e.begin <= text.size() && e.begin <= e.end, "an error outside the text");
        holds(law::underlined(text, e).find('^') != std::string::npos, "nothing is underlined");
        return 0;
    }
    const std::string written = law::write(formula, names);
    // Text grows when numbers are written in full, and a longer text may be refused.
    if (written.size() <= 2048) {
        const law::Formula again = law::parse(written, law::score_variables, names);
        holds(law::write(again, names) == written, "what was written reads as something else");
    }
    const double c = 0.5, tau = 10;
    const std::vector<double> w = {1, 2, 3};
    law::Values values;
    values.parameters = {std::span(&c, 1), std::span(&tau, 1), w};
    for (const law::Variable v : law::score_variables) values[v] = 3;
    // Solvers take seconds where their arguments are large.
    if (text.find("scale") == std::string::npos) {
        law::evaluate(formula, values);
        try {
            law::evaluate(law::derivative(formula, 0), values);
        } catch (const law::FormulaError&) {
        }
    }
    try {
        size_t stage = 0;
        const law::Law law = law::separate({formula}, stage);
        holds(!law::uses(law.row, law::Variable::t), "a factor by row depends on t");
        holds(!law::uses(law.gain, law::Variable::n), "a gain depends on n");
        holds(!law::uses(law.bias, law::Variable::n), "a bias depends on n");
        for (const law::Formula& part : {law.row, law.gain, law.bias})
            holds(!law::uses(part, law::Variable::z), "a table depends on z");
        if (text.find("scale") == std::string::npos && text.find("normal") == std::string::npos) {
            const law::Sharing learn = law::Sharing::head;
            const std::vector<law::Parameter> parameters = {
                {.name = "c", .init = "0.5", .learn = learn},
                {.name = "tau", .init = "10"},
                {.name = "w", .init = "1", .learn = learn, .size = 3}};
            int64_t blamed = 0;
            const law::BoundLaw bound(law::stages_of({text}, 3), parameters,
                                      {.heads = 2, .train_context = 40}, blamed);
            bound.first_coarse_bias(40);
            const bool finite = bound.first_not_finite(40).empty();
            for (const double v : bound.row(1, 40))
                holds(!finite || std::isfinite(v), "a row factor is not finite");
            for (const double v : bound.bias(1, 40))
                holds(!finite || std::isfinite(v), "a bias is not finite");
            for (size_t i = 0; i < parameters.size(); ++i) bound.without_effect(i, 40);
        }
    } catch (const law::FormulaError& e) {
        holds(e.begin <= text.size() && e.begin <= e.end, "an error outside the text");
    }
    return 0;
}
