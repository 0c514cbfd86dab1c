// The forward attention kernels launched directly, where the CPU's tests do not go: bf16, every instance and
// both ways of loading under many schedules, the shared memory of six architectures, bank conflicts.
//
// A bf16 result errs by the f32 bounds of attention_variants.h and two roundings to 8 significant bits: every
// probability before it meets its value, 2^-8 sum p |v|, and the output, 2^-8 of itself.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <tuple>

#include "kernels/attention_variants.h"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/kernels.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using bf16 = __nv_bfloat16;
constexpr double bf16_unit = 0x1p-8;  // half an ulp of 1: bf16 has 8 significant bits

template <class T>
T stored(float x) {
    if constexpr (std::is_same_v<T, float>)
        return x;
    else
        return __float2bfloat16(x);
}
float value(float x) {
    return x;
}
float value(bf16 x) {
    return __bfloat162float(x);
}

// A matrix of floats in device memory as T, rows `stride` elements apart.
template <class T>
struct OnDevice {
    int64_t rows, cols, stride;
    simt::DeviceArray<T> memory;
    OnDevice(const Floats& from, int64_t row_stride)
        : rows(from.rows()), cols(from.cols()), stride(row_stride), memory(laid_out(from)) {}
    std::vector<T> laid_out(const Floats& from) const {
        std::vector<T> all(static_cast<size_t>(rows * stride), stored<T>(guard));
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c)
                all[static_cast<size_t>(r * stride + c)] = stored<T>(from.at(r, c));
        return all;
    }
    Tensor tensor() const {
        Tensor t(memory.data(), std::is_same_v<T, float> ? DType::f32 : DType::bf16, {rows, cols});
        t.row_stride = stride;
        return t;
    }
    Tensor vector() const { return Tensor(memory.data(), DType::f32, {rows * cols}); }
    Tensor columns(int64_t begin, int64_t count) const { return tensor().col_range(begin, count); }
    // What lies between the rows must not change.
    void get(Floats& to) const {
        const std::vector<T> all = memory.get();
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < stride; ++c) {
                const float x = value(all[static_cast<size_t>(r * stride + c)]);
                if (c < cols)
                    to.at(r, c) = x;
                else
                    REQUIRE(x == guard);
            }
    }
    static constexpr float guard = 77.0f;
};

// A problem's tensors in device memory, activations as T. aligned: rows start on 16 bytes.
template <class T>
struct Launch {
    Problem& p;
    AttentionSpec spec;
    OnDevice<T> qkv, far, o;
    OnDevice<float> lse, maxima, factor, gain, bias, square, sink;
    simt::DeviceArray<int32_t> row_start;
    simt::DeviceArray<double> forget;
    int hopper_workers = 0;
    simt::DeviceArray<int> queue{std::vector<int>(2)};

