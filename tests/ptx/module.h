// PTX as nvcc emits it, read into instructions. Shares nothing with tests/simt's twins of kernels/cuda/ptx.cuh: the
// two are independent readings of NVIDIA's PTX manual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::ptx {

enum class Type : uint8_t {
    none,
    pred,
    b8,
    b16,
    b32,
    b64,
    u8,
    u16,
    u32,
    u64,
    s8,
    s16,
    s32,
    s64,
    bf16,
    bf16x2,
    f32,
    f64
};
constexpr int bits_of(Type type) {
    constexpr int bits[] = {0, 1, 8, 16, 32, 64, 8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 32, 64};
    return bits[static_cast<size_t>(type)];
}
// none where the word names no type.
Type type_named(std::string_view word);

enum class Space : uint8_t { generic, param, global, shared, local };

struct Operand {
    enum class Kind : uint8_t { none, reg, number, address, special, label };
    Kind kind = Kind::none;
    bool negated = false;      // of a predicate
    bool of_register = false;  // an address: register + number; otherwise number alone
    int index = 0;             // of a register, a special register or (label) an instruction
    uint64_t number = 0;       // a literal's bits, an address' offset
};

struct Instruction {
    std::vector<std::string> words;  // "ld", "global", "v4", "f32"
    std::string text;                // as written, for messages
    int line = 0;
    int guard = -1;  // register; -1: none
    bool guard_negated = false;
    // In the order written; the lists in braces of vectors are laid out flat, groups[i] operands each.
    std::vector<Operand> operands;
    std::vector<int> groups;

    bool has(std::string_view word) const;
    const Operand& at(int group, int element = 0) const;
};

struct Parameter {
    size_t offset = 0, bytes = 0;
};

// A function that a kernel calls, such as the CUDA library's pow: its instructions follow the kernel's own.
struct Function {
    std::vector<Parameter> returns, parameters;
};
// Arguments of calls lie in each thread's own memory, at addresses of the parameter space from here on.
constexpr size_t argument_base = size_t{1} << 20;

struct Entry {
    std::string name;
    std::vector<Parameter> parameters;
    size_t parameter_bytes = 0, local_bytes = 0, shared_bytes = 0,
           argument_bytes = 0;          // declared in the function
    std::map<int, Function> functions;  // by first instruction
    std::vector<Instruction> instructions;
    std::vector<std::string> registers;  // names by index
};

struct Module {
    std::string path;
    std::map<std::string, Entry> entries;                     // by mangled name
    std::map<std::string, std::vector<std::byte>> variables;  // .global arrays with their initial values
};

enum class Special : uint8_t {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    warpid
};

// Throws std::runtime_error with path and line at what it does not know.
Module parse(const std::string& path, const std::string& text);

}  // namespace longreach::ptx
