// Hopper's instructions on the CPU; kernels/cuda/ptx_sm90.cuh calls these where it is not compiled for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simt/findings.h"

namespace longreach::simt {

// Barriers in shared memory and of a part of the block.
void barrier_init(void* barrier, int arrivals, const Place& place);
void fence_barrier_init(const Place& place);
void barrier_arrive(void* barrier, int bytes, const Place& place);
bool barrier_try_wait(void* barrier, int parity, const Place& place);
void barrier_wait(void* barrier, int parity, const Place& place);
void named_barrier(int id, int threads, bool waits, const Place& place);
void fence_async_proxy(const Place& place);

// The copy engine. `map` is a CUtensorMap that the harness's cuTensorMapEncodeTiled filled.
void bulk_copy(void* to, const void* from, int bytes, void* barrier, const Place& place);
void tensor_copy(void* to, const void* map, int column, int row, int sequence, void* barrier,
                 const Place& place);
void tensor_store(const void* map, const void* from, int column, int row, int sequence, const Place& place);
void tensor_stores_commit(const Place& place);
void tensor_stores_read(const Place& place);

// Products of a warpgroup. An operand is a descriptor of shared memory; `registers` is null, or the thread's four
// words of a, and then `a` is not used.
uint32_t shared_offset(const void* at);
void product(float* d, int columns, const uint32_t* registers, uint64_t a, uint64_t b, bool strided, bool add,
             const Place& place);
void products_fence(const Place& place);
void products_commit(const Place& place);
void products_wait(int pending, const Place& place);
void change_registers(int registers, bool more, const Place& place);

void stmatrix_x4(void* row, const uint32_t (&in)[4], const Place& place);

}  // namespace longreach::simt
