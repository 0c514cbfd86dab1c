// A sequence that is read piece by piece gives every token the bits of one pass.
#include <doctest/doctest.h>

#include <cstring>

#include "model/delta_models.h"
#include "model/fixture.h"
#include "model/gau_models.h"
#include "model/key_index_models.h"
#include "model/random_models.h"
#include "model/simplicial_models.h"
#include "model/small_variants.h"
#include "model/term_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t piece = 256;  // tiles of queries that share keys on a CPU: 4 of 64

// Documents that end at the end of a piece, within one and beyond one.
Example example_of(const SmallModel& small, int64_t length, bool documents) {
    Example e = random_example(small.config.vocab_size, 1, length, false);
    int32_t start = 0;
    for (int32_t i = 0; documents && i < length; ++i) {
        for (const int32_t begin : {100, 256, 300, 530})
            if (i == begin) start = i;
        e.doc_start.push_back(start);
    }
    return e;
}

struct Scored {
    std::vector<float> losses;
    std::vector<int32_t> best;
    int64_t bytes = 0;
    bool operator==(const Scored& o) const {
        return best == o.best && losses.size() == o.losses.size() &&
               std::memcmp(losses.data(), o.losses.data(), losses.size() * sizeof(float)) == 0;
    }
};

// One pass with `each` = 0.
class Bench {
  public:
    Bench(const SmallModel& small, int64_t length, int64_t each, bool documents,
          const model::PostHocConfig& post_hoc)
        : length_(length),
          each_(each),
          ops_(make_cpu_ops({.threads = 2})),
          arena_(*ops_),
          model_(small.config, length, post_hoc) {
        const int64_t tokens = each > 0 ? each : length;
        weights_ = model::plan_weights(arena_, model_.params());
        model_.plan_tables(arena_);
        batch_.plan(arena_, tokens, {.documents = true});
        model::PlanSize size{tokens, {tokens}};
        if (each > 0) size.piece = each, size.room = length;
        model_.plan_evaluation(arena_, *ops_, size, documents);
        arena_.commit();
        model_.fill_tables(*ops_);
        std::vector<float> host;
        model::initialise(model_.params(), 1, host);
        const Rng rng(31, Purpose::test);  // so that every part has an effect
        for (size_t i = 0; i < host.size(); ++i) host[i] += static_cast<float>(0.2 * rng.normal(i));
        ops_->upload(weights_.flat, host.data());
        weights_.round(*ops_);
        model_.use_length(*ops_, length);
    }
    Scored run(const Example& e) {
        Scored out{std::vector<float>(static_cast<size_t>(length_)),
                   std::vector<int32_t>(static_cast<size_t>(length_)), arena_.bytes()};
        for (int64_t at = 0; at<length_; at += each_> 0 ? each_ : length_) {
            const int64_t count = each_ > 0 ? std::min(each_, length_ - at) : length_;
            const auto part = [&](const auto& all) {
                const auto first = all.begin() + at;
                return all.empty() ? all : std::remove_cvref_t<decltype(all)>(first, first + count);
            };
            std::vector<int32_t> starts = part(e.doc_start);
            if (each_ > 0) starts.resize(static_cast<size_t>(count));
            for (int32_t& start : starts) start -= static_cast<int32_t>(at);
            const model::Generation place{length_, at, each_};
            model_.forward(*ops_, weights_,
                           batch_.upload(*ops_, count, part(e.tokens), part(e.targets), starts), nullptr,
                           each_ > 0 ? &place : nullptr);
            ops_->download(out.losses.data() + at, model_.evaluation_losses(count));
            ops_->download(out.best.data() + at, model_.evaluation_best(count));
        }
        return out;
    }

  private:
    int64_t length_, each_;
    std::unique_ptr<Ops> ops_;
    model::Arena arena_;
    model::Transformer model_;
    model::DeviceBatch batch_;
    model::FlatParams weights_;
};

void check_pieces(SmallModel small, bool documents, const model::PostHocConfig& post_hoc = {},
                  int64_t length = 700) {
    CAPTURE(small.name);
    CAPTURE(documents);
    if (small.config.positions > 0) small.config.positions = length;
    Bench whole(small, length, 0, documents, post_hoc), pieces(small, length, piece, documents, post_hoc);
    const Example e = example_of(small, length, documents);
    Example other = e;  // what an earlier sequence leaves has no effect
    for (int32_t& token : other.tokens) token = (token + 1) % static_cast<int32_t>(small.config.vocab_size);
    pieces.run(other);
    CHECK(pieces.run(e) == whole.run(e));
}

