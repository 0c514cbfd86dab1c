#!/usr/bin/env python3
"""Token losses of a checkpoint, recomputed in NumPy and compared with `longreach eval`.

Written from data/README.md alone: what cannot be done from that document is a fault of the document. The
weights are read by the Python library safetensors, the shards by the few lines below.

    numpy_losses.py RUN --length 256 --tokens 1024 [--longreach build/longreach]

RUN is a run directory (its newest checkpoint) or a checkpoint.

The reference is the computation in float64. The same code in float32 shows what rounding does to it;
longreach, which computes in f32, may be off by a few times as much. Exit status 1 if it is off by more.
"""

import argparse
import glob
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray
Config = dict[str, Any]


# --- the validation stream ----------------------------------------------------------------------------------


def read_shard(path: str) -> tuple[Array, Array, int, bool]:
    """Tokens, document table, boundary token and whether that stands before its document."""
    raw = Path(path).read_bytes()
    if raw[:8] != b"LRTOKENS" or int.from_bytes(raw[8:12], "little") != 1:
        raise SystemExit(f"{path} is not a shard of longreach's own format")
    width, side = (int(n) for n in np.frombuffer(raw, "<u4", 2, 16))
    count = int(np.frombuffer(raw, "<u8", 1, 24)[0])
    boundary, documents = (int(n) for n in np.frombuffer(raw, "<i8", 2, 40))
    tokens = np.frombuffer(raw, {2: "<u2", 4: "<u4"}[width], count, 128)
    table = np.frombuffer(raw, "<u8", documents, 128 + (count * width + 7) // 8 * 8)
    return tokens.astype(np.int64), table.astype(np.int64), boundary, side == 0


def shard_paths(listed: list[str]) -> list[str]:
    paths: list[str] = []
    for entry in listed:
        pattern = entry + "/*.bin" if os.path.isdir(entry) else entry
        paths += [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
    return paths


def read_stream(data: Config, part: str = "val") -> tuple[Array, Array]:
    """All tokens of data.train or data.val, and for each whether a document begins there."""
    tokens_of, begins_of = [], []
    for path in shard_paths(data[part]):
        tokens, table, boundary, before = read_shard(path)
        if data["boundary"]["token"] >= 0:
            boundary, before = data["boundary"]["token"], data["boundary"]["side"] == "before"
        begins = np.zeros(len(tokens), bool)
        if boundary < 0:
            begins[table] = True
        elif before:
            begins = tokens == boundary
        else:
            begins[1:] = tokens[:-1] == boundary
            if tokens_of:
                begins[0] = tokens_of[-1][-1] == boundary
        tokens_of.append(tokens)
        begins_of.append(begins)
    if not tokens_of:
        raise SystemExit(f"no shard found for {data[part]}")
    return np.concatenate(tokens_of), np.concatenate(begins_of)


# --- which tokens are scored --------------------------------------------------------------------------------


class Sequence(NamedTuple):
    begin: int  # first token, in the stream
    scored: int  # position in the sequence of the first scored token
    slot: int  # its entry among the token losses


def document_spans(begins: Array) -> tuple[Array, Array]:
    """First and one-past-last position of every document; the stream's first token begins one."""
    first = np.union1d([0], np.flatnonzero(begins))
    return first, np.append(first[1:], len(begins))


def sequences(begins: Array, evaluation: Config, length: int, wanted: int) -> tuple[list[Sequence], int]:
    """The sequences that score `wanted` tokens, and the number of entries."""
    wanted = max(wanted, length)
    if evaluation["align"] == "chunk":
        count = min(wanted, len(begins) - 1) // length
        return [Sequence(s * length, 0, s * length) for s in range(count)], count * length
    scored = evaluation["suffix_tokens"] or max(1, length // 2)
    shortest = max(evaluation["min_document"], scored + 1)
    ends = [int(end) - 1 for begin, end in zip(*document_spans(begins)) if end - begin >= shortest]
    used = [end for end in ends if end >= length][: wanted // scored]
    parts = [Sequence(end - length, length - scored, a * scored) for a, end in enumerate(used)]
    return parts, len(used) * scored


def unscored(begins: Array, evaluation: Config, entries: int) -> Array:
    """Entries that stay NaN: chunk alignment, predicted from a document shorter than min_document."""
    if evaluation["align"] != "chunk":
        return np.zeros(entries, bool)
    first, end = document_spans(begins)
    document = np.searchsorted(first, np.arange(entries), side="right") - 1
    return (end - first)[document] < evaluation["min_document"]


# --- the model ----------------------------------------------------------------------------------------------


def rms(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


class Model:
    """The forward computation of "From weights to losses", one sequence at a time."""

    def __init__(self, config: Config, window: int, weights: dict[str, Array], dtype: type) -> None:
        self.model: Config = config["model"]
        self.mask: bool = config["data"]["document_mask"]
        self.stage_window = window
        self.dtype = dtype
        self.weights = {name: w.astype(dtype) for name, w in weights.items()}

    def scalar(self, name: str) -> float:
        return float(self.weights[name][0])

    def norm(self, x: Array, name: str) -> Array:
        norm = self.model["norm"]
        if norm["kind"] == "layer":
            x = x - np.mean(x, -1, keepdims=True)
        y = rms(x, norm["eps"])
        if norm["gain"]:
            y = self.weights[name + ".gain"] * y
            if norm["kind"] == "layer":
                y = y + self.weights[name + ".bias"]
        return y

    def layout(self, layer: int) -> Config:
        model = self.model
        if model["last"] and layer == model["layers"] - 1:
            return model["layouts"][model["last"]]
        if model["pattern"]:
            return model["layouts"][model["pattern"][layer % len(model["pattern"])]]
        return model["attention"]

    def losses(self, tokens: Array, targets: Array, doc_start: Array) -> Array:
        model, layers = self.model, self.model["layers"]
        residual, half = model["residual"], model["layers"] // 2
        x = self.weights["embedding.weight"][tokens]
        if model["embedding_norm"]:
            x = rms(x, model["norm"]["eps"])
        x0, stored, self.first_values = x, {}, None
        for layer in range(layers):
            name = f"layers.{layer}."
            if residual["unet"] and layer >= layers - half:
                x = x + self.scalar(name + "skip_mix") * stored[layers - 1 - layer]
            if residual["x0"]:
                x = self.scalar(name + "x_mix") * x + self.scalar(name + "x0_mix") * x0
            x = x + self.attention(self.norm(x, name + "attention_norm"), layer, doc_start)
            x = x + self.mlp(self.norm(x, name + "mlp_norm"), name + "mlp.")
            if residual["unet"] and layer < half:
                stored[layer] = x
        matrix = "embedding.weight" if model["head"]["tied"] else "head.weight"
        return self.loss(self.norm(x, "final_norm") @ self.weights[matrix].T, targets)

    def attention(self, n: Array, layer: int, doc_start: Array) -> Array:
        layout, name = self.layout(layer), f"layers.{layer}.attention."
        heads, d, length = layout["heads"], layout["head_dim"], len(n)
        groups = layout["kv_heads"] or heads
        q = (n @ self.weights[name + "q.weight"].T).reshape(length, heads, d)
        k = (n @ self.weights[name + "k.weight"].T).reshape(length, groups, d)
        v = (n @ self.weights[name + "v.weight"].T).reshape(length, groups, d)
        if self.model["residual"]["values"] == "first":
            if layer == 0:
                self.first_values = v
            else:
                share = self.scalar(name + "value_mix")
                v = (1 - share) * v + share * self.first_values.reshape(length, groups, d)
        if layout["qk"]["kind"] == "qk_rms":
            q, k = rms(q, layout["qk"]["eps"]), rms(k, layout["qk"]["eps"])
        q, k = rotate(q, layout["position"]), rotate(k, layout["position"])
        visible = self.visible(layout["window"], doc_start)
        gain, bias = distance_transform(layout["distance"], length)
        gain, bias = (np.asarray(table, self.dtype) for table in (gain, bias))
        out = np.empty((length, heads, d), self.dtype)
        for h in range(heads):
            g = h // (heads // groups)
            score = gain * (q[:, h] @ k[:, g].T / math.sqrt(d)) + bias
            score = np.where(visible, score, -np.inf)
            p = np.exp(score - score.max(-1, keepdims=True))
            out[:, h] = p / p.sum(-1, keepdims=True) @ v[:, g]
        return out.reshape(length, heads * d) @ self.weights[name + "o.weight"].T

    def visible(self, window: int, doc_start: Array) -> Array:
        i, j = np.arange(len(doc_start))[:, None], np.arange(len(doc_start))[None, :]
        seen = j <= i
        if window > 0:
            seen &= i - j < (min(window, self.stage_window) if self.stage_window > 0 else window)
        if self.mask:
            seen &= j >= doc_start[:, None]
        return seen

    def mlp(self, n: Array, name: str) -> Array:
        kind, a = self.model["mlp"]["kind"], n @ self.weights[name + "up.weight"].T
        if kind == "relu2":
            h = np.maximum(a, 0) ** 2
        elif kind == "gelu":
            h = a * (1 + np.vectorize(math.erf)(a / math.sqrt(2)).astype(self.dtype)) / 2
        elif kind == "gelu_tanh":
            h = a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) / 2
        else:
            gate = n @ self.weights[name + "gate.weight"].T
            h = gate / (1 + np.exp(-gate)) * a
        return h @ self.weights[name + "down.weight"].T

    def loss(self, y: Array, targets: Array) -> Array:
        head = self.model["head"]
        cap = head["softcap"]
        if cap["kind"] == "tanh":
            y = cap["cap"] * np.tanh(y / cap["cap"])
        elif cap["kind"] == "sigmoid":
            y = cap["cap"] / (1 + np.exp(-(y + cap["shift"]) / cap["temperature"]))
        top = y.max(-1, keepdims=True)
        s = (top + np.log(np.exp(y - top).sum(-1, keepdims=True)))[:, 0]
        return s - y[np.arange(len(y)), targets] + head["z_loss"] * s * s


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


def rotate(a: Array, position: Config) -> Array:
    """a [T, heads, d]: pair (m, m + d/2) turns by position * theta_m."""
    half = a.shape[-1] // 2
    theta = frequencies(position, a.shape[-1])
    phi = np.arange(len(a))[:, None, None] * np.append(theta, np.zeros(half - len(theta)))
    cosine, sine = np.cos(phi).astype(a.dtype), np.sin(phi).astype(a.dtype)
    left, right = a[..., :half], a[..., half:]
    return np.concatenate([left * cosine - right * sine, left * sine + right * cosine], -1)


def distance_transform(distance: Config, length: int) -> tuple[Array | float, Array | float]:
    if distance["kind"] == "none":
        return 1.0, 0.0
    t = np.maximum(np.arange(length)[:, None] - np.arange(length)[None, :], 0)
    m = 2 * np.log(1 + t / distance["tau"])
    return np.sqrt(1 + m), -m


# --- comparison ---------------------------------------------------------------------------------------------


def newest_checkpoint(path: Path) -> Path:
    """`path` itself, or the newest checkpoint below it whose files have the sizes of its manifest."""
    if (path / "manifest.json").exists():
        return path
    named = [p for p in (path / "checkpoints").glob("step_*") if p.name[5:].isdigit()]
    for checkpoint in sorted(named, key=lambda p: int(p.name[5:]), reverse=True):
        files = json.loads((checkpoint / "manifest.json").read_text())["files"]
        if all((checkpoint / f["name"]).stat().st_size == f["bytes"] for f in files):
            return checkpoint
    raise SystemExit(f"{path} has no checkpoint")


def stage_of(config: Config, checkpoint: Path) -> Config:
    """The stage of the last step done."""
    left = json.loads((checkpoint / "state.json").read_text())["step"]
    for stage in config["stages"]:
        per_step = stage["batch_tokens"] or config["batch"]["tokens"]
        left -= stage["steps"] or -(-stage["tokens"] // per_step)
        if left <= 0:
            break
    return stage


def longreach_losses(program: str, checkpoint: Path, length: int, tokens: int, *settings: str) -> Array:
    """`settings` override fields of the config."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "losses.safetensors")
        command = [program, "eval", str(checkpoint), "--lengths", str(length), "--tokens", str(tokens)]
        command += ["--token-losses", out]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return load_file(out)[f"loss.{length}"]


def numpy_losses(checkpoint: Path, config: Config, length: int, wanted: int, dtype: type) -> Array:
    tokens, begins = read_stream(config["data"])
    if len(tokens) <= length:
        raise SystemExit(f"{len(tokens)} validation tokens are too few for a sequence of {length}")
    window = stage_of(config, checkpoint)["window"]
    model = Model(config, window, load_file(checkpoint / "model.safetensors"), dtype)
    parts, entries = sequences(begins, config["eval"], length, wanted)
    losses = np.full(entries, np.nan)
    for part in parts:
        starts = np.where(begins[part.begin : part.begin + length], np.arange(length), 0)
        x = tokens[part.begin : part.begin + length + 1]
        all_losses = model.losses(x[:-1], x[1:], np.maximum.accumulate(starts))
        losses[part.slot : part.slot + length - part.scored] = all_losses[part.scored :]
    losses[unscored(begins, config["eval"], entries)] = np.nan
    return losses


def rounding_bound(exact: Array, rounded: Array) -> float:
    """How far an f32 computation may be off, judged by NumPy's own.

    The two round the same operations in another order: sums in other blocks, other exp and tanh, losses
    stored as f32. Largest errors of two such computations over some hundred tokens are alike within a factor
    of 2 or 3; 8 leaves room for deep or badly conditioned models.
    """
    return 8 * float(np.nanmax(np.abs(rounded - exact))) + 2.0**-23 * float(np.nanmax(np.abs(exact)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare longreach's token losses with NumPy's in float64.")
    parser.add_argument("run", type=Path, help="run directory or checkpoint")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens to score")
    parser.add_argument("--longreach", default="build/longreach", help="the program")
    args = parser.parse_args()

    checkpoint = newest_checkpoint(args.run)
    config = json.loads((checkpoint / "config.json").read_text())
    theirs = longreach_losses(args.longreach, checkpoint, args.length, args.tokens, "system.precision=fp32")
    ours = numpy_losses(checkpoint, config, args.length, args.tokens, np.float64)
    if ours.shape != theirs.shape or not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        print(f"different tokens are scored: {ours.shape} here, {theirs.shape} by longreach")
        return 1
    difference = np.abs(ours - theirs)[~np.isnan(ours)]
    bound = rounding_bound(ours, numpy_losses(checkpoint, config, args.length, args.tokens, np.float32))
    print(f"{checkpoint}: {len(difference)} tokens, {config['eval']['align']}, sequences of {args.length}")
    print(f"mean loss: {np.nanmean(theirs):.9f} longreach, {np.nanmean(ours):.9f} NumPy in float64")
    print(f"|difference|: largest {difference.max():.2e}, mean {difference.mean():.2e}, bound {bound:.2e}")
    if not difference.max() <= bound:
        print("the losses differ by more than rounding")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
