// Copies between device and shared memory by the copy engine: bulk_copy, tensor_copy and tensor_store of
// kernels/cuda/ptx_sm90.cuh. One is issued now and moves its bytes at some moment until its phase completes (a copy to
// shared memory) or until tensor_stores_read() (a store).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simt/findings.h"
#include "simt/tensor_maps.h"

namespace longreach::simt {

class BulkCopies {
  public:
    void start_block(size_t threads);
    void end_block();
    void thread_ends();
    void copy(char* to, const char* from, size_t bytes, uintptr_t barrier, const Place& place);
    void copy_box(char* to, const TensorMap& map, const int (&at)[3], uintptr_t barrier, const Place& place);
    void store_box(const TensorMap& map, const char* from, const int (&at)[3], const Place& place);
    void commit();
    void wait_read();

    void phase_completed(size_t barrier);
    bool land_one();  // false: none is under way
    void move_some_store();
    // Writes of the running thread: of a copy's source in device memory, of a store's in shared memory.
    void check_source(uintptr_t address, size_t bytes, uintptr_t place);
    void check_store_source(uintptr_t address, size_t bytes, uintptr_t place);
    bool any() const { return !copies_.empty(); }

  private:
    struct Piece {
        char* to;
        const char* from;  // null: zeros arrive
        size_t bytes;
    };
    struct Copy {
        std::vector<Piece> pieces;
        uintptr_t to;
        size_t bytes;
        size_t barrier;
        int64_t phase;
        int thread;
        bool landed;
        Place place;
        uintptr_t first = 0, end = 0;  // around what it reads
    };
    struct Store {
        std::vector<Piece> pieces;
        uintptr_t from;
        size_t bytes;
        int group;
        bool moved;
        Place place;
    };
    struct Queue {
        std::vector<Store> stores;
        int groups = 0;  // committed so far
    };
    void issue(Copy copy, uintptr_t barrier);
    void land(size_t index);
    void move(Store& store);

    std::vector<Copy> copies_;  // until their phases complete
    std::vector<Queue> queues_;
    size_t stores_ = 0;  // not read yet
};

}  // namespace longreach::simt
