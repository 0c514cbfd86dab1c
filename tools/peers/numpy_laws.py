"""Numbers that decide scores: angles, and the laws of scores, as src/model/FORWARD.md computes them.

Formulas of laws and angles that have a name are those of the tables in configs/README.md.
"""

import functools
import math
import re
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

Array = np.ndarray
Config = dict[str, Any]


# --- formulas -----------------------------------------------------------------------------------------------


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
def solutions(count: int, target: float, dimensions: int) -> tuple[Array, Array]:
    """Numbers of keys and their multipliers; linear in log n between them."""
    solve: Callable[[int, float], float] = RandomScores(dimensions).solve
    exact = max(64, math.floor(target) + 1)
    at = list(range(1, exact + 1))
    while at[-1] < count:
        at.append(max(at[-1] + 1, math.floor(at[-1] * math.exp(0.014))))
    return np.log(at), np.array([solve(n, target) for n in at])


def cosine_scale(n: Any, dimensions: Any, target: Any) -> Any:
    return np.interp(np.log(n), *solutions(int(np.max(n)), float(target), int(dimensions)))


def max_normal(n: Any) -> Any:
    """The mean of the largest of n normal numbers."""
    x = np.linspace(-10, 10, 4001)
    log_below = np.log(np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2)
    counts, back = np.unique(n, return_inverse=True)
    tails = np.heaviside(x, 0.5) - np.exp(counts[:, None] * log_below)
    return np.trapezoid(tails, x)[back].reshape(np.shape(n))


SAME_IN_NUMPY = ("where", "floor", "ceil", "abs", "exp", "expm1", "log", "log1p", "log2", "sqrt", "tanh", "sin", "cos")
FUNCTIONS: Config = {name: getattr(np, name) for name in SAME_IN_NUMPY}
FUNCTIONS |= {
    "min": np.minimum,
    "max": np.maximum,
    "clamp": np.clip,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "log_sigmoid": lambda x: -np.logaddexp(0, -x),
    "erf": np.vectorize(math.erf),
    "lookup": lambda w, x: w[np.clip(np.floor(x), 0, len(w) - 1).astype(int)],
    "max_normal": max_normal,
    "gaussian_scale": lambda n, target: cosine_scale(n, 0, target),
    "cosine_scale": cosine_scale,
    "pi": math.pi,
    "e": math.e,
    "egamma": np.euler_gamma,
}


def evaluate(formula: Any, names: Config) -> Any:
    """A number, or a formula; its operators are those of Python, with ^ for the power."""
    if not isinstance(formula, str):
        return float(formula)
    with np.errstate(all="ignore"):  # of the part that where() does not take
        return eval(formula.replace("^", "**"), {"__builtins__": {}}, FUNCTIONS | names)


