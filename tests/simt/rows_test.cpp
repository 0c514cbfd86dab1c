// Row kernels where the CPU has nothing like them or its tests do not go: bf16 storage, every access width,
// teams of a block, long lists, many tensors, numbers out of range, other schedules.
#include <limits>

#include "kernels/cuda/kernels.h"
#include "simt/row_matrices.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("norms of bf16 rows, narrow and wide, agree with the CPU on the same numbers") {
    const auto cpu = make_cpu_ops({.threads = 2});
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{5, 24}, {9, 100}, {3, 1024}, {2, 2056}, {2, 4321}})
        for (NormKind kind : {NormKind::rms, NormKind::layer}) {
            CAPTURE(width);
            const NormSpec spec{kind, 1e-5f};
            Floats x = normal_bf16(rows, width, 1), dy = normal_bf16(rows, width, 2),
                   gain = normal(1, width, 3, 0.3, 1);
            Floats y(rows, width), n(rows, width), inverse(1, rows), dx(rows, width), dgain(1, width),
                dbias(1, width);
            cpu->norm(y.tensor(), n.tensor(), inverse.vector(), x.tensor(), gain.vector(), gain.vector(),
                      spec);
            Matrix<bf16> x_(x, width + 16), y_(y), n_(n), dy_(dy), dx_(dx);
            Matrix<float> inverse_(inverse), gain_(gain), dgain_(dgain), dbias_(dbias);
            simt::DeviceArray<float> space(floats(cuda::norm_backward_workspace(rows, width)));
            cuda::norm(y_.tensor(), n_.tensor(), inverse_.vector(), x_.tensor(), gain_.vector(),
                       gain_.vector(), spec, nullptr);
            // |n| stays below 6 at these sizes, gain below 3; a sum of C squares errs by less than C units.
            const double steps = static_cast<double>(width) + 16;
            check_bf16(n_, n, steps, 6);
            check_bf16(y_, y, steps, 20);
            n = n_.get();
            inverse = inverse_.get();
            cpu->norm_backward(dx.tensor(), dgain.vector(), dbias.vector(), dy.tensor(), n.tensor(),
                               inverse.vector(), gain.vector(), spec, Write::set);
            cuda::norm_backward(dx_.tensor(), dgain_.vector(), dbias_.vector(), workspace(space),
                                dy_.tensor(), n_.tensor(), inverse_.vector(), gain_.vector(), spec,
                                Write::set, nullptr);
            check_bf16(dx_, dx, steps, 60);
            const Floats a = dgain_.get(), b = dbias_.get();
            for (int64_t c = 0; c < width; ++c) {  // sums of at most 9 products below 36
                REQUIRE(std::abs(a[c] - dgain[c]) <= 20 * unit * 9 * 36);
                REQUIRE(std::abs(b[c] - dbias[c]) <= 20 * unit * 9 * 6);
            }
        }
}

TEST_CASE("activations, gates and mixing of bf16 are the CPU's, rounded") {
    const auto cpu = make_cpu_ops({.threads = 2});
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{3, 8}, {7, 40}, {5, 33}}) {
        CAPTURE(width);
        Floats a = normal_bf16(rows, 2 * width, 4, 2), dh = normal_bf16(rows, width, 5), h(rows, width);
        Floats da(rows, 2 * width), x = normal_bf16(rows, width, 6), y = normal_bf16(rows, width, 7);
        Matrix<bf16> a_(a), dh_(dh), h_(h), da_(da), x_(x, width + 3), y_(y);
        // Relative errors of a few units of the exponential, on numbers below 100.
        for (Activation kind : {Activation::gelu, Activation::gelu_tanh}) {
            cpu->activation(h.tensor(), x.tensor(), kind);
            cuda::activation(h_.tensor(), x_.tensor(), kind, nullptr);
            check_bf16(h_, h, 16, 10);
        }
        cpu->activation(h.tensor(), a.tensor(), Activation::swiglu);
        cuda::activation(h_.tensor(), a_.tensor(), Activation::swiglu, nullptr);
        check_bf16(h_, h, 16, 100);
        cpu->activation_backward(da.tensor(), dh.tensor(), a.tensor(), Activation::swiglu);
        cuda::activation_backward(da_.tensor(), dh_.tensor(), a_.tensor(), Activation::swiglu, nullptr);
        check_bf16(da_, da, 16, 100);

        cpu->gate(h.tensor(), y.tensor(), x.tensor(), 2.0f);
        cuda::gate(h_.tensor(), y_.tensor(), x_.tensor(), 2.0f, nullptr);
        check_bf16(h_, h, 16, 10);
        cpu->mix(h.tensor(), {.offset = 0.25f}, x.tensor(), {.offset = -2.0f}, y.tensor());
        cuda::mix(h_.tensor(), {.offset = 0.25f}, x_.tensor(), {.offset = -2.0f}, y_.tensor(), nullptr);
        check_bf16(h_, h, 4, 12);
    }
}

