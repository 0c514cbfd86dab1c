#!/usr/bin/env python3
"""Token losses of a checkpoint, recomputed in NumPy and compared with `longreach eval`.

Written from data/formats/checkpoint.md, src/model/FORWARD.md and the tables of laws and angles in configs/README.md alone:
what cannot be done from them is a fault of theirs. The weights are read by the Python library safetensors, the shards by
the few lines below.

    numpy_losses.py RUN --length 256 --tokens 1024 [--rope yarn] [--longreach build/longreach]

RUN is a run directory (its newest checkpoint) or a checkpoint. The model is in numpy_model.py, the laws of its
scores in numpy_laws.py. --rope is that of `longreach eval`, for lengths beyond the trained one;
--set eval.rope.FIELD=VALUE sets its details.

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

from numpy_model import Model

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


def picked(evaluation: Config, count: int, cells: int) -> list[int]:
    """Which `count` of `cells` are scored. Configs of earlier versions have no "pick": longreach spreads them."""
    if evaluation.get("pick", "spread") == "head":
        return list(range(count))
    return [(2 * i + 1) * cells // (2 * count) for i in range(count)]


def sequences(begins: Array, evaluation: Config, length: int, wanted: int) -> tuple[list[Sequence], int]:
    """The sequences that score `wanted` tokens, and the number of entries."""
    wanted = max(wanted, length)
    if evaluation["align"] == "chunk":
        cells = (len(begins) - 1) // length
        chosen = picked(evaluation, min(wanted // length, cells), cells)
        return [Sequence(cell * length, 0, a * length) for a, cell in enumerate(chosen)], len(chosen) * length
    scored = evaluation["suffix_tokens"] or max(1, length // 2)
    shortest = max(evaluation["min_document"], scored + 1)
    ends = [int(end) - 1 for begin, end in zip(*document_spans(begins)) if end - begin >= shortest]
    ends = [end for end in ends if end >= length]
    used = [ends[i] for i in picked(evaluation, min(wanted // scored, len(ends)), len(ends))]
    parts = [Sequence(end - length, length - scored, a * scored) for a, end in enumerate(used)]
    return parts, len(used) * scored


def unscored(begins: Array, evaluation: Config, parts: list[Sequence], length: int) -> Array:
    """Entries that stay NaN: chunk alignment, predicted from a document shorter than min_document."""
    if evaluation["align"] != "chunk":
        return np.zeros(0, int)
    first, end = document_spans(begins)
    positions = np.concatenate([np.arange(part.begin, part.begin + length) for part in parts])
    document = np.searchsorted(first, positions, side="right") - 1
    return np.flatnonzero((end - first)[document] < evaluation["min_document"])


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


def stage_steps(config: Config, stage: Config) -> int:
    return stage["steps"] or -(-stage["tokens"] // (stage["batch_tokens"] or config["batch"]["tokens"]))


def steps_done(checkpoint: Path) -> int:
    return json.loads((checkpoint / "state.json").read_text())["step"]


def stage_of(config: Config, checkpoint: Path) -> Config:
    """The stage of the last step done."""
    left = steps_done(checkpoint)
    for stage in config["stages"]:
        left -= stage_steps(config, stage)
        if left <= 0:
            break
    return stage


def stage_window(config: Config, checkpoint: Path) -> int:
    """The window of the last step done."""
    warmup = config["window_warmup"]
    if warmup["to"] == 0:
        return stage_of(config, checkpoint)["window"]
    last = max(steps_done(checkpoint) - 1, 0)
    total = sum(stage_steps(config, stage) for stage in config["stages"])
    multiples = math.ceil(warmup["to"] * last / total / warmup["multiple"])
    return max(warmup["from"], multiples * warmup["multiple"])


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
    model = Model(config, stage_window(config, checkpoint), load_file(checkpoint / "model.safetensors"), dtype)
    parts, entries = sequences(begins, config["eval"], length, wanted)
    losses = np.full(entries, np.nan)
    for part in parts:
        starts = np.where(begins[part.begin : part.begin + length], np.arange(length), 0)
        x = tokens[part.begin : part.begin + length + 1]
        all_losses = model.losses(x[:-1], x[1:], np.maximum.accumulate(starts))
        losses[part.slot : part.slot + length - part.scored] = all_losses[part.scored :]
    losses[unscored(begins, config["eval"], parts, length)] = np.nan
    return losses


def rounding_bound(exact: Array, rounded: Array) -> float:
    """How far an f32 computation may be off, judged by NumPy's own.

    The two round the same operations in another order: sums in other blocks, other exp and tanh, losses
    stored as f32. Largest errors of two such computations over some hundred tokens are alike within a factor
    of 2 or 3; 8 leaves room for deep or badly conditioned models.
    """
    return 8 * float(np.nanmax(np.abs(rounded - exact))) + 2.0**-23 * float(np.nanmax(np.abs(exact)))


def change_rope(config: Config, settings: list[str]) -> None:
    """Apply eval.rope.FIELD=VALUE settings."""
    rope = config["eval"]["rope"]
    for setting in settings:
        path, value = setting.split("=", 1)
        section, _, field = path.rpartition(".")
        if section != "eval.rope" or field not in rope:
            raise SystemExit(f"{path} is no field of eval.rope")
        rope[field] = value if isinstance(rope[field], str) else type(rope[field])(float(value))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare longreach's token losses with NumPy's in float64.")
    parser.add_argument("run", type=Path, help="run directory or checkpoint")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens to score")
    parser.add_argument("--rope", help="eval.rope.kind for this evaluation")
    parser.add_argument("--set", action="append", default=[], help="eval.rope.FIELD=VALUE", dest="settings")
    parser.add_argument("--longreach", default="build/longreach", help="the program")
    args = parser.parse_args()

    checkpoint = newest_checkpoint(args.run)
    config = json.loads((checkpoint / "config.json").read_text())
    settings = args.settings + ([f"eval.rope.kind={args.rope}"] if args.rope else [])
    change_rope(config, settings)
    settings.append("system.precision=fp32")
    theirs = longreach_losses(args.longreach, checkpoint, args.length, args.tokens, *settings)
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
