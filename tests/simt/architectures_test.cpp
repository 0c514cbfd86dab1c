// One launch of every family of kernels on each architecture, at the sizes that ask for the most shared
// memory: a layout that fits H100 and not RTX 4090 is found here, not there. Results are tested elsewhere.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/row_statistics.h"
#include "simt/simt.h"

using namespace longreach;

namespace {

// Tensors in device memory that live as long as this object. Every element is 1/2, 0 for integers.
class Room {
  public:
    Tensor make(DType dtype, int64_t rows, int64_t cols) {
        const auto bytes = static_cast<size_t>(rows * cols * size_of(dtype));
        std::vector<unsigned char> values(bytes);
        const uint16_t half_bf16 = 0x3f00;
        const float half = 0.5f;
        const double half_f64 = 0.5;
        const void* of = dtype == DType::bf16  ? static_cast<const void*>(&half_bf16)
                         : dtype == DType::f32 ? static_cast<const void*>(&half)
                                               : static_cast<const void*>(&half_f64);
        if (dtype != DType::i32)
            for (size_t i = 0; i < bytes; ++i)
                values[i] = static_cast<const unsigned char*>(of)[i % static_cast<size_t>(size_of(dtype))];
        arrays_.push_back(std::make_unique<simt::DeviceArray<unsigned char>>(values));
        return Tensor(arrays_.back()->data(), dtype, {rows, cols});
    }
    Tensor f32(int64_t rows, int64_t cols) { return make(DType::f32, rows, cols); }
    Tensor f32(int64_t count) { return Tensor(f32(1, count).data(), DType::f32, {count}); }
    Tensor f64(int64_t count) { return Tensor(make(DType::f64, 1, count).data(), DType::f64, {count}); }
    Tensor i32(int64_t count) { return Tensor(make(DType::i32, 1, count).data(), DType::i32, {count}); }
    Tensor workspace(int64_t bytes) { return f32(bytes / 4 + 1); }

