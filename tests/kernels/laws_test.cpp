// Tables of score laws: values, lookups by query, and gradients, against double precision.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Starts of documents of 7 and 5 positions by turns; the second sequence begins in the middle of one.
Ints starts_of(int64_t batch, int64_t length) {
    Ints starts(batch, length);
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < length; ++t) {
            const int64_t within = (t + 9 * b) % 12, size = within < 7 ? within : within - 7;
            starts.at(b, t) = static_cast<int32_t>(std::max<int64_t>(0, t - size));
        }
    return starts;
}

void append(LawProgram& program, LawOp op, int32_t operand = 0, double value = 0) {
    if (op == LawOp::number) {
        operand = program.number_count;
        program.numbers[program.number_count++] = value;
    }
    program.code[program.count++] = {op, static_cast<int16_t>(operand)};
}

}  // namespace

// a * log1p(entry / tau) + w[min(3, entry)], with a of each head, tau shared and a vector of 4.
TEST_CASE("evaluate law: programs run for every entry of every row") {
    for_each_isa([](Ops& ops) {
        for (const bool backwards : {false, true})
            for (const int64_t rows : {1, 3}) {
                CAPTURE(backwards);
                CAPTURE(rows);
                const int64_t length = 3000, cols = 3010;
                Floats a = normal(1, rows, 1), w = normal(1, 4, 2);
                Floats tau(1, 1), table(rows, cols, cols + 3);
                tau[0] = 10;
                LawSpec spec;
                append(spec.program, LawOp::parameter, 0);
                append(spec.program, LawOp::entry);
                append(spec.program, LawOp::parameter, 1);
                append(spec.program, LawOp::divide);
                append(spec.program, LawOp::log1p);
                append(spec.program, LawOp::multiply);
                append(spec.program, LawOp::entry);
                append(spec.program, LawOp::element, 2);
                append(spec.program, LawOp::add);
                spec.parameters = {a.vector(), tau.vector(), w.vector()};
                spec.sizes = {1, 1, 4};
                spec.length = length;
                spec.first = 1;
                spec.backwards = backwards;
                ops.evaluate_law(table.tensor(), spec);
                for (int64_t h = 0; h < rows; ++h)
                    for (int64_t i = 0; i < length; ++i) {
                        const double entry = static_cast<double>(i + 1);
                        const double expected =
                            a[h] * std::log1p(entry / 10) + w[std::min<int64_t>(3, i + 1)];
                        REQUIRE(std::abs(table.at(h, backwards ? cols - 1 - i : i) - expected) <=
                                unit * std::abs(expected) * (1 + 1e-6));
                    }
                CHECK(table.guards_intact());
            }
    });
}

// (a + table) * x + entry * y, with a of each head and numbers x and y of every token and head.
TEST_CASE("evaluate law by token: every token with its numbers and the entry of the keys it counts") {
    for_each_isa([](Ops& ops) {
        Ints starts = starts_of(2, 37);
        for (const bool documents : {false, true}) {
            CAPTURE(documents);
            const int64_t rows = 3, length = 37, tokens = 74, first = 5;
            Floats a = normal(1, rows, 1), x = normal(tokens, 2 * rows, 2, 1, 0, 2 * rows + 1);
            Floats out(rows, tokens, tokens + 3);
            Doubles table(1, length);
            for (int64_t i = 0; i < length; ++i) table[i] = std::sqrt(double(i));
            LawSpec spec;
            append(spec.program, LawOp::parameter, 0);
            append(spec.program, LawOp::table, 0);
            append(spec.program, LawOp::add);
            append(spec.program, LawOp::token, 0);
            append(spec.program, LawOp::multiply);
            append(spec.program, LawOp::entry);
            append(spec.program, LawOp::token, 1);
            append(spec.program, LawOp::multiply);
            append(spec.program, LawOp::add);
            spec.parameters = {a.vector()};
            spec.sizes = {1};
            spec.tables = {table.tensor()};
            spec.tokens = {x.tensor().col_range(0, rows), x.tensor().col_range(rows, rows)};
            spec.first = first;
            spec.by_token = {length, documents ? starts.tensor() : Tensor()};
            ops.evaluate_law(out.tensor(), spec);
            for (int64_t h = 0; h < rows; ++h)
                for (int64_t n = 0; n < tokens; ++n) {
                    const int64_t entry = n % length - (documents ? starts[n] : 0);
                    const double left = (double{a[h]} + table[entry]) * double{x.at(n, h)},
                                 right = double(entry + first) * double{x.at(n, rows + h)};
                    REQUIRE(std::abs(double{out.at(h, n)} - (left + right)) <=
                            unit * std::abs(left + right) + 0x1p-50 * (std::abs(left) + std::abs(right)));
                }
            CHECK(out.guards_intact());
        }
        LawSpec wrong;
        append(wrong.program, LawOp::token, 0);
        Floats x = normal(6, 2, 1), out(3, 6);
        wrong.tokens = {x.tensor()};
        wrong.by_token = {3, Tensor()};
        CHECK_THROWS_AS(ops.evaluate_law(out.tensor(), wrong), Error);
    });
}

