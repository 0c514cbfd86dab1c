#include "data/batch_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace longreach::data {

namespace {

constexpr uint64_t slots = mixture_slots;

uint64_t reversed(uint64_t rank) {
    uint64_t out = 0;
    for (uint64_t bit = 1; bit < slots; bit *= 2) out = 2 * out + ((rank & bit) != 0);
    return out;
}

// How many of the slots [0, slot) of a group have a rank below `bound`. Each bit of `slot` stands for an aligned
// run of 2^k slots, whose ranks are those numbers below 4096 that have one remainder by 4096 / 2^k.
uint64_t ranks_below(uint64_t bound, uint64_t slot, uint64_t mask) {
    uint64_t count = 0;
    for (uint64_t run = 1; run < slots; run *= 2) {
        if ((slot & run) == 0) continue;
        const uint64_t step = slots / run, begin = slot & ~(2 * run - 1);
        const uint64_t remainder = reversed(begin) ^ (mask % step);
        if (bound > remainder) count += (bound - remainder + step - 1) / step;
    }
    return count;
}

// Slots of a group before those of each source: the shares rounded so that they add up, one at least for a
// weight above zero. The rest goes to the largest remainders, equal ones in order.
std::vector<uint64_t> shares(const std::vector<double>& weights) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    check(sum > 0, "the weights of a mixture add up to {}", sum);
    std::vector<uint64_t> share;
    std::vector<double> remainder;
    uint64_t left = slots;
    for (const double weight : weights) {
        const double exact = static_cast<double>(slots) * (weight / sum);
        const uint64_t whole = std::min(left, static_cast<uint64_t>(exact));
        share.push_back(whole);
        remainder.push_back(exact - static_cast<double>(whole));
        left -= whole;
    }
    for (; left > 0; --left) {
        const auto most = std::max_element(remainder.begin(), remainder.end());
        ++share[static_cast<size_t>(most - remainder.begin())];
        *most = -1;
    }
    std::vector<uint64_t> first{0};
    for (const uint64_t n : share) first.push_back(first.back() + n);
    return first;
}

}  // namespace

BlockTable cut_stream(const Source& source, int64_t block) {
    const uint64_t size = static_cast<uint64_t>(block);
    if (source.tokens < size + 1)
        return {{},
                0,
                fmt::format("has {} tokens, but a context of {} needs at least {}", source.tokens, block,
                            size + 1)};
    return {{{0, source.begin}}, (source.tokens - 1) / size};
}

BlockTable cut_documents(const Source& source, const std::vector<uint64_t>& begins, int64_t block) {
    const uint64_t size = static_cast<uint64_t>(block), source_end = source.begin + source.tokens;
    BlockTable table;
    uint64_t longest = 0;
    const auto first = std::lower_bound(begins.begin(), begins.end(), source.begin);
    for (auto document = first; document != begins.end() && *document < source_end; ++document) {
        const uint64_t end = document + 1 == begins.end() ? source_end : std::min(source_end, document[1]);
        longest = std::max(longest, end - *document);
        // The last target of a source must be in it.
        const uint64_t count = (end - *document - (end == source_end ? 1 : 0)) / size;
        if (count == 0) continue;
        table.runs.push_back({table.blocks, *document});
        table.blocks += count;
    }
    if (table.blocks == 0)
        table.shortage = fmt::format("has no document of {} tokens, the longest has {}", size + 1, longest);
    return table;
}

std::vector<BlockTable> cut_sources(const TokenStream& stream, BlockKind kind, int64_t block) {
    std::vector<uint64_t> begins;
    if (kind == BlockKind::documents) begins = stream.document_begins();
    std::vector<BlockTable> tables;
    for (const Source& source : stream.sources())
        tables.push_back(kind == BlockKind::documents ? cut_documents(source, begins, block)
                                                      : cut_stream(source, block));
    return tables;
}