  private:
    std::vector<std::unique_ptr<simt::DeviceArray<unsigned char>>> arrays_;
};

struct Family {
    std::string name;
    std::function<void(Room&, DType)> run;  // DType of activations
};

// Forward and backward of plain scores, then with distance tables and their gradients.
void attention(Room& room, DType type, int64_t channels) {
    const int64_t length = 9, heads = 2;
    for (bool tables : {false, true}) {
        AttentionSpec spec{.batch = 1,
                           .length = length,
                           .heads = heads,
                           .kv_heads = 1,
                           .head_dim = channels,
                           .scale = 0.125f};
        AttentionGradients gradients;
        if (tables) {
            spec.distance_gain = room.f32(1, length);
            spec.distance_bias = room.f32(heads, length);
            gradients.distance_gain = room.f32(1, length);
            gradients.distance_bias = room.f32(heads, length);
        }
        Tensor q = room.make(type, length, heads * channels), o = room.make(type, length, heads * channels);
        Tensor k = room.make(type, length, channels), v = room.make(type, length, channels);
        Tensor dq = room.make(type, length, heads * channels), dk = room.make(type, length, channels);
        Tensor dv = room.make(type, length, channels), lse = room.f32(heads, length);
        cuda::attention(o, lse, Tensor(), q, k, v, spec, nullptr);
        cuda::attention_statistics(room.f32(row_statistics * heads, length), lse, q, k, Tensor(), spec,
                                   nullptr);
        cuda::attention_backward({dq, dk, dv}, gradients,
                                 room.workspace(cuda::attention_backward_workspace(spec, gradients)), q,
                                 {{q, k, v}, o, lse}, spec, nullptr);
    }
}

void sticks(Room& room, DType type, int64_t channels) {
    const int64_t length = 9, heads = 2;
    const AttentionSpec spec{.batch = 1,
                             .length = length,
                             .heads = heads,
                             .kv_heads = 1,
                             .head_dim = channels,
                             .scale = 0.125f,
                             .distance_gain = room.f32(1, length),
                             .distance_bias = room.f32(heads, length),
                             .normaliser = Normaliser::stick_breaking};
    const AttentionGradients gradients{.distance_gain = room.f32(1, length),
                                       .distance_bias = room.f32(heads, length)};
    Tensor q = room.make(type, length, heads * channels), o = room.make(type, length, heads * channels);
    Tensor k = room.make(type, length, channels), v = room.make(type, length, channels);
    Tensor dq = room.make(type, length, heads * channels), dk = room.make(type, length, channels);
    Tensor dv = room.make(type, length, channels), lse = room.f32(heads, length);
    cuda::break_sticks(o, lse, q, k, v, spec, nullptr);
    cuda::stick_statistics(room.f32(row_statistics * heads, length), lse, q, k, Tensor(), spec, nullptr);
    cuda::stick_decode(o.row_range(0, 1), q.row_range(0, 1), k, v, spec, 0, length - 1, nullptr);
    cuda::break_sticks_backward({dq, dk, dv}, gradients,
                                room.workspace(cuda::stick_workspace(spec, gradients)), q,
                                {{q, k, v}, o, lse}, spec, nullptr);
}

// Families of row kernels, then matrix products and attention: add yours at the end of the list.
const std::vector<Family> families{
    {"memory",
     [](Room& room, DType type) {
         Tensor x = room.make(type, 3, 40), y = room.f32(3, 40);
         cuda::zero(x, nullptr);
         cuda::copy(y, x, nullptr);
         cuda::add(x, y, nullptr);
     }},
    {"embedding",
     [](Room& room, DType type) {
         Tensor x = room.make(type, 5, 64), table = room.f32(7, 64), tokens = room.i32(5);
         cuda::embedding(x, table, tokens, nullptr);
         cuda::embedding_backward(table, room.workspace(cuda::embedding_backward_workspace(5, 64)), x, tokens,
                                  nullptr);
     }},
    {"norm",
     [](Room& room, DType type) {
         for (int64_t width : {64, 4096})  // a warp per row, a block per row
             for (NormKind kind : {NormKind::rms, NormKind::layer}) {
                 Tensor x = room.make(type, 3, width), y = room.make(type, 3, width);
                 Tensor n = room.make(type, 3, width), inverse = room.f32(3), gain = room.f32(width);
                 Tensor bias = kind == NormKind::layer ? room.f32(width) : Tensor();
                 const NormSpec spec{kind, 1e-5f};
                 cuda::norm(y, n, inverse, x, gain, bias, spec, nullptr);
                 cuda::norm_backward({.x = y, .gain = gain, .bias = bias},
                                     room.workspace(cuda::norm_backward_workspace(3, width)), x, n, inverse,
                                     gain, spec, nullptr);
             }
     }},
    {"heads",
     [](Room& room, DType type) {
         for (int64_t d : {16, 64, 128, 256}) {
             const int64_t heads = 2, rows = 4;
             Tensor x = room.make(type, rows, heads * d), dx = room.make(type, rows, heads * d);
             const HeadSpec spec{.length = rows,
                                 .heads = heads,
                                 .head_dim = d,
                                 .norm = HeadNorm::rms,
                                 .log_eps = room.f32(heads),
                                 .gain = room.f32(d),
                                 .cosine = room.f32(rows, d / 2),
                                 .sine = room.f32(rows, d / 2)};
             Tensor n = room.make(type, rows, heads * d), inverse = room.f32(rows, heads);
             cuda::prepare_heads(x, n, inverse, spec, nullptr);
             cuda::prepare_heads_backward(
                 {.x = dx, .gain = room.f32(d), .log_eps = room.f32(heads)},
                 room.workspace(cuda::prepare_heads_backward_workspace(rows, heads, d)), x, n, inverse, spec,
                 nullptr);
         }
     }},
    {"neighbours",
     [](Room& room, DType type) {
         const int64_t rows = 8, width = 64;
         Tensor x = room.make(type, rows, width), y = room.make(type, rows, width), w = room.f32(4, width);
         Tensor share = room.f32(12), lambda = room.f32(1);
         cuda::short_conv(y, x, w, Tensor(), rows, nullptr);
         cuda::short_conv_backward({y, room.f32(4, width)},
                                   room.workspace(cuda::short_conv_backward_workspace(rows, 4, width)), x,
                                   {x, w}, Tensor(), rows, nullptr);
         cuda::smear(y, x, share, lambda, Tensor(), rows, nullptr);
         cuda::smear_backward({y, room.f32(12), room.f32(1)},
                              room.workspace(cuda::smear_backward_workspace(rows, 12)), x, {x, share, lambda},
                              Tensor(), rows, nullptr);
     }},
    {"gated delta rule",
     [](Room& room, DType type) {
         const int64_t rows = 70, heads = 2;
         for (auto [d, decays] :
              std::vector<std::pair<int64_t, int64_t>>{{64, 1}, {64, 64}, {128, 1}, {128, 128}, {256, 1}}) {
             const DeltaSpec spec{.batch = 1, .length = rows, .heads = heads, .key_dim = d, .value_dim = 40};
             Tensor k = room.make(type, rows, heads * d), v = room.make(type, rows, heads * 40);
             Tensor decay = room.f32(rows, heads * decays), beta = room.f32(rows, heads);
             Tensor states = room.f32(2 * heads, d * 40);
             const cuda::DeltaInputs in{.q = k, .k = k, .v = v, .decay = decay, .beta = beta};
             cuda::delta_rule(room.make(type, rows, heads * 40), {.of_chunks = states},
                              room.workspace(cuda::delta_workspace(spec, false, type)), in, spec, nullptr);
             cuda::delta_rule_backward({.q = room.make(type, rows, heads * d),
                                        .k = room.make(type, rows, heads * d),
                                        .v = room.make(type, rows, heads * 40),
                                        .decay = room.f32(rows, heads * decays),
                                        .beta = room.f32(rows, heads)},
                                       room.workspace(cuda::delta_workspace(spec, true, type)), v, states, in,
                                       spec, nullptr);
         }
     }},
    {"scores",
     [](Room& room, DType type) {
         const int64_t length = 40, heads = 2;
         cuda::row_starts(room.i32(length), Tensor(), length, 8, 0, nullptr);
         LawSpec law{.length = length, .parameters = {room.f32(heads)}, .sizes = {1}};
         law.program.count = 2;
         law.program.code[0].op = LawOp::parameter;
         law.program.code[1].op = LawOp::log1p;
         cuda::evaluate_law(room.f32(heads, length), law, nullptr);
         const LawEntries queries{.length = length};
         law.by_token = queries;
         law.tokens = {room.make(type, length, heads)};
         law.program.code[0].op = LawOp::token;
         cuda::evaluate_law(room.f32(heads, length), law, nullptr);
         Tensor sums = room.make(DType::f64, heads, length), between = room.f32(heads, length);
         cuda::running_sums(sums, Tensor(), between, between, length, 0, nullptr);
         cuda::running_sums_backward(between, room.f32(heads, length), length, nullptr);
         cuda::term_gradient(room.make(type, length, heads), between, between, Write::set, nullptr);
         Tensor theta = room.make(DType::f64, 1, 8), x = room.make(type, length, heads * 16);
         cuda::token_angles(room.f32(length, heads * 8), room.f32(length, heads * 8), sums, theta, length, 0,
                            nullptr);
         cuda::token_angles_backward(between, x, x, theta, 16, Write::set, nullptr);
         cuda::law_rows(room.f32(heads, length), room.f32(heads, length), queries, nullptr);
         cuda::law_gradient({.dparameter = room.f32(heads),
                             .derivative = room.f32(heads, length),
                             .gradient = room.f32(heads, length),
                             .elements = Tensor()},
                            queries, room.workspace(cuda::law_gradient_workspace(heads, length, 1)), nullptr);
         cuda::head_maxima(room.f32(heads), room.f32(heads, length), nullptr);
         cuda::qk_clip(room.f32(heads * 16, 24), room.f32(heads * 16, 24), room.f32(heads), 16, 0.1f,
                       nullptr);
     }},
    {"gates, activations, mixing",
     [](Room& room, DType type) {
         Tensor x = room.make(type, 3, 64), y = room.make(type, 3, 64), z = room.make(type, 3, 64);
         Tensor wide = room.make(type, 3, 128), dwide = room.make(type, 3, 128), share = room.f32(1);
         cuda::gate(z, x, y, 2, nullptr);
         cuda::gate_backward(z, y, x, x, x, 2, nullptr);
         cuda::exclude_own_value(z, x, y, 16, nullptr);
         cuda::exclude_own_value_backward(z, room.make(type, 3, 64), x, x, y, 16, nullptr);
         for (Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
             cuda::activation(z, x, kind, nullptr);
             cuda::activation_backward(z, x, y, kind, nullptr);
         }
         for (Activation kind : {Activation::swiglu, Activation::geglu_tanh}) {
             cuda::activation(z, wide, kind, nullptr);
             cuda::activation_backward(dwide, x, wide, kind, nullptr);
         }
         cuda::add_bias(x, room.f32(64), nullptr);
         cuda::add_bias_backward(room.f32(64), room.workspace(cuda::add_bias_backward_workspace(3, 64)), x,
                                 nullptr);
         cuda::mix(z, {.param = share, .scale = 1}, x, {.offset = 2}, y, nullptr);
         cuda::mix_backward({.x = room.make(type, 3, 64), .y = room.make(type, 3, 64), .a = room.f32(1)},
                            room.workspace(cuda::mix_backward_workspace(3 * 64)), z,
                            {.param = share, .scale = 1}, x, {.offset = 2}, y, nullptr);
     }},
    {"loss",
     [](Room& room, DType type) {
         for (int64_t width : {100, 4096}) {
             cuda::cross_entropy(room.f32(2), room.make(type, 2, width), room.i32(2),
                                 {.softcap = Softcap::tanh, .cap = 15, .z_loss = 1e-3f, .gradient_scale = 1},
                                 true, nullptr);
             cuda::top1(room.i32(2), room.make(type, 2, width), nullptr);
         }
     }},
    {"sums and optimisers",
     [](Room& room, DType) {
         const int64_t rows = 40, cols = 72;
         Tensor x = room.f32(rows, cols), squares = room.f64(1);
         Tensor space = room.workspace(cuda::sum_workspace(rows * cols));
         cuda::sum(squares, space, x, nullptr);
         cuda::sum_squares(squares, space, {&x, 1}, nullptr);
         const AdamSlot adam{room.f32(100), room.f32(100), room.f32(100), room.f32(100), 0.1f, 0.1f};
         cuda::adam({&adam, 1}, {}, nullptr);
     }},
    {"matrix products and Muon",
     [](Room& room, DType type) {
         cuda::MatrixProducts products(nullptr);
         Tensor x = room.make(type, 24, 40), w = room.make(type, 72, 40), y = room.make(type, 24, 72);
         products.run({.c = y, .a = x, .b = w, .b_transposed = true});
         products.run({.c = room.f32(72, 40), .a = y, .b = x, .a_transposed = true, .beta = 1.0f});
         std::vector<MuonSlot> slots;
         for (auto [rows, cols] : {std::pair<int64_t, int64_t>{40, 72}, {72, 40}})  // as it lies, turned
             slots.push_back({room.f32(rows, cols), room.f32(rows, cols), room.f32(rows, cols), 0.1f, 0.1f});
         cuda::muon(products, slots, room.workspace(cuda::muon_workspace(slots, type)), {}, type, nullptr);
     }},
    // Instances of one head size each; attention_forward_test.cpp and
    // attention_backward_test.cpp have the others.
    {"attention, 64 channels", [](Room& room, DType type) { attention(room, type, 64); }},
    {"attention, 128 channels", [](Room& room, DType type) { attention(room, type, 128); }},
    {"attention, 256 channels", [](Room& room, DType type) { attention(room, type, 256); }},
    {"sticks, 64 channels", [](Room& room, DType type) { sticks(room, type, 64); }},
    {"sticks, 128 channels", [](Room& room, DType type) { sticks(room, type, 128); }},
    {"sticks, 256 channels", [](Room& room, DType type) { sticks(room, type, 256); }},
};

}  // namespace

