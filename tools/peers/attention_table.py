#!/usr/bin/env python3
"""One Markdown table of `longreach bench-attention --json` and `torch_attention.py --json`.

attention_table.py LONGREACH.jsonl TORCH.jsonl
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(path: str) -> list[Record]:
    file = Path(path)
    if not file.exists():
        print(f"{file.name} is missing\n")
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]


def shape_of(r: Record) -> tuple[int, ...]:
    return r["head_dim"], r["length"], r["heads"], r["batch"]


def cell(r: Record | None, ours: Record | None) -> str:
    """Milliseconds, TFLOP/s, and longreach's speed as a share of it."""
    if r is None:
        return ""
    pairs = r["batch"] * r["heads"] * r["length"] * (r["length"] + 1) / 2
    flops = pairs * 4 * r["head_dim"] * (1 if r["pass"] == "forward" else 2.5)
    text = f"{r['ms']:.3f} ms, {flops / r['ms'] / 1e9:.0f} TFLOP/s"
    return text if ours is None or ours is r else f"{text}, {r['ms'] / ours['ms']:.2f}"


def main() -> int:
    records = read(sys.argv[1]) + read(sys.argv[2])
    both = {r["variant"] for r in records if r["program"] != "longreach"}
    rows: dict[tuple[Any, ...], dict[str, Record]] = defaultdict(dict)
    errors = []
    for r in records:
        if r["variant"] not in both:
            continue
        if "error" in r:
            errors.append(f"{r['program']}, head size {r['head_dim']}, length {r['length']}: {r['error']}")
            continue
        rows[(*shape_of(r), r["variant"], r["program"])][r["pass"]] = r
    print("Third number: longreach's speed over it in the same shape.\n")
    print("| head size | length | heads | sequences | scores | program | forward | backward |")
    print("|---:|---:|---:|---:|---|---|---|---|")
    # By shape and scores; longreach first.
    order = sorted(rows, key=lambda key: (key[:5], key[5] != "longreach", key[5]))
    for key in order:
        passes = rows[key]
        ours = rows.get((*key[:5], "longreach"), {})
        cells = [cell(passes.get(p), ours.get(p)) for p in ("forward", "backward")]
        print("| " + " | ".join([*map(str, key), *cells]) + " |")
    for error in errors:
        print(f"\n{error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
