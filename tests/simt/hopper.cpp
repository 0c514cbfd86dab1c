#include "simt/hopper.h"

#include <string>

#include "simt/machine.h"

namespace longreach::simt {

namespace {

Machine& enter_kernel(const char* what, const Place& place) {
    if (!on_device_thread()) throw Failure(std::string(what) + " outside of a kernel, " + place.text());
    machine().clocks.turn_on();
    return machine();
}

Machine& enter(const char* what, const Place& place) {
    Machine& m = enter_kernel(what, place);
    if (options().architecture != 90) {
        Finding finding{Kind::wrong_architecture, std::string(what) + " at " + place.text() + " on sm_" +
                                                      std::to_string(options().architecture)};
        finding.place = place.text();
        m.fatal(std::move(finding));
    }
    return m;
}

uintptr_t address_of(const void* at) {
    return reinterpret_cast<uintptr_t>(at);
}

const TensorMap& map_of(const void* map, const char* what, const Place& place) {
    const TensorMap* inside = opened(map);
    if (inside != nullptr) return *inside;
    Finding finding{Kind::tensor_map, std::string(what) + " at " + place.text() +
                                          " with a map that cuTensorMapEncodeTiled did not fill"};
    finding.place = place.text();
    machine().fatal(std::move(finding));
}

}  // namespace

void barrier_init(void* barrier, int arrivals, const Place& place) {
    enter("barrier_init", place).phase_barriers.initialise(address_of(barrier), arrivals, place);
}
void fence_barrier_init(const Place& place) {
    if (left_out(place)) return;
    enter("fence_barrier_init", place).phase_barriers.fence();
}
void barrier_arrive(void* barrier, int bytes, const Place& place) {
    if (left_out(place)) return;
    enter("barrier_arrive", place).phase_barriers.arrive(address_of(barrier), bytes, place);
}
bool barrier_try_wait(void* barrier, int parity, const Place& place) {
    return enter("barrier_try_wait", place).phase_barriers.try_wait(address_of(barrier), parity, place);
}
void barrier_wait(void* barrier, int parity, const Place& place) {
    if (left_out(place)) return;
    enter("barrier_wait", place).phase_barriers.wait(address_of(barrier), parity, place);
}
void named_barrier(int id, int threads, bool waits, const Place& place) {
    if (left_out(place)) return;
    enter_kernel("a named barrier", place).named_barriers.arrive(id, threads, waits, place);
}
void fence_async_proxy(const Place& place) {
    if (left_out(place)) return;
    Machine& m = enter("fence_async_proxy", place);
    m.clocks.fence(m.current);
}

void bulk_copy(void* to, const void* from, int bytes, void* barrier, const Place& place) {
    enter("bulk_copy", place)
        .bulk_copies.copy(static_cast<char*>(to), static_cast<const char*>(from), static_cast<size_t>(bytes),
                          address_of(barrier), place);
}
void tensor_copy(void* to, const void* map, int column, int row, int sequence, void* barrier,
                 const Place& place) {
    enter("tensor_copy", place)
        .bulk_copies.copy_box(static_cast<char*>(to), map_of(map, "tensor_copy", place),
                              {column, row, sequence}, address_of(barrier), place);
}
void tensor_store(const void* map, const void* from, int column, int row, int sequence, const Place& place) {
    enter("tensor_store", place)
        .bulk_copies.store_box(map_of(map, "tensor_store", place), static_cast<const char*>(from),
                               {column, row, sequence}, place);
}
void tensor_stores_commit(const Place& place) {
    if (left_out(place)) return;
    machine().bulk_copies.commit();
}
void tensor_stores_read(const Place& place) {
    if (left_out(place)) return;
    machine().bulk_copies.wait_read();
}

uint32_t shared_offset(const void* at) {
    return static_cast<uint32_t>(address_of(at) - machine().arena);
}
void product(float* d, int columns, const uint32_t* registers, uint64_t a, uint64_t b, bool strided, bool add,
             const Place& place) {
    enter("a product", place).warpgroups.product({d, columns, registers, a, b, strided, add, place});
}
void products_fence(const Place& place) {
    if (left_out(place)) return;
    enter("products_fence", place).warpgroups.fence();
}
void products_commit(const Place& place) {
    if (left_out(place)) return;
    enter("products_commit", place).warpgroups.commit();
}
void products_wait(int pending, const Place& place) {
    if (left_out(place)) return;
    enter("products_wait", place).warpgroups.wait(pending, place);
}
void change_registers(int registers, bool more, const Place& place) {
    enter(more ? "more_registers" : "fewer_registers", place)
        .warpgroups.change_registers(registers, more, place);
}

}  // namespace longreach::simt
