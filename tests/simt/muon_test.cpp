// Muon of kernels/cuda on the harness, its products on the stand-in for cuBLASLt: beyond what
// tests/kernels/optimizer_test.cpp holds for every backend, the batches, bf16 and the schedules.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "kernels/cuda/gemm.h"
#include "kernels/muon_reference.h"
#include "kernels/support.h"
#include "simt/cublaslt.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr double unit_bf16 = 0x1p-8;  // relative error of a value rounded to bf16: 8 significant bits
const std::vector<DType> types = {DType::f32, DType::bf16};

// A matrix with gradient and momentum in one piece of device memory; the gradient may lie off its 16 bytes.
class DeviceSlot {
  public:
    DeviceSlot(const Floats& param, const Floats& gradient, const Floats& momentum, int64_t shift = 0)
        : rows_(param.rows()),
          cols_(param.cols()),
          shift_(shift),
          share_((param.count() + shift + 16) / 16 * 16),
          memory_(static_cast<size_t>(3 * share_)) {
        std::vector<float> values(memory_.size(), 0.0f);
        for (int64_t i = 0; i < param.count(); ++i) {
            values[static_cast<size_t>(i)] = param[i];
            values[static_cast<size_t>(share_ + i)] = momentum[i];
            values[static_cast<size_t>(2 * share_ + shift + i)] = gradient[i];
        }
        memory_.set(values);
    }
    DeviceSlot(int64_t rows, int64_t cols, uint32_t stream, int64_t shift = 0)
        : DeviceSlot(normal(rows, cols, stream), normal(rows, cols, stream + 1),
                     normal(rows, cols, stream + 2), shift) {}

    MuonSlot slot(float learning_rate = 0.02f, float weight_decay = 0.001f) const {
        return {matrix(0), matrix(2 * share_ + shift_), matrix(share_), learning_rate, weight_decay};
    }
    std::vector<float> param() const { return part(0); }
    std::vector<float> momentum() const { return part(share_); }
    std::vector<float> all() const { return memory_.get(); }
    void set(const std::vector<float>& all) { memory_.set(all); }
    simt::Output output() const { return memory_.output(); }

  private:
    Tensor matrix(int64_t begin) const { return Tensor(memory_.data() + begin, DType::f32, {rows_, cols_}); }
    std::vector<float> part(int64_t begin) const {
        const std::vector<float> values = memory_.get();
        return {values.begin() + begin, values.begin() + begin + rows_ * cols_};
    }
    // Parameter, momentum, gradient, `share_` elements each.
    int64_t rows_, cols_, shift_, share_;
    simt::DeviceArray<float> memory_;
};

// A workspace of exactly the size asked for, never written before.
void run(cuda::MatrixProducts& products, const std::vector<MuonSlot>& slots, const MuonSpec& spec, DType type,
         int64_t batch_bytes = cuda::muon_batch_bytes) {
    const int64_t bytes = cuda::muon_workspace(slots, type, batch_bytes);
    simt::DeviceArray<float> workspace(static_cast<size_t>(bytes / 4));
    cuda::muon(products, slots, Tensor(workspace.data(), DType::f32, {bytes / 4}), spec, type, nullptr,
               batch_bytes);
    cudaDeviceSynchronize();
}

// Newton-Schulz alone.
Matrix orthogonalised(cuda::MatrixProducts& products, const Floats& gradient, DType type, int iterations) {
    const Floats zero(gradient.rows(), gradient.cols());
    const DeviceSlot slot(zero, gradient, zero);
    run(products, {slot.slot(-1.0f, 0.0f)}, {.momentum = 0.0f, .nesterov = false, .iterations = iterations},
        type);
    Matrix o(gradient.rows(), gradient.cols());
    const std::vector<float> values = slot.param();
    o.v.assign(values.begin(), values.end());
    return o;
}
Matrix matrix_of(const Floats& f) {
    Matrix m(f.rows(), f.cols());
    for (int64_t i = 0; i < f.count(); ++i) m.v[static_cast<size_t>(i)] = f[i];
    return m;
}
Floats transposed(const Floats& f) {
    Floats t(f.cols(), f.rows());
    for (int64_t r = 0; r < f.rows(); ++r)
        for (int64_t c = 0; c < f.cols(); ++c) t.at(c, r) = f.at(r, c);
    return t;
}
double distance(const Matrix& a, const Matrix& b) {
    double squares = 0;
    for (size_t i = 0; i < a.v.size(); ++i) squares += (a.v[i] - b.v[i]) * (a.v[i] - b.v[i]);
    return std::sqrt(squares);
}
std::vector<double> singular_values(const Matrix& m) {
    const Matrix x = m.rows > m.cols ? transpose(m) : m;
    std::vector<double> values = eigenvalues(product(1, x, transpose(x), 0, Matrix(x.rows, x.rows)));
    for (double& v : values) v = std::sqrt(std::max(v, 0.0));
    return values;
}

