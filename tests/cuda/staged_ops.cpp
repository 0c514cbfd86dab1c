// CudaOps for tests that were written for a CPU: a decorator copies the tensors of every call from host memory
// into device memory, runs the operation there, and copies them back. The kernel tests of tests/kernels run on it with
// their bounds, in the harness or on a GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/runtime.h"
#include "cuda/schedule.h"
#include "kernels/cuda_device.h"
#include "kernels/ops.h"

namespace longreach {

namespace test {
std::unique_ptr<Ops> make_test_ops(const CpuOptions& options);
bool on_cpu();
bool on_cpu() {
    return false;
}
}  // namespace test

namespace {

void* device_memory(size_t bytes) {
    void* memory = nullptr;
    cuda::require_success(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

// The tensors of one call in device memory. Those that share host memory share device memory too, at the same
// distance and the same place within 64 bytes; what lies between the rows travels along, so that a write
// there is seen by whoever looks for it on the host.
class Stage {
  public:
    explicit Stage(const std::vector<Operand>& operands) {
        for (const Operand& o : operands)
            if (const Tensor& t = *o.tensor; t && t.count() > 0)
                pieces_.push_back({begin_of(t), end_of(t), nullptr});
        std::sort(pieces_.begin(), pieces_.end(),
                  [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
        std::vector<Piece> merged;
        for (const Piece& p : pieces_) {
            if (!merged.empty() && p.begin < merged.back().end)
                merged.back().end = std::max(merged.back().end, p.end);
            else
                merged.push_back(p);
        }
        pieces_ = merged;
        for (Piece& p : pieces_) {
            p.memory = device_memory(phase(p) + p.end - p.begin);
            cuda::require_success(cudaMemcpy(p.device(), reinterpret_cast<void*>(p.begin), p.end - p.begin,
                                             cudaMemcpyHostToDevice),
                                  "copy");
        }
        // A copy from pageable memory may return before its bytes have arrived, and the stream of CudaOps
        // waits for no other stream.
        cuda::require_success(cudaDeviceSynchronize(), "copies");
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage() {
        for (const Piece& p : pieces_) cudaFree(p.memory);
    }

    Tensor operator()(const Tensor& t) const {
        if (!t || t.count() == 0) return t;
        for (const Piece& p : pieces_)
            if (p.begin <= begin_of(t) && begin_of(t) < p.end)
                return t.placed_at(static_cast<std::byte*>(p.device()) + (begin_of(t) - p.begin));
        check(false, "a tensor that was not staged");
        return t;
    }
    void finish() {
        cuda::require_success(cudaDeviceSynchronize(), "kernels");
        for (const Piece& p : pieces_)
            cuda::require_success(cudaMemcpy(reinterpret_cast<void*>(p.begin), p.device(), p.end - p.begin,
                                             cudaMemcpyDeviceToHost),
                                  "copy");
    }

  private:
    struct Piece {
        uintptr_t begin, end;
        void* memory;
        void* device() const { return static_cast<std::byte*>(memory) + phase(*this); }
    };
    static size_t phase(const Piece& p) { return p.begin % 64; }
    static uintptr_t begin_of(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data()); }
    static uintptr_t end_of(const Tensor& t) {
        return begin_of(t) +
               static_cast<uintptr_t>(((t.rows() - 1) * t.row_stride + t.cols()) * size_of(t.dtype));
    }
    std::vector<Piece> pieces_;
};

// Kernels cannot refuse a token; whoever calls them still has the numbers on the host.
void check_range(const Tensor& numbers, int64_t least, int64_t end) {
    for (int64_t i = 0; i < numbers.count(); ++i)
        check(numbers.i32()[i] >= least && numbers.i32()[i] < end, "{} is not in {} .. {}", numbers.i32()[i],
              least, end - 1);
}

class Staging final : public Decorator {
  public:
    void around(Call& call) override {
        const std::vector<Operand> operands = call.operands();
        const auto operand = [&](size_t i) -> const Tensor& { return *operands[i].tensor; };
        const std::string_view name = call.name();
        if (name.starts_with("embedding")) {  // x, table, tokens; dtable, dx, tokens
            check_range(operand(2), 0, operand(name == "embedding" ? 1 : 0).rows());
        } else if (name == "cross entropy") {  // loss, logits, targets
            check_range(operand(2), -1, operand(1).cols());
        }
        Stage stage(operands);
        for (const Operand& o : operands) *o.tensor = stage(*o.tensor);
        call.run();
        stage.finish();
    }
};

}  // namespace

// The CUDA backend for host memory. Instead of a number of threads the kernel tests vary the
// schedule of the harness.
std::unique_ptr<Ops> test::make_test_ops(const CpuOptions& options) {
    require(options.isa.empty() || options.isa == "generic", ExitCode::device, "one device");
    require(options.precision == Precision::fp32, ExitCode::device, "tensors of the host are f32");
    set_schedule(std::max(0, options.threads - 1));
    std::unique_ptr<Ops> ops = make_cuda_ops({.precision = options.precision});
    ops->decorate(std::make_shared<Staging>());
    return ops;
}

}  // namespace longreach