    Launch(Problem& problem, bool aligned)
        : p(problem),
          spec(problem.spec()),
          qkv(p.qkv, stride(p.qkv, aligned)),
          far(p.far, stride(p.far, aligned)),
          o(p.o, stride(p.o, aligned)),
          lse(p.lse, p.lse.cols() + 3),
          maxima(p.maxima, p.maxima.cols() + 1),
          factor(p.factor, p.factor.cols() + 5),
          gain(p.gain, p.entries + 2),
          bias(p.bias, p.entries + 1),
          square(p.square, p.square.cols()),
          sink(p.sink, p.sink.cols()),
          row_start(starts()),
          forget(std::vector<double>(p.forget.data(), p.forget.data() + p.forget.count())) {
        if (spec.row_start) spec.row_start = Tensor(row_start.data(), DType::i32, {p.c.batch, p.c.length});
        if (spec.row_factor) spec.row_factor = factor.tensor();
        if (spec.distance_gain) spec.distance_gain = gain.tensor(), spec.distance_bias = bias.tensor();
        if (spec.row_square) spec.row_square = square.vector();
        if (spec.sink) spec.sink = sink.vector();
        if (spec.forget) spec.forget = Tensor(forget.data(), DType::f64, {p.c.heads, p.c.tokens()});
        if (spec.far_queries) {
            spec.far_queries = far.columns(0, p.query_cols);
            spec.far_keys = far.columns(p.query_cols, p.kv_cols);
        }
    }
    static int64_t stride(const Floats& x, bool aligned) {
        return aligned ? (x.cols() + 15) / 8 * 8 : x.cols() + 3;
    }
    std::vector<int32_t> starts() {
        const Variant& c = p.c;
        const auto cpu = make_cpu_ops({.threads = 1});
        cpu->row_starts(p.row_start.tensor(), c.documents ? p.doc_start.tensor() : Tensor(), c.length,
                        c.window, c.chunk);
        return std::vector<int32_t>(p.row_start.data(), p.row_start.data() + c.tokens());
    }
    // Nothing that is written may depend on what was there.
    void clear() {
        for (Floats* x : {&p.o, &p.lse, &p.maxima})
            for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = std::numeric_limits<float>::quiet_NaN();
        o.memory.set(o.laid_out(p.o));
        lse.memory.set(lse.laid_out(p.lse));
        maxima.memory.set(maxima.laid_out(p.maxima));
    }
    void run() {
        cuda::attention(o.tensor(), lse.tensor(), p.c.maxima ? maxima.tensor() : Tensor(),
                        qkv.columns(0, p.query_cols), qkv.columns(p.query_cols, p.kv_cols),
                        qkv.columns(p.query_cols + p.kv_cols, p.kv_cols), spec, nullptr,
                        {hopper_workers, queue.data()});
    }
    bool hopper_serves() const {
        return cuda::attention_sm90_serves(
            o.tensor(),
            {qkv.columns(0, p.query_cols), qkv.columns(p.query_cols, p.kv_cols),
             qkv.columns(p.query_cols + p.kv_cols, p.kv_cols)},
            spec);
    }
    void get() {
        o.get(p.o);
        lse.get(p.lse);
        maxima.get(p.maxima);
    }
    std::vector<simt::Output> outputs() const {
        std::vector<simt::Output> all = {o.memory.output(), lse.memory.output()};
        if (p.c.maxima) all.push_back(maxima.memory.output());
        return all;
    }
};

template <class T>
void round_inputs(Problem& p) {
    for (Floats* x : {&p.qkv, &p.far})
        for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = value(stored<T>((*x)[i]));
}

// The results of a problem whose inputs are representable in T.
template <class T>
void check_results(const Problem& p) {
    const ExactInputs inputs(p);
    const Reference exact(p, inputs);
    CHECK(exact.lse.worst(p.lse) <= 1);
    if (p.c.maxima) CHECK(exact.maxima.worst(p.maxima) <= 1);
    if (std::is_same_v<T, float>) {
        CHECK(exact.o.worst(p.o) <= 1);
        return;
    }
    // sum p |v|
    ExactInputs sizes = inputs;
    const int64_t columns = p.qkv.cols();
    for (size_t i = 0; i < sizes.qkv.size(); ++i)
        if (static_cast<int64_t>(i) % columns >= p.query_cols + p.kv_cols)
            sizes.qkv[i] = std::abs(sizes.qkv[i]);
    const Reference magnitude(p, sizes);
    CHECK(worst(
              p.o, [&](int64_t i) { return exact.o.value[static_cast<size_t>(i)]; },
              [&](int64_t i) {
                  const auto at = static_cast<size_t>(i);
                  const double before = bf16_unit * magnitude.o.value[at] + safety * exact.o.bound[at];
                  return before + bf16_unit * (std::abs(exact.o.value[at]) + before) + floor_of_bounds;
              }) <= 1);
}

// Runs `schedules` of them, all with the same bits, and compares the last run with the reference.
template <class T>
void check_launch(Problem& p, int schedules, int hopper_workers = 0) {
    round_inputs<T>(p);
    Launch<T> launch(p, p.c.head_dim % 8 == 0);
    launch.hopper_workers = hopper_workers;
    if (hopper_workers > 0) REQUIRE(launch.hopper_serves());
    if (p.c.bias_of_gain != 0)  // biases are computed, not read
        launch.bias.memory.set(std::vector<float>(launch.bias.memory.size(), NAN));
    const simt::Options before = simt::options();
    CHECK(simt::run_schedules(
              schedules, [&] { launch.clear(); }, [&] { launch.run(); }, launch.outputs()) == schedules);
    simt::options() = before;
    launch.get();
    check_results<T>(p);
}

