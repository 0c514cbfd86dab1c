// What a law does over the lengths that it will meet: where it is not finite,
// where its bias is coarse, and which parameters change nothing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "law/bound_law.h"
#include "law/function_table.h"

namespace longreach::law {

namespace {

// n from 1, t from 0: all up to 65536, then 4096 or more of every doubling, and the last. body: false ends it.
template <class Body>
void for_entries(Variable over, int64_t longest, Body body) {
    constexpr int64_t every = 65536;
    const int64_t first = over == Variable::n ? 1 : 0, last = longest - 1 + first;
    for (int64_t i = first; i <= last; i += i < every ? 1 : i / 4096)
        if (!body(i)) return;
    if (last > every) body(last);
}

// Solvers are slow, and finite for the arguments that a law may give them: 0 up to n = C, then above 0.
Formula without_solvers(const Formula& f) {
    return rewrite(f, [](const Formula& part) -> Formula {
        if (part->kind != Node::Kind::call) return nullptr;
        const Solver* solver = row_of(part->function).solver;
        if (solver == nullptr) return nullptr;
        const auto& x = part->arguments;
        const Formula last_zero = solver->target > 0 ? without_solvers(x[solver->target]) : number(1);
        return where(call(Function::less_equal, {without_solvers(x[0]), last_zero}), number(0), number(1));
    });
}

std::string shown(double value) {
    return std::isnan(value) ? "not a number" : fmt::format("{:.6g}", value);
}

// Values of every parameter that the spans of `values` point to.
struct Storage {
    std::vector<std::vector<double>> numbers;
    Values values;
    Storage(const Values& fixed, const std::vector<Parameter>& parameters) : values(fixed) {
        values.parameters.clear();
        for (size_t i = 0; i < parameters.size(); ++i)
            numbers.emplace_back(static_cast<size_t>(parameters[i].size), fixed.parameters[i][0]);
        for (const std::vector<double>& n : numbers) values.parameters.emplace_back(n);
    }
    void set(size_t parameter, double value) {
        std::fill(numbers[parameter].begin(), numbers[parameter].end(), value);
    }
};

}  // namespace

std::vector<BoundLaw::Part> BoundLaw::parts() const {
    std::vector<Part> parts = {{"the factor of z", &law_.row, Variable::n, law_.row_of_token},
                               {"the factor of z", &law_.gain, Variable::t},
                               {"the bias", &law_.bias, Variable::t}};
    if (law_.row_square) {
        parts[1].name = "the root in the factor of z";
        parts.push_back({parts[1].name, &law_.row_square, Variable::n});
    }
    if (!terms_.empty()) {
        parts.push_back({"what is summed between key and query", &law_.between, Variable::n, true});
        parts.push_back({"the bias of the key", &law_.key, Variable::n, true});
    }
    return parts;
}

std::string BoundLaw::written(const Formula& part) const {
    std::vector<std::string> names;
    for (const Parameter& p : parameters_) names.push_back(p.name);
    for (const Term& t : terms_) names.push_back("x_" + t.name);
    return write(part, names);
}

bool BoundLaw::uses_length() const {
    const std::vector<Part> all = parts();
    return std::any_of(all.begin(), all.end(), [](const Part& p) { return uses(*p.formula, Variable::T); });
}

int64_t BoundLaw::heads_of(const Formula& f) const {
    if (uses(f, Variable::h)) return model_.heads;
    for (size_t p = 0; p < values_[0].size(); ++p) {
        const bool equal = std::all_of(values_.begin(), values_.end(),
                                       [&](const auto& values) { return values[p] == values_[0][p]; });
        if (!equal && uses_parameter(f, p)) return model_.heads;
    }
    return 1;
}

std::string BoundLaw::first_not_finite(const Part& part, const Formula& formula, int64_t longest) const {
    const int64_t heads = heads_of(formula);
    std::string found;
    for (int64_t h = 0; h < heads && found.empty(); ++h) {
        Storage storage(values_of(h), parameters_);
        Values& v = storage.values;
        v[Variable::T] = as_double(longest);
        const Formula f = without_solvers(at_head(formula, h, [&](size_t p) { return learns(p); }));
        for_entries(part.over, longest, [&](int64_t i) {
            v[part.over] = as_double(i);
            const double value = evaluate(f, v);
            if (std::abs(value) <= std::numeric_limits<float>::max()) return true;
            found = fmt::format("is {} at {} = {}{}", shown(value), name_of(part.over), i,
                                heads > 1 ? fmt::format(" in head {}", h) : "");
            return false;
        });
    }
    return found;
}

// The kernels take the root of gain(t) + row_square(n) for t < n.
std::string BoundLaw::first_negative_root(int64_t longest) const {
    if (!law_.row_square) return "";
    const int64_t heads = std::max(heads_of(law_.gain), heads_of(law_.row_square));
    for (int64_t h = 0; h < heads; ++h) {
        const std::vector<double> gain = this->gain(h, longest), square = row_square(h, longest);
        double least = INFINITY;
        for (size_t i = 0; i < gain.size(); ++i) {
            least = std::min(least, gain[i]);
            if (least + square[i] < 0)
                return fmt::format("the factor of z is the root of {} at n = {}{}", shown(least + square[i]),
                                   i + 1, heads > 1 ? fmt::format(" in head {}", h) : "");
        }
    }
    return "";
}

std::string BoundLaw::first_not_finite(int64_t longest) const {
    for (const Part& part : parts()) {
        const std::string problem = first_not_finite(part, *part.formula, longest);
        if (!problem.empty()) return fmt::format("{} {}", part.name, problem);
    }
    if (std::string problem = first_negative_root(longest); !problem.empty()) return problem;
    for (const Part& part : parts())
        for (size_t i = 0; i < parameters_.size(); ++i) {
            if (!learns(i) || !uses_parameter(*part.formula, i)) continue;
            try {
                const std::string problem = first_not_finite(part, derivative(*part.formula, i), longest);
                if (!problem.empty())
                    return fmt::format("the derivative of {} by {} {}", part.name, parameters_[i].name,
                                       problem);
            } catch (const FormulaError&) {  // it cannot learn, which is said elsewhere
            }
        }
    return "";
}

std::string BoundLaw::first_sum_not_finite(int64_t longest) const {
    constexpr double most = std::numeric_limits<float>::max();
    const bool equal = !uses(law_.between, Variable::n);  // summands, of every token
    for (int64_t h = 0, heads = heads_of(law_.between); h < heads; ++h) {
        const std::vector<double> summands = table(law_.between, Variable::n, 1, h, equal ? 1 : longest);
        double sum = 0;
        int64_t n = 0;
        if (equal && std::abs(summands[0]) * as_double(longest) <= most) continue;
        while (n < longest && std::abs(sum) <= most) sum += summands[equal ? 0 : static_cast<size_t>(n)], ++n;
        if (!(std::abs(sum) <= most))
            return fmt::format("the sum between key and query is {} over {} tokens{}", shown(sum), n,
                               heads > 1 ? fmt::format(" in head {}", h) : "");
    }
    return "";
}

std::string BoundLaw::first_overflow_of_terms(int64_t longest) const {
    if (terms_.empty()) return "";
    for (const Part& part : parts()) {
        if (!part.of_token) continue;
        const std::string problem =
            first_not_finite(part, *part.formula, uses(*part.formula, Variable::n) ? longest : 1);
        if (!problem.empty()) return fmt::format("{} {}", part.name, problem);
    }
    return first_sum_not_finite(longest);
}

bool BoundLaw::moves(const Part& part, size_t parameter, int64_t longest) const {
    const Parameter& own = parameters_[parameter];
    const auto open = [&](size_t p) { return p == parameter || learns(p); };
    for (int64_t h = 0, heads = heads_of(*part.formula); h < heads; ++h) {
        const Formula f = without_solvers(at_head(*part.formula, h, open));
        if (!uses_parameter(f, parameter)) continue;
        if (uses(f, Variable::T)) return true;  // every length has its own tables
        std::vector<double> tried;
        const double first = value(h, parameter);
        for (const double v : {first, first + 1, first - 1, 2 * first, first / 2, 1024 * first, first / 1024})
            if (const double held = std::clamp(v, own.least, own.most); !own.positive || held > 0)
                tried.push_back(held);
        // What another parameter hides at its first value (a factor 0) it need not hide later.
        Storage at_first(values_of(h), parameters_), later(values_of(h), parameters_);
        bool others = false;
        for (size_t p = 0; p < parameters_.size(); ++p) {
            if (p == parameter || !learns(p) || !uses_parameter(f, p)) continue;
            others = true;
            const Parameter& other = parameters_[p];
            later.set(p, std::clamp(1.37 * value(h, p) + 0.61, other.least, other.most));
        }
        const auto differs = [&](Storage& at, int64_t i) {
            at.values[part.over] = as_double(i);
            std::optional<float> before;
            for (const double v : tried) {
                at.set(parameter, v);
                const auto now = static_cast<float>(evaluate(f, at.values));
                if (before && now != *before && !(std::isnan(now) && std::isnan(*before))) return true;
                before = now;
            }
            return false;
        };
        bool found = false;
        for_entries(part.over, longest, [&](int64_t i) {
            found = differs(at_first, i) || (others && differs(later, i));
            return !found;
        });
        if (found) return true;
    }
    return false;
}

std::string BoundLaw::without_effect(size_t parameter, int64_t longest) const {
    if (std::string reason = unused(parameter); !reason.empty()) return reason;
    for (const Part& part : parts())
        if (uses_parameter(*part.formula, parameter) && (part.of_token || moves(part, parameter, longest)))
            return "";
    return fmt::format("no score changes with it at any n and t up to {}", longest);
}

std::string BoundLaw::unused(size_t parameter) const {
    for (const Part& part : parts())
        if (uses_parameter(*part.formula, parameter)) return "";
    for (const Formula& summand : law_.cancelled)
        if (uses_parameter(summand, parameter))
            return fmt::format("{} is equal for all keys of a query and cancels in the softmax",
                               written(summand));
    return "no formula uses this parameter";
}

std::string BoundLaw::first_coarse_bias(int64_t longest) const {
    constexpr float finest = 1.0f / 4096;
    constexpr double reach = 30;  // exp(-30): a weight that f32 does not add to 1
    const int64_t heads = heads_of(law_.bias);
    std::string found;
    int64_t nearest = longest;  // the first t of the heads so far
    for (int64_t h = 0; h < heads && nearest > 0; ++h) {
        const Formula f = without_solvers(at_head(law_.bias, h, [](size_t) { return false; }));
        if (f->kind == Node::Kind::number) continue;
        Values v = values_of(h);
        v[Variable::T] = as_double(longest);
        double largest = -INFINITY;
        for_entries(Variable::t, nearest, [&](int64_t t) {
            v[Variable::t] = as_double(t);
            const double bias = evaluate(f, v);
            largest = std::max(largest, bias);
            const auto size = static_cast<float>(std::abs(bias));
            const float step = std::nextafter(size, INFINITY) - size;
            if (bias < largest - reach || !(step > finest)) return true;
            nearest = t;
            found = fmt::format(
                "from t = {} on{}, f32 holds the bias only to multiples of {:.2g} ({:.6g} at t = {}), "
                "and the weights to that relative error",
                t, heads > 1 ? fmt::format(" in head {}", h) : "", step, bias, t);
            return false;
        });
    }
    return found;
}

}  // namespace longreach::law
