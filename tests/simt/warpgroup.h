// Products of warpgroups (wgmma) and their registers: kernels/cuda/ptx_sm90.cuh.
//
// A product is issued when the 128 threads of a warpgroup have met at it. It reads its operands in shared memory at
// some moment until the first of them comes back from products_wait(), and until a thread comes back from there its
// arrays of sums and of a are the product's. These are local arrays: they lie on the fibres' stacks, and the hooks show
// every access to them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "simt/clocks.h"
#include "simt/findings.h"
#include "simt/shadow.h"

namespace longreach::simt {

struct ProductCall {
    float* d;
    int columns;
    const uint32_t* registers;  // null: a is a descriptor
    uint64_t a, b;
    bool strided, add;
    Place place;
};

class Warpgroups {
  public:
    ~Warpgroups();
    void start_block(size_t threads, int registers);
    void thread_ends();
    void product(const ProductCall& call);
    void fence();
    void commit();
    void wait(int pending, const Place& place);
    void change_registers(int registers, bool more, const Place& place);

    void run_one();  // of the products that wait to be computed
    // A write of the running thread to shared memory, and any access of it to a stack.
    void check_operands(uintptr_t address, size_t bytes, uintptr_t place);
    void access_stack(uintptr_t address, size_t bytes, Use use, uintptr_t place) {
        if (active_) mark_stack(address, bytes, use, place);
    }
    std::string table() const;  // of registers

  private:
    static constexpr size_t lanes = 128, most_groups = 8;

    struct Work {  // what a product needs until it is computed and everybody has waited for it
        std::array<float*, lanes> d{};
        std::array<std::array<uint32_t, 4>, lanes> a{};
        Clock floor;                                // what each of the threads knew
        std::vector<uintptr_t> a_chunks, b_chunks;  // 16 bytes each, in the order of the operand's elements
    };
    struct Product {
        ProductCall call;
        size_t group = 0;
        bool ran = false;
        int left = lanes;                    // threads that have not waited
        uint32_t epoch = 0;                  // of the first that had; 0: none
        std::array<uint32_t, lanes> done{};  // clocks of the threads after their waits
        std::unique_ptr<Work> work;
    };
    struct Sums {
        float* d;
        int count, products;
        std::array<float, 128> value;
    };
    struct Issued {
        size_t product;
        int group;
        float* d;
        const uint32_t* a;
    };
    struct ThreadState {
        uint32_t fence = 0;  // number of the last one
        int groups = 0;      // committed so far
        std::vector<Sums> sums;
        std::vector<Issued> issued;
    };
    struct Group {
        int arrived = 0;
        std::array<const ProductCall*, lanes> calls{};
        std::vector<size_t> to_run;
        int registers = 0, wanted = 0, at_change = 0;
        Place change_place;
        bool waits_for_registers = false;
    };

    void demand_fence(const void* at, size_t bytes, const char* what, const Place& place);
    void take_sums(const ProductCall& call);
    void issue(Group& group, size_t number);
    void run(size_t product);
    void compute(Product& product);
    void retire(const Issued& issued, const Place& place);
    void release(const void* at, size_t bytes, const ThreadState& self);
    void give_registers();
    void mark_stack(uintptr_t address, size_t bytes, Use use, uintptr_t place);
    uint32_t* marks_of(const void* at);  // null: not on a stack

    bool active_ = false;
    std::vector<ThreadState> threads_;
    std::vector<Group> groups_;
    std::vector<Product> products_;  // of the block
    std::vector<uint32_t> readers_;  // by word of shared memory and group: 1 + the last product that reads it
    uint32_t* marks_ = nullptr;      // by word of the stacks: number of the fence before its last access
    size_t marks_bytes_ = 0;
    uint32_t fences_ = 0;
    int free_registers_ = 0;
};

// sums += a b in order of k: 64 x 16 and 16 x columns, row by row.
void add_product(float* sums, const float* a, const float* b, int columns);

}  // namespace longreach::simt