// Where the singular values can be.
struct Band {
    double low, high;
};
template <class F>
Band image(Band band, F f) {
    Band to{f(band.low), f(band.low)};
    for (int i = 0; i <= 4096; ++i) {
        const double y = f(band.low + (band.high - band.low) * i / 4096);
        to = {std::min(to.low, y), std::max(to.high, y)};
    }
    return to;
}
// One iteration in bf16 moves no singular value further from the polynomial's than the spectral norm of the
// error it makes, so a band goes to its image, widened by that norm. `noise` is the norm of the rounding of a
// stored matrix, in units of its spectral norm.
//   A = x x^T is stored with error e. In the singular vectors of x, with values s_i, what e does to
//   (b A + c A A) x is e_ij (b + c (s_i^2 + s_j^2)) s_j, so its norm is that of e times the largest such
//   factor. B is stored; x' = a x + B x is stored. f32 sums as in newton_schulz.
Band iterate(Band band, double noise, int64_t short_side, int64_t long_side) {
    const double high = band.high, square = high * high;
    const auto largest = [](Band b) { return std::max(std::abs(b.low), std::abs(b.high)); };
    const double b_size =
        largest(image({band.low * band.low, square}, [](double t) { return t * (c3 + c5 * t); }));
    double through = 0;  // the factor is monotonic in s_i: its ends suffice
    for (double end : {band.low, high})
        through = std::max(
            through, largest(image(band, [&](double s) { return s * (c3 + c5 * (end * end + s * s)); })));
    const Band exact = image(band, polynomial);
    const double side = static_cast<double>(short_side), sums = static_cast<double>(long_side + 4) * unit;
    const double a_error = noise * square + sums * side * square;
    const double b_error = noise * b_size + sums * side * (-c3 * square + c5 * square * square);
    const double error = through * a_error + high * (c5 * a_error * a_error + b_error) +
                         noise * largest(exact) + sums * side * high * (c1 + b_size);
    return {exact.low - error, exact.high + error};
}

}  // namespace

TEST_CASE("muon in f32 agrees with the CPU's for mixed shapes") {
    simt::clear_findings();
    cuda::MatrixProducts products(nullptr);
    const auto cpu = make_cpu_ops({.threads = 2, .isa = ""});
    const MuonSpec spec{.momentum = 0.9f, .gradient_scale = 0.5f};
    std::deque<DeviceSlot> on_device;
    std::deque<Floats> memory;
    std::vector<MuonSlot> device_slots, host_slots;
    std::vector<double> bounds;
    std::vector<std::vector<double>> before;  // momentum
    uint32_t stream = 1;
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{12, 40}, {40, 12}, {33, 33}, {12, 40}, {1, 5}}) {
        device_slots.push_back(on_device.emplace_back(rows, cols, stream).slot());
        Tensor tensors[3];
        for (uint32_t i = 0; i < 3; ++i)
            tensors[i] = memory.emplace_back(normal(rows, cols, stream + i)).tensor();
        host_slots.push_back({tensors[0], tensors[1], tensors[2], 0.02f, 0.001f});
        before.emplace_back(tensors[2].f32(), tensors[2].f32() + tensors[2].count());
        // Both within the reference's bound of the same numbers; the update rounds the rest.
        Matrix u(rows, cols);
        for (size_t i = 0; i < u.v.size(); ++i) {
            const double g = 0.5 * tensors[1].f32()[i], m = double{spec.momentum} * tensors[2].f32()[i] + g;
            u.v[i] = g + double{spec.momentum} * m;
        }
        bounds.push_back(2 * (0.02 * newton_schulz(u, 5).error +
                              4 * unit * matrix_of(memory[memory.size() - 3]).frobenius()));
        stream += 3;
    }
    run(products, device_slots, spec, DType::f32);
    Floats workspace(1, cpu->muon_workspace(host_slots) / 4 + 1);
    cpu->muon(host_slots, workspace.vector(), spec);
    for (size_t i = 0; i < host_slots.size(); ++i) {
        CAPTURE(i);
        const Tensor& param = host_slots[i].param;
        Matrix expected(param.rows(), param.cols()), actual = expected;
        expected.v.assign(param.f32(), param.f32() + param.count());
        const std::vector<float> values = on_device[i].param(), momentum = on_device[i].momentum();
        actual.v.assign(values.begin(), values.end());
        CHECK(distance(actual, expected) <= bounds[i]);
        // Each side rounds share * g, mu * m where it does not fuse it, and their sum.
        double worst_momentum = 0;
        for (size_t k = 0; k < momentum.size(); ++k) {
            const double size =
                std::abs(0.5 * host_slots[i].gradient.f32()[k]) + std::abs(0.9 * before[i][k]);
            const double error = std::abs(double{momentum[k]} - host_slots[i].momentum.f32()[k]);
            worst_momentum = std::max(worst_momentum, error / (6 * unit * size));
        }
        CHECK(worst_momentum <= 1);
    }
    CHECK(simt::findings().empty());
}

