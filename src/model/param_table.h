// The only list of trainable tensors. Initialisation, optimiser groups, checkpoints, parameter and FLOP
// counts are functions of this table; the position of a tensor in it has no meaning of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/arena.h"

namespace longreach::model {

struct InitRule {
    // uniform: U(-value, value); between: U(from, from + value); normal: of this deviation; first_row: value in row
    // 0, 0 in other rows; listed: element i is list[i]; log_between: log of between; softplus_between: its softplus
    // lies in [from, from + value), evenly in its logarithm.
    enum class Kind {
        constant,
        uniform,
        between,
        normal,
        first_row,
        listed,
        log_between,
        softplus_between
    } kind = Kind::constant;
    double value = 0, from = 0;
    std::vector<double> list{};
};

// How the optimiser treats a tensor.
enum class ParamGroup {
    matrix,     // hidden matrices: Muon, or Adam when muon is off
    embedding,  // token table
    head,       // output matrix
    scalar,     // gains, biases, mixing weights
};
const char* name_of(ParamGroup group);

struct Param {
    std::string name;  // on disk and in messages: "layers.3.attention.q.weight"
    std::vector<int64_t> shape;
    InitRule init;
    ParamGroup group = ParamGroup::matrix;
    bool decay = false;  // weight decay applies
    double rate = 1;     // factor of the learning rate
    int64_t offset = 0;  // elements from the start of a flat buffer; set by add()

    // Whether its gradient is that of one matrix, which a product can set; to others operations add in pieces.
    bool of_product() const { return group == ParamGroup::matrix || group == ParamGroup::head; }
    int64_t count() const {
        int64_t n = 1;
        for (int64_t d : shape) n *= d;
        return n;
    }
    int64_t rows() const { return shape.size() == 1 ? 1 : shape[0]; }
    int64_t cols() const { return shape.back(); }
};

// A handle to one row of the table, or to a run of consecutive rows that form one taller matrix (q|k|v).
struct ParamRef {
    int64_t offset = -1, rows = 0, cols = 0;
    bool of_product = false;  // as the rows say
    explicit operator bool() const { return offset >= 0; }
};

class ParamTable {
  public:
    ParamRef add(Param param);
    // The row of that name, added if there is none yet; for tensors that several layers use.
    ParamRef share(Param param);
    // Consecutive matrices of equal width, laid out without gaps so that they are one matrix as well.
    ParamRef add_joined(std::vector<Param> parts);

    const std::vector<Param>& params() const { return params_; }
    // The matrices of products, joined ones as one.
    const std::vector<ParamRef>& products() const { return products_; }
    int64_t size() const { return size_; }  // elements of a flat buffer, padding included
    int64_t count() const;                  // trainable numbers
    const Param* find(const std::string& name) const;
    // The stretches of a flat buffer, padding included, that no product sets.
    struct Stretch {
        int64_t begin, count;
    };
    std::vector<Stretch> added_to() const;

  private:
    std::vector<Param> params_;
    std::vector<ParamRef> products_;
    int64_t size_ = 0;
};

// A flat f32 buffer laid out by a table: the weights, their gradients, an optimiser moment.
struct FlatParams {
    Tensor flat;  // f32 [table.size()]
    // Only for weights on a device that multiplies another type: a copy in that type, as of the last round().
    Tensor rounded{};
    // Only for gradients: whether the next pass sets them, whatever they hold, or adds to them.
    Write write = Write::add;
    Tensor view(const ParamRef& ref) const;
    Tensor view(const Param& param) const;
    Tensor matrix(const ParamRef& ref) const;  // what matrix products read: rounded, or flat itself
    void round(Ops& ops) const;                // after every change of flat
};
FlatParams plan_weights(Arena& arena, const ParamTable& table);

// Fills in the weights of step 0. Every number is a pure function of (seed, tensor name, index).
void initialise(const ParamTable& table, uint64_t seed, std::vector<float>& flat);

}  // namespace longreach::model