// The instances of the kernel: forms times tiles of 64, 128 and 256 channels. f32 has no instances of its own
// for the first three.
enum class Form { plain, forget, table, general, rare, gain };
// gain: of the kernels for Hopper alone.
const std::vector<Form> forms = {Form::plain, Form::forget, Form::table, Form::general, Form::rare};
const char* name_of(Form form) {
    return std::vector{"plain", "forget", "table", "general", "rare", "gain"}[static_cast<size_t>(form)];
}
void ask_for(Variant& c, Form form) {
    c.forget = form == Form::forget || form == Form::rare || (form == Form::general && c.seed != 3);
    if (form == Form::table || form == Form::rare) c.gain_rows = c.heads, c.bias_rows = 1;
    c.bias_of_gain = form == Form::gain ? -0.75 : 0;
    if (form == Form::gain) c.gain_rows = c.bias_rows = c.seed % 2 == 0 ? 1 : c.heads;
    if (form == Form::general && c.seed % 2 == 0) c.gain_rows = 1, c.bias_rows = c.heads, c.row_square = true;
    if (form == Form::general && c.seed % 2 == 1) c.softcap = 2;
    if (form == Form::rare) {
        c.maxima = true;
        c.absolute = c.seed % 2 == 0;
        c.far = true;
        c.far_from = 37;
    }
}
// Three sizes for the tile of `channels`: whole tiles with a factor and a sink; a padded head with window and
// documents; rows on any byte, in chunks.
std::vector<Variant> sizes_of(int64_t channels, int64_t length) {
    return {{.batch = 1,
             .length = length,  // more than one tile of queries
             .heads = 2,
             .kv_heads = 1,
             .head_dim = channels,
             .factor_rows = 2,
             .sink = true,
             .seed = 1},
            {.batch = 2,
             .length = 67,
             .heads = 1,
             .kv_heads = 1,
             .head_dim = channels - 24,
             .window = 30,
             .documents = true,
             .factor_rows = 1,
             .seed = 2},
            {.batch = 1,
             .length = 35,
             .heads = 3,
             .kv_heads = 1,
             .head_dim = channels / 2 + 1,
             .chunk = 20,
             .seed = 3}};
}

template <class T>
void check_instances(std::initializer_list<int64_t> tiles) {
    for (int64_t channels : tiles)
        for (Form form : forms) {
            CAPTURE(channels);
            CAPTURE(name_of(form));
            for (Variant c : sizes_of(channels, std::is_same_v<T, bf16> && channels < 256 ? 140 : 75)) {
                ask_for(c, form);
                CAPTURE(c.length);
                Problem p(c);
                check_launch<T>(
                    p, !simt::long_tests() && std::is_same_v<T, float> ? 2 : simt::usual_schedules());
            }
        }
}

}  // namespace

TEST_CASE("every form of bf16 attention against double, heads of up to 64 channels") {
    check_instances<bf16>({64});
}
TEST_CASE("every form of bf16 attention against double, heads of up to 128 channels") {
    check_instances<bf16>({128});
}
TEST_CASE("every form of bf16 attention against double, heads of up to 256 channels") {
    check_instances<bf16>({256});
}
TEST_CASE("every form of f32 attention against double, heads of up to 64, 128, 256 channels") {
    check_instances<float>({64, 128, 256});
}

TEST_CASE("a long sequence with a short window") {
    Variant c{.batch = 1, .length = 1300, .heads = 1, .kv_heads = 1, .head_dim = 32, .window = 40, .seed = 4};
    for (Form form : {Form::plain, Form::table}) {
        ask_for(c, form);
        Problem p(c);
        check_launch<bf16>(p, 2);
    }
}

TEST_CASE("documents that end on the edges of tiles and off them") {
    for (int64_t chunk : {1, 63, 64, 65, 128}) {
        CAPTURE(chunk);
        Problem p({.batch = 1, .length = 257, .heads = 1, .kv_heads = 1, .head_dim = 16, .chunk = chunk});
        check_launch<bf16>(p, 1);
    }
}

