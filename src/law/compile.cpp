#include "law/compile.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "law/function_table.h"

namespace longreach::law {

namespace {

class Compiler {
  public:
    Compiler(CompiledTable& out, Variable over, const std::vector<Input>& inputs)
        : out_(out), over_(over), inputs_(inputs) {}

    void emit(const Formula& f) {
        if (f->kind == Node::Kind::number) return push({.op = LawOp::number, .operand = number_of(f)}, 0);
        if (f->kind == Node::Kind::variable && f->variable == over_) return push({.op = LawOp::entry}, 0);
        if (f->kind == Node::Kind::parameter && inputs_[f->parameter].learned) {
            if (inputs_[f->parameter].token)
                return push({.op = LawOp::token, .operand = token(f->parameter)}, 0);
            return push({.op = LawOp::parameter, .operand = parameter(f->parameter, f)}, 0);
        }
        if (!learns(f)) return push({.op = LawOp::table, .operand = table(f)}, 0);
        if (is_call(f, Function::lookup)) {
            emit(f->arguments[1]);
            return push({.op = LawOp::element, .operand = parameter(f->arguments[0]->parameter, f)}, 1);
        }
        for (const Formula& a : f->arguments) emit(a);
        if (is_solved(f->function)) throw FormulaError("what a solver is given cannot learn", 0, 0);
        push({.op = operation_of(f->function)}, static_cast<int>(f->arguments.size()));
    }

    bool learns(const Formula& f) const {
        if (f->kind == Node::Kind::parameter) return inputs_[f->parameter].learned;
        return std::any_of(f->arguments.begin(), f->arguments.end(),
                           [&](const Formula& a) { return learns(a); });
    }

  private:
    // arguments: numbers that it pops.
    void push(const LawInstruction& instruction, int arguments) {
        depth_ += 1 - arguments;
        if (out_.program.count == LawProgram::longest || depth_ > LawProgram::deepest)
            throw FormulaError("too long: what depends on learned parameters must be simpler", 0, 0);
        out_.program.code[out_.program.count++] = instruction;
    }
    int16_t number_of(const Formula& f) {
        LawProgram& p = out_.program;
        // By bits: -0 is not 0.
        const auto same_bits = [&](double v) {
            return v == f->number && std::signbit(v) == std::signbit(f->number);
        };
        double* const end = p.numbers + p.number_count;
        double* at = std::find_if(p.numbers, end, same_bits);
        if (at == end) {
            if (p.number_count == LawProgram::most_numbers)
                throw FormulaError("too many different numbers in a formula that learns", f->begin, f->end);
            *at = f->number;
            ++p.number_count;
        }
        return static_cast<int16_t>(at - p.numbers);
    }
    int16_t parameter(size_t index, const Formula& at) {
        auto it = std::find(out_.parameters.begin(), out_.parameters.end(), index);
        if (it == out_.parameters.end()) it = out_.parameters.insert(it, index);
        out_.by_head = out_.by_head || inputs_[index].by_head;
        if (out_.parameters.size() > LawProgram::most_inputs)
            throw FormulaError(fmt::format("more than {} learned parameters", LawProgram::most_inputs),
                               at->begin, at->end);
        return static_cast<int16_t>(it - out_.parameters.begin());
    }
    int16_t token(size_t index) {
        auto it = std::find(out_.tokens.begin(), out_.tokens.end(), index);
        if (it == out_.tokens.end()) it = out_.tokens.insert(it, index);
        out_.by_head = true;
        if (out_.tokens.size() > LawProgram::most_inputs)
            throw FormulaError(fmt::format("more than {} terms", LawProgram::most_inputs), 0, 0);
        return static_cast<int16_t>(it - out_.tokens.begin());
    }
    int16_t table(const Formula& f) {
        auto it = std::find_if(out_.tables.begin(), out_.tables.end(),
                               [&](const Formula& g) { return same(f, g); });
        if (it == out_.tables.end()) it = out_.tables.insert(it, f);
        out_.by_head = out_.by_head || uses(f, Variable::h);
        if (out_.tables.size() > LawProgram::most_inputs)
            throw FormulaError("too many different parts in a formula that learns", f->begin, f->end);
        return static_cast<int16_t>(it - out_.tables.begin());
    }
    CompiledTable& out_;
    Variable over_;
    const std::vector<Input>& inputs_;
    int depth_ = 0;
};

}  // namespace

CompiledTable compile(const Formula& formula, Variable over, const std::vector<Input>& inputs) {
    std::vector<std::optional<double>> fixed;
    for (const Input& i : inputs) fixed.push_back(i.learned ? std::nullopt : std::optional(i.value));
    const Formula f = resolve(formula, {}, fixed);
    CompiledTable out;
    Compiler compiler(out, over, inputs);
    out.learned = compiler.learns(f);
    if (out.learned) {
        compiler.emit(f);
    } else {
        out.tables.push_back(f);
        out.by_head = uses(f, Variable::h);
    }
    return out;
}

Formula index_of(const Formula& formula, size_t vector) {
    Formula index;
    for (const Formula& a : formula->arguments) {
        const Formula inner = index_of(a, vector);
        if (!inner) continue;
        if (index && !same(index, inner))
            throw FormulaError("a table reads a vector at one index only; this is a second one", inner->begin,
                               inner->end);
        index = inner;
    }
    if (!is_call(formula, Function::lookup) || formula->arguments[0]->parameter != vector) return index;
    if (uses(formula->arguments[1], Variable::h))
        throw FormulaError("an index cannot depend on the head; let every head learn its own vector",
                           formula->arguments[1]->begin, formula->arguments[1]->end);
    return formula->arguments[1];
}

}  // namespace longreach::law
