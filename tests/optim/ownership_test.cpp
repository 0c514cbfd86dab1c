// Who owns what: everything once, the same pieces at any number of ranks, balanced.
#include <doctest/doctest.h>

#include <algorithm>

#include "optim/ownership.h"

using namespace longreach;

namespace {

bool is_matrix(const model::Param& p) {
    return p.group == model::ParamGroup::matrix;
}

model::Param matrix(const std::string& name, int64_t rows, int64_t cols) {
    return {name, {rows, cols}, {}, model::ParamGroup::matrix};
}

// Twelve layers of a small model: joined matrices, gains, an embedding larger than all else.
model::ParamTable model_table() {
    model::ParamTable table;
    table.add({"embedding", {5000, 96}, {}, model::ParamGroup::embedding});
    for (int l = 0; l < 12; ++l) {
        const std::string name = fmt::format("layers.{}.", l);
        table.add({name + "gain", {96}, {}, model::ParamGroup::scalar});
        table.add({name + "mix", {1}, {}, model::ParamGroup::scalar});
        table.add_joined(
            {matrix(name + "q", 96, 96), matrix(name + "k", 32, 96), matrix(name + "v", 32, 96)});
        table.add(matrix(name + "out", 96, 96));
        table.add(matrix(name + "up", 384, 96));
        table.add(matrix(name + "down", 96, 384));
    }
    table.add({"head", {5000, 96}, {}, model::ParamGroup::head});
    return table;
}

}  // namespace

TEST_CASE("ownership: every number of every tensor has one owner, and the parts are those of the pieces") {
    const model::ParamTable table = model_table();
    for (int ranks : {1, 2, 4, 8, 32}) {
        CAPTURE(ranks);
        const optim::Ownership owners(table, is_matrix, ranks);
        std::vector<int> owned(static_cast<size_t>(table.size()));
        for (int r = 0; r < ranks; ++r)
            for (size_t p = 0; p < table.params().size(); ++p) {
                const optim::Ownership::Range part = owners.part(p, r);
                for (int64_t i = 0; i < part.count; ++i)
                    ++owned[static_cast<size_t>(table.params()[p].offset + part.begin + i)];
            }
        int64_t once = 0;
        for (int n : owned) {
            REQUIRE(n <= 1);
            once += n;
        }
        CHECK(once == table.count());
        // Ranges cover the same, and padding at most.
        std::fill(owned.begin(), owned.end(), 0);
        for (int r = 0; r < ranks; ++r)
            for (const optim::Ownership::Range& range : owners.ranges(r, 0, table.size()))
                for (int64_t i = 0; i < range.count; ++i) ++owned[static_cast<size_t>(range.begin + i)];
        for (const model::Param& p : table.params())
            for (int64_t i = 0; i < p.count(); ++i) REQUIRE(owned[static_cast<size_t>(p.offset + i)] == 1);
        CHECK(*std::max_element(owned.begin(), owned.end()) == 1);
    }
}

TEST_CASE("ownership: the pieces do not depend on the number of ranks, their slots follow the ranks") {
    const model::ParamTable table = model_table();
    const optim::Ownership one(table, is_matrix, 1);
    for (int ranks : {2, 8}) {
        const optim::Ownership many(table, is_matrix, ranks);
        REQUIRE(many.pieces().size() == one.pieces().size());
        std::vector<int> seen(many.pieces().size());
        for (size_t i = 0; i < one.pieces().size(); ++i) {
            const optim::Ownership::Piece &a = one.pieces()[i], &b = many.pieces()[i];
            CHECK(a.param == b.param);
            CHECK(a.begin == b.begin);
            CHECK(a.count == b.count);
            CHECK(b.slot >= many.first_slot(b.owner));
            CHECK(b.slot < many.first_slot(b.owner) + many.slots(b.owner));
            ++seen[static_cast<size_t>(b.slot)];
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    }
}

TEST_CASE("ownership: matrices that are orthogonalised stay whole; work and bytes are balanced") {
    const model::ParamTable table = model_table();
    for (int ranks : {2, 4, 8}) {
        CAPTURE(ranks);
        const optim::Ownership owners(table, is_matrix, ranks);
        std::vector<double> flops(static_cast<size_t>(ranks));
        std::vector<int64_t> adam(static_cast<size_t>(ranks));
        for (const optim::Ownership::Piece& piece : owners.pieces()) {
            const model::Param& p = table.params()[piece.param];
            if (!is_matrix(p)) {
                adam[static_cast<size_t>(piece.owner)] += piece.count;
                continue;
            }
            CHECK(piece.count == p.count());
            const double small = static_cast<double>(std::min(p.rows(), p.cols())),
                         large = static_cast<double>(std::max(p.rows(), p.cols()));
            flops[static_cast<size_t>(piece.owner)] += small * small * (4 * large + 2 * small);
        }
        // The largest first, to the least loaded: at worst one matrix above the mean. 24 of the largest here.
        CHECK(*std::max_element(flops.begin(), flops.end()) <=
              1.15 * *std::min_element(flops.begin(), flops.end()));
        // A border is at most half a piece, 1/32 of a table of 480000, off its place, on both sides.
        CHECK(*std::max_element(adam.begin(), adam.end()) - *std::min_element(adam.begin(), adam.end()) <=
              2 * (480000 / 32 + 16));
    }
}

TEST_CASE("ownership: matrices that are joined belong to one rank") {
    const model::ParamTable table = model_table();
    const auto joined = [&](size_t i) {
        const std::string& name = table.params()[i].name;
        return name.ends_with(".k") || name.ends_with(".v");
    };
    for (int ranks : {1, 2, 3, 8}) {
        CAPTURE(ranks);
        const optim::Ownership owners(table, is_matrix, ranks, joined);
        std::vector<double> flops(static_cast<size_t>(ranks));
        int owner_before = -1;
        for (const optim::Ownership::Piece& piece : owners.pieces()) {
            const model::Param& p = table.params()[piece.param];
            if (joined(piece.param)) CHECK(piece.owner == owner_before);
            owner_before = piece.owner;
            if (!is_matrix(p) || joined(piece.param)) continue;
            const double large =
                p.name.ends_with(".q") ? 160 : static_cast<double>(std::max(p.rows(), p.cols()));
            flops[static_cast<size_t>(piece.owner)] += 96 * 96 * (4 * large + 2 * 96);
        }
        CHECK(*std::max_element(flops.begin(), flops.end()) <=
              1.15 * *std::min_element(flops.begin(), flops.end()));
    }
}

TEST_CASE("ownership: neighbouring pieces of a rank travel as one range, but not across others") {
    model::ParamTable table;
    table.add({"a", {5}, {}, model::ParamGroup::scalar});
    table.add({"b", {3}, {}, model::ParamGroup::scalar});
    table.add_joined({matrix("q", 2, 4), matrix("k", 1, 4), matrix("v", 2, 4)});
    const optim::Ownership owners(table, is_matrix, 2);
    // Muon: q to rank 0, v to rank 1, k to rank 0 (equal loads: the lower). Adam: a to rank 0, b to rank 1.
    const auto ranges = owners.ranges(0, 0, table.size());
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[0].begin == 0);
    CHECK(ranges[0].count == 5);
    CHECK(ranges[1].begin == 32);
    CHECK(ranges[1].count == 12);
    CHECK(owners.elements(0) == 17);
    CHECK(owners.elements(1) == 11);
}