BatchPlan::BatchPlan(std::vector<BlockTable> sources, const std::vector<Phase>& phases, int64_t block,
                     uint64_t seed, ShuffleKind shuffle)
    : block_(block), seed_(seed), shuffle_(shuffle), sources_(std::move(sources)) {
    check(block >= 1, "blocks of {} tokens", block);
    check(!phases.empty() && phases.front().first_token == 0, "{} phases of a mixture", phases.size());
    for (size_t s = 0; s < sources_.size(); ++s) {
        const bool is_read =
            std::any_of(phases.begin(), phases.end(), [&](const Phase& p) { return p.weights.at(s) > 0; });
        if (!is_read || sources_[s].blocks > 0) continue;
        throw Error(
            ExitCode::data,
            fmt::format("the data{} {}", sources_.size() > 1 ? fmt::format(" of source {}", s + 1) : "",
                        sources_[s].shortage),
            "use more data or a shorter context");
    }
    std::vector<uint64_t> given(sources_.size());
    for (size_t p = 0; p < phases.size(); ++p) {
        segments_.push_back({phases[p].first_token, given, shares(phases[p].weights)});
        if (p + 1 == phases.size()) break;
        check(phases[p + 1].first_token > phases[p].first_token, "phases of a mixture descend");
        const uint64_t last = (phases[p + 1].first_token - 1) / static_cast<uint64_t>(block);
        const uint64_t used = last - phases[p].first_token / static_cast<uint64_t>(block) + 1;
        for (size_t s = 0; s < sources_.size(); ++s) given[s] = given_before(segments_.back(), s, used);
    }
}

uint64_t BatchPlan::mask_of(uint64_t group) const {
    return Rng(seed_, Purpose::mixture).below(group, slots);
}

const BatchPlan::Segment& BatchPlan::segment_of(uint64_t consumed) const {
    size_t s = segments_.size() - 1;
    while (segments_[s].first_token > consumed) --s;
    return segments_[s];
}

size_t BatchPlan::source_of(const Segment& segment, uint64_t slot) const {
    if (sources_.size() == 1) return 0;
    const uint64_t rank = reversed(slot % slots) ^ mask_of(slot / slots);
    const auto after = std::upper_bound(segment.share.begin(), segment.share.end(), rank);
    return static_cast<size_t>(after - segment.share.begin()) - 1;
}

uint64_t BatchPlan::given_before(const Segment& segment, size_t source, uint64_t slot) const {
    if (sources_.size() == 1) return segment.given[0] + slot;
    const uint64_t first = segment.share[source], end = segment.share[source + 1];
    const uint64_t group = slot / slots, mask = mask_of(group);
    return segment.given[source] + group * (end - first) + ranks_below(end, slot % slots, mask) -
           ranks_below(first, slot % slots, mask);
}

uint64_t BatchPlan::block_begin(size_t source, uint64_t given) const {
    const BlockTable& table = sources_[source];
    const uint64_t epoch = given / table.blocks;
    uint64_t index = given % table.blocks;
    if (shuffle_ == ShuffleKind::random) {
        // The stream number of an epoch has 32 bits; epochs beyond that repeat the orders.
        const uint64_t seed = seed_ + 0x9e3779b97f4a7c15 * source;
        index = Permutation(table.blocks, seed, static_cast<uint32_t>(epoch))(index);
    }
    const auto after = std::upper_bound(table.runs.begin(), table.runs.end(), index,
                                        [](uint64_t i, const BlockTable::Run& run) { return i < run.first; });
    const BlockTable::Run& run = after[-1];
    return run.begin + (index - run.first) * static_cast<uint64_t>(block_);
}

void BatchPlan::locate(uint64_t consumed, int64_t length, std::vector<Piece>& pieces) const {
    const uint64_t block = static_cast<uint64_t>(block_);
    pieces.clear();
    while (length > 0) {
        const Segment& segment = segment_of(consumed);
        const uint64_t slot = consumed / block - segment.first_token / block, offset = consumed % block;
        const size_t source = source_of(segment, slot);
        const uint64_t begin = block_begin(source, given_before(segment, source, slot)) + offset;
        const int64_t part = std::min(length, block_ - static_cast<int64_t>(offset));
        const bool continues =
            !pieces.empty() && pieces.back().begin + static_cast<uint64_t>(pieces.back().length) == begin;
        if (continues) {
            pieces.back().length += part;
        } else {
            pieces.push_back({begin, part});
        }
        consumed += static_cast<uint64_t>(part);
        length -= part;
    }
}

double BatchPlan::epochs(uint64_t consumed, size_t source) const {
    const Segment& segment = segment_of(consumed);
    const uint64_t block = static_cast<uint64_t>(block_);
    const uint64_t slot = consumed / block - segment.first_token / block;
    double blocks = static_cast<double>(given_before(segment, source, slot));
    if (consumed % block > 0 && source_of(segment, slot) == source)
        blocks += static_cast<double>(consumed % block) / static_cast<double>(block);
    return blocks / static_cast<double>(std::max<uint64_t>(1, sources_[source].blocks));
}

}  // namespace longreach::data
