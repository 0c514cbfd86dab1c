"""Means over seeds with their intervals, as the program's report has them (src/decide/paired.h)."""

import math
from typing import NamedTuple


class MeanInterval(NamedTuple):
    """A mean and the interval that holds the true mean with the chosen confidence, if the values are independent and
    normally distributed. NaN: everything if there is no value or one that is not finite, all but the mean if there is
    one value."""

    count: int
    mean: float
    standard_deviation: float
    standard_error: float
    low: float
    high: float


def _within_angle(angle, degrees):
    """P(|T| < sqrt(degrees) tan(angle)), a finite sum for whole degrees of freedom."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2 == 1
    total, term = 0.0, cosine if odd else 1.0
    for power in range(1 if odd else 0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def student_quantile(confidence, degrees):
    """The t with P(|T| < t) = confidence for Student's t: the half-width of a two-sided interval."""
    if degrees < 1 or not 0 <= confidence < 1:
        raise ValueError(f"confidence {confidence} with {degrees} degrees of freedom")
    low, high = 0.0, math.pi / 2
    while True:  # until the two ends are neighbours
        middle = low + (high - low) / 2
        if not low < middle < high:
            return math.sqrt(degrees) * math.tan(low)
        if _within_angle(middle, degrees) < confidence:
            low = middle
        else:
            high = middle


def mean_interval(values, confidence=0.95):
    """MeanInterval of the values of seeds."""
    values = [float(v) for v in values]
    nan = math.nan
    if not values or not all(math.isfinite(v) for v in values):
        return MeanInterval(len(values), nan, nan, nan, nan, nan)
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return MeanInterval(count, mean, nan, nan, nan, nan)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1))
    error = deviation / math.sqrt(count)
    half = student_quantile(confidence, count - 1) * error
    return MeanInterval(count, mean, deviation, error, mean - half, mean + half)


def paired_difference(values, baseline, confidence=0.95):
    """MeanInterval of value - baseline over the seeds that both have; both map a seed to its value. A seed fixes the
    initial weights and the order of the data, so this difference is known far better than either mean."""
    return mean_interval([values[seed] - baseline[seed] for seed in sorted(values) if seed in baseline], confidence)
