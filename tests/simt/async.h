// cp.async, ldmatrix and mma on the CPU; kernels/cuda/ptx.cuh calls these where it is not compiled for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simt/findings.h"

namespace longreach::simt {

// 16 bytes from device to shared memory; bytes of the source beyond `valid` (0 to 16) are not read
// and arrive as 0.
void cp_async_16(void* shared, const void* global, int valid, const Place& place);
void cp_async_commit(const Place& place);
// Returns when at most `pending` of the thread's latest groups are on their way.
void cp_async_wait(int pending, const Place& place);

// Lane l gives the address of row l % 8 of matrix l / 8; rows are 8 bfloat16, 16 bytes.
void ldmatrix_x4(uint32_t (&out)[4], const void* row, bool transposed, const Place& place);
// d = a b + c for a 16 x 16, b 16 x 8, fp32 sums in the order of k; fragments as the PTX
// manual lays them out.
void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                       const Place& place);

// The copies under way in a block, by thread.
class Copies {
  public:
    void start_block(size_t threads);
    void issue(void* shared, const void* global, int valid, const Place& place);
    void commit();
    void wait(int pending);
    void thread_ends();
    // A write to device memory: is it the source of a copy under way?
    void check_source(uintptr_t address, size_t bytes, uintptr_t place);
    bool any() const { return under_way_ != 0; }

  private:
    struct Copy {
        char* to;
        const char* from;
        int valid;
        int group;
        bool landed;
        Place place;
    };
    struct Queue {
        std::vector<Copy> copies;
        int groups = 0;  // committed so far
    };
    void land(Copy& copy);

    std::vector<Queue> queues_;
    size_t under_way_ = 0;
};

}  // namespace longreach::simt
