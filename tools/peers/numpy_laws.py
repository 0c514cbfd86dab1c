"""Numbers that decide scores: rotations, length scales, biases by distance; formulas of src/model/FORWARD.md."""

import functools
import math
from typing import Any, Callable

import numpy as np

Array = np.ndarray
Config = dict[str, Any]


# --- rotations ----------------------------------------------------------------------------------------------


def frequencies(position: Config, d: int) -> Array:
    """theta of the pairs that turn."""
    kind, base = position["kind"], float(position["base"])
    if kind == "nope":
        return np.zeros(0)
    if kind == "rope":
        return base ** (-2 * np.arange(d // 2) / d)
    pairs = math.floor(position["fraction"] * (d // 2) + 1e-9)
    if position["spacing"] == "geometric":
        return base ** (-2 * np.arange(pairs) / d)
    return base ** (-np.arange(pairs) / max(pairs - 1, 1))


UNSCALED: Config = {"kind": "none"}  # in configs older than position.scaling


def scaling_numbers(scaling: Config, trained: int) -> tuple[float, int]:
    """position.scaling: its factor, and the context that the angles were made for."""
    k, original = scaling["factor"], scaling["original_context"]
    return k or trained / original, original or max(1, math.floor(trained / k + 0.5))


def turned(position: Config, d: int, rope: Config, trained: int, length: int) -> Array:
    """theta of the pairs that turn: as trained, position.scaling included, and under eval.rope beyond that."""
    theta, scaling = frequencies(position, d), position.get("scaling", UNSCALED)
    if scaling["kind"] != "none" and len(theta) > 0:
        k, original = scaling_numbers(scaling, trained)
        further = length > trained and rope["kind"] == scaling["kind"] and scaling["kind"] in ("yarn", "llama3")
        if further:
            k *= rope["factor"] or length / trained
        theta = stretched(theta, position, d, scaling | {"factor": k}, original, length)
        if further:
            return theta
    return stretched(theta, position, d, rope, trained, length) if length > trained else theta


def stretched(theta: Array, position: Config, d: int, rope: Config, trained: int, length: int) -> Array:
    """The frequencies under eval.rope, at a length beyond the trained one; or under position.scaling."""
    pairs, kind = len(theta), rope["kind"]
    m, k = np.arange(pairs), rope["factor"] or length / trained
    slow = rope.get("slow") or 1
    if kind == "llama3":
        kept = (trained * theta / (2 * math.pi) - slow) / ((rope.get("fast") or 4) - slow)
        return theta * (1 / k + (1 - 1 / k) * np.clip(kept, 0, 1))
    if kind == "pi":
        return theta / k
    if kind in ("ntk", "ntk_dynamic"):
        if kind == "ntk_dynamic":
            k = (rope["factor"] or 1) * length / trained - ((rope["factor"] or 1) - 1)
        return theta * k ** (-m / max(pairs - 1, 1))
    if kind == "ntk_old":
        return theta * k ** (-m / pairs)
    if kind == "ntk_su":
        return theta * k ** (-(m + 1) / pairs)
    if kind == "ntk_mixed":
        return theta * k ** -(((m + 1) / pairs) ** rope["exponent"])
    if kind == "yarn":
        linear = position["kind"] == "p_rope" and position["spacing"] == "linspace"
        per_e = (pairs - 1 if linear else d / 2) / math.log(position["base"])
        pair = [per_e * math.log(trained / (2 * math.pi * turns)) for turns in (rope.get("fast") or 32, slow)]
        if rope.get("truncate", True):
            pair = [math.floor(pair[0]), math.ceil(pair[1])]
        low = max(pair[0], 0)
        high: float = max(min(pair[1], 2 * pairs - 1), low)
        if high == low:
            high += 0.001
        ramp = np.clip((m - low) / (high - low), 0, 1)
        return theta * ramp / k + theta * (1 - ramp)
    return theta


def temperature(position: Config, rope: Config, trained: int, length: int) -> float:
    """What yarn in position.scaling, and beyond the trained length yarn and yarn_temp, multiply scores by."""
    scaling, trained_k, factor = position.get("scaling", UNSCALED), 1.0, 1.0
    if scaling["kind"] == "yarn":
        trained_k = scaling_numbers(scaling, trained)[0]
        factor = scaling["attention_factor"] or 0.1 * math.log(trained_k) + 1
    if length > trained and (rope["kind"] == "yarn" or rope["scale"] == "yarn_temp"):
        k = length / trained if rope["kind"] == "ntk_dynamic" else rope["factor"] or length / trained
        factor *= (0.1 * math.log(trained_k * k) + 1) / (0.1 * math.log(trained_k) + 1)
    return factor**2


def far_positions(rope: Config, trained: int, length: int) -> tuple[int, float, float]:
    """rerope and leaky_rerope: w, and offset and rate of the positions of pairs that far apart."""
    w = rope["window"] or max(1, trained // 4)
    if rope["kind"] == "rerope":
        return w, w, 0.0
    k = rope["leak"] or ((length - w) / (trained - w) if w < trained else length / trained)
    return w, w - w / k, 1 / k


def rotate(a: Array, theta: Array, positions: Array) -> Array:
    """a [T, heads, d]: pair (m, m + d/2) turns by position * theta_m."""
    half = a.shape[-1] // 2
    phi = positions[:, None, None] * np.append(theta, np.zeros(half - len(theta)))
    cosine, sine = np.cos(phi).astype(a.dtype), np.sin(phi).astype(a.dtype)
    left, right = a[..., :half], a[..., half:]
    return np.concatenate([left * cosine - right * sine, left * sine + right * cosine], -1)


# --- length scales ------------------------------------------------------------------------------------------

COSINE_LAWS = ("gammalogn", "cosa_const", "cosa_logn", "qknorm_g")
WITH_R = ("logn", "logn_bias", "logn_abc", "sqrt2logn", "sqrt2lognp1", "sqrt_abc", "maxterm2", "beta_pow")
WITH_R += ("gammalogn", "qknorm_g")


def granularity(scale: Config) -> str:
    if scale["granularity"] != "by_kind":
        return scale["granularity"]
    if scale["kind"] in ("logn", "logn_bias"):
        return "head"
    return "global" if scale["kind"] in WITH_R else "static"


def plain_base(layout: Config, cosines: bool) -> float:
    d, qk = layout["head_dim"], layout["qk"]["kind"]
    if qk in ("qna", "kna", "kna_w"):
        return 1.0
    if qk in ("qk_l2", "cosa"):
        return 1.0 if cosines else math.sqrt(d)
    return 1 / math.sqrt(d)


def unscaled_base(layout: Config) -> float:
    base = layout["scale"]["base"]
    if base == 0:
        return plain_base(layout, False)
    return base * layout["head_dim"] if layout["qk"]["kind"] in ("qk_l2", "cosa") else base


def score_base(layout: Config) -> float:
    kind = layout["scale"]["kind"]
    return unscaled_base(layout) if kind == "none" else plain_base(layout, kind in COSINE_LAWS)


def static_r(layout: Config, trained: int) -> float:
    """r where it is not learned."""
    scale = layout["scale"]
    kind, init = scale["kind"], scale["init"]
    if kind not in WITH_R:
        return 1.0
    if init == "value":
        return scale["r"]
    if init == "by_kind" and kind in ("logn", "logn_bias"):
        return 0.43
    if init == "by_kind" and kind == "qknorm_g":
        return math.log2(trained**2 - trained)
    half = scale_shape(layout, trained, np.array([trained / 2]))[0]
    return unscaled_base(layout) / score_base(layout) / half


def scale_shape(layout: Config, trained: int, n: Array) -> Array:
    """shape(n) for an array of n >= 1."""
    scale, d = layout["scale"], layout["head_dim"]
    kind = scale["kind"]
    log_n = np.log(n)
    if kind in ("none", "qknorm_g"):
        return np.ones(len(n))
    if kind in ("logn", "logn_bias", "gammalogn"):
        return log_n
    if kind == "logn_fixed04":
        return 0.4 * log_n
    if kind == "entinv":
        return log_n / math.log(trained)
    if kind == "qwen_logn":
        return np.where(n > trained, log_n / math.log(trained), 1)
    if kind == "llama4":
        return 1 + scale["attn_scale"] * np.log(1 + np.floor(n / scale["floor_scale"]))
    if kind == "grok2":
        length = scale["attn_temperature_len"]
        return np.where(n - 1 > length, np.log(np.maximum(n - 1, 1)) / math.log(length), 1)
    if kind == "sqrt2logn":
        return np.sqrt(2 * log_n)
    if kind == "sqrt2lognp1":
        return np.sqrt(2 * np.log(n + 1))
    if kind in ("logn_abc", "sqrt_abc"):
        inner = np.maximum(np.log(scale["b"] * n + scale["c"]), 0)
        return inner if kind == "logn_abc" else scale["a"] + np.sqrt(2 * inner)
    if kind == "maxterm2":
        u = np.sqrt(2 * np.log(n + 1))
        return u - (np.log(np.log(n + 1)) + math.log(4 * math.pi) - 2 * np.euler_gamma) / (2 * u)
    if kind == "beta_pow":
        return n ** (2 / (d - 1))
    if kind == "cosa_const":
        return np.full(len(n), 4 * math.log(trained / 2))
    if kind == "cosa_logn":
        return 4 * log_n
    if kind == "gradmax_gauss":
        return 0.84 * np.sqrt(log_n)
    if kind in ("solve_c", "solve_c_cos"):
        dimensions = d if kind == "solve_c_cos" else 0
        return solved_table(int(n.max()), scale["target"], dimensions)[n.astype(int) - 1]
    raise SystemExit(f"scale.kind {kind} is not described in src/model/FORWARD.md")


class RandomScores:
    """The law of a score: normal (dimensions 0), or sqrt(d) times the cosine of random directions."""

    def __init__(self, dimensions: int, nodes: int = 20001) -> None:
        if dimensions == 0:
            self.at = np.linspace(-10, 10, nodes)
            density, width = np.exp(-self.at**2 / 2), np.full(nodes, self.at[1] - self.at[0])
        else:  # nodes crowd towards the largest score
            y = np.linspace(1, 0, nodes)
            angle = math.pi * y**4
            self.at = math.sqrt(dimensions) * np.cos(angle)
            density, width = np.maximum(np.sin(angle), 0) ** (dimensions - 2), y**3
        mass = density * width
        steps = (mass[1:] + mass[:-1]) / 2
        below = np.append(0, np.cumsum(steps))
        above = np.append(np.cumsum(steps[::-1])[::-1], 0)
        with np.errstate(divide="ignore"):
            low, high = np.log(below / below[-1]), np.log1p(-np.minimum(above / below[-1], 1))
        self.log_below = np.where(below < above, low, high)
        self.mass = mass / below[-1]

    def spread(self, n: int, alpha: float) -> float:
        """E[1 / (largest weight)] of n scores times alpha."""
        grown = self.mass * np.exp(alpha * (self.at - self.at[-1]))
        lower = np.append(0, np.cumsum((grown[1:] + grown[:-1]) / 2))
        with np.errstate(over="ignore", invalid="ignore"):
            others = np.where(lower > 0, lower * np.exp(-alpha * (self.at - self.at[-1])), 0)
            largest = self.mass * np.exp((n - 2) * np.maximum(self.log_below, -1e6))
        return 1 + n * (n - 1) * float(np.sum(largest * others))

    def solve(self, n: int, target: float) -> float:
        if n <= target:
            return 0.0
        low, high = 0.0, 1.0
        while self.spread(n, high) > target:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.spread(n, middle) > target else (low, middle)
        return (low + high) / 2


@functools.lru_cache(maxsize=None)
def solved_table(count: int, target: float, dimensions: int) -> Array:
    """The multiplier for n = 1 .. count, linear in log n between solutions."""
    solve: Callable[[int, float], float] = RandomScores(dimensions).solve
    exact = max(64, math.floor(target) + 1)
    at = list(range(1, exact + 1))
    while at[-1] < count:
        at.append(max(at[-1] + 1, math.floor(at[-1] * math.exp(0.014))))
    return np.interp(np.log(np.arange(1, count + 1)), np.log(at), [solve(n, target) for n in at])


# --- distance -----------------------------------------------------------------------------------------------


def alibi_slopes(heads: int) -> list[float]:
    c = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / c) for h in range(c)]
    return slopes + [2 ** (-4 * (2 * h + 1) / c) for h in range(heads - c)]


def distance_transform(layout: Config, learned: Callable[[str], Array], head: int, n: Array):
    """Gain and bias [T, T] of one head, or numbers; `learned` finds a tensor of the layer's distance."""
    distance = layout["distance"]
    kind = distance["kind"]
    if kind == "none":
        return 1.0, 0.0
    t = np.maximum(np.arange(len(n))[:, None] - np.arange(len(n))[None, :], 0).astype(float)
    if kind == "alibi":
        return 1.0, -alibi_slopes(layout["heads"])[head] * t
    if kind in ("kerple_log", "kerple_power"):
        p, a = (max(float(learned(name)[head]), 0.01) for name in ("p", "a"))
        if kind == "kerple_log":
            return 1.0, -p * np.log(1 + a * t)
        return 1.0, -a * t ** min(p, 2)
    tau = math.exp(learned("log_tau")[0]) if distance["learn_tau"] else distance["tau"]
    decay = float(learned("decay")[0]) if distance["learn_decay"] else distance["decay"]
    log_t = np.log(1 + t / tau)
    if kind == "log_bias":
        return 1.0, -decay * log_t
    if kind == "scale_invariant":
        return np.sqrt(1 + 2 * log_t), -decay * 2 * log_t
    kappa = distance["kappa"]
    square = 1 + 2 * (1 - kappa) * log_t
    if kappa > 0:
        square = square + 2 * kappa * np.log(distance["b"] * n + distance["c"])[:, None]
    return np.sqrt(np.maximum(square, 0)), -(square - 1) / 2 - distance["p"] * log_t
