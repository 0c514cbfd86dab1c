#!/usr/bin/env python3
"""PyTorch's attention on a GPU, for a table next to `longreach bench-attention`: one JSON object per line.

    torch_attention.py [--lengths 1024,4096] [--head-dims 64,128] [--sdpa] [--json FILE]

Causal attention through scaled_dot_product_attention (flash and cuDNN kernels) and FlexAttention, and the
scale-invariant transform of the scores through FlexAttention: once by its formula, once by tables over the
distance. Forward and backward are timed by CUDA events: ten calls to warm up, then the median of thirty.
bfloat16; memory layout [B, T, H, d] as in longreach; operands rotate among as many sets as are four times the
L2 cache together.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

PLAIN = "plain causal"
DISTANCE = "distance (scale-invariant, ALiBi, log bias)"  # as longreach names it
TAU = 10.0
WARM_UP, TIMED = 10, 30

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    length: int
    head_dim: int
    heads: int
    batch: int


class Operands(NamedTuple):
    q: Tensor  # [B, H, T, d], a view of [B, T, H, d]
    k: Tensor
    v: Tensor
    dout: Tensor


def operands(shape: Shape, seed: int) -> Operands:
    generator = torch.Generator("cuda").manual_seed(seed)

    def one(wants_gradient: bool) -> Tensor:
        size = (shape.batch, shape.length, shape.heads, shape.head_dim)
        memory = torch.randn(size, device="cuda", dtype=torch.bfloat16, generator=generator)
        return memory.transpose(1, 2).detach().requires_grad_(wants_gradient)

    return Operands(one(True), one(True), one(True), one(False))


def milliseconds(calls: list[Callable[[], Any]]) -> float:
    """Median time of a call; the calls take turns."""
    for i in range(WARM_UP):
        calls[i % len(calls)]()
    begins = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED)]
    torch.cuda.synchronize()
    for i in range(TIMED):
        begins[i].record()
        calls[i % len(calls)]()
        ends[i].record()
    torch.cuda.synchronize()
    return statistics.median(b.elapsed_time(e) for b, e in zip(begins, ends))


def scaled_dot_product(backend: SDPBackend) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attention


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def flexible(shape: Shape, form: str) -> Attention:
    mask = create_block_mask(causal, None, None, shape.length, shape.length, device="cuda")
    distance = torch.arange(shape.length, device="cuda", dtype=torch.float64)
    m = 2 * torch.log1p(distance / TAU)
    gain, bias = (1 + m).sqrt().float(), (-m).float()

    def by_formula(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        m = 2 * torch.log1p((i - j).clamp(min=0).float() / TAU)
        return score * torch.sqrt(1 + m) - m

    def by_table(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        t = (i - j).clamp(min=0)
        return score * gain[t] + bias[t]

    score_mod = {"plain": None, "formula": by_formula, "table": by_table}[form]
    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, score_mod=score_mod, block_mask=mask)

    return attention


def reference(o: Operands, transformed: bool) -> Tensor:
    """One head of one sequence in float64, for queries at the end of the sequence."""
    q, k, v = (t[0, 0].detach().double() for t in (o.q, o.k, o.v))
    rows = min(64, len(q))
    z = q[-rows:] @ k.mT / math.sqrt(q.shape[-1])
    j = torch.arange(len(q), device="cuda")
    t = j[-rows:, None] - j[None, :]
    if transformed:
        m = 2 * torch.log1p(t.clamp(min=0).double() / TAU)
        z = z * torch.sqrt(1 + m) - m
    return z.masked_fill(t < 0, -math.inf).softmax(-1) @ v


def bench(
    program: str, variant: str, shape: Shape, make: Callable[[], Attention], sets: list[Operands]
) -> list[dict[str, Any]]:
    about = {"program": program, "variant": variant, **shape._asdict()}
    try:
        attention = make()
        with torch.no_grad():
            out = attention(*sets[0][:3])[0, 0].double()
            expected = reference(sets[0], variant == DISTANCE)
            error = float((out[-len(expected) :] - expected).norm() / expected.norm())
            if not error < 2e-2:
                raise RuntimeError(f"not what it should compute: relative error {error:.2g}")
            forward = milliseconds([lambda o=o: attention(o.q, o.k, o.v) for o in sets])
        outs = [attention(o.q, o.k, o.v) for o in sets]
        backward = milliseconds(
            [
                lambda o=o, out=out: torch.autograd.grad(out, (o.q, o.k, o.v), o.dout, retain_graph=True)
                for o, out in zip(sets, outs)
            ]
        )
    except Exception as error:  # an unsupported shape or backend; the others go on
        return [{**about, "error": str(error).split("\n")[0][:200]}]
    return [{**about, "pass": "forward", "ms": forward}, {**about, "pass": "backward", "ms": backward}]


def main() -> int:
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description="Time PyTorch's attention on a GPU.")
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096, 16384, 65536])
    parser.add_argument("--head-dims", type=numbers, default=[64, 128])
    parser.add_argument("--width", type=int, default=2048, help="heads times head size")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens at least, in whole sequences")
    parser.add_argument("--sdpa", action="store_true", help="scaled_dot_product_attention alone, which compiles nothing")
    parser.add_argument("--json", type=Path, help="write the lines here too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU can be used", file=sys.stderr)
        return 6
    # Backward passes are repeated on one graph.
    functorch_config.donated_buffer = False
    properties = torch.cuda.get_device_properties(0)
    cache = getattr(properties, "L2_cache_size", 64 << 20)
    cudnn = torch.backends.cudnn.version()
    print(f"# {properties.name}, PyTorch {torch.__version__}, cuDNN {cudnn}", flush=True)
    lines = []
    for head_dim in args.head_dims:
        for length in args.lengths:
            shape = Shape(length, head_dim, args.width // head_dim, max(1, args.tokens // length))
            bytes_of_set = 2 * 4 * shape.batch * length * args.width
            sets = [operands(shape, seed) for seed in range(max(1, math.ceil(4 * cache / bytes_of_set)))]
            programs: list[tuple[str, str, Callable[[], Attention]]] = [
                ("SDPA flash", PLAIN, lambda: scaled_dot_product(SDPBackend.FLASH_ATTENTION)),
                ("SDPA cuDNN", PLAIN, lambda: scaled_dot_product(SDPBackend.CUDNN_ATTENTION)),
                ("FlexAttention", PLAIN, lambda: flexible(shape, "plain")),
                ("FlexAttention, formula", DISTANCE, lambda: flexible(shape, "formula")),
                ("FlexAttention, table", DISTANCE, lambda: flexible(shape, "table")),
            ]
            for program, variant, make in programs[: 2 if args.sdpa else None]:
                torch._dynamo.reset()
                for record in bench(program, variant, shape, make, sets):
                    lines.append(json.dumps(record))
                    print(lines[-1], flush=True)
                    if args.json:
                        args.json.write_text("\n".join(lines) + "\n")
            del sets
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
