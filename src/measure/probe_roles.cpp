#include "measure/probe_roles.h"

#include <map>

#include "base/rng.h"
#include "measure/probe_sums.h"
#include "tasks/generator.h"

namespace longreach::measure {

namespace {

constexpr int64_t longest_text = 256, most_sequences = 8, needles = 16;
constexpr uint32_t text_stream = 1000;  // of the permutations; one per sequence follows

// Texts, and the keys to watch: of each token's query, counted from the start of its sequence; -1: none.
struct RoleTexts {
    int64_t length = 0;
    std::vector<int32_t> tokens;
    std::array<std::vector<int32_t>, watched_keys> keys;

    int64_t sequences() const { return static_cast<int64_t>(tokens.size()) / length; }
};

// Mean weight of the watched keys by layer and head.
class RoleObserver final : public model::ForwardObserver {
  public:
    explicit RoleObserver(const ProbeBuffers& buffers) : buffers_(buffers) {}

    // The texts [first, first + count) are the next batch.
    void next(const RoleTexts& texts, int64_t first, int64_t count) {
        for (size_t which = 0; which < watched_keys; ++which) {
            const auto begin = texts.keys[which].begin() + first * texts.length;
            keys_[which].assign(begin, begin + count * texts.length);
        }
    }

    void attention(const model::StepContext& run, const model::AttentionView& view) override {
        const int64_t n = run.batch.count(), heads = view.scores.heads;
        std::vector<int32_t> start(static_cast<size_t>(n)), keys;
        if (view.scores.row_start) run.ops.download(start.data(), view.scores.row_start);
        for (const std::vector<int32_t>& watched : keys_)
            for (size_t i = 0; i < start.size(); ++i)
                keys.push_back(watched[i] >= start[i] ? watched[i] : -1);
        const Tensor watched = buffers_.watched.shaped({watched_keys, n});
        const Tensor statistics = buffers_.statistics.shaped({row_statistics, heads, n});
        run.ops.upload(watched, keys.data());
        run.ops.attention_statistics(statistics, view.lse, view.q, view.k, watched, view.scores);
        std::vector<float> host(static_cast<size_t>(statistics.count()));
        run.ops.download(host.data(), statistics);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t which = 0; which < watched_keys; ++which) {
                const int64_t row = (static_cast<int64_t>(RowStatistic::watched) + which) * heads + h;
                Mean& mean = means_[{view.layer, h, which}];
                for (int64_t i = 0; i < n; ++i)
                    if (keys[static_cast<size_t>(which * n + i)] >= 0)
                        mean.add(double{host[static_cast<size_t>(row * n + i)]});
            }
    }
    void block(const model::StepContext&, int64_t, const Tensor&) override {}

    // names: of the watched keys.
    void append_rows(std::vector<ProbeRow>& rows, std::initializer_list<const char*> names) const {
        for (const auto& [place, mean] : means_) {
            const auto [layer, head, which] = place;
            if (mean.count > 0 && which < static_cast<int64_t>(names.size()))
                rows.push_back({0, layer, head, 0, names.begin()[which],
                                mean.sum / static_cast<double>(mean.count), mean.count});
        }
    }

  private:
    const ProbeBuffers& buffers_;
    std::array<std::vector<int32_t>, watched_keys> keys_;
    std::map<std::tuple<int64_t, int64_t, int64_t>, Mean> means_;  // by layer, head, and which of the keys
};

RoleTexts repeated_texts(int64_t period, int64_t vocab, const RoleRequest& request) {
    RoleTexts texts{.length = 2 * period, .tokens = {}, .keys = {}};
    const int64_t sequences = std::min(most_sequences, request.longest / texts.length);
    for (int64_t s = 0; s < sequences; ++s) {
        const Permutation shuffled(static_cast<uint64_t>(vocab), request.seed,
                                   text_stream + static_cast<uint32_t>(s));
        for (int64_t i = 0; i < texts.length; ++i) {
            texts.tokens.push_back(static_cast<int32_t>(shuffled(static_cast<uint64_t>(i % period))));
            texts.keys[0].push_back(static_cast<int32_t>(i - 1));
            texts.keys[1].push_back(static_cast<int32_t>(i >= period ? i - period + 1 : -1));
        }
    }
    return texts;
}

// The query before each token of the answer looks for that token in the needle. No text where the task does not fit.
RoleTexts needle_texts(const model::ModelConfig& model, const data::TokenStream& stream,
                       const RoleRequest& request) {
    const data::TaskConfig config;
    RoleTexts texts{.length = std::min(model.train_context, request.longest), .tokens = {}, .keys = {}};
    const int64_t first = config.first_id(model.vocab_size);
    if (!config.is_text(model.vocab_size) && (first < 0 || first + config.ids > model.vocab_size))
        return texts;
    const tasks::TaskGenerator generator(data::TaskKind::needle, config, model.vocab_size, request.seed,
                                         &stream);
    try {
        for (int64_t s = 0; s < needles; ++s) {
            const tasks::Sample sample =
                generator.make(texts.length, tasks::first_evaluation_sample + static_cast<uint64_t>(s));
            const auto answer = sample.tokens.begin() + sample.answer_begin;
            const auto found = std::search(sample.tokens.begin(), answer, answer, sample.tokens.end());
            for (int64_t i = 0; i < texts.length; ++i) {
                const int64_t of_answer = i + 1 - sample.answer_begin;  // the token that the query predicts
                const bool asked = of_answer >= 0 && of_answer < sample.answer_tokens();
                texts.keys[0].push_back(
                    asked ? static_cast<int32_t>(found - sample.tokens.begin() + of_answer) : -1);
                texts.keys[1].push_back(-1);
            }
            texts.tokens.insert(texts.tokens.end(), sample.tokens.begin(), sample.tokens.end());
        }
    } catch (const Error& e) {
        if (e.code() != ExitCode::usage && e.code() != ExitCode::data) throw;
        texts.tokens.clear();  // too short a context, or too little text
    }
    return texts;
}

}  // namespace

int64_t role_text(int64_t longest, int64_t vocab) {
    return std::min({longest_text, longest / 2, vocab});
}

std::vector<ProbeRow> probe_roles(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                                  const data::TokenStream& stream, const model::DeviceBatch& batch,
                                  const ProbeBuffers& buffers, const RoleRequest& request) {
    std::vector<ProbeRow> rows;
    const auto read = [&](const RoleTexts& texts, std::initializer_list<const char*> names) {
        if (texts.tokens.empty()) return;
        RoleObserver observer(buffers);
        const int64_t at_once = request.longest / texts.length;
        model.use_length(ops, texts.length);
        for (int64_t first = 0; first < texts.sequences(); first += at_once) {
            const int64_t count = std::min(at_once, texts.sequences() - first);
            const auto tokens = std::span(texts.tokens)
                                    .subspan(static_cast<size_t>(first * texts.length),
                                             static_cast<size_t>(count * texts.length));
            const std::vector<int32_t> starts(request.document_mask ? tokens.size() : 0, 0);  // one document
            observer.next(texts, first, count);
            model.forward(ops, weights, batch.upload(ops, texts.length, tokens, tokens, starts), &observer);
        }
        model.use_length(ops, 0);
        observer.append_rows(rows, names);
    };
    const int64_t vocab = model.config().vocab_size, period = role_text(request.longest, vocab);
    if (period >= 2)
        read(repeated_texts(period, vocab, request), {head_roles[0].statistic, head_roles[1].statistic});
    read(needle_texts(model.config(), stream, request), {head_roles[2].statistic});
    return rows;
}

}  // namespace longreach::measure