TEST_CASE("only compute capability 9.0 runs the attention kernels for Hopper") {
    CHECK(cuda::hopper_workers(90, 132) == 132);
    for (int architecture : {80, 86, 87, 89, 100, 103, 110, 120, 121}) {
        CAPTURE(architecture);
        CHECK(cuda::hopper_workers(architecture, 148) == 0);
    }
}

// The least shared memory there is (86 has that of 89 and 120), since no launch asks which architecture it is on;
// `tools/test --long` takes each. What the kernels do with it is watched elsewhere.
TEST_CASE("every family of kernels finds its shared memory on every architecture") {
    const std::vector<int> architectures =
        simt::long_tests() ? std::vector{80, 86, 89, 90, 100, 120} : std::vector{86};
    for (int architecture : architectures)
        for (DType type : {DType::f32, DType::bf16})
            for (const Family& family : families) {
                CAPTURE(architecture);
                CAPTURE(family.name);
                simt::options() = simt::Options();
                simt::options().architecture = architecture;
                simt::options().watch_memory = false;
                simt::clear_findings();
                simt::clear_launches();
                Room room;
                CHECK_NOTHROW(family.run(room, type));
                CHECK(cudaGetLastError() == cudaSuccess);
                const simt::Launches launches = simt::launches();
                CHECK(launches.count > 0);
                CHECK(launches.most_shared_bytes <= simt::shared_memory_of(architecture));
                if (architecture == 86 && type == DType::f32)
                    MESSAGE(family.name << ": " << launches.count << " launches, at most "
                                        << launches.most_shared_bytes << " bytes of shared memory");
            }
    simt::options() = simt::Options();
}