SmallModel with(const std::string& name, auto change) {
    SmallModel small{name, tiny_model()};
    change(small.config.attention);
    return small;
}

}  // namespace

TEST_CASE("pieces: every small model has the losses of one pass, with documents and without") {
    std::vector<SmallModel> all = small_variants();
    for (const auto& more :
         {delta_models(), gau_models(), simplicial_models(), key_index_models(), term_models()})
        all.insert(all.end(), more.begin(), more.end());
    for (const SmallModel& small : all)
        for (const bool documents : {false, true}) check_pieces(small, documents);
}

TEST_CASE("pieces: random models have the losses of one pass") {
    for (uint32_t stream = 0; stream < 40; ++stream) {
        const SmallModel small = random_model(stream);
        check_pieces(small, stream % 2 == 0, {}, 520 + stream);
    }
}

TEST_CASE("pieces: windows and chunks that begin pieces before") {
    for (const int64_t reach : {2, 64, 65, 200, 257, 300, 500, 600, 2000}) {
        CAPTURE(reach);
        for (const bool documents : {false, true}) {
            check_pieces(with("window", [&](model::AttentionConfig& a) { a.window = reach; }), documents, {},
                         1300);
            check_pieces(with("chunk", [&](model::AttentionConfig& a) { a.chunk = reach; }), documents, {},
                         1300);
            check_pieces(with("window, forget gates",
                              [&](model::AttentionConfig& a) {
                                  a.window = reach;
                                  add_law(a, "forgetting");
                              }),
                         documents, {}, 1300);
            check_pieces(with("window, channels that fade",
                              [&](model::AttentionConfig& a) {
                                  a.window = reach;
                                  a.terms["w"].init = json::Value(2);
                                  add_law(a, "wall");
                              }),
                         documents, {}, 1300);
            check_pieces(with("chunk, counted keys",
                              [&](model::AttentionConfig& a) {
                                  a.chunk = reach;
                                  a.score_count = model::ScoreCount::visible;
                                  add_law(a, "logn");
                              }),
                         documents, {}, 1300);
        }
    }
}

TEST_CASE("pieces: positions and scores that depend on the length") {
    for (const char* kind :
         {"pi", "ntk", "ntk_old", "ntk_su", "ntk_mixed", "ntk_dynamic", "yarn", "rerope", "leaky_rerope"}) {
        CAPTURE(kind);
        model::PostHocConfig post_hoc;
        post_hoc.kind = kind;
        post_hoc.window = 90;
        if (std::string(kind) == "ntk_old") post_hoc.factor = 3;
        SmallModel small = with("plain", [](model::AttentionConfig&) {});
        small.config.train_context = 128;
        check_pieces(small, true, post_hoc);
        check_pieces(with("latent",
                          [](model::AttentionConfig& a) {
                              a.qk.kind = model::QkKind::none;
                              a.own<model::LatentConfig>() = {12, 4, 0};
                          }),
                     false, post_hoc);
    }
}

TEST_CASE("pieces: memory of a window and of a state does not grow with the sequence") {
    const auto bytes = [](const SmallModel& small, int64_t length, int64_t each) {
        return Bench(small, length, each, true, {}).run(example_of(small, length, true)).bytes;
    };
    const SmallModel local =
        with("window", [](model::AttentionConfig& a) { a.window = 100, a.angle = "nope"; });
    const SmallModel state = delta_models().front();
    for (const SmallModel& small : {local, state}) {
        CHECK(bytes(small, 4096, piece) == bytes(small, 1024, piece));
        CHECK(bytes(small, 4096, piece) < bytes(small, 4096, 0) / 8);
    }
    const SmallModel global = with("all keys", [](model::AttentionConfig& a) { a.angle = "nope"; });
    // Keys and values of three layers, f32.
    CHECK(bytes(global, 4096, piece) - bytes(global, 1024, piece) == 3 * 2 * (4096 - 1024) * 16 * 4);
}
