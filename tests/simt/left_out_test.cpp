// Kernels as they are, with one barrier, fence, arrival, commit or wait left out at a time: the harness has to say so. It
// is how the gradient of the embedding, attention's pairs of warps, the delta rule in chunks and the kernels for Hopper are
// known to need each of them, and how a missing one is known to be seen. Prints a line for each.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/delta_run.h"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/relu2_hopper.h"
#include "kernels/cuda_device.h"
#include "kernels/support.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using bf16 = __nv_bfloat16;

struct Subject {
    const char* name;
    std::function<void()> prepare, launch;
    std::vector<simt::Output> outputs;
};

using Key = std::tuple<std::string, uint32_t, uint32_t>;
Key key_of(const simt::Place& at) {
    return {at.file, at.line, at.column};
}
std::string source_line(const Key& key) {
    const std::string path = std::get<0>(key);  // as the compiler was given it
    std::ifstream file(std::string(LONGREACH_SOURCE_DIR) + "/" + path.substr(path.rfind("kernels/")));
    std::string line;
    for (uint32_t i = 0; i < std::get<1>(key); ++i) std::getline(file, line);
    return line;
}

struct Collecting {  // findings are read, not thrown
    simt::Options before = simt::options();
    Collecting() { simt::options().throw_on_finding = false; }
    ~Collecting() {
        simt::options() = before;
        simt::clear_findings();
    }
};

// Leaves out each place in turn, in one launch after the other and under one schedule after the other until something is
// said. needless: texts of the lines of which nothing is said. Returns how many places there are.
size_t check_left_out(const std::vector<Subject>& subjects, const std::vector<std::string>& needless = {}) {
    constexpr int schedules = 5;  // every order and every landing
    const Collecting collecting;
    const auto run = [](const Subject& subject, std::function<bool(const simt::Place&)> leaves_out) {
        simt::clear_findings();
        simt::options().leaves_out = std::move(leaves_out);
        simt::run_schedules(schedules, subject.prepare, subject.launch, subject.outputs);
    };
    std::map<Key, std::string> texts;
    std::map<Key, std::vector<const Subject*>> reached;
    for (const Subject& subject : subjects) {
        std::set<Key> places;
        run(subject, [&](const simt::Place& at) {
            if (places.insert(key_of(at)).second) texts[key_of(at)] = at.text();
            return false;
        });
        REQUIRE(simt::findings().empty());
        for (const Key& key : places) reached[key].push_back(&subject);
    }
    for (const auto& [key, by] : reached) {
        std::string said;
        for (size_t i = 0; i < by.size() && said.empty(); ++i) {
            run(*by[i], [&key](const simt::Place& at) { return key_of(at) == key; });
            if (simt::findings().empty()) continue;
            const simt::Finding& first = simt::findings()[0];
            said = std::string(by[i]->name) + " | " + simt::name_of(first.kind) + ": " +
                   first.message.substr(0, first.message.find('\n'));
        }
        std::printf("%s | %s\n", texts[key].c_str(), said.c_str());
        const std::string line = source_line(key);
        const bool excused = std::any_of(needless.begin(), needless.end(), [&](const std::string& text) {
            return line.find(text) != std::string::npos;
        });
        CHECK_MESSAGE(said.empty() == excused, "without " << texts[key]);
    }
    return reached.size();
}

// A bf16 matrix of numbers that mean nothing.
struct Matrix {
    simt::DeviceArray<bf16> memory;
    int64_t rows, cols;
    Matrix(int64_t r, int64_t c, uint32_t stream) : memory(static_cast<size_t>(r * c)), rows(r), cols(c) {
        const Floats values = normal(r, c, stream);
        std::vector<bf16> rounded;
        for (int64_t i = 0; i < values.count(); ++i) rounded.push_back(bf16(values[i]));
        memory.set(rounded);
    }
    Tensor tensor() const { return {memory.data(), DType::bf16, {rows, cols}}; }
};

// Attention of one head, forward by the kernels that all devices have; then either pass as asked.
struct Attention {
    int64_t length, channels;
    Matrix q{length, channels, 1}, k{length, channels, 2}, v{length, channels, 3}, o{length, channels, 4},
        dout{length, channels, 5}, dq{length, channels, 6}, dk{length, channels, 7}, dv{length, channels, 8};
    simt::DeviceArray<float> lse{static_cast<size_t>(length)}, numbers;
    AttentionSpec spec;
    simt::DeviceArray<float> workspace;
    simt::DeviceArray<int> queue{std::vector<int>(2)};

