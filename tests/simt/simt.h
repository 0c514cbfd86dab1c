// Runs the kernels of kernels/cuda on the CPU and reports what a GPU would leave unsaid.
// The public face of the harness: options, launches under several schedules, device memory.
// tests/simt/README.md shows a kernel test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "simt/findings.h"

namespace longreach::simt {

// Who runs next when a thread has to wait.
enum class Order {
    round_robin,  // the next thread by number
    reverse,      // the highest number that can run
    warp_first,   // a warp as far as it gets, then the next
    random,       // by seed; also stops threads at random memory accesses
};

// When the bytes of a cp.async arrive: at the copy, at the wait, or by seed at one of the two.
enum class Landing { earliest, latest, random };

struct Options {
    Order order = Order::round_robin;
    Landing landing = Landing::latest;
    uint64_t seed = 1;
    int architecture = 90;         // compute capability times ten: how much shared memory there is
    bool throw_on_finding = true;  // a launch with findings throws Failure
    bool shuffle_orders_memory =
        false;  // CUDA promises no memory order at a shuffle or vote, only at __syncwarp
    // Work of a stream waits until somebody needs it; of several streams the seed decides who goes on.
    bool lazy_streams = false;
    size_t device_bytes = size_t{8} << 30;  // cudaMalloc has no more to give
    uint64_t fail_call = 0;  // the call of the runtime, counted from here, that fails once; 0: none
    uint64_t hang_at =
        0;  // the launch, counted from here, that never ends, nor what its stream has after it; 0: none
    bool count_bank_conflicts = false;
    // Whether accesses of kernels are looked at. Without it races, values and bounds inside a block go unseen and a
    // launch takes half the time: for long runs of kernels whose own tests watch them.
    bool watch_memory = true;
    // A directory with the PTX that nvcc emitted for the kernels: launches run that instead, by tests/ptx. The harness
    // then sees neither races nor divergence, only what the PTX computes and the memory it touches.
    std::string ptx;
    // Asked with the place of every barrier, fence, arrival, commit and wait of a kernel: true leaves it out, so that a
    // test sees what is said of the kernel without it.
    std::function<bool(const Place&)> leaves_out;
};
extern Options the_options;
inline Options& options() {
    return the_options;
}
inline bool left_out(const Place& at) {
    return the_options.leaves_out && the_options.leaves_out(at);
}

// 0 where the architecture is unknown. Bytes per block after the opt-in.
size_t shared_memory_of(int architecture);

// --- schedules
// Schedule k of a fixed list: the four orders with the three landings, then random ones by seed.
Options schedule(int k);
// As many as a kernel's test runs: 4 have every order and every landing, `tools/test --long` runs 16.
int usual_schedules();
bool long_tests();  // whether it is `tools/test --long` that runs

struct Output {
    const void* data = nullptr;  // device memory
    size_t bytes = 0;
};
// Runs `launches` under `count` schedules and demands outputs that are the same bit for bit and
// free of poison. Before each run `prepare` has to bring inputs and outputs to the same state.
// Findings are left in findings(); with throw_on_finding they throw. Returns how many schedules ran before
// the first finding, `count` if none.
int run_schedules(int count, const std::function<void()>& prepare, const std::function<void()>& launches,
                  const std::vector<Output>& outputs);

// --- device memory
// Inaccessible to the host while no kernel or copy runs; addresses are not used twice.
void* device_malloc(size_t bytes);
void device_free(void* memory);
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_to_host(void* to, const void* from, size_t bytes);
void copy_on_device(void* to, const void* from, size_t bytes);
void set_device(void* to, int value, size_t bytes);
bool host_can_read(const void* memory);  // asks the operating system, without touching it

// An array in device memory that lives as long as this object.
template <class T>
class DeviceArray {
  public:
    explicit DeviceArray(size_t count)
        : data_(static_cast<T*>(device_malloc(count * sizeof(T)))), count_(count) {}
    explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;
    ~DeviceArray() { device_free(data_); }

    T* data() const { return data_; }
    size_t size() const { return count_; }
    Output output() const { return {data_, count_ * sizeof(T)}; }
    void set(const std::vector<T>& values) {
        copy_to_device(data_, values.data(), values.size() * sizeof(T));
    }
    void zero() { set_device(data_, 0, count_ * sizeof(T)); }
    std::vector<T> get() const {
        std::vector<T> values(count_);
        copy_to_host(values.data(), data_, count_ * sizeof(T));
        return values;
    }

  private:
    T* data_;
    size_t count_;
};

// --- counters
struct BankConflicts {
    std::string place;
    uint64_t accesses = 0;   // of a warp
    double mean_degree = 0;  // 1: none; 32: one lane after the other
    int worst_degree = 0;
};
std::vector<BankConflicts> bank_conflicts();  // by source line, of all launches since clear_bank_conflicts()
void clear_bank_conflicts();

struct Launches {
    uint64_t count = 0;
    size_t most_shared_bytes = 0;
};
Launches launches();  // that ran since clear_launches()
void clear_launches();

uint64_t runtime_calls();   // of functions that can fail, launches included, since the program started
std::string failed_call();  // the function that Options::fail_call let fail last
// Device allocations, pinned buffers, streams, events and graphs that nobody has given back.
size_t living_runtime_objects();

uint64_t switches();  // of fibres since the program started

}  // namespace longreach::simt
