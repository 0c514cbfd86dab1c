// Models with layers of 2-simplicial attention: losses and gradients against the sum over all pairs, the tensors, equal
// bits, and the count of pairs.
#include <doctest/doctest.h>

#include "model/check_model.h"
#include "model/simplicial_models.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("2-simplicial layers: losses and gradients agree with the reference on every instruction set") {
    check_models(simplicial_models());
}

TEST_CASE("2-simplicial layers: the reference in f32 keeps the bound it sets for others") {
    check_f32_reference(simplicial_models());
}

TEST_CASE("2-simplicial layers: tensors") {
    check_tensors(simplicial_models());
}

TEST_CASE("2-simplicial layers: the same bits at every number of threads, in training and evaluation") {
    check_threads(simplicial_models());
}

TEST_CASE("the pairs of 2-simplicial attention are counted as they are visited") {
    for (const auto& [length, window, second] :
         {std::tuple<int64_t, int64_t, int64_t>{12, 7, 3}, {12, 512, 32}, {150, 2, 5}, {1, 1, 1}}) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < length; ++i)
            for (int64_t j = 0; j <= i; ++j)
                for (int64_t m = 0; m <= i; ++m) pairs += i - j < window && i - m < second ? 1 : 0;
        CHECK(simplicial_pairs(length, window, second) * static_cast<double>(length) ==
              doctest::Approx(static_cast<double>(pairs)).epsilon(1e-12));
    }
}