TEST_CASE("bf16: the first iterations stay within the rounding of what they store") {
    simt::clear_findings();
    cuda::MatrixProducts products(nullptr);
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{24, 100}, {70, 33}, {9, 9}})
        for (int iterations : {0, 1, 2}) {
            CAPTURE(rows);
            CAPTURE(iterations);
            const Floats g = normal(rows, cols, 5);
            const Orthogonalised expected = newton_schulz(matrix_of(g), iterations, unit_bf16);
            CHECK(expected.error <= 0.15 * expected.o.frobenius());  // it says something
            CHECK(distance(orthogonalised(products, g, DType::bf16, iterations), expected.o) <=
                  expected.error);
        }
    CHECK(simt::findings().empty());
}

TEST_CASE(
    "bf16: five iterations leave the singular values in the band of the iteration, widened by rounding") {
    simt::clear_findings();
    cuda::MatrixProducts products(nullptr);
    const auto check_band = [&](int64_t rows, int64_t cols, uint32_t stream, double noise) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Floats g = normal(rows, cols, stream);
        Matrix x = matrix_of(g);
        const double norm = x.frobenius();
        for (double& v : x.v) v /= norm;
        const std::vector<double> start = singular_values(x);
        const auto [least, most] = std::minmax_element(start.begin(), start.end());
        // The first storing of x: its Frobenius norm is 1, so the error's is one rounding.
        Band band{*least - 1.01 * unit_bf16, *most + 1.01 * unit_bf16};
        REQUIRE(band.low > 0.01);  // full rank, as far as bf16 sees
        for (int i = 0; i < 5; ++i) band = iterate(band, noise, std::min(rows, cols), std::max(rows, cols));
        CHECK(band.low >= 0.5);  // it says something: the exact one is 0.6818 to 1.1344
        CHECK(band.high <= 1.3);
        for (double s : singular_values(orthogonalised(products, g, DType::bf16, 5))) {
            CHECK(s >= band.low);
            CHECK(s <= band.high);
        }
    };
    // Whatever the roundings are: the Frobenius norm of a matrix of s singular values is at most sqrt(s)
    // times the largest, and so is that of its rounding errors.
    for (uint32_t stream : {1, 2, 3}) {
        check_band(3, 20, stream, unit_bf16 * std::sqrt(3.0));
        check_band(25, 5, stream, unit_bf16 * std::sqrt(5.0));
    }
    // Larger matrices, with rounding errors taken as independent and evenly spread: the standard deviation of
    // one is at most its bound / sqrt(3), the norm of a row or column of X at most |X|, and the spectral norm
    // of a matrix of independent errors about the sum of the two, fluctuating by less than half of that.
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{24, 90}, {100, 32}, {40, 160}})
        check_band(rows, cols, 4, unit_bf16 / std::sqrt(3.0) * 3);
    CHECK(simt::findings().empty());
}

TEST_CASE("a tall matrix and its wide transpose give transposed results, bit for bit") {
    // The sums of squares run in other orders, but in f64: the scale they round to in f32 is
    // the same one here.
    simt::clear_findings();
    cuda::MatrixProducts products(nullptr);
    for (DType type : types)
        for (auto [rows, cols] : {std::pair<int64_t, int64_t>{20, 50}, {33, 64}}) {
            const Floats g = normal(rows, cols, 6);
            const Matrix wide = orthogonalised(products, g, type, 5);
            const Matrix tall = orthogonalised(products, transposed(g), type, 5);
            CHECK(transpose(tall).v == wide.v);
        }
    CHECK(simt::findings().empty());
}