TEST_CASE("heads of bf16, short convolutions and smearing agree with the CPU on the same numbers") {
    const auto cpu = make_cpu_ops({.threads = 2});
    const int64_t length = 11, rows = 3 * length;
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < rows; ++i) starts.push_back(i % length >= 4 ? 4 : 0);
    simt::DeviceArray<int32_t> starts_(starts);
    const Tensor documents(starts.data(), DType::i32, {3, length});
    for (auto [heads, d, pairs] :
         {std::tuple<int64_t, int64_t, int64_t>{3, 16, 8}, {2, 64, 16}, {1, 10, 3}}) {
        CAPTURE(d);
        const int64_t width = heads * d;
        Floats cosine = normal(length, pairs, 40), sine = normal(length, pairs, 41);
        for (int64_t i = 0; i < sine.count(); ++i) {
            sine[i] = std::sin(cosine[i]);
            cosine[i] = std::cos(cosine[i]);
        }
        Floats x = normal_bf16(rows, width, 42), dy = normal_bf16(rows, width, 43), inverse(rows, heads);
        Matrix<bf16> x_(x, width + 8), kept(x), dy_(dy);
        Matrix<float> cosine_(cosine), sine_(sine), inverse_(inverse);
        HeadSpec spec{.length = length,
                      .heads = heads,
                      .head_dim = d,
                      .norm = HeadNorm::rms,
                      .eps = 1e-6f,
                      .cosine = cosine.tensor(),
                      .sine = sine.tensor()};
        HeadSpec spec_ = spec;
        spec_.cosine = cosine_.tensor();
        spec_.sine = sine_.tensor();
        cpu->prepare_heads(x.tensor(), Tensor(), inverse.tensor(), spec);
        cuda::prepare_heads(x_.tensor(), Tensor(), inverse_.tensor(), spec_, nullptr);
        const double steps = static_cast<double>(d) + 16;  // a sum of d squares, some roundings
        check_bf16(x_, x, steps, 8);
        x = x_.get();
        inverse = inverse_.get();
        cpu->prepare_heads_backward(dy.tensor(), Tensor(), Tensor(), Tensor(), x.tensor(), Tensor(),
                                    inverse.tensor(), spec);
        cuda::prepare_heads_backward(dy_.tensor(), Tensor(), Tensor(), Tensor(), Tensor(), x_.tensor(),
                                     Tensor(), inverse_.tensor(), spec_, nullptr);
        check_bf16(dy_, dy, steps, 60);  // the inverse stays below 3

        Floats w = normal(4, width, 44), y(rows, width), dx(rows, width), dw(4, width), lambda(1, 1),
               dlambda(1, 1);
        Floats share = normal(1, 7, 45), dshare(1, 7);
        x = normal_bf16(rows, width, 46);
        dy = normal_bf16(rows, width, 47);
        lambda[0] = 0.4f;
        Matrix<bf16> from(x), gradient(dy), y_(y), dx_(dx);
        Matrix<float> w_(w), dw_(dw), lambda_(lambda), dlambda_(dlambda), share_(share), dshare_(dshare);
        simt::DeviceArray<float> space(1 << 16);
        cpu->short_conv(y.tensor(), x.tensor(), w.tensor(), documents, length);
        cuda::short_conv(y_.tensor(), from.tensor(), w_.tensor(), ints(starts_), length, nullptr);
        check_bf16(y_, y, 8, 50);  // four products below 16
        cpu->short_conv_backward(dx.tensor(), dw.tensor(), dy.tensor(), x.tensor(), w.tensor(), documents,
                                 length);
        cuda::short_conv_backward(dx_.tensor(), dw_.tensor(), workspace(space), gradient.tensor(),
                                  from.tensor(), w_.tensor(), ints(starts_), length, nullptr);
        check_bf16(dx_, dx, 8, 50);
        const Floats got = dw_.get();  // sums of 33 products below 16
        for (int64_t i = 0; i < dw.count(); ++i) REQUIRE(std::abs(got[i] - dw[i]) <= 2 * 33 * unit * 33 * 16);

        cpu->smear(y.tensor(), x.tensor(), share.vector(), lambda.vector(), documents, length);
        cuda::smear(y_.tensor(), from.tensor(), share_.vector(), lambda_.vector(), ints(starts_), length,
                    nullptr);
        check_bf16(y_, y, 40, 6);  // a logit of 7 products below 16, through a sigmoid of slope 1/4
        cpu->smear_backward(dx.tensor(), dshare.vector(), dlambda.vector(), dy.tensor(), x.tensor(),
                            share.vector(), lambda.vector(), documents, length);
        cuda::smear_backward(dx_.tensor(), dshare_.vector(), dlambda_.vector(), workspace(space),
                             gradient.tensor(), from.tensor(), share_.vector(), lambda_.vector(),
                             ints(starts_), length, nullptr);
        // <dy_n, x_(n-1)> is a sum of `width` products below 16 and then weighs at most 1/4 * 0.4 * 4.
        const double along = static_cast<double>(width) * unit * static_cast<double>(width) * 16;
        check_bf16(dx_, dx, 1, 2 * along / unit);
        const Floats of_share = dshare_.get();
        for (int64_t i = 0; i < 7; ++i) REQUIRE(std::abs(of_share[i] - dshare[i]) <= 33 * 2 * along);
        CHECK(std::abs(dlambda_.get()[0] - dlambda[0]) <= 33 * 2 * along);
    }
}