// A row's reference stays while its maximum rises by less than 2^8 and follows when it rises more.
TEST_CASE("maxima that rise slowly, fast, or fall along the keys") {
    for (double rise : {0.05, 0.1, 0.5, 3.0, -0.1, -3.0})
        for (Form form : {Form::plain, Form::table, Form::general}) {
            CAPTURE(rise);
            CAPTURE(name_of(form));
            Variant c{.batch = 1,
                      .length = 300,
                      .heads = 1,
                      .kv_heads = 1,
                      .head_dim = 16,
                      .sink = true,
                      .seed = 6};
            ask_for(c, form);
            Problem p(c);
            // Scores rise by `rise` from key to key, plus noise.
            for (int64_t n = 0; n < c.length; ++n) {
                p.qkv.at(n, 0) = 4;
                p.qkv.at(n, p.query_cols) = static_cast<float>(rise * double(n));
            }
            check_launch<bf16>(p, 1);
        }
}

TEST_CASE("negative and zero row factors of the plain form") {
    Variant c{
        .batch = 1, .length = 150, .heads = 2, .kv_heads = 1, .head_dim = 24, .factor_rows = 2, .seed = 8};
    for (float least : {-2.0f, 0.0f}) {
        Problem p(c);
        for (int64_t i = 0; i < p.factor.count(); ++i)
            p.factor[i] = i % 3 == 0 ? least : i % 3 == 1 ? -0.3f : 1.5f;
        check_launch<bf16>(p, 2);
    }
}

TEST_CASE("a NaN in one key of bf16 reaches the queries that see it and no others") {
    for (Form form : forms) {
        Variant c{.batch = 1, .length = 150, .heads = 1, .kv_heads = 1, .head_dim = 16, .chunk = 70};
        ask_for(c, form);
        c.far = false;
        Problem p(c);
        round_inputs<bf16>(p);
        p.qkv.at(40, p.query_cols + 5) = std::numeric_limits<float>::quiet_NaN();
        Launch<bf16> launch(p, true);
        launch.clear();
        launch.run();
        launch.get();
        for (int64_t i = 0; i < c.length; ++i) {
            CHECK(std::isnan(p.o.at(i, 0)) == (i >= 40 && i < 70));
            CHECK(std::isnan(p.lse.at(0, i)) == (i >= 40 && i < 70));
        }
    }
}

// --- the kernels for Hopper: tiles of 128 or 192 queries and 128 keys

TEST_CASE(
    "Hopper's kernels: one worker and several, heads that share keys, sequences that end inside a tile") {
    for (int64_t channels : {64, 128})
        for (Form form : {Form::plain, Form::forget, Form::table, Form::gain})
            for (int workers : {1, 3}) {
                CAPTURE(channels);
                CAPTURE(name_of(form));
                CAPTURE(workers);
                Variant c{.batch = 2,
                          .length = channels == 64 ? 270 : 300,
                          .heads = workers == 1 ? 4 : 2,
                          .kv_heads = workers == 1 ? 2 : 1,
                          .head_dim = channels,
                          .factor_rows = workers == 1 ? 4 : 2,
                          .sink = workers == 3,
                          .seed = 1};
                ask_for(c, form);
                Problem p(c);
                for (int64_t i = 0; i < p.factor.count(); i += 5) p.factor[i] = i % 2 == 0 ? -0.4f : 0.0f;
                check_launch<bf16>(p, workers == 1 ? 1 : simt::usual_schedules(), workers);
            }
}

TEST_CASE("Hopper's kernels: windows, documents and chunks, whose first tiles lie anywhere") {
    for (int64_t channels : {64, 128})
        for (Form form : {Form::plain, Form::forget, Form::table, Form::gain}) {
            Variant c{.batch = 1, .length = 500, .heads = 1, .kv_heads = 1, .head_dim = channels, .seed = 2};
            ask_for(c, form);
            for (int64_t window : {1, 130, 300}) {
                CAPTURE(window);
                c.window = window;
                c.documents = window == 300;
                Problem p(c);
                check_launch<bf16>(p, 3, 2);
            }
            c.window = 0;
            for (int64_t chunk : {63, 128, 200}) {
                CAPTURE(chunk);
                c.chunk = chunk;
                c.documents = false;
                Problem p(c);
                check_launch<bf16>(p, 2, 2);
            }
        }
}

