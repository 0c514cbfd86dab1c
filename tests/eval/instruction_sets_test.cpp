// In fp32 every instruction set that fuses multiply-adds computes the same bits: AVX2, AVX-512 and NEON.
#include <doctest/doctest.h>

#include "eval/decoding.h"
#include "kernels/support.h"
#include "model/check_model.h"
#include "model/delta_models.h"
#include "model/gau_models.h"
#include "model/key_index_models.h"
#include "model/simplicial_models.h"
#include "model/small_variants.h"
#include "model/term_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// FNV-1a over the bytes of floats.
class Fingerprint {
  public:
    void add(const std::vector<float>& numbers) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
        for (size_t i = 0; i < numbers.size() * sizeof(float); ++i) value_ = (value_ ^ bytes[i]) * prime;
    }
    uint64_t value() const { return value_; }

  private:
    static constexpr uint64_t prime = 0x100000001b3;
    uint64_t value_ = 0xcbf29ce484222325;
};

std::vector<SmallModel> every_mixer() {
    std::vector<SmallModel> all;
    for (const auto& models : {small_variants(), delta_models(), gau_models(), key_index_models(),
                               simplicial_models(), term_models()})
        all.insert(all.end(), models.begin(), models.end());
    for (uint32_t i = 0; i < 40; ++i) all.push_back(random_model(i));
    // So long that attention's gradients come from two segments of keys.
    all.push_back(small_models().front());
    all.back().length = 2100;
    return all;
}

// Of this machine. "generic" on x86 rounds products before it adds them.
std::vector<std::string> fusing_sets() {
    std::vector<std::string> sets = instruction_sets();
    std::erase(sets, "generic");
    return sets;
}

// of(small, cpu, fingerprint) adds the numbers of one model. `kept` comes from a CPU with AVX-512: a change of the numerics
// changes it, another machine does not.
template <class Of>
void check_sets(uint64_t kept, Of of) {
    for (const std::string& isa : fusing_sets()) {
        CAPTURE(isa);
        Fingerprint all;
        for (const SmallModel& small : every_mixer()) {
            CAPTURE(small.name);
            of(small, CpuOptions{.threads = 1, .isa = isa}, all);
            // To find the model that differs.
            if (std::getenv("LONGREACH_TEST_FINGERPRINTS")) MESSAGE(isa, ": ", all.value());
        }
        CHECK(all.value() == kept);
    }
}

}  // namespace

TEST_CASE("instruction sets: the bits of losses and gradients, with every mixer and in random models") {
    check_sets(2482959409316312959u, [](const SmallModel& small, const CpuOptions& cpu, Fingerprint& all) {
        const auto fixture = make_fixture(small, cpu);
        const ModelFixture::Step step = fixture->train(make_example(small));
        all.add(step.losses);
        all.add(step.gradients);
    });
}

TEST_CASE("instruction sets: the bits of logits, token by token after a prompt") {
    check_sets(17007980593253367262u, [](const SmallModel& small, const CpuOptions& cpu, Fingerprint& all) {
        const auto fixture = make_fixture(small, cpu);
        const Text text{.sequences = 2, .prompt = 5, .room = 12};
        DecoderBench bench(small.config, text, cpu, fixture->host_weights);
        const auto vocab = static_cast<int32_t>(small.config.vocab_size);
        std::vector<int32_t> prompt(10);
        for (int32_t i = 0; i < 10; ++i) prompt[static_cast<size_t>(i)] = 7 * i % vocab;
        bench.prefill(prompt, 2);
        for (int32_t i = 0; i < 7; ++i) {
            all.add(bench.logits());
            bench.step({11 * i % vocab, (5 * i + 3) % vocab});
        }
    });
}
