// A chat template as a tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/template_value.h"

namespace longreach::serve {

struct Expression {
    enum class Kind {
        literal,      // value
        variable,     // name
        list,         // operands
        dict,         // operands: key, value, key, value...
        attribute,    // operand 0, name
        item,         // operand 0 at operand 1
        slice,        // operand 0 from 1 to 2 by 3; those that are missing are none
        negative,     // -operand 0
        opposite,     // not operand 0
        binary,       // operand 0, name (an operator), operand 1
        conjunction,  // operand 0 and operand 1
        disjunction,  // or
        condition,    // operand 0 if operand 1 else operand 2
        filter,       // operand 0 | name(the others)
        test,         // operand 0 is name(the others)
        function,     // name(operands)
        method,       // operand 0 .name(the others)
    };
    Kind kind = Kind::literal;
    int line = 0;
    int depth = 1;  // of the tree below
    std::string name = {};
    TemplateValue value = {};
    std::vector<std::unique_ptr<Expression>> operands = {};
    std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named = {};  // arguments
};
using ExpressionTree = std::unique_ptr<Expression>;

struct Statement;
using Statements = std::vector<Statement>;

struct Statement {
    enum class Kind {
        text,       // text
        print,      // expression
        choose,     // the first of bodies whose condition holds; a null condition always does
        loop,       // names in expression, if conditions[0]: bodies[0]; bodies[1] if there is nothing
        assign,     // names[0] = expression, or what bodies[0] writes
        attribute,  // names[0].names[1] = expression
        group,      // bodies[0]
        leave,      // break
        proceed,    // continue
    };
    Kind kind = Kind::text;
    int line = 0;
    std::string text = {};
    std::vector<std::string> names = {};
    ExpressionTree expression = nullptr;
    std::vector<ExpressionTree> conditions = {};
    std::vector<Statements> bodies = {};
};

}  // namespace longreach::serve
