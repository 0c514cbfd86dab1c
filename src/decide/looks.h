// When a sweep has decided its contrasts: looks at a rising number of seeds, and a level for each look that keeps
// all verdicts of the sweep right with 95%.
//
// A contrast with the true difference d is decided when its interval leaves 0 (the sign is then that of the
// interval) or lies inside the margins (then |d| < margin). At the level a, each of the four looks has a paired t
// interval of the confidence 1 - a/4, so that all four contain d with the probability 1 - a at least, however
// dependent they are and whenever the contrast ends. A false verdict needs an interval that misses d:
//
//     d = 0    the interval leaves 0, on either side: probability at most a
//     d > 0    the wrong sign, or "inside" though d >= margin: either way the upper end lies below d, which one
//              side of the interval does with a/2 at most; d < 0 likewise
//
// Holm's step-down divides 0.05 among the M contrasts of a sweep: a = 0.05 / (M - D/2), where D counts those
// whose interval has left 0. Such a contrast gives back half of its share, for if its sign is right, d is not 0
// and only the second line is left for it. This keeps the sum at 0.05: up to the first false verdict, D
// counts contrasts with d != 0 alone, of which there are Z, so that a <= A = 0.05 / (M - Z/2), and the first false
// verdict has at most the probability A (M - Z) + A/2 Z = 0.05, whatever contrasts that share arms have in common.
//
// A t interval assumes normal differences. Those of two runs with like noise are symmetric however skewed the
// noise is, and the level holds; where one arm alone has skewed noise it does not (tests/decide says how far).
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "decide/paired.h"

namespace longreach::decide {

inline constexpr std::array<size_t, 4> seeds_at_look{4, 8, 14, 20};
inline constexpr double error_rate = 0.05;

// A primary contrast: the differences of its seeds, in the order in which seeds are looked at and without gaps.
struct Question {
    std::vector<double> differences;
    double margin = 0;
};

// What the looks say. They read the first 4, 8, 14 and 20 differences only: more of them change no earlier look.
struct Answer {
    size_t look = 0;        // the last one, from 1; 0: there are too few seeds for any
    size_t seeds = 0;       // at that look
    double confidence = 0;  // of the interval
    MeanInterval interval;
    bool differs = false;  // the interval leaves 0
    bool within = false;   // the interval lies inside the margins
    bool open() const { return !differs && !within; }
};

// questions: all primary contrasts of a sweep, those without results too, for their number decides the levels.
std::vector<Answer> decide(const std::vector<Question>& questions);

}  // namespace longreach::decide
