"""Models of longreach that transformers has no class for, in plain PyTorch operations.

    model = AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)

config.json says everything: `longreach` holds what all layers share, and for every layer its angles and the parts of its
score as formulas. The forward pass is that of longreach's FORWARD.md, for one document per sequence. Attention takes its
queries in blocks, so memory is linear in the length of a text. Padding is not supported.
"""

import ast
import math
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

QUERY_BLOCK = 512
# transformers calls it `cache` from version 5.24 on.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class LongreachConfig(PretrainedConfig):
    model_type = "longreach"

    def __init__(self, longreach=None, **kwargs):
        self.longreach = longreach or {}
        super().__init__(**kwargs)


# --- formulas


def lookup(vector, index):
    last = vector.shape[-1] - 1
    at = index.floor().clamp(0, last).long()
    if vector.dim() == 1:
        return vector[at]
    return torch.gather(vector, -1, at.reshape(1, -1).expand(vector.shape[0], -1)).view(-1, *at.shape[1:])


FUNCTIONS = {
    "where": lambda c, a, b: torch.where(c != 0, a, b), "min": torch.minimum, "max": torch.maximum,
    "clamp": lambda x, a, b: torch.minimum(torch.maximum(x, a), b), "floor": torch.floor, "ceil": torch.ceil,
    "abs": torch.abs, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p,
    "log2": torch.log2, "sqrt": torch.sqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softplus": F.softplus, "log_sigmoid": F.logsigmoid,
    "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "lookup": lookup}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.Pow: torch.pow, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
             ast.Eq: operator.eq, ast.NotEq: operator.ne}
CONSTANTS = {"pi": math.pi, "e": math.e, "egamma": 0.57721566490153286, "inf": math.inf}