TEST_CASE("law rows: every query gets the entry of the keys it counts") {
    for_each_isa([](Ops& ops) {
        Ints starts = starts_of(2, 37);
        for (const bool documents : {false, true})
            for (const int64_t rows : {1, 3}) {
                CAPTURE(documents);
                CAPTURE(rows);
                Floats table = normal(rows, 40, 1, 1.0, 0.0, 43);
                Floats factor(3, 74, 77);
                ops.law_rows(factor.tensor(), table.tensor(),
                             {.length = 37, .start = documents ? starts.tensor() : Tensor()});
                for (int64_t h = 0; h < 3; ++h)
                    for (int64_t row = 0; row < 74; ++row)
                        REQUIRE(factor.at(h, row) ==
                                table.at(rows == 1 ? 0 : h, row % 37 - (documents ? starts[row] : 0)));
                CHECK(factor.guards_intact());
            }
    });
}

TEST_CASE("law gradient: sums over entries, over heads where they share, and by element of a vector") {
    for_each_isa([](Ops& ops) {
        for (const bool by_row : {false, true})
            for (const bool documents : {false, true})
                for (const bool shared : {false, true})
                    for (const int64_t size : {1, 5}) {
                        if (documents && !by_row) continue;
                        CAPTURE(by_row);
                        CAPTURE(documents);
                        CAPTURE(shared);
                        CAPTURE(size);
                        const int64_t length = 1200, columns = by_row ? 2 * length : length, heads = 3;
                        Ints starts = starts_of(2, length);
                        Floats derivative = normal(shared ? 1 : heads, length, 1);
                        Floats gradient = normal(heads, columns, 2, 1.0, 0.2, columns + 5);
                        Ints elements(1, length);
                        for (int64_t i = 0; i < length; ++i) elements[i] = static_cast<int32_t>(i * i % size);
                        Floats d = normal(shared ? 1 : heads, size, 3);
                        const Floats before = d;
                        LawEntries entries;
                        if (by_row) entries.length = length;
                        if (documents) entries.start = starts.tensor();
                        ops.law_gradient(size == 1 ? d.vector() : d.tensor(), derivative.tensor(),
                                         gradient.tensor(), entries,
                                         size == 1 ? Tensor() : elements.vector());
                        for (int64_t e = 0; e < d.count(); ++e) {
                            const int64_t owner = e / size, k = e % size;
                            double sum = 0, of_heads = 0, terms = 0;
                            for (int64_t h = shared ? 0 : owner; h < (shared ? heads : owner + 1); ++h) {
                                double of_head = 0;
                                for (int64_t c = 0; c < columns; ++c) {
                                    const int64_t i = by_row ? c % length - (documents ? starts[c] : 0) : c;
                                    if (elements[i] != k) continue;
                                    const double term =
                                        double{derivative.at(shared ? 0 : h, i)} * double{gradient.at(h, c)};
                                    of_head += term;
                                    terms += std::abs(term);
                                }
                                sum += of_head;
                                of_heads += std::abs(of_head);
                            }
                            // Sums in f64; each head's is rounded to f32 and added in f32 at worst.
                            CHECK(std::abs(d[e] - (before[e] + sum)) <=
                                  (heads + 1) * unit * (std::abs(before[e]) + of_heads) + 1e-12 * terms);
                        }
                    }
    });
}

TEST_CASE("tables and gradients of laws do not depend on the number of threads") {
    check_thread_independence([&](Ops& ops) {
        const int64_t length = 4000, heads = 3;
        Ints starts = starts_of(2, length);
        Floats a = normal(1, heads, 1), table(heads, length), factor(heads, 2 * length);
        Floats gradient = normal(heads, 2 * length, 2), da = normal(1, heads, 3);
        LawSpec spec;
        append(spec.program, LawOp::parameter, 0);
        append(spec.program, LawOp::entry);
        append(spec.program, LawOp::log);
        append(spec.program, LawOp::multiply);
        spec.parameters = {a.vector()};
        spec.sizes = {1};
        spec.length = length;
        spec.first = 1;
        const LawEntries queries{.length = length, .start = starts.tensor()};
        ops.evaluate_law(table.tensor(), spec);
        ops.law_rows(factor.tensor(), table.tensor(), queries);
        ops.law_gradient(da.vector(), table.tensor(), gradient.tensor(), queries, Tensor());
        return joined({&table, &factor, &da});
    });
}
