// Hopper's instructions on words in and words out, by the kernels of simt/hopper_kernels.h; golden.h says which words.
#include <algorithm>
#include <string_view>

#include "cuda/golden.h"
#include "cuda/golden_words.h"
#include "kernels/cuda/tensor_map.h"
#include "simt/hopper_kernels.h"

namespace longreach::test {
namespace {

using namespace cuda;
using namespace hopper_test;

// Bfloat16 in a buffer of words, two in each.
bf16* halves(const DeviceWords& words, size_t first_word = 0) {
    return reinterpret_cast<bf16*>(words.data() + first_word);
}

template <int n, From from>
Words run_product(const std::string& op, const Words& in) {
    constexpr size_t of_a = 64 * 32 / 2, of_b = 32 * n / 2, sums = 64 * n;
    require_words(op, in, of_a + of_b + sums);
    const DeviceWords there(in), out(sums);
    const auto* const start = reinterpret_cast<const float*>(there.data() + of_a + of_b);
    launch(multiply<n, from>, {1, 128, sizeof(Operands), nullptr}, reinterpret_cast<float*>(out.data()),
           halves(there), halves(there, of_a), start);
    return finish_golden(op, out);
}

Words run_box(const std::string& op, const Words& in) {
    constexpr size_t of_tensor = golden_columns * golden_rows * golden_sequences / 2,
                     of_box = sizeof(Box::bytes) / 4;
    const bool stores = op == "tensor_store";
    require_words(op, in, of_tensor + 3 + (stores ? of_box : 0));
    const DeviceWords there(in), out(of_box);
    const CUtensorMap map =
        tensor_map(Tensor(there.data(), DType::bf16, {golden_sequences * golden_rows, golden_columns}),
                   golden_sequences, golden_rows, 16);
    const auto coordinate = [&](size_t i) { return static_cast<int>(in[of_tensor + i]); };
    const Launch at{1, 64, sizeof(Box), nullptr};
    if (!stores) {
        launch(fetch, at, halves(out), map, coordinate(0), coordinate(1), coordinate(2));
        return finish_golden(op, out);
    }
    // From 16 bytes on, as everything that copies want.
    const DeviceWords box(Words(in.begin() + of_tensor + 3, in.end()));
    launch(put, at, map, halves(box), coordinate(0), coordinate(1), coordinate(2));
    Words tensor = finish_golden(op, there);
    tensor.resize(of_tensor);
    return tensor;
}

template <int threads, int copier, int computer>
Words run_registers(const std::string& op, const Words& in) {
    require_words(op, in, threads);
    const DeviceWords there(in), out(threads);
    launch(share_registers<threads, copier, computer>, {1, threads, 0, nullptr}, out.data(), there.data());
    return finish_golden(op, out);
}

}  // namespace

Words run_golden_sm90(const std::string& op, const Words& in) {
    if (op == "wgmma_64") return run_product<64, From::shared_memory>(op, in);
    if (op == "wgmma_96") return run_product<96, From::shared_memory>(op, in);
    if (op == "wgmma_128") return run_product<128, From::shared_memory>(op, in);
    if (op == "wgmma_256") return run_product<256, From::shared_memory>(op, in);
    if (op == "wgmma_256_strided") return run_product<256, From::shared_strided>(op, in);
    if (op == "wgmma_64_registers") return run_product<64, From::registers>(op, in);
    if (op == "wgmma_96_registers") return run_product<96, From::registers>(op, in);
    if (op == "wgmma_128_registers") return run_product<128, From::registers>(op, in);
    if (op == "wgmma_64_registers_strided") return run_product<64, From::registers_strided>(op, in);
    if (op == "wgmma_96_registers_strided") return run_product<96, From::registers_strided>(op, in);
    if (op == "wgmma_128_registers_strided") return run_product<128, From::registers_strided>(op, in);
    if (op == "tensor_copy" || op == "tensor_store") return run_box(op, in);
    if (op == "setmaxnreg_24_240") return run_registers<384, 24, 240>(op, in);
    if (op == "setmaxnreg_40_232") return run_registers<384, 40, 232>(op, in);
    if (op == "setmaxnreg_32_160") return run_registers<512, 32, 160>(op, in);
    if (op == "bulk_copy") {
        constexpr size_t words = sizeof(Box::bytes) / 4;
        require_words(op, in, words);
        const DeviceWords there(in), out(words);
        launch(fetch_bytes, {1, 64, sizeof(Box), nullptr}, halves(out), halves(there));
        return finish_golden(op, out);
    }
    require(op == "stmatrix_x4", ExitCode::data, "golden vectors of an unknown function {}", op);
    require_words(op, in, 128);
    const DeviceWords there(in), out(128);
    launch(there_and_back, {1, 32, 512, nullptr}, out.data(), there.data());
    return finish_golden(op, out);
}

void start_golden_hang() {
    static const DeviceWords words(384);
    launch(share_registers<384, 32, 240>, {1, 384, 0, nullptr}, words.data(), words.data());
    require_success(cudaGetLastError(), "setmaxnreg");
}

}  // namespace longreach::test
