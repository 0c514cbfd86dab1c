// One block of a launch while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ptx/hopper.h"
#include "ptx/program.h"

namespace longreach::ptx {

// A cp.async under way.
struct PendingCopy {
    uint64_t to = 0, from = 0;
    int bytes = 0, valid = 0;
};

class Block {
  public:
    Block(const Program& program, const Launch& launch, const Memory& memory)
        : module_(program.module),
          entry_(program.entry),
          steps_(program.steps),
          launch_(launch),
          memory_(memory),
          threads_(static_cast<int>(launch.block.x * launch.block.y * launch.block.z)),
          shared_((entry_.shared_bytes + 127) / 128 * 128 + launch.shared_bytes) {
        warps_.resize(static_cast<size_t>((threads_ + 31) / 32));
    }

    void run(Extent index);

  private:
    struct Warp {
        int first = 0, lanes = 32;
        uint32_t alive = 0, at_barrier = 0, at_meeting = 0, at_named = 0;  // lanes
        int pc[32] = {};
        std::vector<uint64_t> values;  // [register][lane]
        std::vector<uint32_t> known;   // [register]: lanes that wrote it
        std::vector<std::byte> local;  // [lane][byte]
        std::vector<bool> local_known;
        std::vector<std::byte> arguments;  // [lane][byte]
        bool carry[32] = {};
        struct Return {
            int pc = 0;
            const Function* from = nullptr;
            const Operand* results = nullptr;
        };
        std::vector<Return> calls[32];
        std::vector<std::vector<PendingCopy>> open[32];  // per lane: groups, the last one not yet closed
    };

    // --- schedule, registers and arithmetic (block.cpp)
    [[noreturn]] void fault(const Step& s, int lane, const std::string& what) const;
    bool release_barrier();
    void finish() const;
    [[noreturn]] void standstill() const;
    // One instruction of the lanes that are furthest behind; false where none can go on.
    bool advance(Warp& w);
    uint64_t special(int index, int lane) const;
    // Registers hold nothing before they are written. Compilers compute with such values and then select others, so that
    // only their use is a fault: as an address, in memory, in a branch, a mask or a shuffle.
    uint64_t value(const Step& s, const Operand& o, int lane) const;
    // A value that has to be known.
    uint64_t used(const Step& s, const Operand& o, int lane) const;
    void set(const Operand& o, int lane, uint64_t v);
    bool execute(Warp& w, const Step& s, uint32_t lanes);
    // An operand of all lanes: value[lane * stride] where `known` has the lane.
    struct Column {
        const uint64_t* value = nullptr;
        size_t stride = 1;
        uint32_t known = ~0u;
        uint64_t of(int lane) const { return value[static_cast<size_t>(lane) * stride]; }
    };
    // `room` holds 32 values for what lies in no register.
    Column column(const Step& s, const Operand& o, uint32_t lanes, uint64_t* room) const;
    // Sets a register in `lanes`, of which those in `known` have a value.
    void settle(const Operand& o, uint32_t lanes, uint32_t known, const uint64_t* values);
    void compute(const Step& s, uint32_t lanes);
    // add, sub and mad of 32 bits whose carry goes to the next of them.
    void add_with_carry(const Step& s, int lane);
    std::byte* argument(size_t at, int lane);
    // call (results), function, (arguments).
    void call(const Step& s, int lane);
    // Of a call, or of the thread.
    void end(const Step& s, int lane);
    void move(const Step& s, int lane);

    // --- memory (block_memory.cpp)
    uint64_t address(const Step& s, const Operand& o, int lane) const;
    // The bytes of an access as memory of the host. `why`: 'r' read, 'w' write, 'c' neither yet.
    std::byte* place(const Step& s, Space space, uint64_t at, size_t bytes, int lane, char why);
    void load(const Step& s, int lane);
    void store(const Step& s, int lane);
    void convert_address(const Step& s, int lane);
    void atomic(const Step& s, int lane);
    void copy(const Step& s, int lane);
    void land(const Step& s, const PendingCopy& p, int lane);
    void wait(const Step& s, int lane);

    // --- lanes together (block_warp.cpp)
    // All lanes that `mask` names have to be here; false where some are still to come.
    bool met(const Step& s, uint32_t mask, uint32_t lanes);
    uint32_t mask_of(const Step& s, const Operand& o, uint32_t lanes) const;
    bool shuffle(const Step& s, uint32_t lanes);
    bool vote(const Step& s, uint32_t lanes);
    // Row r of matrix j: 16 bytes at the address that lane 8 j + r gives.
    bool ldmatrix(const Step& s, uint32_t lanes);
    // D [16, 8] = A [16, 16] B [16, 8] + C.
    bool mma(const Step& s, uint32_t lanes);

    // --- Hopper's barriers and copies (block_hopper.cpp)
    void start_hopper();
    bool execute_hopper(const Step& s, uint32_t lanes);
    void end_hopper(const Step& s, int lane);
    void look_again();
    Mbarrier& barrier_at(const Step& s, uint64_t at, int lane);
    void settle_phase(const Step& s, Mbarrier& b);
    bool phase_barrier(const Step& s, uint32_t lanes);
    bool named_barrier(const Step& s, uint32_t lanes);
    std::vector<BulkCopy::Piece> box(const Step& s, const Operand& map, const Operand* coordinates,
                                     uint64_t shared, int lane);
    void bulk(const Step& s, int lane);
    void bulk_group(const Step& s, int lane);
    void land_bulk(size_t index);
    bool land_some();  // false: nothing is under way
    void move_store(const BulkCopy& copy, int lane);
    void note_write(uint64_t shared, size_t bytes, int lane);
    void proxy_fence(int lane);
    void demand_fenced(const Step& s, uint64_t shared, size_t bytes) const;

    // --- and its products (block_products.cpp)
    void watch_registers(Warp& w, const Step& s);
    bool products(const Step& s, uint32_t lanes);
    void issue_product(WarpProducts& p, const Step& s);
    void finish_product(WarpProducts& p);
    void multiply(const WarpProduct& product);
    bool register_count(const Step& s, uint32_t lanes);
    bool stmatrix(const Step& s, uint32_t lanes);

    const Module& module_;
    const Entry& entry_;
    const std::vector<Step>& steps_;
    const Launch& launch_;
    const Memory& memory_;
    int threads_;
    Extent index_;
    std::vector<Warp> warps_;
    std::vector<std::byte> shared_;
    std::vector<bool> shared_known_;
    HopperState hopper_;
    Warp* warp_ = nullptr;      // the running one
    uint32_t jumped_ = 0;       // lanes whose instruction set their pc
    mutable int unknown_ = -1;  // a register without a value that the running lane read
};

}  // namespace longreach::ptx