TEST_CASE("matrices in one call get the bits they get alone, in batches of any size") {
    simt::clear_findings();
    cuda::MatrixProducts products(nullptr);
    // 35 of one group, more than a launch takes, wide and tall, aligned and not; others in between.
    struct Shape {
        int64_t rows, cols, shift;
    };
    std::vector<Shape> shapes;
    for (int i = 0; i < 35; ++i) {
        shapes.push_back(i % 3 == 0 ? Shape{12, 8, 0} : Shape{8, 12, i % 3 - 1});
        if (i % 12 == 1) shapes.push_back({37, 5, 0});
        if (i % 12 == 2) shapes.push_back({16, 16, 1});
    }
    for (DType type : types) {
        const MuonSpec spec{.iterations = 2};
        const auto slot_of = [&](size_t i, std::deque<DeviceSlot>& to) {
            const auto stream = static_cast<uint32_t>(3 * i);
            return to.emplace_back(shapes[i].rows, shapes[i].cols, stream, shapes[i].shift)
                .slot(0.01f * static_cast<float>(i + 1), 0.001f * static_cast<float>(i % 5));
        };
        std::vector<std::vector<float>> param, momentum;
        for (size_t i = 0; i < shapes.size(); ++i) {
            std::deque<DeviceSlot> alone;
            run(products, {slot_of(i, alone)}, spec, type);
            param.push_back(alone[0].param());
            momentum.push_back(alone[0].momentum());
        }
        // All at once; four matrices of 8x12 in f32 (eight in bf16); one by one.
        for (int64_t batch_bytes : {cuda::muon_batch_bytes, int64_t{4 * 512}, int64_t{1}}) {
            CAPTURE(batch_bytes);
            std::deque<DeviceSlot> together;
            std::vector<MuonSlot> slots;
            for (size_t i = 0; i < shapes.size(); ++i) slots.push_back(slot_of(i, together));
            const int64_t before = simt::matmul_counts().calls;
            run(products, slots, spec, type, batch_bytes);
            // Three groups, two iterations of three products.
            if (batch_bytes == cuda::muon_batch_bytes)
                CHECK(simt::matmul_counts().calls - before == 3 * 2 * 3);
            for (size_t i = 0; i < shapes.size(); ++i) {
                CAPTURE(i);
                CHECK(together[i].param() == param[i]);
                CHECK(together[i].momentum() == momentum[i]);
            }
        }
    }
    CHECK(simt::findings().empty());
}

TEST_CASE("muon gives the same bits under every schedule") {
    simt::clear_findings();
    cuda::MatrixProducts products(nullptr);
    for (DType type : types) {
        DeviceSlot wide(20, 45, 1), tall(45, 20, 4, 1);
        const std::vector<float> of_wide = wide.all(), of_tall = tall.all();
        const int ran = simt::run_schedules(
            16,
            [&] {
                wide.set(of_wide);
                tall.set(of_tall);
            },
            [&] {
                run(products, {wide.slot(), tall.slot()},
                    {.nesterov = false, .averaged = true, .iterations = 2}, type);
            },
            {wide.output(), tall.output()});
        CHECK(ran == 16);
    }
}

TEST_CASE(
    "the workspace does not grow with the number of matrices beyond a batch, and a smaller one is refused") {
    std::vector<MuonSlot> slots;
    const auto add = [&](int64_t rows, int64_t cols) {
        const Tensor t(nullptr, DType::f32, {rows, cols});
        slots.push_back({t, t, t, 0.0f, 0.0f});
    };
    for (int i = 0; i < 8; ++i) add(1024, 4096);  // 8 MiB each in bf16: a batch
    const int64_t batch = cuda::muon_workspace(slots, DType::bf16);
    CHECK(batch >= (2 * 8 + 2 * 2) * 8 * (int64_t{1} << 20));
    CHECK(batch <= (2 * 8 + 2 * 2) * 8 * (int64_t{1} << 20) + (int64_t{1} << 20));
    for (int i = 0; i < 50; ++i) add(4096, 1024);
    CHECK(cuda::muon_workspace(slots, DType::bf16) == batch);
    add(8192, 8192);  // larger than a batch: alone
    CHECK(cuda::muon_workspace(slots, DType::f32) >= 4 * 256 * (int64_t{1} << 20));
    CHECK(cuda::muon_workspace({}, DType::f32) == 0);

    cuda::MatrixProducts products(nullptr);
    const DeviceSlot one(8, 12, 1);
    const std::vector<MuonSlot> few = {one.slot()};
    const int64_t bytes = cuda::muon_workspace(few, DType::f32);
    simt::DeviceArray<float> workspace(static_cast<size_t>(bytes / 4));
    CHECK_THROWS_AS(cuda::muon(products, few, Tensor(workspace.data(), DType::f32, {bytes / 4 - 1}), {},
                               DType::f32, nullptr),
                    Error);
    MuonSlot wrong = one.slot();
    wrong.momentum.shape[0] = 7;
    CHECK_THROWS_AS(cuda::muon_workspace(std::vector<MuonSlot>{wrong}, DType::f32), Error);
    cuda::muon(products, {}, {}, {}, DType::f32, nullptr);  // nothing to do
}