def evaluate(formula: str, names: dict[str, Tensor]) -> Tensor:
    """A formula in float64. Only the operators and functions above exist; nothing of Python is executed."""

    def number(value):
        return torch.tensor(float(value), dtype=torch.float64, device=next(iter(names.values())).device)

    def of(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return number(node.value)
        if isinstance(node, ast.Name):
            return names[node.id] if node.id in names else number(CONSTANTS[node.id])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return OPERATORS[type(node.ops[0])](of(node.left), of(node.comparators[0])).double()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return FUNCTIONS[node.func.id](*[of(a) for a in node.args])
        raise ValueError(f"not a formula: {formula}")

    return of(ast.parse(formula.replace("^", "**"), mode="eval").body)


# --- parts


class Tree(nn.Module):
    """Parameters by dotted names, as model.safetensors has them."""

    def add(self, name: str, shape: list[int]) -> None:
        first, _, rest = name.partition(".")
        if not rest:
            self.register_parameter(first, nn.Parameter(torch.empty(shape)))
            return
        if first not in self._modules:
            self.add_module(first, Tree())
        self._modules[first].add(rest, shape)


def rms(x: Tensor, eps) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def unit(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-12)


def capped(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


class Layer:
    """The parts of one layer; `of` finds its tensors, None where there is none."""

    def __init__(self, settings: dict, model: dict, index: int, find):
        self.s, self.model, self.index, self.find = settings, model, index, find
        self.prefix = f"layers.{index}."

    def of(self, name: str):
        return self.find(self.prefix + name)

    def linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.of(name + ".bias")
        return F.linear(x, self.of(name + ".weight"), bias)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return affine_norm(x, self.model, self.of(name + ".gain"), self.of(name + ".bias"))

    # --- attention

    def head_norm(self, x: Tensor, which: str) -> Tensor:
        """x [B, T, heads, d], queries, keys or values."""
        kind, eps = self.s["qk"], self.s["qk_eps"]
        gain, bias = self.of(f"attention.{which}_norm.gain"), self.of(f"attention.{which}_norm.bias")
        if kind == "qk_rms_full" and which != "v":
            return (rms(x.flatten(2), eps) * gain).view_as(x).to(x.dtype)
        if kind in ("qk_ln", "qkv_ln") and (which != "v" or kind == "qkv_ln"):
            return F.layer_norm(x.float(), x.shape[-1:], gain.float(), bias.float(), eps).to(x.dtype)
        if kind == "qk_rms_eps" and which != "v":
            eps = self.of(f"attention.{which}_norm.log_eps").float().exp().view(-1, 1)
        scaled = {"qk_rms": "qk", "qk_rms_w": "qk", "qkv_rms_w": "qkv", "qk_rms_eps": "qk"}.get(kind, "")
        units = {"qk_l2": "qk", "cosa": "qk", "qna": "q", "kna": "k", "kna_w": "k"}.get(kind, "")
        y = rms(x, eps) if which in scaled else unit(x) if which in units else x
        return (y if gain is None else y * gain).to(x.dtype)

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """x [B, T, heads, d]: pair (m, m + d/2) turns by its angle."""
        theta, angles = self.s["theta"], self.s["angles"]
        p = torch.arange(start, start + x.shape[1], dtype=torch.float64, device=x.device)
        if theta:
            phi = p[:, None] * torch.tensor(theta, dtype=torch.float64, device=x.device)
        elif angles:
            phi = torch.stack([evaluate(a, {"p": p}).expand_as(p) for a in angles], -1)
        else:
            return x
        phi, half = phi[:, None, :], x.shape[-1] // 2
        pairs = phi.shape[-1]
        cosine, sine, y = phi.cos().float(), phi.sin().float(), x.float()
        left, right = y[..., :pairs], y[..., half : half + pairs]
        turned = left * cosine - right * sine, left * sine + right * cosine
        rest = y[..., pairs:half], y[..., half + pairs :]
        return torch.cat([turned[0], rest[0], turned[1], rest[1]], -1).to(x.dtype)

    def values(self, projected: Tensor, ids: Tensor, shared: dict) -> Tensor:
        """v [B, T, G d] from those of this layer, of the first one and of a table."""
        v, mix = projected, self.of("attention.value_mix")
        if self.model["values_first"] and self.index == 0:
            shared["first"] = v
        if mix is not None:
            v = (1 - mix) * v + mix * shared["first"]
        own = self.of("attention.own_value_mix")
        if own is not None:
            table = self.find(f"value_embeddings.{self.s['value_table']}.weight")
            v = own * v + self.of("attention.value_embedding_mix") * F.embedding(ids, table)
        return v

    def law(self, part: str, variable: str, at: Tensor):
        """A part of the score law [H or 1, len(at)] f32; None if it is absent."""
        formula = self.s[part]
        if formula is None:
            return None
        heads = torch.arange(self.s["heads"], dtype=torch.float64, device=at.device)[:, None]
        names = {variable: at.double()[None], "h": heads}
        for name, tensor in self.s["parameters"].items():
            value, size = self.find(tensor).double(), self.s["sizes"][name]
            by_head = value.numel() == self.s["heads"] * size and self.s["by_head"][name]
            names[name] = value if size > 1 else value.view(-1, 1) if by_head else value
        law = evaluate(formula, names)
        return law.expand(torch.broadcast_shapes(law.shape, at[None].shape)).float()

    def scores(self, q: Tensor, k: Tensor, rows: Tensor) -> Tensor:
        """[B, H, queries, keys] in f32, -inf where a key is not visible; rows: positions of the queries."""
        z = self.s["base"] * (q.float() @ k.float().transpose(-1, -2))
        if self.s["softcap"]:
            z = capped(z, self.s["softcap"])
        columns = torch.arange(k.shape[-2], device=q.device)
        t = rows[:, None] - columns[None, :]
        window, chunk = self.s["window"], self.s["chunk"]
        n = rows + 1
        if self.s["count_visible"] and window:
            n = n.clamp(max=window)
        if self.s["count_visible"] and chunk:
            n = rows % chunk + 1
        row = self.law("row", "n", n)
        if row is not None:
            z = row[None, :, :, None] * z
        distances = torch.arange(k.shape[-2], device=q.device)
        gain, bias = self.law("gain", "t", distances), self.law("bias", "t", distances)
        near = t.clamp(min=0)
        if gain is not None:
            z = gain[:, near][None] * z
        if bias is not None:
            z = z + bias[:, near][None]
        hidden = t < 0
        if window:
            hidden = hidden | (t >= window)
        if chunk:
            hidden = hidden | (rows[:, None] // chunk != columns[None, :] // chunk)
        return z.masked_fill(hidden, -math.inf)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        """o [B, H, T, d]; q [B, H, T, d], k and v [B, G, S, d] from the first position on."""
        repeat = self.s["heads"] // self.s["kv_heads"]
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        sink = None
        if self.s["sink"] != "none":
            learned = self.of("attention.sink")
            sink = q.new_zeros(self.s["heads"]).float() if learned is None else learned.float()
        out = []
        for begin in range(0, q.shape[2], QUERY_BLOCK):
            block = q[:, :, begin : begin + QUERY_BLOCK]
            rows = torch.arange(start + begin, start + begin + block.shape[2], device=q.device)
            seen = int(rows[-1]) + 1
            score = self.scores(block, k[:, :, :seen], rows)
            if sink is not None:
                score = torch.cat([score, sink.view(1, -1, 1, 1).expand(*score.shape[:3], 1)], -1)
            weights = score.softmax(-1)[..., :seen]
            out.append(weights.to(v.dtype) @ v[:, :, :seen])
        return torch.cat(out, 2)

    def output(self, o: Tensor, x: Tensor, v: Tensor, start: int) -> Tensor:
        """Norm, factor and gate of o [B, T, H d]; v [B, T, G, d]: the values of the same tokens."""
        batch, length, width = o.shape
        heads, norm, gate = self.s["heads"], self.s["output_norm"], self.s["gate"]
        gain = self.of("attention.output_norm.gain")
        if norm in ("head", "all"):
            y = o.view(batch, length, heads, -1) if norm == "head" else o
            y = rms(y, self.model["eps"])
            o = (y if gain is None else y * gain).reshape(batch, length, width).to(o.dtype)
        if norm == "exclusive":
            y = o.view(batch, length, heads, -1)
            own = v.repeat_interleave(heads // v.shape[2], 2)
            share = (y * own).sum(-1, keepdim=True) / (own * own).sum(-1, keepdim=True).clamp(min=1e-24)
            o = (y - share * own).reshape(batch, length, width)
        if norm == "position":
            p = torch.arange(start, start + length, dtype=torch.float64, device=o.device)
            o = o * evaluate(self.s["output_factor"], {"p": p}).expand_as(p)[:, None].to(o.dtype)
        if gate["kind"] != "none":
            u = F.linear(x[..., : gate["channels"]], self.of("attention.gate.weight"))
            factor = gate["factor"] * torch.sigmoid(u)
            if gate["kind"] != "elementwise":
                factor = factor.repeat_interleave(width // heads, -1)
            o = o * factor
        return o

    def attention(self, x: Tensor, ids: Tensor, shared: dict, cache, start: int) -> Tensor:
        batch, length, _ = x.shape

        def heads_of(y, count):
            return y.view(batch, length, count, -1)

        q = heads_of(self.linear(x, "attention.q"), self.s["heads"])
        k = heads_of(self.linear(x, "attention.k"), self.s["kv_heads"])
        v = heads_of(self.values(self.linear(x, "attention.v"), ids, shared), self.s["kv_heads"])
        q, k = self.rotate(self.head_norm(q, "q"), start), self.rotate(self.head_norm(k, "k"), start)
        v = self.head_norm(v, "v")
        own = v
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        o = self.attend(q, k, v, start).transpose(1, 2).reshape(batch, length, -1)
        return self.linear(self.output(o, x, own, start), "attention.o")

    # --- MLP and block

    def mlp(self, x: Tensor) -> Tensor:
        kind, a = self.model["mlp"], self.linear(x, "mlp.up")
        if kind == "relu2":
            h = F.relu(a).square()
        elif kind == "swiglu":
            h = F.silu(self.linear(x, "mlp.gate")) * a
        elif kind == "geglu_tanh":
            h = F.gelu(self.linear(x, "mlp.gate"), approximate="tanh") * a
        else:
            h = F.gelu(a, approximate="tanh" if kind == "gelu_tanh" else "none")
        return self.linear(h, "mlp.down")

    def block(self, x: Tensor, ids: Tensor, shared: dict, cache, start: int) -> Tensor:
        placement = self.model["placement"]
        m = self.norm(x, "attention_norm") if self.s["pre_norm"] else x
        y = self.attention(m, ids, shared, cache, start)
        x = x + (self.norm(y, "attention_post_norm") if self.s["post_norm"] else y)
        n = x if placement == "after" else self.norm(x, "mlp_norm")
        y = self.mlp(n)
        y = self.norm(y, "mlp_post_norm") if placement in ("peri", "after") else y
        return (n if placement == "hybrid" else x) + y


def affine_norm(x: Tensor, model: dict, gain, bias) -> Tensor:
    if model["norm"] == "layer":
        y = F.layer_norm(x.float(), x.shape[-1:], None, None, model["eps"])
    else:
        y = rms(x, model["eps"])
    y = y if gain is None else y * gain
    return (y if bias is None else y + bias).to(x.dtype)


class LongreachForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = LongreachConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = False

    def __init__(self, config: LongreachConfig):
        super().__init__(config)
        self.tree = Tree()
        for name, shape in config.longreach["tensors"].items():
            self.tree.add(name, shape)
        self.post_init()

    def _init_weights(self, module) -> None:
        pass

    def find(self, name: str):
        """A tensor by its name; None if the model has none."""
        at = self.tree
        *path, last = name.split(".")
        for part in path:
            if part not in at._modules:
                return None
            at = at._modules[part]
        return at._parameters.get(last)

    def stream(self, ids: Tensor, cache, start: int) -> Tensor:
        """The residual stream after the last block [B, T, C]."""
        model = self.config.longreach
        x = F.embedding(ids, self.find("embedding.weight"))
        if model["positions"]:
            x = x + self.find("position_embedding.weight")[start : start + ids.shape[1]]
        if model["embedding_norm"]:
            x = rms(x, model["eps"]).to(x.dtype)
        x0, outputs, shared, layers = x, [], {}, model["layers"]
        for index, settings in enumerate(layers):
            layer = Layer(settings, model, index, self.find)
            skip, own = layer.of("skip_mix"), layer.of("x_mix")
            if skip is not None:
                x = x + skip * outputs[len(layers) - 1 - index]
            if own is not None:
                x = own * x + layer.of("x0_mix") * x0
            x = layer.block(x, ids, shared, cache, start)
            outputs.append(x if model["unet"] or index == model["backout"] else None)
        if model["backout"] >= 0:
            x = x - self.find("backout_mix") * outputs[model["backout"]]
        return x

    def head(self, x: Tensor) -> Tensor:
        model = self.config.longreach
        x = affine_norm(x, model, self.find("final_norm.gain"), self.find("final_norm.bias"))
        matrix = self.find("head.weight")
        logits = F.linear(x, self.find("embedding.weight") if matrix is None else matrix).float()
        cap = model["head_softcap"]
        if cap["kind"] == "tanh":
            return capped(logits, cap["cap"])
        if cap["kind"] == "sigmoid":
            return cap["cap"] * torch.sigmoid((logits + cap["shift"]) / cap["temperature"])
        return logits

    def forward(self, input_ids, attention_mask=None, past_key_values=None, cache=None, use_cache=None, labels=None,
                logits_to_keep=0, return_dict=True, **unused):
        if any(isinstance(value, Cache) for value in unused.values()):
            raise TypeError("this version of transformers gives its cache a name that the model does not know")
        if cache is None:
            cache = past_key_values
        if attention_mask is not None and attention_mask.dim() == 2 and not bool(attention_mask.all()):
            raise ValueError("padding is not supported: give sequences of equal length")
        if use_cache is None:
            use_cache = not self.training and labels is None
        if use_cache and cache is None:
            cache = DynamicCache()
        start = cache.get_seq_length() if cache is not None else 0
        x = self.stream(input_ids, cache, start)
        logits = self.head(x[:, -logits_to_keep:] if logits_to_keep else x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        result = CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})
        return result if return_dict else result.to_tuple()
