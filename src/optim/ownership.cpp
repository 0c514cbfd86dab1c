#include "optim/ownership.h"

#include <algorithm>
#include <numeric>

namespace longreach::optim {

namespace {

constexpr int64_t alignment = 16;          // elements: pieces begin where vectors of the whole begin
constexpr int64_t fewest_elements = 4096;  // of a piece, except the last of a tensor
constexpr int64_t most_pieces = 32;        // of a tensor

int64_t piece_elements(int64_t count) {
    const int64_t n = std::max(fewest_elements, (count + most_pieces - 1) / most_pieces);
    return (n + alignment - 1) / alignment * alignment;
}

struct Matrix {
    size_t first_piece, pieces;
    int64_t rows, cols;
    // Of one Newton-Schulz iteration; every matrix takes the same number of iterations.
    double flops() const {
        const double small = static_cast<double>(std::min(rows, cols)),
                     large = static_cast<double>(std::max(rows, cols));
        return 4 * small * small * large + 2 * small * small * small;
    }
};

}  // namespace

Ownership::Ownership(const model::ParamTable& table,
                     const std::function<bool(const model::Param&)>& orthogonalised, int ranks,
                     const std::function<bool(size_t)>& joined)
    : table_(table), ranks_(ranks), loads_(static_cast<size_t>(ranks)) {
    check(ranks >= 1, "{} ranks", ranks);
    std::vector<Matrix> matrices;
    int64_t dealt_out = 0;
    for (size_t i = 0; i < table.params().size(); ++i) {
        const model::Param& p = table.params()[i];
        if (orthogonalised(p)) {
            if (!joined(i)) matrices.push_back({pieces_.size(), 0, 0, p.cols()});
            ++matrices.back().pieces;
            matrices.back().rows += p.rows();
            pieces_.push_back({i, 0, p.count(), -1, 0});
            continue;
        }
        dealt_out += p.count();
        const int64_t size = piece_elements(p.count());
        for (int64_t begin = 0; begin < p.count(); begin += size)
            pieces_.push_back({i, begin, std::min(size, p.count() - begin), 0, 0});
    }
    // Deal out matrices, the largest first, each to the rank with the fewest FLOPs so far.
    std::stable_sort(matrices.begin(), matrices.end(),
                     [](const Matrix& a, const Matrix& b) { return a.flops() > b.flops(); });
    for (const Matrix& m : matrices) {
        const auto least = std::min_element(loads_.begin(), loads_.end(),
                                            [](const Load& a, const Load& b) { return a.flops < b.flops; });
        for (size_t piece = m.first_piece; piece < m.first_piece + m.pieces; ++piece)
            pieces_[piece].owner = static_cast<int>(least - loads_.begin());
        least->flops += m.flops();
    }
    // Every rank has an equal share of these elements; a piece goes to the rank whose share holds its middle.
    int64_t before = 0;
    for (Piece& piece : pieces_) {
        if (orthogonalised(table.params()[piece.param])) continue;
        const int64_t middle = before + piece.count / 2;
        piece.owner = static_cast<int>(std::min<int64_t>(middle * ranks / dealt_out, ranks - 1));
        loads_[static_cast<size_t>(piece.owner)].elements += piece.count;
        before += piece.count;
    }
    int64_t slot = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        first_slots_.push_back(slot);
        for (Piece& piece : pieces_)
            if (piece.owner == rank) piece.slot = slot++;
    }
    first_slots_.push_back(slot);
}

Ownership::Range Ownership::part(size_t param, int rank) const {
    Range part;
    for (const Piece& piece : pieces_) {
        if (piece.param != param || piece.owner != rank) continue;
        if (part.count == 0) part.begin = piece.begin;
        check(part.begin + part.count == piece.begin, "a rank owns two separate parts of a tensor");
        part.count += piece.count;
    }
    return part;
}

std::vector<Ownership::Range> Ownership::ranges(int rank, int64_t begin, int64_t end) const {
    std::vector<Range> out;
    bool joins = false;  // whether the previous piece is this rank's too
    for (const Piece& piece : pieces_) {
        const int64_t from = table_.params()[piece.param].offset + piece.begin;
        if (from < begin || from >= end) continue;
        check(from + piece.count <= end, "a piece across the border of a segment");
        const bool owned = piece.owner == rank;
        if (owned && joins) out.back().count = from + piece.count - out.back().begin;
        if (owned && !joins) out.push_back({from, piece.count});
        joins = owned;
    }
    return out;
}

int64_t Ownership::elements(int rank) const {
    int64_t n = 0;
    for (const Range& range : ranges(rank, 0, table_.size())) n += range.count;
    return n;
}

std::string Ownership::describe() const {
    Load least = loads_[0], most = loads_[0];
    for (const Load& load : loads_) {
        least = {std::min(least.flops, load.flops), std::min(least.elements, load.elements)};
        most = {std::max(most.flops, load.flops), std::max(most.elements, load.elements)};
    }
    const auto share = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 100; };
    return fmt::format(
        "each of {} ranks updates its share: the smallest is {:.0f}% of the largest in Muon's "
        "FLOPs, {:.0f}% in Adam's bytes",
        ranks_, share(least.flops, most.flops),
        share(static_cast<double>(least.elements), static_cast<double>(most.elements)));
}

}  // namespace longreach::optim
