// What Ops::attention_statistics says about every query of every head: one number per entry of RowStatistic.
//
// Of the visible keys of a query, with z, y and P as in attention_spec.h and z before the softcap:
//     top_score      max z
//     top_logit      max y
//     top_weight     max log P, so that 1 / max P = exp(-top_weight)
//     second_weight  the largest log P of the other keys; -infinity for a single key
//     participation  sum P^2
//     first_mass     P of the first visible key
//     sink_mass      what the sink takes of the softmax; 0 without one
//     pairs          keys other than the first visible one and the query itself
//     mean           of z over those pairs
//     second, third, fourth
//                    means of (z - mean)^2, ^3, ^4 over those pairs; 0 without pairs
//     support        keys with P above 0, of entmax; 0 of the other normalisers
//     mass + c       sum of P over the keys of distance class c
//     surprise + c   sum of -P log P over them
//     watched + w    P of the key that the caller watches for this query; 0 if it is not visible
// Everything else follows: the entropy of the whole softmax is the sum of all surprises and that of the sink,
// the mass of the last hundred keys is that of the first three classes.
#pragma once

#include <array>
#include <cstdint>

namespace longreach {

// Class 0 is the query itself; then the decades [1, 10), [10, 100), ...; the last class has no end.
inline constexpr int distance_classes = 7;
inline constexpr std::array<int64_t, distance_classes + 1> distance_class_begin = {
    0, 1, 10, 100, 1000, 10000, 100000, int64_t{1} << 30};

enum class RowStatistic : int {
    top_score,
    top_logit,
    top_weight,
    second_weight,
    participation,
    first_mass,
    sink_mass,
    pairs,
    mean,
    second,
    third,
    fourth,
    support,
    mass,
    surprise = mass + distance_classes,
    watched = surprise + distance_classes,
};
inline constexpr int watched_keys = 2;  // per query
inline constexpr int row_statistics = static_cast<int>(RowStatistic::watched) + watched_keys;

}  // namespace longreach
