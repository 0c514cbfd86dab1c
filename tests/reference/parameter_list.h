// The list of a model's tensors: what src/model's table must say too.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/model_config.h"

namespace longreach::reference {

struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    enum class Start {
        constant,   // every entry is `value`
        normal,     // deviation `value`
        uniform,    // in +-value
        zero_to,    // in [0, value)
        first_row,  // first row `value`, others 0
        log_to,     // the logarithm of numbers in (`least`, `value`]
        time_step,  // softplus of it lies in [`least`, `value`)
    } start = Start::constant;
    double value = 0, least = 0;
    std::vector<double> list{};  // constant: every entry by itself; empty: value

    size_t count() const {
        size_t n = 1;
        for (int64_t s : shape) n *= static_cast<size_t>(s);
        return n;
    }
};

struct ParameterList {
    const model::ModelConfig& m;
    std::vector<Parameter> all{};

    explicit ParameterList(const model::ModelConfig& of) : m(of) {}
    void constant(const std::string& name, std::vector<int64_t> shape, double value) {
        for (const Parameter& p : all)
            if (p.name == name) return;  // one for all layers of a layout
        all.push_back({name, std::move(shape), Parameter::Start::constant, value});
    }
    void matrix(const std::string& name, int64_t out, int64_t in, bool zero = false) {
        if (zero) return constant(name, {out, in}, 0);
        all.push_back({name,
                       {out, in},
                       Parameter::Start::uniform,
                       m.init.matrix_bound / std::sqrt(static_cast<double>(in))});
    }
    void norm(const std::string& name, int64_t size, bool bias, double gain = 1) {
        constant(name + ".gain", {size}, gain);
        if (bias) constant(name + ".bias", {size}, 0);
    }
};

}  // namespace longreach::reference
