"""The model of a longreach config in plain PyTorch operations, with longreach's initialisation.

q, k and v are one matrix, and so are gate and up of swiglu: one product each. Matrices that longreach stores
by themselves are slices of them; `Transformer.stored()` names every one as model.safetensors does.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from numpy_laws import Angle
from torch import Tensor, nn
from torch_config import ATTENTION, layout_of

Config = dict[str, Any]

QUERY_BLOCK = 512  # queries per block of attention with a score transform; keys after a block are left out


class Layout(NamedTuple):
    """What decides the attention of a layer; hashable, so that layers share tables."""

    heads: int
    groups: int
    d: int
    window: int
    qk_eps: float | None
    angle: str
    base: float
    fraction: float
    tau: float | None

    @staticmethod
    def of(a: Config, stage_window: int) -> "Layout":
        window = min(a["window"], stage_window) if a["window"] and stage_window else a["window"]
        base, fraction, tau = (a["params"].get(name, ATTENTION["params"][name])["init"] for name in ATTENTION["params"])
        return Layout(
            heads=a["heads"],
            groups=a["kv_heads"] or a["heads"],
            d=a["head_dim"],
            window=window,
            qk_eps=a["qk"]["eps"] if a["qk"]["kind"] == "qk_rms" else None,
            angle=a["angle"],
            base=base,
            fraction=fraction,
            tau=tau if a["score"] == "scale_invariant" else None,
        )


@lru_cache
def rotary_tables(layout: Layout, length: int) -> tuple[Tensor, Tensor] | None:
    """cos and sin [T, 1, d/2]; pairs that do not turn have the angle 0."""
    params = {"base": {"init": layout.base}, "fraction": {"init": layout.fraction}}
    angle = Angle({"angle": layout.angle, "params": params}, {"d": layout.d})
    theta = torch.from_numpy(angle.frequencies()).to(torch.get_default_device())
    if len(theta) == 0:
        return None
    theta = F.pad(theta, (0, layout.d // 2 - len(theta)))
    phi = torch.arange(length, dtype=torch.float64)[:, None, None] * theta
    return phi.cos().float(), phi.sin().float()


@lru_cache
def distance_strips(layout: Layout, length: int) -> tuple[Tensor, Tensor]:
    """Gain and bias [block, T] of the last block of queries; an earlier block's are their last columns.

    bias is -inf where the key lies after the query or outside the window.
    """
    rows = length if length <= QUERY_BLOCK else math.gcd(QUERY_BLOCK, length)
    t = torch.arange(length - rows, length)[:, None] - torch.arange(length)[None, :]
    m = 2 * torch.log1p(t.clamp(min=0).double() / layout.tau)
    hidden = (t < 0) | (t >= layout.window if layout.window else False)
    return (1 + m).sqrt().float(), (-m).masked_fill(hidden, -math.inf).float()


def visible(layout: Layout, length: int, doc_start: Tensor | None) -> Tensor | None:
    """Boolean [B or 1, 1, T, T]; None: plainly causal."""
    if layout.window == 0 and doc_start is None:
        return None
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = (j <= i) & (i - j < (layout.window or length))
    if doc_start is None:
        return seen[None, None]
    return (seen & (j >= doc_start[:, :, None]))[:, None]


class Tables(NamedTuple):
    """What the layers of one layout need for one batch, made outside the model."""

    rotary: tuple[Tensor, Tensor] | None
    strips: tuple[Tensor, Tensor] | None
    mask: Any  # a Tensor, a BlockMask of FlexAttention, or None


def block_mask(layout: Layout, length: int, doc_start: Tensor | None) -> Any:
    """What is visible, for FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (j <= i) & (i - j < (layout.window or length))
        return inside if doc_start is None else inside & (j >= doc_start[b, i])

    batch = None if doc_start is None else doc_start.shape[0]
    return create_block_mask(seen, batch, None, length, length, device="cuda")


