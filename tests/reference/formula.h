// Score formulas by a tree walker of the reference's own: the text is read and computed in one go, on numbers or on
// duals. Only valid formulas are given to it, and whole numbers n and d to the functions that are solved for.
#pragma once

#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/concentration.h"
#include "reference/dual.h"

namespace longreach::reference {

template <class T>
class FormulaWalker {
  public:
    // names: variables and parameters. vectors: parameters that lookup reads.
    // It keeps no copy of them.
    FormulaWalker(const std::string& text, const std::map<std::string, T>& names,
                  const std::map<std::string, std::vector<T>>& vectors)
        : text_(text), names_(names), vectors_(vectors) {}
    T value() {
        const T v = comparison();
        if (peek() != '\0') throw std::logic_error("reference: rest of a formula: " + text_.substr(at_));
        return v;
    }

  private:
    char peek() {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool take(const char* symbol) {
        peek();
        const std::string s = symbol;
        if (text_.compare(at_, s.size(), s) != 0) return false;
        at_ += s.size();
        return true;
    }
    T comparison() {
        const T a = sum();
        const auto truth = [](bool is) { return T(is ? 1.0 : 0.0); };
        if (take("<=")) return truth(value_of(a) <= value_of(sum()));
        if (take(">=")) return truth(value_of(a) >= value_of(sum()));
        if (take("==")) return truth(value_of(a) == value_of(sum()));
        if (take("!=")) return truth(value_of(a) != value_of(sum()));
        if (take("<")) return truth(value_of(a) < value_of(sum()));
        if (take(">")) return truth(value_of(a) > value_of(sum()));
        return a;
    }
    T sum() {
        T a = product();
        for (;;) {
            if (take("+"))
                a = a + product();
            else if (take("-"))
                a = a - product();
            else
                return a;
        }
    }
    T product() {
        T a = sign();
        for (;;) {
            if (take("*"))
                a = a * sign();
            else if (take("/"))
                a = a / sign();
            else
                return a;
        }
    }
    T sign() {
        if (take("-")) return T(0) - sign();
        return power();
    }
    T power() {
        const T a = operand();
        return take("^") ? raised(a, sign()) : a;
    }
    static T raised(const T& x, const T& y) {
        using std::exp;
        using std::log;
        if (value_of(x) == 0) return T(value_of(y) == 0 ? 1.0 : 0.0);
        if (value_of(x) > 0) return exp(y * log(x));
        T result = 1;  // of a negative number: whole powers
        for (int i = 0; i < std::abs(value_of(y)); ++i) result = result * x;
        return value_of(y) < 0 ? T(1) / result : result;
    }
    T operand() {
        if (take("(")) {
            const T a = comparison();
            expect(")");
            return a;
        }
        if (std::isdigit(static_cast<unsigned char>(peek())) || peek() == '.') {
            size_t used = 0;
            const double v = std::stod(text_.substr(at_), &used);
            at_ += used;
            return T(v);
        }
        std::string name;
        while (at_ < text_.size() &&
               (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
            name += text_[at_++];
        if (take("(")) return function(name);
        if (name == "pi") return T(std::numbers::pi);
        if (name == "e") return T(std::numbers::e);
        if (name == "egamma") return T(std::numbers::egamma);
        if (!names_.contains(name)) throw std::logic_error("reference: unknown name " + name);
        return names_.at(name);
    }
    void expect(const char* symbol) {
        if (!take(symbol)) throw std::logic_error("reference: no " + std::string(symbol) + " in " + text_);
    }
    T function(const std::string& name) {
        using std::cos;
        using std::erf;
        using std::exp;
        using std::log;
        using std::sin;
        using std::sqrt;
        using std::tanh;
        if (name == "lookup") {
            peek();
            std::string vector;
            while (text_[at_] != ',') vector += text_[at_++];
            expect(",");
            const double index = std::floor(value_of(comparison()));
            expect(")");
            const std::vector<T>& of = vectors_.at(vector);
            return of[static_cast<size_t>(
                std::min(std::max(index, 0.0), static_cast<double>(of.size() - 1)))];
        }
        if (name == "z_between") {  // the score before the law, whose channels have faded
            at_ = text_.find(')', at_) + 1;
            return names_.at("z");
        }
        if (name == "between") {
            const size_t end = text_.find(')', at_);
            const std::string term = text_.substr(at_, end - at_);
            at_ = end + 1;
            return names_.at("between(" + term + ")");
        }
        std::vector<T> x{comparison()};
        while (take(",")) x.push_back(comparison());
        expect(")");
        const double v = value_of(x[0]);
        if (name == "where") return v != 0 ? x[1] : x[2];
        if (name == "min") return value_of(x[1]) < v ? x[1] : x[0];
        if (name == "max") return value_of(x[1]) > v ? x[1] : x[0];
        if (name == "clamp") return v < value_of(x[1]) ? x[1] : v > value_of(x[2]) ? x[2] : x[0];
        if (name == "floor") return T(std::floor(v));
        if (name == "ceil") return T(std::ceil(v));
        if (name == "abs") return v < 0 ? T(0) - x[0] : x[0];
        if (name == "exp") return exp(x[0]);
        if (name == "expm1") return exp(x[0]) - T(1);
        if (name == "log") return log(x[0]);
        if (name == "log1p") return log(T(1) + x[0]);
        if (name == "log2") return log(x[0]) / T(std::log(2.0));
        if (name == "sqrt") return v == 0 ? T(0) : sqrt(x[0]);
        if (name == "tanh") return tanh(x[0]);
        if (name == "sigmoid") return T(1) / (T(1) + exp(T(0) - x[0]));
        if (name == "softplus") return log(T(1) + exp(x[0]));
        if (name == "log_sigmoid") return T(0) - log(T(1) + exp(T(0) - x[0]));
        if (name == "erf") return erf(x[0]);
        if (name == "sin") return sin(x[0]);
        if (name == "cos") return cos(x[0]);
        const auto whole = [&](size_t i) { return static_cast<int64_t>(value_of(x.at(i))); };
        if (name == "max_normal") return T(largest_normal(whole(0)));
        if (name == "gaussian_scale") return T(multiplier_for(value_of(x.at(1)), whole(0), 0));
        if (name == "cosine_scale") return T(multiplier_for(value_of(x.at(2)), whole(0), whole(1)));
        throw std::logic_error("reference: unknown function " + name);
    }

    const std::string& text_;
    const std::map<std::string, T>& names_;
    const std::map<std::string, std::vector<T>>& vectors_;
    size_t at_ = 0;
};

}  // namespace longreach::reference
