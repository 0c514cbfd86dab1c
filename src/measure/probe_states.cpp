#include "measure/probe_states.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace longreach::measure {

namespace {

// Whether a state is measured after n positions of its document.
bool is_measured(int64_t n) {
    const auto bin = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
    return n % std::max<int64_t>(1, bin / 4) == 0;
}

// S [d, e]. With s_i its singular values: |S|^2 = sum s_i^2, and the rank is (sum s_i^2)^2 / sum s_i^4, where
// sum s_i^4 = |S S^T|^2.
void measure(StateBin& bin, const float* state, int64_t d, int64_t e) {
    double squares = 0, fourths = 0;
    for (int64_t a = 0; a < d; ++a)
        for (int64_t b = 0; b <= a; ++b) {
            double dot = 0;
            for (int64_t c = 0; c < e; ++c) dot += double{state[a * e + c]} * double{state[b * e + c]};
            if (a == b) squares += dot;
            fourths += (a == b ? 1 : 2) * dot * dot;
        }
    bin.norm.add(std::sqrt(squares));
    if (fourths > 0) bin.rank.add(squares * squares / fourths);
}

// Rows [first, first + count) of a batch: a document, or the part of one that a piece has.
struct Part {
    int64_t first, count;
    int64_t before;  // positions of the document in earlier pieces
};

// The documents of a sequence.
std::vector<Part> parts_of(const model::StepContext& run, int64_t sequence) {
    const int64_t length = run.batch.length, row = sequence * length;
    std::vector<Part> parts{{row, length, 0}};
    if (!run.batch.doc_start) return parts;
    std::vector<int32_t> start(static_cast<size_t>(length));
    run.ops.download(start.data(), run.batch.doc_start.range(row, length));
    parts[0].before = -start[0];
    for (int64_t i = 1; i < length; ++i)
        if (start[static_cast<size_t>(i)] == i) {
            parts.back().count = row + i - parts.back().first;
            parts.push_back({row + i, length - i, 0});
        }
    return parts;
}

}  // namespace

void add_states(const model::StepContext& run, const model::DeltaView& view, const Tensor& state,
                std::span<const float> decay, std::vector<StateSums>& heads) {
    const int64_t H = view.rule.heads, d = view.rule.key_dim, e = view.rule.value_dim;
    const int64_t width = view.decay.cols(), channels = width / H;
    heads.resize(static_cast<size_t>(H));
    for (StateSums& head : heads) head.channels.resize(static_cast<size_t>(channels));
    const Tensor of_heads = state.shaped({H, d * e});
    std::vector<float> host(static_cast<size_t>(of_heads.count()));
    // Continues the states of a document over the positions [from, from + rows).
    const auto advance = [&](int64_t from, int64_t rows, bool continues) {
        DeltaSpec spec = view.rule;
        spec.batch = 1;
        spec.length = rows;
        spec.doc_start = Tensor();
        spec.continues = continues;
        const auto rows_of = [&](const Tensor& x) { return x ? x.row_range(from, rows) : Tensor(); };
        spec.erase = rows_of(spec.erase);
        run.ops.delta_rule(rows_of(view.scratch), Tensor(), of_heads, view.workspace, rows_of(view.q),
                           rows_of(view.k), rows_of(view.v), rows_of(view.decay), rows_of(view.beta), spec);
        run.ops.download(host.data(), of_heads);
    };
    for (int64_t s = 0; s < run.batch.sequences; ++s)
        for (const Part& part : parts_of(run, s)) {
            if (part.before > 0) run.ops.copy(of_heads, view.before.shaped({H, d * e}));
            for (int64_t i = 0, done = 0; i < part.count; ++i) {
                const int64_t n = part.before + i + 1;
                for (int64_t h = 0; h < H; ++h)
                    for (int64_t c = 0; c < channels; ++c) {
                        const double lost =
                            -double{decay[static_cast<size_t>((part.first + i) * width + h * channels + c)]};
                        StateSums& head = heads[static_cast<size_t>(h)];
                        bin_at(head.bins, n).decay.add(lost);
                        head.channels[static_cast<size_t>(c)].add(lost);
                    }
                if (!is_measured(n)) continue;
                advance(part.first + done, i + 1 - done, part.before + done > 0);
                done = i + 1;
                for (int64_t h = 0; h < H; ++h)
                    measure(bin_at(heads[static_cast<size_t>(h)].bins, n), host.data() + h * d * e, d, e);
            }
        }
}

}  // namespace longreach::measure