    Attention(int64_t of_length, int64_t of_channels, bool with_tables)
        : length(of_length),
          channels(of_channels),
          numbers(
              std::vector<float>(static_cast<size_t>(length), -0.5f)),  // factors turn the signs of queries
          spec(spec_of(with_tables)),
          workspace(static_cast<size_t>(cuda::attention_backward_workspace(spec, {}) / 4)) {
        forward(0);
    }
    AttentionSpec spec_of(bool with_tables) const {
        AttentionSpec s{
            .batch = 1, .length = length, .heads = 1, .kv_heads = 1, .head_dim = channels, .scale = 0.1f};
        s.row_factor = Tensor(numbers.data(), DType::f32, {1, length});
        if (!with_tables) return s;
        s.distance_gain = s.distance_bias = Tensor(numbers.data(), DType::f32, {1, length});
        return s;
    }
    Tensor of_lse() const { return {lse.data(), DType::f32, {1, length}}; }
    void forward(int workers) {
        cuda::attention(o.tensor(), of_lse(), Tensor(), q.tensor(), k.tensor(), v.tensor(), spec, nullptr,
                        {workers, queue.data()});
    }
    void backward(int workers) {
        cuda::attention_backward(
            {dq.tensor(), dk.tensor(), dv.tensor()}, {},
            Tensor(workspace.data(), DType::f32, {static_cast<int64_t>(workspace.size())}), dout.tensor(),
            {{q.tensor(), k.tensor(), v.tensor()}, o.tensor(), of_lse()}, spec, nullptr,
            {workers, queue.data()});
    }
    Subject of_forward(const char* name, int workers) {
        return {name,
                [this] { queue.zero(); },
                [this, workers] { forward(workers); },
                {o.memory.output(), lse.output()}};
    }
    Subject of_backward(const char* name, int workers) {
        return {name,
                [this] { queue.zero(); },
                [this, workers] { backward(workers); },
                {dq.memory.output(), dk.memory.output(), dv.memory.output()}};
    }
};

}  // namespace

TEST_CASE("the gradient of the embedding needs each of its barriers") {
    const int64_t tokens = 1100, width = 8, vocabulary = 600;  // two tiles, two digits
    Ints chosen = integers(1, tokens, 3, vocabulary);
    for (int64_t i = 0; i < 300; ++i) chosen[3 * i] = 77;
    simt::DeviceArray<int32_t> of_tokens(std::vector<int32_t>(chosen.data(), chosen.data() + tokens));
    const Floats values = normal(tokens, width, 1);
    simt::DeviceArray<float> dx(std::vector<float>(values.data(), values.data() + values.count()));
    simt::DeviceArray<float> dtable(static_cast<size_t>(vocabulary * width));
    simt::DeviceArray<float> space(
        static_cast<size_t>(cuda::embedding_backward_workspace(tokens, width) / 4));
    const Subject subject = {"gradient of the embedding",
                             [&] { dtable.zero(); },
                             [&] {
                                 cuda::embedding_backward(
                                     Tensor(dtable.data(), DType::f32, {vocabulary, width}),
                                     Tensor(space.data(), DType::f32, {static_cast<int64_t>(space.size())}),
                                     Tensor(dx.data(), DType::f32, {tokens, width}),
                                     Tensor(of_tokens.data(), DType::i32, {tokens}), nullptr);
                             },
                             {dtable.output()}};
    CHECK(check_left_out({subject}) == 10);
}

TEST_CASE("attention forward, and backward by pairs of warps, need each of their barriers and waits") {
    Attention of(97, 128, false);
    CHECK(check_left_out({of.of_backward("backward", 0), of.of_forward("forward", 0)}) == 24);
}

TEST_CASE("the delta rule in chunks needs each of its barriers and waits") {
    // Three chunks, whose tiles follow each other; columns past the first 64.
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    const auto subject = [](const char* name, delta::DeviceRun& run) {
        return Subject{name,
                       [] {},
                       [&run] { run.execute(); },
                       {{run.o.memory.data(), static_cast<size_t>(run.p.rows * 72 * 2)},
                        {run.dq.memory.data(), static_cast<size_t>(run.p.rows * 64 * 2)},
                        {run.ddecay.memory.data(), 8}}};
    };
    delta::Problem by_head = delta::rounded({1, 130, 1, 64, 72}),
                   by_channel = delta::rounded({1, 130, 1, 64, 72, true}), segments = by_head;
    segments.spec.segments = 3;
    delta::DeviceRun of_heads(*ops, by_head, 0), of_channels(*ops, by_channel, 0),
        in_segments(*ops, segments, 0);
    CHECK(check_left_out({subject("the delta rule", of_heads),
                          subject("the delta rule, decays by channel", of_channels),
                          subject("the delta rule, segments at once", in_segments)}) == 38);
}

TEST_CASE("kernels for Hopper need each of their barriers, fences, arrivals, commits and waits") {
    // Queries have two places: the third tile of three is the first to wait for one to be free.
    Attention plain(200, 64, false), tables(200, 64, true), three(400, 64, true);
    const Matrix x(131, 200, 1), w(264, 200, 2), out(131, 264, 3);
    const Subject relu2 = {"product with relu^2",
                           [] {},
                           [&] { cuda::linear_relu2_sm90(out.tensor(), x.tensor(), w.tensor(), 1, nullptr); },
                           {out.memory.output()}};
    // Of an arrival that the end of the block leaves over the harness says nothing.
    CHECK(check_left_out({tables.of_forward("forward, tables", 1), plain.of_forward("forward", 1),
                          tables.of_backward("backward, tables", 1), relu2,
                          three.of_forward("forward, three tiles of queries", 1)},
                         {"takes the last turn that was passed", "ptxas wants another"}) >= 60);
}