TEST_CASE("Hopper's kernels: maxima that rise along the keys, and one key") {
    for (Form form : {Form::plain, Form::forget, Form::table, Form::gain})
        for (double rise : {0.1, 3.0, -3.0}) {
            Variant c{.batch = 1, .length = 400, .heads = 1, .kv_heads = 1, .head_dim = 64, .seed = 6};
            ask_for(c, form);
            Problem p(c);
            for (int64_t n = 0; n < c.length; ++n) {
                p.qkv.at(n, 0) = 4;
                p.qkv.at(n, p.query_cols) = static_cast<float>(rise * double(n));
            }
            check_launch<bf16>(p, 1, 1);
        }
    Problem p({.batch = 3, .length = 1, .heads = 1, .kv_heads = 1, .head_dim = 128});
    check_launch<bf16>(p, 3, 2);
}

TEST_CASE("every instance fits the shared memory of every architecture from sm_80 on, with the same bits") {
    const simt::Options before = simt::options();
    for (int64_t channels : {64, 128, 256})
        for (Form form : forms) {
            Variant c{.batch = 1, .length = 3, .heads = 1, .kv_heads = 1, .head_dim = channels};
            ask_for(c, form);
            const auto check_type = [&](auto element) {
                using T = decltype(element);
                Problem p(c);
                round_inputs<T>(p);
                Launch<T> launch(p, true);
                Floats first(1, 1);
                for (int architecture : {80, 86, 89, 90, 100, 120}) {
                    CAPTURE(architecture);
                    simt::options().architecture = architecture;
                    launch.clear();
                    launch.run();
                    launch.get();
                    if (architecture == 80) first = joined({&p.o, &p.lse});
                    CHECK(same_bits(first, joined({&p.o, &p.lse})));
                }
                check_results<T>(p);
            };
            check_type(bf16{});
            check_type(float{});
        }
    simt::options() = before;
}

TEST_CASE("no access of shared memory in the loop over keys waits for a bank") {
    const simt::Options before = simt::options();
    simt::options().count_bank_conflicts = true;
    for (int64_t channels : {64, 128, 256})
        for (Form form : forms) {
            CAPTURE(channels);
            CAPTURE(name_of(form));
            Variant c{.batch = 1, .length = 130, .heads = 1, .kv_heads = 1, .head_dim = channels};
            if (channels == 256) c.length = 70;
            ask_for(c, form);
            const auto check_type = [&](auto element) {
                using T = decltype(element);
                CAPTURE(sizeof(T));
                Problem p(c);
                Launch<T> launch(p, true);
                simt::clear_bank_conflicts();
                launch.clear();
                launch.run();
                REQUIRE(!simt::bank_conflicts().empty());
                int slow_lines = 0;
                for (const simt::BankConflicts& line : simt::bank_conflicts()) {
                    CAPTURE(line.place);
                    CHECK(line.mean_degree <= (std::is_same_v<T, float> ? 2.0 : 1.0));
                    slow_lines += line.mean_degree > 1.0;
                }
                // f32 outputs, on their way out once per tile of queries: two rows share a bank.
                CHECK(slow_lines <= (std::is_same_v<T, float> ? 1 : 0));
            };
            check_type(bf16{});
            if (form == Form::general || form == Form::rare) check_type(float{});
        }
    simt::options() = before;
}

TEST_CASE("what the kernels cannot do is refused before a launch") {
    Problem large({.batch = 1, .length = 3, .heads = 1, .kv_heads = 1, .head_dim = 257});
    Launch<bf16> launch(large, false);
    CHECK_THROWS_AS(launch.run(), Error);
    Problem p({.batch = 1, .length = 3, .heads = 2, .kv_heads = 1, .head_dim = 8});
    Launch<bf16> other(p, false);
    const AttentionSpec good = other.spec;
    other.spec.far_queries = other.qkv.columns(0, p.query_cols);
    CHECK_THROWS_AS(other.run(), Error);
    other.spec = good;
    other.spec.distance_gain = other.gain.tensor();
    CHECK_THROWS_AS(other.run(), Error);
    other.spec = good;
    other.spec.batch = 2;
    CHECK_THROWS_AS(other.run(), Error);
    other.spec = good;
    other.spec.sink = Tensor(other.sink.memory.data(), DType::f32, {1});
    CHECK_THROWS_AS(other.run(), Error);
}