def mentions(formula: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", formula) is not None


class Parameter(NamedTuple):
    init: Any
    learn: str = "no"
    size: int = 1
    positive: bool = False
    range: Any = None


class Named(NamedTuple):
    formula: str
    growth: str
    parameters: dict[str, Parameter]  # of angles: definitions


@functools.cache
def glossary(heading: str) -> dict[str, Named]:
    """A table of configs/README.md, by the heading of its first column."""
    text = (Path(__file__).parents[2] / "configs/README.md").read_text(encoding="utf-8")
    rows = re.search(rf"\| {heading} \| formula \|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    named = {}
    for row in rows[1].splitlines() if rows else []:
        name, formula, definitions = re.split(r" ?\| ", row)[1:4]
        parts, parameters = re.findall("`([^`]*)`", formula), {}
        # numpy_model.py adds what sums over tokens give a score.
        parts[0] = re.sub(r"between\(\w+\)", "0", parts[0])
        for key, init, rest in re.findall(r"`(\w+) = ([^`]*)`([^;]*)", definitions):
            if "of each token" in rest:
                continue
            learned, size = re.search(r"learned \w+(?: the)? (\w+)", rest), re.search(r"(\d+) of them", rest)
            parameters[key] = Parameter(init, learned[1] if learned else "no", int(size[1]) if size else 1)
        named[name.strip("`")] = Named(parts[0], parts[1] if "growth" in formula else "", parameters)
    return named


# --- angles -------------------------------------------------------------------------------------------------


class Angle:
    """The angle of a layer; `numbers` are d, l, layers and L."""

    def __init__(self, layout: Config, numbers: Config) -> None:
        angle, params = layout["angle"], layout["params"]
        self.name = angle if isinstance(angle, str) else ""
        self.numbers, self.layout = dict(numbers), layout
        named = glossary("angle").get(self.name)
        if named:
            self.near, self.growth = named.formula, named.growth
            inits = {name: parameter.init for name, parameter in named.parameters.items()}
            inits |= {name: params[name]["init"] for name in inits if name in params}
        else:
            parts = angle if isinstance(angle, dict) else {"near": angle}
            self.near, self.growth = parts.get("near", 0), parts.get("growth", "")
            text = f"{self.near} {self.growth}"
            inits = {name: params[name]["init"] for name in sorted(params) if mentions(text, name)}
        for name, init in inits.items():
            self.numbers[name] = evaluate(init, self.numbers)
        self.half = int(numbers["d"]) // 2
        self.pairs = int(np.max(np.flatnonzero(self.of(self.near, np.arange(1, 65)).any(0)), initial=-1)) + 1

    def of(self, formula: Any, positions: Array) -> Array:
        """[positions, pairs]"""
        names = self.numbers | {"p": positions[:, None].astype(float), "m": np.arange(self.half)[None, :]}
        return np.broadcast_to(evaluate(formula, names), (len(positions), self.half)).astype(float)

    def frequencies(self) -> Array:
        """theta of the pairs that turn, of an angle that is proportional to the position."""
        return self.of(self.near, np.array([1]))[0, : self.pairs]

    def pairs_per_e(self, theta: Array) -> float:
        """Pairs over which theta falls by a factor of e."""
        steps = len(theta) - 1
        base = self.layout["params"].get("base", {}).get("init", 10000)
        if self.name not in ("rope", "p_rope", "p_rope_linspace") or isinstance(base, str):
            return steps / math.log(theta[0] / theta[-1]) if steps > 0 else 0
        if steps == 0:
            return 0
        return (steps if self.name == "p_rope_linspace" else self.numbers["d"] / 2) / math.log(base)


UNSCALED: Config = {"kind": "none"}  # in configs older than angle_scaling


def scaling_numbers(scaling: Config, trained: int) -> tuple[float, int]:
    """angle_scaling: its factor, and the context that the angles were made for."""
    k, original = scaling["factor"], scaling["original_context"]
    return k or trained / original, original or max(1, math.floor(trained / k + 0.5))


def turned(angle: Angle, rope: Config, trained: int, length: int) -> Array:
    """theta of the pairs that turn: as trained, angle_scaling included, and under eval.rope beyond that."""
    theta, scaling = angle.frequencies(), angle.layout.get("angle_scaling", UNSCALED)
    fall = angle.pairs_per_e(theta)
    if scaling["kind"] != "none" and len(theta) > 0:
        k, original = scaling_numbers(scaling, trained)
        further = length > trained and rope["kind"] == scaling["kind"] and scaling["kind"] in ("yarn", "llama3")
        if further:
            k *= rope["factor"] or length / trained
        theta = stretched(theta, fall, scaling | {"factor": k}, original, length)
        if further:
            return theta
    return stretched(theta, fall, rope, trained, length) if length > trained else theta


def stretched(theta: Array, fall: float, rope: Config, trained: int, length: int) -> Array:
    """The frequencies under eval.rope, at a length beyond the trained one; or under angle_scaling."""
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
        pair = [fall * math.log(trained / (2 * math.pi * turns)) for turns in (rope.get("fast") or 32, slow)]
        if rope.get("truncate", True):
            pair = [math.floor(pair[0]), math.ceil(pair[1])]
        low = max(pair[0], 0)
        high: float = max(min(pair[1], 2 * pairs - 1), low)
        if high == low:
            high += 0.001
        ramp = np.clip((m - low) / (high - low), 0, 1)
        return theta * ramp / k + theta * (1 - ramp)
    return theta


def temperature(layout: Config, rope: Config, trained: int, length: int) -> float:
    """What yarn in angle_scaling, and beyond the trained length yarn and yarn_temp, multiply scores by."""
    scaling, trained_k, factor = layout.get("angle_scaling", UNSCALED), 1.0, 1.0
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


def rotate(a: Array, phi: Array, growth: Any = 0.0) -> Array:
    """a [T, heads, d]: pair (m, m + d/2) turns by phi [T, d/2] and grows by exp(growth)."""
    half = a.shape[-1] // 2
    factor = np.exp(np.broadcast_to(growth, phi.shape))
    cosine, sine = ((f(phi) * factor).astype(a.dtype)[:, None, :] for f in (np.cos, np.sin))
    left, right = a[..., :half], a[..., half:]
    return np.concatenate([left * cosine - right * sine, left * sine + right * cosine], -1)


# --- scores -------------------------------------------------------------------------------------------------


def plain_base(layout: Config, with_base: bool) -> float:
    """The factor of <q, k> without a law."""
    d, qk, base = layout["head_dim"], layout["qk"]["kind"], layout["score_base"] if with_base else 0
    if qk in ("qna", "kna", "kna_w"):
        return base or 1.0
    if qk in ("qk_l2", "cosa"):
        return base * d or math.sqrt(d)
    return base or 1 / math.sqrt(d)


def entries(score: Any) -> list[str]:
    return ["z"] if score is None else [score] if isinstance(score, str) else score


KERPLE = {("kerple_log", "p"): [0.01, math.inf], ("kerple_power", "p"): [0.01, 2]}
KERPLE |= {(name, "a"): [0.01, math.inf] for name in ("kerple_log", "kerple_power")}
SOFTCAP = re.compile(r"([\d.e]+)\s*\*\s*tanh\(\s*(z|dot)\s*/\s*\1\s*\)")


class Score:
    """The law of a layer. `numbers` are H, l, layers, d and L; `learned` finds a tensor by who shares it, and its name."""

    def __init__(self, layout: Config, numbers: Config, learned: Callable[[str, str], Array]) -> None:
        self.numbers, self.learned = numbers, learned
        self.stages: list[str] = []
        self.parameters: dict[str, Parameter] = {}
        for entry in entries(layout["score"]):
            self.add(entry, layout["params"])
        capped = SOFTCAP.search(self.stages[0])
        self.cap = float(capped[1]) if capped else 0.0
        if capped:
            self.stages[0] = SOFTCAP.sub(r"(\2)", self.stages[0])
        of_dot = mentions(self.stages[0], "dot")
        parity = any(p.init == "parity" for p in self.parameters.values())
        self.target = plain_base(layout, True)
        self.base = 1.0 if of_dot else plain_base(layout, not parity)

    def add(self, entry: str, params: Config) -> None:
        named = glossary("score").get(entry)
        formula = named.formula if named else entry
        known = named.parameters if named else {name: Parameter(None) for name in params if mentions(entry, name)}
        self.stages.append(formula)
        for name, p in known.items():
            changed = params.get(name, {"init": None, "learn": "by_law", "size": 0, "positive": False, "range": None})
            self.parameters[name] = Parameter(
                p.init if changed["init"] is None else changed["init"],
                p.learn if changed["learn"] == "by_law" else changed["learn"],
                changed["size"] or p.size,
                changed["positive"],
                changed["range"] or KERPLE.get((entry, name)),
            )

    def value(self, name: str, head: int) -> Any:
        p = self.parameters[name]
        if p.learn == "no":
            return self.at_parity(name, head) if p.init == "parity" else self.first(p, head)
        tensor = self.learned(p.learn, ("log_" if p.positive else "") + name).astype(float)
        own = tensor[head] if p.learn == "head" else tensor if p.size > 1 else tensor[0]
        own = np.exp(own) if p.positive else own
        return np.clip(own, *p.range) if p.range else own

    def first(self, p: Parameter, head: int) -> float:
        return evaluate(p.init if isinstance(p.init, str) else float(p.init), self.numbers | {"h": head})

    def at_parity(self, name: str, head: int) -> float:
        """The value with which the factor of z, or of dot, is the target at n = L/2 and t = 0."""
        others = {other: self.first(p, head) for other, p in self.parameters.items() if p.init != "parity"}
        at = {"n": self.numbers["L"] / 2, "t": 0.0, "h": head, "T": self.numbers["L"]} | others

        def factor(x: float) -> float:
            names = self.numbers | at | {name: x}
            return self.run(1.0, names) - self.run(0.0, names)

        return (self.target / self.base - factor(0)) / (factor(1) - factor(0))

    def run(self, z: Any, names: Config) -> Any:
        for formula in self.stages:
            z = evaluate(formula, names | {"z": z, "dot": z})
        return z

    def factors(self, head: int, n: Array, longer: Array | float = 1.0, more: Any = None) -> tuple[Array, Array]:
        """A and B [T, T] of the score A z + B. longer: a further factor by n; more: entries of eval.score after that."""
        t = np.maximum(np.arange(len(n))[:, None] - np.arange(len(n))[None, :], 0).astype(float)
        names = self.numbers | {"h": head, "n": n[:, None].astype(float), "t": t, "T": float(len(n))}
        own = {name: self.value(name, head) for name in self.parameters}
        bias = self.run(0.0, names | own)
        gain = (self.run(1.0, names | own) - bias) * (longer[:, None] if isinstance(longer, np.ndarray) else longer)
        for entry in entries(more) if more is not None else []:
            named = glossary("score").get(entry)
            own = {k: self.first(p, head) for k, p in named.parameters.items()} if named else {}
            formula = named.formula if named else entry
            both = [evaluate(formula, names | own | {"z": z}) for z in (gain + bias, bias)]
            gain, bias = both[0] - both[1], both[1]
        return np.broadcast_to(gain, t.shape), np.broadcast_to(bias, t.shape)
