// GPUs without a GPU, as far as streams and events go: every stream is a thread, so what is not made to wait
// does not wait. Besides, every piece of work names the memory it reads and writes, and two that touch the
// same memory in different streams without an event between them are reported, whatever their timing was.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace longreach::test::fake_cuda {

struct Range {
    const void* data = nullptr;
    int64_t bytes = 0;
    Range(const void* where, int64_t size) : data(where), bytes(size) {}
    Range(const Tensor& t) : data(t.data()), bytes(t.bytes()) {}
};

// What a kernel is here.
struct Work {
    std::string name;
    std::vector<Range> reads, writes;
    std::function<void()> run;
};
void enqueue(cudaStream_t stream, Work work);
void synchronize(cudaStream_t stream);

// A stream like that of CudaOps.
class Stream {
  public:
    explicit Stream(int device);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    cudaStream_t handle = nullptr;
};

// Device memory, zeroed.
class Memory {
  public:
    explicit Memory(int64_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* data() { return bytes_.data(); }

  private:
    std::vector<uint64_t> bytes_;
};
bool allocated(Range range);  // within one Memory

// Bugs to plant: the book of what waits for what has no waits of one kind of streams. They do wait, so that a
// planted bug is found for its order alone and breaks nothing else.
enum class Deaf { none, communication, computation };
void make_deaf(Deaf streams);
void break_device(int device);  // events of it fail unless they are done
void repair();                  // both

// What went wrong, in the order in which it did; taken once.
void report(const std::string& what);
std::vector<std::string> take_reports();

}  // namespace longreach::test::fake_cuda