// The sheet's own check compares it with tools/roofline; here the sizes of blocks in it meet the launches.
TEST_CASE("the shared memory of attention in the roofline sheet is what the launches ask for") {
    simt::options() = simt::Options();
    simt::clear_findings();
    std::ifstream sheet(std::string(LONGREACH_SOURCE_DIR) + "/kernels/cuda/ROOFLINE.md");
    REQUIRE(sheet);
    static const std::regex row(
        "\\| `([a-z]+)_kernel<bf16, ([0-9]+), ([a-z]+)(, rare)?>` \\| [0-9]+ \\| ([0-9,]+) \\|.*");
    struct Instance {
        int64_t channels;
        std::string mode;
        bool rare;
        auto operator<=>(const Instance&) const = default;
    };
    std::map<Instance, size_t> forward, backward;  // of backward the pass with the most
    std::string line;
    while (std::getline(sheet, line)) {
        std::smatch m;
        if (!std::regex_match(line, m, row)) continue;
        std::string bytes = m[5];
        bytes.erase(std::remove(bytes.begin(), bytes.end(), ','), bytes.end());
        const Instance instance{std::stoll(m[2]), m[3], m[4].matched};
        size_t& most = (m[1] == "attention" ? forward : backward)[instance];
        most = std::max(most, static_cast<size_t>(std::stoul(bytes)));
    }
    CHECK(forward.size() == 12);
    CHECK(backward.size() == 9);

    const auto measure = [](const Instance& instance, bool of_backward) {
        const int64_t length = 5, d = instance.channels;
        Room room;
        AttentionSpec spec{.batch = 1, .length = length, .heads = 1, .kv_heads = 1, .head_dim = d};
        if (instance.mode == "general") spec.softcap = 20;
        if (instance.mode == "table") {
            spec.distance_gain = room.f32(1, length);
            spec.distance_bias = room.f32(1, length);
        }
        const auto make = [&] { return room.make(DType::bf16, length, d); };
        const Tensor q = make(), k = make(), v = make(), o = make(), lse = room.f32(1, length);
        simt::clear_launches();
        if (of_backward)
            cuda::attention_backward({make(), make(), make()}, {},
                                     room.workspace(cuda::attention_backward_workspace(spec, {})), q,
                                     {{q, k, v}, o, lse}, spec, nullptr);
        else
            cuda::attention(o, lse, instance.rare ? room.f32(1, length) : Tensor(), q, k, v, spec, nullptr);
        return simt::launches().most_shared_bytes;
    };
    for (bool of_backward : {false, true})
        for (const auto& [instance, bytes] : of_backward ? backward : forward) {
            CAPTURE(of_backward);
            CAPTURE(instance.channels);
            CAPTURE(instance.mode);
            CHECK(measure(instance, of_backward) == bytes);
        }
}