def flexible_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, tables: Tables) -> Tensor:
    """The same as transformed_attention by a fused kernel, on a GPU; to be compiled with its caller."""
    from torch.nn.attention.flex_attention import flex_attention

    def transform(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        m = 2 * torch.log1p((i - j).clamp(min=0).float() / layout.tau)
        return score * torch.sqrt(1 + m) - m

    grouped = layout.groups < layout.heads
    return flex_attention(q, k, v, score_mod=transform, block_mask=tables.mask, enable_gqa=grouped)


def norm(x: Tensor, kind: str, eps: float, gain: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    if kind == "rms":
        return F.rms_norm(x, x.shape[-1:], gain, eps)
    return F.layer_norm(x, x.shape[-1:], gain, bias, eps)


def transformed_attention(q: Tensor, k: Tensor, v: Tensor, tables: Tables) -> Tensor:
    """Attention with scores gain(t) z + bias(t), block of queries by block; q, k, v [B, H, T, d]."""
    gain, bias = tables.strips
    length, rows, scale = q.shape[-2], gain.shape[0], 1 / math.sqrt(q.shape[-1])
    out = []
    for begin in range(0, length, rows):
        end = begin + rows
        columns = slice(length - end, length)
        z = (q[:, :, begin:end] * scale) @ k[:, :, :end].transpose(-1, -2)
        score = torch.addcmul(bias[:, columns], z.float(), gain[:, columns])
        if tables.mask is not None:
            score = score.masked_fill(~tables.mask[:, :, begin:end, :end], -math.inf)
        out.append(score.softmax(-1).to(v.dtype) @ v[:, :, :end])
    return torch.cat(out, -2) if len(out) > 1 else out[0]


class Block(nn.Module):
    def __init__(self, model: Config, layer: int) -> None:
        super().__init__()
        self.norm_kind, self.eps = model["norm"]["kind"], model["norm"]["eps"]
        self.mlp_kind = model["mlp"]["kind"]
        layout = Layout.of(layout_of(model, layer), 0)
        width, hidden = model["width"], model["mlp"]["hidden"] or 4 * model["width"]
        self.rows = [layout.heads * layout.d, layout.groups * layout.d, layout.groups * layout.d]
        self.qkv = nn.Parameter(torch.empty(sum(self.rows), width))
        self.out = nn.Parameter(torch.empty(width, self.rows[0]))
        self.up = nn.Parameter(torch.empty(2 * hidden if self.mlp_kind == "swiglu" else hidden, width))
        self.down = nn.Parameter(torch.empty(width, hidden))
        self.norms = nn.ParameterDict()
        if model["norm"]["gain"]:
            for name in ("attention_norm", "mlp_norm"):
                self.norms[name + "_gain"] = nn.Parameter(torch.ones(width))
                if self.norm_kind == "layer":
                    self.norms[name + "_bias"] = nn.Parameter(torch.zeros(width))
        residual, half = model["residual"], model["layers"] // 2
        self.mixes = nn.ParameterDict()
        if residual["values"] == "first" and layer > 0:
            self.mixes["value"] = nn.Parameter(torch.full((1,), 0.5))
        if residual["unet"] and layer >= model["layers"] - half:
            self.mixes["skip"] = nn.Parameter(torch.ones(1))
        if residual["x0"]:
            self.mixes["x"], self.mixes["x0"] = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def normed(self, x: Tensor, name: str) -> Tensor:
        gain = self.norms[name + "_gain"] if name + "_gain" in self.norms else None
        bias = self.norms[name + "_bias"] if name + "_bias" in self.norms else None
        return norm(x, self.norm_kind, self.eps, gain, bias)

    def attention(
        self, n: Tensor, layout: Layout, tables: Tables, first: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The branch, and this layer's values as projected."""
        batch, length, _ = n.shape
        heads, groups, d = layout.heads, layout.groups, layout.d
        qk, values = F.linear(n, self.qkv).split([self.rows[0] + self.rows[1], self.rows[2]], -1)
        v = values
        if "value" in self.mixes:
            v = torch.lerp(values, first, self.mixes["value"].to(values.dtype))
        v = v.view(batch, length, groups, d).transpose(1, 2)
        qk = qk.view(batch, length, heads + groups, d)
        if layout.qk_eps is not None:
            qk = F.rms_norm(qk, (d,), None, layout.qk_eps)
        if tables.rotary is not None:
            cosine, sine = (table.to(qk.dtype) for table in tables.rotary)
            left, right = qk.chunk(2, -1)
            qk = torch.cat([left * cosine - right * sine, left * sine + right * cosine], -1)
        q, k = qk.to(v.dtype).transpose(1, 2).split([heads, groups], 1)
        if tables.strips is not None and q.is_cuda:
            o = flexible_attention(q, k, v, layout, tables)
        elif tables.strips is not None:
            if groups < heads:
                k, v = (a.repeat_interleave(heads // groups, 1) for a in (k, v))
            o = transformed_attention(q, k, v, tables)
        else:
            o = F.scaled_dot_product_attention(
                q, k, v, tables.mask, is_causal=tables.mask is None, enable_gqa=groups < heads
            )
        return F.linear(o.transpose(1, 2).reshape(batch, length, heads * d), self.out), values

    def mlp(self, n: Tensor) -> Tensor:
        a = F.linear(n, self.up)
        if self.mlp_kind == "relu2":
            h = F.relu(a).square()
        elif self.mlp_kind == "swiglu":
            gate, up = a.chunk(2, -1)
            h = F.silu(gate) * up
        else:
            h = F.gelu(a, approximate="tanh" if self.mlp_kind == "gelu_tanh" else "none")
        return F.linear(h, self.down)


class Transformer(nn.Module):
    def __init__(self, model: Config) -> None:
        super().__init__()
        self.model, width = model, model["width"]
        self.embedding = nn.Parameter(torch.empty(model["vocab_size"], width))
        self.blocks = nn.ModuleList(Block(model, layer) for layer in range(model["layers"]))
        self.final_gain = nn.Parameter(torch.ones(width)) if model["norm"]["gain"] else None
        biased = model["norm"]["gain"] and model["norm"]["kind"] == "layer"
        self.final_bias = nn.Parameter(torch.zeros(width)) if biased else None
        self.head = None if model["head"]["tied"] else nn.Parameter(torch.empty(model["vocab_size"], width))
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        init, width = self.model["init"], self.model["width"]
        tied = self.model["head"]["tied"]
        self.embedding.normal_(std=init["embedding_std"] or (1 / math.sqrt(width) if tied else 1.0))
        for name, matrix in self.stored().items():
            if matrix.dim() != 2 or name == "embedding.weight":
                continue
            projection = name.endswith(("attention.o.weight", "mlp.down.weight"))
            zero = init["zero_head"] if name == "head.weight" else projection and init["zero_projections"]
            bound = 0.0 if zero else init["matrix_bound"] / math.sqrt(matrix.shape[1])
            matrix.uniform_(-bound, bound)

    def stored(self) -> dict[str, Tensor]:
        """Every tensor of model.safetensors, as a view of the parameters (without gradient tracking)."""
        named: dict[str, Tensor] = {"embedding.weight": self.embedding.detach()}
        for layer, block in enumerate(self.blocks):
            prefix = f"layers.{layer}."
            for part, rows in zip("qkv", block.qkv.detach().split(block.rows)):
                named[f"{prefix}attention.{part}.weight"] = rows
            named[prefix + "attention.o.weight"] = block.out.detach()
            parts = ("gate", "up") if block.mlp_kind == "swiglu" else ("up",)
            for part, rows in zip(parts, block.up.detach().split(block.down.shape[1])):
                named[f"{prefix}mlp.{part}.weight"] = rows
            named[prefix + "mlp.down.weight"] = block.down.detach()
            for name, p in block.norms.items():
                named[prefix + ".".join(name.rsplit("_", 1))] = p.detach()
            for name, p in block.mixes.items():
                named[prefix + ("attention." if name == "value" else "") + name + "_mix"] = p.detach()
        for name, p in (("gain", self.final_gain), ("bias", self.final_bias)):
            if p is not None:
                named["final_norm." + name] = p.detach()
        if self.head is not None:
            named["head.weight"] = self.head.detach()
        return named

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        named = self.stored()
        if named.keys() != weights.keys():
            raise SystemExit(f"the checkpoint is of another model: {sorted(named.keys() ^ weights.keys())}")
        for name, tensor in named.items():
            tensor.copy_(weights[name])

    def tables(self, length: int, stage_window: int, doc_start: Tensor | None) -> list[tuple[Layout, Tables]]:
        """Per layer its layout and tables."""
        made: dict[Layout, Tables] = {}
        layers = []
        for layer in range(self.model["layers"]):
            layout = Layout.of(layout_of(self.model, layer), stage_window)
            if layout not in made:
                strips = distance_strips(layout, length) if layout.tau is not None else None
                if strips is not None and strips[0].is_cuda:
                    mask = block_mask(layout, length, doc_start)
                    made[layout] = Tables(rotary_tables(layout, length), strips, mask)
                    layers.append((layout, made[layout]))
                    continue
                only_documents = layout._replace(window=0) if strips is not None else layout
                mask = visible(only_documents, length, doc_start)
                made[layout] = Tables(rotary_tables(layout, length), strips, mask)
            layers.append((layout, made[layout]))
        return layers

    def forward(self, tokens: Tensor, targets: Tensor, layers: list[tuple[Layout, Tables]]) -> Tensor:
        """Losses [N] of tokens [B, T]."""
        model, half = self.model, self.model["layers"] // 2
        residual = model["residual"]
        x = F.embedding(tokens, self.embedding)
        if model["embedding_norm"]:
            x = norm(x, "rms", model["norm"]["eps"])
        x0, first, stored = x, None, []
        for layer, (block, (layout, tables)) in enumerate(zip(self.blocks, layers)):
            if "skip" in block.mixes:
                x = torch.addcmul(x, block.mixes["skip"], stored.pop())
            if "x" in block.mixes:
                x = block.mixes["x"] * x + block.mixes["x0"] * x0
            branch, values = block.attention(block.normed(x, "attention_norm"), layout, tables, first)
            if layer == 0 and residual["values"] == "first":
                first = values
            x = x + branch
            x = x + block.mlp(block.normed(x, "mlp_norm"))
            if residual["unet"] and layer < half:
                stored.append(x)
        x = norm(x, model["norm"]["kind"], model["norm"]["eps"], self.final_gain, self.final_bias)
        logits = F.linear(x, self.embedding if self.head is None else self.head).flatten(0, 1).float()
        return self.loss(logits, targets.flatten())

    def loss(self, y: Tensor, targets: Tensor) -> Tensor:
        head, cap = self.model["head"], self.model["head"]["softcap"]
        if cap["kind"] == "tanh":
            y = cap["cap"] * torch.tanh(y / cap["cap"])
        elif cap["kind"] == "sigmoid":
            y = cap["cap"] * torch.sigmoid((y + cap["shift"]) / cap["temperature"])
        losses = F.cross_entropy(y, targets, reduction="none")
        if head["z_loss"]:
            losses = losses + head["z_loss"] * torch.logsumexp(y, -1).square()
        return losses
