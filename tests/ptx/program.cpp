#include "ptx/program.h"

#include <string>

namespace longreach::ptx {

namespace {

Op op_of(const Instruction& in) {
    const std::string& w = in.words[0];
    const std::string second = in.words.size() > 1 ? in.words[1] : "";
    if (w == "mov") return Op::mov;
    if (w == "ld") return Op::load;
    if (w == "st") return Op::store;
    if (w == "cvta") return Op::cvta;
    if (w == "setp") return Op::setp;
    if (in.has("cc") || w == "addc" || w == "subc" || w == "madc") return Op::carry;
    if (w == "call") return Op::call;
    if (w == "bra") return Op::bra;
    if (w == "ret" || w == "exit") return Op::ret;
    if (w == "bar" && second == "warp") return Op::warpsync;
    if (w == "bar" || w == "barrier") return Op::barrier;
    if (w == "shfl") return Op::shuffle;
    if (w == "vote") return Op::vote;
    if (w == "activemask") return Op::activemask;
    if (w == "atom" || w == "red") return Op::atomic;
    if (w == "ldmatrix") return Op::ldmatrix;
    if (w == "mma") return Op::mma;
    if (w == "cp" && in.has("bulk")) {
        const bool group = in.has("commit_group") || in.has("wait_group");
        return group ? Op::bulk_group : Op::bulk;
    }
    if (w == "mbarrier") return Op::phase;
    if (w == "fence" && second == "proxy") return Op::proxy_fence;
    if (w == "wgmma") return Op::products;
    if (w == "setmaxnreg") return Op::registers;
    if (w == "stmatrix") return Op::stmatrix;
    if (w == "cp" && in.has("commit_group")) return Op::commit;
    if (w == "cp" && (in.has("wait_group") || in.has("wait_all"))) return Op::wait;
    if (w == "cp" && second == "async") return Op::copy;
    if (w == "membar" || w == "fence") return Op::fence;
    if (w == "trap") return Op::trap;
    return Op::compute;
}

Step step_of(const Module& m, const Instruction& in) {
    Step s;
    s.in = &in;
    s.op = op_of(in);
    for (const std::string& word : in.words) {
        if (type_named(word) != Type::none) s.type = type_named(word);
        if (word == "global" || word == "const") s.space = Space::global;
        if (word == "shared" || word.starts_with("shared::")) s.space = Space::shared;
        if (word == "local") s.space = Space::local;
        if (word == "param") s.space = Space::param;
        if (word == "v2") s.elements = 2;
        if (word == "v4") s.elements = 4;
    }
    const Operand** const slots[] = {&s.a, &s.b, &s.c, &s.d, &s.e};
    for (size_t g = 0, first = 0; g < in.groups.size(); first += static_cast<size_t>(in.groups[g++])) {
        if (g < std::size(slots)) *slots[g] = &in.operands[first];
    }
    if (!in.groups.empty()) s.count_a = in.groups[0];
    if (in.groups.size() > 1) s.count_b = in.groups[1];
    if (s.op == Op::compute) {
        s.compute = compute_of(in.words);
        if (!s.compute.run) unknown(m, in);
    }
    if (s.op == Op::setp) {
        s.compute = comparison_of(in.words);
        if (!s.compute.run) unknown(m, in);
    }
    return s;
}

}  // namespace

void unknown(const Module& m, const Instruction& in) {
    throw Fault(m.path + ":" + std::to_string(in.line) + ": not known: " + in.text);
}

Program::Program(const Module& of, const Entry& kernel) : module(of), entry(kernel) {
    for (const Instruction& in : kernel.instructions) steps.push_back(step_of(of, in));
}

std::shared_ptr<const Program> prepare(const Module& module, const Entry& entry) {
    return std::make_shared<Program>(module, entry);
}

}  // namespace longreach::ptx
