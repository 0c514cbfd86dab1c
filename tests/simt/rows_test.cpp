// Row kernels where neither the CPU's tests nor the table of row_table_test.cpp go: long lists, many tensors,
// numbers out of range, several operations under other schedules.
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "simt/row_matrices.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("a number out of range makes its row NaN and touches nothing else") {
    simt::DeviceArray<int32_t> tokens(std::vector<int32_t>{3, 7, -1, 2});
    Floats table = normal(7, 12, 10), zeros(4, 12), dtable(7, 12), ones(4, 12);
    for (int64_t i = 0; i < ones.count(); ++i) ones[i] = 1;
    Matrix<float> table_(table), x_(zeros), dtable_(dtable), dx_(ones);
    cuda::embedding(x_.tensor(), table_.tensor(), ints(tokens), nullptr);
    const Floats x = x_.get();
    for (int64_t c = 0; c < 12; ++c) {
        CHECK(x.at(0, c) == table.at(3, c));
        CHECK(std::isnan(x.at(1, c)));
        CHECK(std::isnan(x.at(2, c)));
        CHECK(x.at(3, c) == table.at(2, c));
    }
    simt::DeviceArray<float> space(floats(cuda::embedding_backward_workspace(4, 12)));
    cuda::embedding_backward(dtable_.tensor(), workspace(space), dx_.tensor(), ints(tokens), nullptr);
    dtable = dtable_.get();
    for (int64_t r = 0; r < 7; ++r) CHECK(dtable.at(r, 5) == (r == 3 || r == 2 ? 1.0f : 0.0f));
    Matrix<float> logits_(ones), loss_(Floats(1, 4));
    simt::DeviceArray<int32_t> targets(std::vector<int32_t>{0, 12, 11, -1});
    cuda::cross_entropy(loss_.vector(), logits_.tensor(), ints(targets), {.gradient_scale = 1}, true,
                        nullptr);
    const Floats loss = loss_.get(), gradient = logits_.get();
    CHECK(!std::isnan(loss[0]));
    CHECK(std::isnan(loss[1]));
    CHECK(std::isnan(gradient.at(1, 0)));
    CHECK(!std::isnan(gradient.at(2, 11)));
    CHECK(gradient.at(3, 3) == 0);
}

TEST_CASE("zero, copy, conversion and add of strided rows") {
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 5}, {3, 16}, {70, 37}}) {
        CAPTURE(width);
        Floats x = normal(rows, width, 14), y = normal(rows, width, 15);
        Matrix<float> a(x, width + 8), b(y), c(y, width + 4);
        Matrix<bf16> narrowed(y, width + 8);
        cuda::copy(narrowed.tensor(), a.tensor(), nullptr);
        cuda::copy(c.tensor(), a.tensor(), nullptr);
        cuda::add(b.tensor(), narrowed.tensor(), nullptr);
        const Floats narrow = narrowed.get(), sum = b.get();
        CHECK(same_bits(c.get(), x));
        for (int64_t i = 0; i < x.count(); ++i) {
            REQUIRE(narrow[i] == rounded(x[i]));
            REQUIRE(sum[i] == y[i] + rounded(x[i]));
        }
        cuda::copy(c.tensor(), narrowed.tensor(), nullptr);
        CHECK(same_bits(c.get(), narrow));
        cuda::zero(b.tensor(), nullptr);
        CHECK(same_bits(b.get(), Floats(rows, width)));
    }
    simt::DeviceArray<int32_t> from(std::vector<int32_t>{1, -2, 3}), to(3);
    cuda::copy(ints(to), ints(from), nullptr);
    CHECK(to.get() == from.get());
    simt::DeviceArray<double> wide(std::vector<double>{1, -2e300, 3}), to_wide(3);
    cuda::copy(Tensor(to_wide.data(), DType::f64, {3}), Tensor(wide.data(), DType::f64, {3}), nullptr);
    CHECK(to_wide.get() == wide.get());
}

TEST_CASE("row starts are the CPU's") {
    const auto cpu = make_cpu_ops({.threads = 1});
    const int64_t length = 37, rows = 3 * length;
    Ints documents(1, rows), expected(1, rows);
    for (int64_t i = 0; i < rows; ++i) documents[i] = static_cast<int32_t>(i % length / 10 * 10);
    std::vector<int32_t> list(documents.data(), documents.data() + rows);
    simt::DeviceArray<int32_t> documents_(list), starts(list.size());
    for (int64_t window : {0, 1, 5, 100})
        for (int64_t chunk : {0, 8})
            for (bool with : {false, true}) {
                const Tensor none;
                cpu->row_starts(expected.vector(), with ? documents.vector() : none, length, window, chunk);
                cuda::row_starts(ints(starts), with ? ints(documents_) : none, length, window, chunk,
                                 nullptr);
                const std::vector<int32_t> got = starts.get();
                CHECK(got == std::vector<int32_t>(expected.data(), expected.data() + rows));
            }
}