TEST_CASE("cross-entropy of bf16 logits agrees with the CPU on the same numbers") {
    const auto cpu = make_cpu_ops({.threads = 2});
    for (int64_t width : {int64_t{11}, int64_t{4096}, int64_t{5003}})
        for (Softcap kind : {Softcap::none, Softcap::tanh, Softcap::sigmoid}) {
            CAPTURE(width);
            const int64_t rows = 3;
            const LossSpec spec{.softcap = kind,
                                .cap = 15,
                                .shift = 2,
                                .temperature = 7.5f,
                                .z_loss = 1e-3f,
                                .gradient_scale = 1.0f};
            Floats logits = normal_bf16(rows, width, 8, 3), loss(1, rows);
            Ints targets = integers(1, rows, 9, width);
            targets[1] = -1;
            Matrix<bf16> logits_(logits);
            Matrix<float> loss_(loss);
            simt::DeviceArray<int32_t> targets_(std::vector<int32_t>{targets[0], targets[1], targets[2]});
            cpu->cross_entropy(loss.vector(), logits.tensor(), targets.vector(), spec, true);
            cuda::cross_entropy(loss_.vector(), logits_.tensor(), ints(targets_), spec, true, nullptr);
            const Floats got = loss_.get();
            // Exponents up to 60 cost that many units, a sum of V terms V of them at worst.
            for (int64_t r = 0; r < rows; ++r) CHECK(std::abs(got[r] - loss[r]) <= 200 * unit * 60);
            check_bf16(logits_, logits, 200, 1);
        }
}

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
    cuda::embedding_backward(dtable_.tensor(), dx_.tensor(), ints(tokens), nullptr);
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

TEST_CASE(
    "embedding_backward of bf16 rows adds a frequent token's in order, past the end of a block's list") {
    const int64_t n = 3500, width = 8;
    Ints tokens = integers(1, n, 11, 5);
    for (int64_t i = 0; i < n; i += 2) tokens[i] = 1;  // half of them one token
    Floats dx = normal_bf16(n, width, 12), dtable = normal(5, width, 13);
    Matrix<bf16> dx_(dx);
    Matrix<float> dtable_(dtable);
    std::vector<int32_t> list;
    for (int64_t i = 0; i < n; ++i) list.push_back(tokens[i]);
    simt::DeviceArray<int32_t> tokens_(list);
    cuda::embedding_backward(dtable_.tensor(), dx_.tensor(), ints(tokens_), nullptr);
    make_cpu_ops({.threads = 2})->embedding_backward(dtable.tensor(), dx.tensor(), tokens.vector());
    CHECK(same_bits(dtable_.get(), dtable));  // the same additions in the same order
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
            cuda::prepare_heads_backward(dx_.tensor(), dgain.vector(), Tensor(), dlog_eps.vector(),
                                         workspace(space), x_.tensor(), x_.tensor(), inverse_.tensor(), spec,
                                         nullptr);
            cuda::short_conv_backward(conv_dx.tensor(), dw.tensor(), workspace(space), dy_.tensor(),
                                      x_.tensor(), w_.tensor(), Tensor(), length, nullptr);
            cuda::smear_backward(smear_dx.tensor(), dsmear_w.vector(), dlambda.vector(), workspace(space),
                                 dy_.tensor(), x_.tensor(), smear_w.vector(), lambda_.vector(), Tensor(),
                                 length, nullptr);
            cuda::sum_squares(Tensor(total.data(), DType::f64, {1}), workspace(space), x_.vector(), nullptr);
        },
        {dx_.output(), conv_dx.output(), dw.output(), dgain.output(), dlog_eps.output(), smear_dx.output(),
         dsmear_w.output(), dlambda.output(), total.output()});
    CHECK(ran == 8);
}
