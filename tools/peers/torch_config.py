"""longreach configs for the PyTorch peer: `base` files, // comments, and the defaults of what is left out."""

import copy
import json
import re
from pathlib import Path
from typing import Any

Config = dict[str, Any]

ATTENTION: Config = {
    "heads": 4,
    "kv_heads": 0,
    "head_dim": 64,
    "window": 0,
    "angle": "rope",
    "qk": {"kind": "qk_rms", "eps": 1.1920929e-7},
    "score": None,
    "params": {"base": {"init": 10000}, "fraction": {"init": 0.5}, "tau": {"init": 10}},
}
DEFAULTS: Config = {
    "model": {
        "layers": 4,
        "width": 128,
        "vocab_size": 257,
        "embedding_norm": True,
        "norm": {"kind": "rms", "gain": False, "eps": 1e-6},
        "mlp": {"kind": "relu2", "hidden": 0},
        "residual": {"x0": False, "unet": False, "values": "none"},
        "head": {
            "tied": False,
            "z_loss": 0,
            "softcap": {"kind": "none", "cap": 15, "shift": 0, "temperature": 7.5},
        },
        "init": {"matrix_bound": 1, "embedding_std": 0, "zero_projections": True, "zero_head": True},
        "attention": ATTENTION,
        "layouts": {},
        "pattern": [],
        "last": "",
    },
    "data": {
        "train": [],
        "val": [],
        "document_mask": True,
        "boundary": {"token": -1, "side": "before"},
        "shuffle": "random",
    },
    "stages": [],
    "batch": {"tokens": 65536, "micro_tokens": 0},
    "optimizer": {
        "matrices": "muon",
        "muon": {
            "lr": 0.02,
            "momentum": 0.95,
            "nesterov": True,
            "form": "classic",
            "warmup_from": 0.85,
            "warmup_steps": 0,
            "scale": "classic",
            "weight_decay": 0,
            "iterations": 5,
        },
        "adam": {
            "matrix_lr": 0.001,
            "embedding_lr": 0.3,
            "head_lr": 0.002,
            "scalar_lr": 0.002,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0,
        },
        "schedule": {"kind": "linear", "warmup_steps": 0, "decay_fraction": 0.4, "final": 0},
        "clip_norm": 0,
    },
}
STAGE: Config = {"steps": 0, "tokens": 0, "context": 1024, "batch_tokens": 0, "window": 0, "lr": 1}


def merge(under: Any, over: Any) -> Any:
    """Objects are merged, anything else is replaced."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return copy.deepcopy(over)
    merged = copy.deepcopy(under)
    for key, value in over.items():
        merged[key] = merge(merged.get(key), value)
    return merged


def read_json(path: Path) -> Config:
    """One file over its bases."""
    no_comments = re.sub(
        r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match[1] or "", path.read_text(encoding="utf-8")
    )
    config = json.loads(no_comments)
    bases = config.pop("base", [])
    under: Config = {}
    for base in [bases] if isinstance(bases, str) else bases:
        under = merge(under, read_json(path.parent / base))
    return merge(under, config)


# Choices that the PyTorch model has; of fields that are not here it takes any value.
KNOWN_KINDS = {
    ".qk.kind": ("none", "qk_rms"),
    ".score": (None, "scale_invariant"),
    ".angle": ("rope", "p_rope", "p_rope_linspace", "nope"),
}


def refuse_unknown(known: Config, given: Config, path: str) -> None:
    """Stops at what the PyTorch model would silently leave out."""
    for key, value in given.items():
        where = f"{path}.{key}"
        if key not in known:
            raise SystemExit(f"{where}: the PyTorch peer does not have this")
        if isinstance(value, dict) and isinstance(known[key], dict):
            refuse_unknown(known[key], value, where)
        for end, kinds in KNOWN_KINDS.items():
            if where.endswith(end) and value not in kinds:
                raise SystemExit(f"{where}: the PyTorch peer does not have {value}")


def load_config(path: Path) -> Config:
    written = read_json(path)
    layouts = written.get("model", {}).pop("layouts", {})
    for section in ("model", "batch", "optimizer"):
        refuse_unknown(DEFAULTS[section], written.get(section, {}), section)
    for name, layout in layouts.items():
        refuse_unknown(ATTENTION, layout, f"model.layouts.{name}")
    written.setdefault("model", {})["layouts"] = layouts
    config = merge(DEFAULTS, written)
    model = config["model"]
    for name, layout in model["layouts"].items():
        model["layouts"][name] = merge(model["attention"], layout)
    config["stages"] = [merge(STAGE, stage) for stage in config["stages"]]
    for stage in config["stages"]:
        stage["batch_tokens"] = stage["batch_tokens"] or config["batch"]["tokens"]
        stage["steps"] = stage["steps"] or -(-stage["tokens"] // stage["batch_tokens"])
    return config


def layout_of(model: Config, layer: int) -> Config:
    if model["last"] and layer == model["layers"] - 1:
        return model["layouts"][model["last"]]
    if model["pattern"]:
        return model["layouts"][model["pattern"][layer % len(model["pattern"])]]
    return model["attention"]
