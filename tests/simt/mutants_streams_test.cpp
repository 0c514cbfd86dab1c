// Mutants of the host's side: streams, pinned memory, what a launch has to ask for.
#include <cuda_runtime.h>

#include <memory>

#include "simt/mutants.h"

namespace longreach::mutants {

using namespace cuda;

namespace {

constexpr size_t n = 64, bytes = n * sizeof(float);

KERNEL(64) void twice(float* y, const float* x) {
    y[threadIdx.x] = 2 * x[threadIdx.x];
}

struct Streams {
    cudaStream_t a{}, b{};
    cudaEvent_t event{};
    Streams() {
        simt::options().lazy_streams = true;
        cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    ~Streams() {
        cudaEventDestroy(event);
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
        simt::options().lazy_streams = false;
    }
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;
};

struct Pinned {
    float* data = nullptr;
    Pinned() { cudaMallocHost(&data, bytes); }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    void fill(float value) const {
        for (size_t i = 0; i < n; ++i) data[i] = value;
    }
};

// Stream b reads what a writes: y is new, or it holds the zeros of the step before.
int no_wait_for_the_event(bool wrong, bool new_memory) {
    Streams s;
    simt::DeviceArray<float> x(std::vector<float>(n, 1)), z(n);
    std::unique_ptr<simt::DeviceArray<float>> y;
    return simt::run_schedules(
        schedules,
        [&] {
            y = std::make_unique<simt::DeviceArray<float>>(n);
            if (!new_memory) y->zero();
            z.zero();
        },
        [&] {
            launch(twice, {1, 64, 0, s.a}, y->data(), x.data());
            cudaEventRecord(s.event, s.a);
            if (!wrong) cudaStreamWaitEvent(s.b, s.event, 0);
            launch(twice, {1, 64, 0, s.b}, z.data(), y->data());
        },
        {z.output()});
}

int event_recorded_early(bool wrong) {
    Streams s;
    simt::DeviceArray<float> x(std::vector<float>(n, 1)), y(n), z(n);
    return simt::run_schedules(
        schedules, [&] { y.zero(); },
        [&] {
            if (wrong) cudaEventRecord(s.event, s.a);
            launch(twice, {1, 64, 0, s.a}, y.data(), x.data());
            if (!wrong) cudaEventRecord(s.event, s.a);
            cudaStreamWaitEvent(s.b, s.event, 0);
            launch(twice, {1, 64, 0, s.b}, z.data(), y.data());
        },
        {z.output()});
}

// Both streams write y; the second has to come later.
int two_writers(bool wrong) {
    Streams s;
    simt::DeviceArray<float> x(std::vector<float>(n, 1)), y(n);
    return simt::run_schedules(
        schedules, [&] { y.zero(); },
        [&] {
            launch(twice, {1, 64, 0, s.a}, y.data(), x.data());
            cudaEventRecord(s.event, s.a);
            if (!wrong) cudaStreamWaitEvent(s.b, s.event, 0);
            cudaMemsetAsync(y.data(), 0, bytes, s.b);
        },
        {y.output()});
}

int pinned_filled_again(bool wrong) {
    Streams s;
    Pinned buffer;
    simt::DeviceArray<float> x(n), y(n);
    return simt::run_schedules(
        schedules, [] {},
        [&] {
            buffer.fill(1);
            cudaMemcpyAsync(x.data(), buffer.data, bytes, cudaMemcpyHostToDevice, s.a);
            cudaEventRecord(s.event, s.a);
            if (!wrong) cudaEventSynchronize(s.event);
            buffer.fill(2);
            cudaMemcpyAsync(y.data(), buffer.data, bytes, cudaMemcpyHostToDevice, s.a);
        },
        {x.output(), y.output()});
}

int result_read_early(bool wrong) {
    Streams s;
    Pinned buffer;
    simt::DeviceArray<float> x(std::vector<float>(n, 1)), y(n), seen(n);
    return simt::run_schedules(
        schedules, [&] { buffer.fill(0); },
        [&] {
            launch(twice, {1, 64, 0, s.a}, y.data(), x.data());
            cudaMemcpyAsync(buffer.data, y.data(), bytes, cudaMemcpyDeviceToHost, s.a);
            if (!wrong) cudaStreamSynchronize(s.a);
            seen.set(std::vector<float>(buffer.data, buffer.data + n));
        },
        {seen.output()});
}

// 64 KiB, launched without the dialect's launch(), which asks.
struct Large {
    float x[16 * 1024];
};
template <bool wrong>
KERNEL(64)
void large(float* y) {
    Large& s = shared<Large>();
    s.x[threadIdx.x] = 1;
    y[threadIdx.x] = s.x[threadIdx.x];
}
template <bool wrong>
int no_opt_in() {
    simt::DeviceArray<float> y(n);
    float* out = y.data();
    simt::LaunchShape shape;
    shape.block.x = 64;
    shape.shared_bytes = sizeof(Large);
    shape.kernel = reinterpret_cast<const void*>(&large<wrong>);
    shape.parameters = &out;
    shape.parameter_bytes = sizeof out;
    shape.call = [](const void* parameters) { large<wrong>(*static_cast<float* const*>(parameters)); };
    return simt::run_schedules(
        schedules, [&] { y.zero(); },
        [&] {
            if (!wrong)
                cudaFuncSetAttribute(large<wrong>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     sizeof(Large));
            simt::run_launch(shape);
        },
        {y.output()});
}

}  // namespace

std::vector<Mutant> streams() {
    using simt::Kind;
    return {
        {"no wait for another stream's first result", Kind::uninitialised_global,
         [](bool wrong) { return no_wait_for_the_event(wrong, true); }},
        {"no wait for another stream's next result", Kind::schedule_dependent,
         [](bool wrong) { return no_wait_for_the_event(wrong, false); }},
        {"event recorded before its work", Kind::schedule_dependent, event_recorded_early},
        {"two streams write without a wait", Kind::schedule_dependent, two_writers},
        {"pinned buffer filled before its copy ran", Kind::schedule_dependent, pinned_filled_again},
        {"pinned result read before the stream got there", Kind::schedule_dependent, result_read_early},
        {"large shared memory without the kernel's opt-in", Kind::shared_not_asked_for,
         [](bool wrong) { return wrong ? no_opt_in<true>() : no_opt_in<false>(); }},
    };
}

}  // namespace longreach::mutants