TEST_CASE("adam takes more tensors than fit one launch") {
    const auto cpu = make_cpu_ops({.threads = 1});
    std::vector<Floats> hosts;
    std::vector<std::unique_ptr<Matrix<float>>> matrices;
    for (uint32_t i = 0; i < 70 * 4; ++i) {
        Floats x = normal(1, 1 + i / 4 % 9 * 700, 20 + i);
        if (i % 4 == 3)
            for (int64_t k = 0; k < x.count(); ++k) x[k] = std::abs(x[k]);
        hosts.push_back(x);
        matrices.push_back(std::make_unique<Matrix<float>>(x));
    }
    std::vector<AdamSlot> slots, on_device;
    for (size_t i = 0; i < hosts.size(); i += 4) {
        const float rate = 0.01f * static_cast<float>(i + 1);
        slots.push_back({hosts[i].vector(), hosts[i + 1].vector(), hosts[i + 2].vector(),
                         hosts[i + 3].vector(), rate, 0.1f});
        on_device.push_back({matrices[i]->vector(), matrices[i + 1]->vector(), matrices[i + 2]->vector(),
                             matrices[i + 3]->vector(), rate, 0.1f});
    }
    const AdamSpec spec{.step = 3, .gradient_scale = 0.5f};
    cpu->adam(slots, spec);
    cuda::adam(on_device, spec, nullptr);
    for (size_t i = 0; i < hosts.size(); ++i) {
        const Floats got = matrices[i]->get();
        // Ten roundings of a step below 30 and of numbers below 6.
        CHECK(worst(
                  got, [&](int64_t k) { return double{hosts[i][k]}; },
                  [&](int64_t) { return 10 * unit * 40; }) <= 1);
    }
}

TEST_CASE("sums over rows give the same bits under every schedule") {
    const int64_t rows = 45, heads = 3, d = 24, width = heads * d, length = 15;
    Floats x = normal(rows, width, 30), dy = normal(rows, width, 31), w = normal(4, width, 32),
           gain = normal(1, d, 33);
    Floats inverse(rows, heads), log_eps(1, heads), zeros(rows, width), lambda(1, 1);
    for (int64_t i = 0; i < inverse.count(); ++i) inverse[i] = 1.5f;
    lambda[0] = 0.3f;
    Matrix<float> x_(x), dy_(dy), w_(w), gain_(gain), inverse_(inverse), log_eps_(log_eps), lambda_(lambda);
    Matrix<float> dx_(dy), dw(w), dgain(gain), dbias(gain), dlog_eps(log_eps), conv_dx(zeros),
        smear_dx(zeros);
    Matrix<float> smear_w(Floats(1, 12)), dsmear_w(Floats(1, 12)), dlambda(lambda);
    simt::DeviceArray<float> space(1 << 16);
    simt::DeviceArray<double> total(1);
    const HeadSpec spec{.length = length,
                        .heads = heads,
                        .head_dim = d,
                        .norm = HeadNorm::rms,
                        .log_eps = log_eps_.vector(),
                        .gain = gain_.vector()};
    const std::vector<const Matrix<float>*> accumulated = {&dw,       &dgain,    &dbias,
                                                           &dlog_eps, &dsmear_w, &dlambda};
    const int ran = simt::run_schedules(
        8,
        [&] {
            for (const Matrix<float>* m : accumulated) cuda::zero(m->vector(), nullptr);
            cuda::copy(dx_.tensor(), dy_.tensor(), nullptr);
        },
        [&] {
            cuda::prepare_heads_backward(
                {.x = dx_.tensor(), .gain = dgain.vector(), .log_eps = dlog_eps.vector()}, workspace(space),
                x_.tensor(), x_.tensor(), inverse_.tensor(), spec, nullptr);
            cuda::short_conv_backward({conv_dx.tensor(), dw.tensor()}, workspace(space), dy_.tensor(),
                                      {x_.tensor(), w_.tensor()}, Tensor(), length, nullptr);
            cuda::smear_backward({smear_dx.tensor(), dsmear_w.vector(), dlambda.vector()}, workspace(space),
                                 dy_.tensor(), {x_.tensor(), smear_w.vector(), lambda_.vector()}, Tensor(),
                                 length, nullptr);
            const Tensor part = x_.vector();
            cuda::sum_squares(Tensor(total.data(), DType::f64, {1}), workspace(space), {&part, 1}, nullptr);
        },
        {dx_.output(), conv_dx.output(), dw.output(), dgain.output(), dlog_eps.output(), smear_dx.output(),
         dsmear_w.output(), dlambda.output(), total.output()});
    CHECK(ran == 8);
}
