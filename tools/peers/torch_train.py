#!/usr/bin/env python3
"""The PyTorch peer: trains the model of a longreach config the way longreach does, and times it.

    torch_train.py CONFIG [--context 512] [--compile] [--precision bf16]     tokens per second
    torch_train.py CONFIG --device cuda --compile --random-tokens            the same on a GPU
    torch_train.py --load RUN --longreach build/longreach                    same losses, same weights?
    torch_train.py --replay RUN                                              same losses step by step?

The arithmetic is the one of data/formats/checkpoint.md: model, Muon and Adam, schedule, initial weights. Tokens are those
of data.train in file order, or random ones (--random-tokens). Compare times with `tools/peers/compare`.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np
import torch
from numpy_losses import longreach_losses, newest_checkpoint, read_stream, stage_of
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter
from torch_config import load_config
from torch_model import Transformer

Config = dict[str, Any]
Rows = tuple[Parameter, int, int]  # rows [from, to) of a parameter
Orthogonalise = Callable[[Tensor, int], Tensor]

# Between two computations of a token's loss: rounding is far below it in fp32, a wrong formula far above.
LOSS_BOUND = {"fp32": 1e-3, "bf16": 5e-2}


# --- optimisers ---------------------------------------------------------------------------------------------


def newton_schulz(u: Tensor, iterations: int) -> Tensor:
    """u [n, short, long]: n matrices at once."""
    x = u / (u.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        a = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


class Muon:
    """Matrices of one shape are orthogonalised together."""

    class Group(NamedTuple):
        matrices: list[tuple[Parameter, int, int, bool]]  # rows of a parameter; taller than wide
        momentum: Tensor  # [n, short, long]
        factor: float

    def __init__(self, slices: list[Rows], config: Config, orthogonalise: Orthogonalise) -> None:
        self.config, self.orthogonalise = config, orthogonalise
        by_shape: dict[tuple[int, int], list[tuple[Parameter, int, int, bool]]] = {}
        for p, begin, end in slices:
            shape = (end - begin, p.shape[1])
            by_shape.setdefault(shape, []).append((p, begin, end, shape[0] > shape[1]))
        self.groups = []
        for (rows, cols), matrices in by_shape.items():
            classic = config["scale"] == "classic"
            factor = math.sqrt(max(1, rows / cols)) if classic else 0.2 * math.sqrt(max(rows, cols))
            momentum = torch.zeros(len(matrices), min(rows, cols), max(rows, cols))
            self.groups.append(Muon.Group(matrices, momentum, factor))

    def momentum_at(self, step: int) -> float:
        c = self.config
        if step >= c["warmup_steps"]:
            return c["momentum"]
        return c["warmup_from"] + (c["momentum"] - c["warmup_from"]) * step / c["warmup_steps"]

    @torch.no_grad()
    def step(self, multiplier: float, step: int) -> None:
        c, mu = self.config, self.momentum_at(step)
        share = 1.0 if c["form"] == "classic" else 1 - mu
        for group in self.groups:
            g = torch.stack([p.grad[a:b].mT if turn else p.grad[a:b] for p, a, b, turn in group.matrices])
            if share != 1:
                g *= share
            group.momentum.mul_(mu).add_(g)
            u = g.add_(group.momentum, alpha=mu) if c["nesterov"] else group.momentum
            x = self.orthogonalise(u, c["iterations"])
            rate, decay = c["lr"] * multiplier * group.factor, c["lr"] * multiplier * c["weight_decay"]
            for (p, a, b, turn), update in zip(group.matrices, x):
                w = p.detach()[a:b]
                if decay:
                    w.mul_(1 - decay)
                w.add_(update.mT if turn else update, alpha=-rate)


class Optimizer:
    """Muon for the matrices of the layers (or Adam), Adam for the rest."""

    def __init__(self, net: Transformer, config: Config, orthogonalise: Orthogonalise) -> None:
        self.config, adam = config, config["adam"]
        self.parameters = list(net.parameters())
        matrices = [p for block in net.blocks for p in (block.qkv, block.out, block.up, block.down)]
        self.muon: Muon | None = None
        groups: list[tuple[list[Parameter], float, float]] = [([net.embedding], adam["embedding_lr"], 0)]
        if config["matrices"] == "muon":
            self.muon = Muon(list(self.slices(net)), config["muon"], orthogonalise)
        else:
            groups.append((matrices, adam["matrix_lr"], adam["weight_decay"]))
        if net.head is not None:
            groups.append(([net.head], adam["head_lr"], adam["weight_decay"]))
        named = {id(p) for p in matrices} | {id(net.embedding), id(net.head)}
        groups.append(([p for p in self.parameters if id(p) not in named], adam["scalar_lr"], 0))
        self.adam = torch.optim.AdamW(
            [{"params": p, "lr": lr, "rate": lr, "weight_decay": decay} for p, lr, decay in groups if p],
            betas=(adam["beta1"], adam["beta2"]),
            eps=adam["eps"],
            fused=True,
        )

    @staticmethod
    def slices(net: Transformer) -> Iterator[Rows]:
        """The matrices as longreach has them."""
        for block in net.blocks:
            begin = 0
            for rows in block.rows:
                yield block.qkv, begin, begin + rows
                begin += rows
            hidden = block.down.shape[1]
            for begin in range(0, block.up.shape[0], hidden):
                yield block.up, begin, begin + hidden
            yield block.out, 0, block.out.shape[0]
            yield block.down, 0, block.down.shape[0]

    def step(self, multiplier: float, step: int) -> None:
        if self.config["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config["clip_norm"], foreach=True)
        if self.muon is not None:
            self.muon.step(multiplier, step)
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * multiplier
        self.adam.step()
        for p in self.parameters:
            p.grad = None


def schedule(config: Config, step: int, total: int) -> float:
    if step < config["warmup_steps"]:
        return (step + 1) / config["warmup_steps"]
    final = config["final"]
    if config["kind"] == "linear":
        decay = math.floor(config["decay_fraction"] * total + 0.5)
        return 1.0 if step < total - decay else final + (1 - final) * (total - step) / decay
    if config["kind"] == "cosine":
        progress = (step - config["warmup_steps"]) / (total - config["warmup_steps"])
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    return 1.0


# --- training -----------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    tokens: Tensor  # [B, T]
    targets: Tensor
    doc_start: Tensor | None


class Stream:
    """Training tokens in file order, epoch after epoch; a block is the largest context."""

    def __init__(self, config: Config, part: str, block: int) -> None:
        tokens, begins = read_stream(config["data"], part)
        self.tokens, self.begins = torch.from_numpy(tokens), torch.from_numpy(begins)
        self.epoch = (len(tokens) - 1) // block * block
        self.mask = config["data"]["document_mask"]

    def batch(self, consumed: int, count: int, length: int) -> Batch:
        at = (consumed + torch.arange(count)) % self.epoch
        at = at.view(-1, length)
        doc_start = None
        if self.mask:
            starts = torch.where(self.begins[at], torch.arange(length), 0)
            doc_start = starts.cummax(-1).values
        return Batch(self.tokens[at], self.tokens[at + 1], doc_start)


def random_batch(config: Config, count: int, length: int) -> Batch:
    vocabulary = config["model"]["vocab_size"]
    ranks = vocabulary ** torch.rand(count + 1, dtype=torch.float64)  # as `longreach bench` draws them
    tokens = ranks.long().clamp(max=vocabulary) - 1
    return Batch(tokens[:-1].view(-1, length), tokens[1:].view(-1, length), None)


class Trainer:
    def __init__(self, config: Config, compiled: bool, precision: str) -> None:
        self.config, self.precision = config, precision
        self.net = Transformer(config["model"])
        self.losses = torch.compile(self.net, dynamic=False) if compiled else self.net
        orthogonalise = torch.compile(newton_schulz, dynamic=False) if compiled else newton_schulz
        if precision == "bf16" and torch.get_default_device().type == "cuda":
            in_f32 = orthogonalise
            orthogonalise = lambda u, iterations: in_f32(u.bfloat16(), iterations).float()
        self.optimizer = Optimizer(self.net, config["optimizer"], orthogonalise)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "bf16":
            return torch.autocast(torch.get_default_device().type, torch.bfloat16)
        return contextlib.nullcontext()

    def step(self, batch: Batch, window: int, multiplier: float, step: int) -> Tensor:
        layers = self.net.tables(batch.tokens.shape[1], window, batch.doc_start)
        with self.autocast():
            loss = self.losses(batch.tokens, batch.targets, layers).mean()
        loss.backward()
        self.optimizer.step(multiplier, step)
        return loss.detach()

    def evaluate(self, batch: Batch, window: int) -> Tensor:
        layers = self.net.tables(batch.tokens.shape[1], window, batch.doc_start)
        with torch.no_grad(), self.autocast():
            return self.losses(batch.tokens, batch.targets, layers)


def time_steps(args: argparse.Namespace) -> int:
    """Prints tokens per second, once, or after each line read from stdin (--on-request)."""
    config = load_config(args.config)
    stage = config["stages"][-1]
    length = args.context or stage["context"]
    wanted = args.step_tokens or config["batch"]["micro_tokens"] or stage["batch_tokens"]
    count = max(1, wanted // length) * length
    trainer = Trainer(config, args.compile, args.precision)
    if args.random_tokens:
        batches = [random_batch(config, count, length)]
    else:
        stream = Stream(config, "train", length)
        batches = [stream.batch(n * count, count, length) for n in range(args.warmup + args.steps)]
    done = 0
    on_gpu = torch.get_default_device().type == "cuda"

    def timed(steps: int) -> float:
        nonlocal done
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            trainer.step(batches[done % len(batches)], stage["window"], 1.0, done)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
            done += 1
        return count / statistics.median(seconds)

    timed(args.warmup)
    kind = "compile" if args.compile else "eager"
    where = torch.cuda.get_device_name() if on_gpu else f"{args.threads} threads"
    about = f"{kind} {args.precision}, context {length}, {count} tokens/step, {where}"
    if not args.on_request:
        print(f"{about}: {timed(args.steps):.1f} tokens/s", flush=True)
        return 0
    print(f"ready: {about}", flush=True)
    for _ in sys.stdin:
        timed(1)  # caches and clock are another program's
        print(f"{timed(args.steps):.1f}", flush=True)
    return 0


def check_losses(args: argparse.Namespace) -> int:
    """Token losses of a checkpoint, here and by longreach."""
    checkpoint = newest_checkpoint(args.load)
    config = load_config(checkpoint / "config.json")
    stage = stage_of(config, checkpoint)
    window, length = stage["window"], args.context or stage["context"]
    trainer = Trainer(config, args.compile, args.precision)
    trainer.net.load(load_file(checkpoint / "model.safetensors"))
    count = max(1, args.check_tokens // length) * length
    settings = ("eval.align=chunk", "eval.min_document=0", f"system.precision={args.precision}")
    theirs = longreach_losses(args.longreach, checkpoint, length, count, *settings)
    batch = Stream(config, "val", 1).batch(0, len(theirs), length)
    ours = trainer.evaluate(batch, window).numpy()
    difference = np.abs(ours - theirs)
    print(f"{checkpoint}: {len(ours)} tokens, sequences of {length}")
    print(f"mean loss: {theirs.mean():.7f} longreach, {ours.mean():.7f} torch")
    print(
        f"|difference|: largest {difference.max():.2e}, mean {difference.mean():.2e}, bound {args.bound:.0e}"
    )
    return 0 if difference.max() < args.bound else 1


def replay(args: argparse.Namespace) -> int:
    """Trains from a run's checkpoint of step 0 on the same tokens; compares the losses of its metrics."""
    start = args.replay / "checkpoints" / "step_00000000"
    if not start.exists():
        raise SystemExit(f"{start} is missing: set checkpoint.at_start, and checkpoint.keep large enough")
    config = load_config(start / "config.json")
    if config["data"]["shuffle"] != "none" or config["run"]["log_every"] != 1:
        raise SystemExit("a run to replay needs data.shuffle = none and run.log_every = 1")
    records = [json.loads(line) for line in (args.replay / "metrics.jsonl").read_text().splitlines()]
    stages = [stage for stage in config["stages"] for _ in range(stage["steps"])]
    stream = Stream(config, "train", max(stage["context"] for stage in config["stages"]))
    trainer = Trainer(config, args.compile, args.precision)
    trainer.net.load(load_file(start / "model.safetensors"))
    consumed, worst = 0, 0.0
    for step, (stage, record) in enumerate(zip(stages, records)):
        batch = stream.batch(consumed, stage["batch_tokens"], stage["context"])
        multiplier = schedule(config["optimizer"]["schedule"], step, len(stages)) * stage["lr"]
        loss = float(trainer.step(batch, stage["window"], multiplier, step))
        consumed += stage["batch_tokens"]
        worst = max(worst, abs(loss - record["loss"]))
        print(f"step {record['step']}: {record['loss']:.6f} (longreach), {loss:.6f} (torch)")
    print(f"{args.replay}: losses of {len(records)} steps differ by at most {worst:.2e}")
    return 0 if worst < args.bound else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the model of a longreach config with PyTorch.")
    parser.add_argument("config", type=Path, nargs="?", help="longreach config to time")
    parser.add_argument("--context", type=int, default=0, help="tokens per sequence; 0: the last stage's")
    parser.add_argument(
        "--step-tokens", type=int, default=0, help="tokens per step; 0: the config's micro-batch"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: random tokens only")
    parser.add_argument("--compile", action="store_true", help="torch.compile of model and Newton-Schulz")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, of which the median is taken")
    parser.add_argument("--random-tokens", action="store_true", help="time on random tokens, without shards")
    parser.add_argument("--on-request", action="store_true", help="time --steps after each line of stdin")
    parser.add_argument("--load", type=Path, metavar="RUN", help="compare losses with longreach's from RUN")
    parser.add_argument("--replay", type=Path, metavar="RUN", help="repeat the training of RUN and compare")
    parser.add_argument("--check-tokens", type=int, default=4096, help="tokens that --load compares")
    parser.add_argument("--bound", type=float, help="largest difference that passes")
    parser.add_argument("--longreach", default="build/longreach", help="the program, for --load")
    args = parser.parse_args()

    args.bound = args.bound or LOSS_BOUND[args.precision]
    torch.set_num_threads(args.threads)
    if args.device == "cuda":
        if args.load or args.replay or not args.random_tokens:
            parser.error("on a GPU only --random-tokens are timed")
        if not torch.cuda.is_available():
            print("no GPU can be used", file=sys.stderr)
            return 6
        torch.set_default_device("cuda")
    torch.manual_seed(1)
    if args.load:
        return check_losses(args)
    if args.replay:
        return replay(args)
    if args.config is None:
        parser.error("name a config, or use --load or --replay")
    return time_steps(args)


if __name__ == "__main__":
    sys.exit(main())
