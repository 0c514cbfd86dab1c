"""The forward computation of src/model/FORWARD.md in NumPy, one sequence at a time."""

import math
from typing import Any

import numpy as np

import numpy_laws as laws

Array = np.ndarray
Config = dict[str, Any]


def rms(x: Array, eps: Any) -> Array:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def centred(x: Array) -> Array:
    return x - np.mean(x, -1, keepdims=True)


def unit(x: Array) -> Array:
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + 1e-12)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def broken_sticks(score: Array, visible: Array) -> Array:
    """Weights of stick-breaking attention: each key's share of what nearer ones left, the query's own key left out."""
    score = np.where(visible & np.tri(len(score), k=-1, dtype=bool), score, -np.inf)
    kept = -np.logaddexp(0, score)  # log(1 - sigmoid)
    nearer = np.cumsum(kept[:, ::-1], 1)[:, ::-1] - kept
    return np.exp(score + kept + nearer)


def entmax_of(score: Array, alpha: float) -> Array:
    """Weights of entmax as the Python package `entmax`, of other authors, computes them."""
    import entmax
    import torch

    return entmax.entmax_bisect(torch.from_numpy(score), alpha=alpha, dim=-1, n_iter=100).numpy()


def shared_channels(layout: Config) -> int | None:
    """The channels that turn where keys and values are made of a latent; None: without one."""
    latent = layout.get("latent", {"width": 0})
    return latent["shared"] if latent["width"] > 0 else None


class Model:
    def __init__(self, config: Config, window: int, weights: dict[str, Array], dtype: type) -> None:
        self.model: Config = config["model"]
        self.rope: Config = config["eval"]["rope"]
        self.score: Any = config["eval"].get("score")
        self.mask: bool = config["data"]["document_mask"]
        self.stage_window = window
        self.dtype = dtype
        self.weights = {name: w.astype(dtype) for name, w in weights.items()}

    def scalar(self, name: str) -> float:
        return float(self.weights[name][0])

    def norm(self, x: Array, name: str, gain: bool = False) -> Array:
        norm = self.model["norm"]
        layer = norm["kind"] == "layer"
        y = rms(centred(x) if layer else x, norm["eps"])
        if norm["gain"] or gain:
            y = self.weights[name + ".gain"] * y
            if layer:
                y = y + self.weights[name + ".bias"]
        return y

    def layout_name(self, layer: int) -> str:
        model = self.model
        if model["last"] and layer == model["layers"] - 1:
            return model["last"]
        return model["pattern"][layer % len(model["pattern"])] if model["pattern"] else ""

    def layout(self, layer: int) -> Config:
        name = self.layout_name(layer)
        return self.model["layouts"][name] if name else self.model["attention"]

    # --- the stream

    def losses(self, tokens: Array, targets: Array, doc_start: Array) -> Array:
        model, layers = self.model, self.model["layers"]
        residual, half = model["residual"], model["layers"] // 2
        self.tokens, self.first_values = tokens, None
        self.doc_start = doc_start if self.mask else np.zeros(len(tokens), int)
        x = self.embedded()
        x0, outputs = x, []
        for layer in range(layers):
            name = f"layers.{layer}."
            if residual["unet"] and layer >= layers - half:
                x = x + self.scalar(name + "skip_mix") * outputs[layers - 1 - layer]
            if residual["x0"]:
                x = self.scalar(name + "x_mix") * x + self.scalar(name + "x0_mix") * x0
            x = self.block(x, layer, name)
            outputs.append(x)
        if residual["backout"] >= 0:
            x = x - self.scalar("backout_mix") * outputs[residual["backout"]]
        matrix = "embedding.weight" if model["head"]["tied"] else "head.weight"
        return self.loss(self.norm(x, "final_norm") @ self.weights[matrix].T, targets)

    def embedded(self) -> Array:
        e = self.weights["embedding.weight"][self.tokens]
        x = e
        if self.model["residual"]["smear"]:
            share = self.scalar("smear_mix") * sigmoid(e[:, :12] @ self.weights["smear.weight"])
            share[self.doc_start == np.arange(len(e))] = 0
            x = e + share[:, None] * np.roll(e, 1, axis=0)
        if self.model.get("positions", 0) > 0:
            x = x + self.weights["position_embedding.weight"][: len(x)]
        return rms(x, self.model["norm"]["eps"]) if self.model["embedding_norm"] else x

    def block(self, x: Array, layer: int, name: str) -> Array:
        layout, placement = self.layout(layer), self.model["norm"]["placement"]
        bare = placement in ("hybrid", "after") or not layout["pre_norm"]
        after = placement in ("peri", "after")
        y = self.attention(x if bare else self.norm(x, name + "attention_norm"), layer, layout)
        if after or layout["post_norm"]:
            y = self.norm(y, name + "attention_post_norm", gain=True)
        x = x + y
        n = x if placement == "after" else self.norm(x, name + "mlp_norm")
        y = self.mlp(n, name + "mlp.")
        if after:
            y = self.norm(y, name + "mlp_post_norm", gain=True)
        return (n if placement == "hybrid" else x) + y

    # --- attention

    def attention(self, n: Array, layer: int, layout: Config) -> Array:
        name, heads, d = f"layers.{layer}.attention.", layout["heads"], layout["head_dim"]
        groups = layout["kv_heads"] or heads
        if shared_channels(layout) is not None:
            q, k, v = self.of_latents(n, name, layout)
        else:
            q = self.treated(self.projected(n, name, "q", layout, heads), name, "q", layout)
            k = self.treated(self.projected(n, name, "k", layout, groups), name, "k", layout)
            v = self.mixed_values(self.projected(n, name, "v", layout, groups), name, layer)
        if layout["qk"]["kind"] in ("qkv_rms_w", "qkv_ln"):
            v = self.treated(v, name, "v", layout)
        visible = self.visible(layout)
        counted = self.counted(layout, visible)
        product = self.products(q, k, layout, layer)
        law = self.law(layout, layer)
        changes = self.score_changes(layer, counted)
        sink = self.weights[name + "sink"] if layout["sink"] == "learned" else np.zeros(heads)
        out = np.empty((len(n), heads, d), self.dtype)
        for h in range(heads):
            z = law.base * product(h, h // (heads // groups))
            if law.cap > 0:
                z = law.cap * np.tanh(z / law.cap)
            gain, bias = (np.asarray(table, self.dtype) for table in law.factors(h, counted, *changes))
            score = gain * z + bias
            if layout.get("score") == "forgetting":
                u = n @ self.weights[name + "terms.f.weight"][h] + self.weights[name + "terms.f.bias"][h]
                sums = np.cumsum(-np.logaddexp(0, -u.astype(np.float64)))
                score = score + (sums[:, None] - sums[None, :]).astype(self.dtype)
            if layout.get("normaliser", "softmax") == "stick_breaking":
                out[:, h] = broken_sticks(score, visible) @ v[:, h // (heads // groups)]
                continue
            score = np.where(visible, score, -np.inf)
            if layout.get("normaliser") == "entmax":
                if layout["sink"] != "none":
                    raise SystemExit("entmax with a sink is not written here")
                out[:, h] = entmax_of(score, self.entmax_alpha(name, layout, h)) @ v[:, h // (heads // groups)]
                continue
            top = score.max(-1, keepdims=True)
            if layout["sink"] != "none":
                top = np.maximum(top, sink[h])
            p = np.exp(score - top)
            total = p.sum(-1, keepdims=True)
            if layout["sink"] != "none":
                total = total + np.exp(sink[h] - top)
            out[:, h] = p / total @ v[:, h // (heads // groups)]
        o = self.gated(self.output_norm(out, name, layout), n, name, layout)
        return self.linear(o, name + "o")

    def entmax_alpha(self, name: str, layout: Config, head: int) -> float:
        if not layout["entmax_learned"]:
            return float(layout["entmax_alpha"])
        return 1 + max(0.01, 1 / (1 + math.exp(-float(self.weights[name + "entmax.alpha_logit"][head]))))

    def linear(self, x: Array, name: str) -> Array:
        """The product with a matrix, plus its bias if it has one."""
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0)

    def projected(self, n: Array, name: str, which: str, layout: Config, heads: int) -> Array:
        a = self.linear(n, name + which)
        conv = layout["conv"]
        if conv["size"] > 0 and conv[{"q": "queries", "k": "keys", "v": "values"}[which]]:
            w, i, plain = self.weights[name + which + "_conv.weight"], np.arange(len(a)), a
            a = np.zeros_like(plain)
            for m in range(conv["size"]):
                inside = i - m >= self.doc_start
                a[inside] += w[m] * plain[i[inside] - m]
        return a.reshape(len(n), heads, layout["head_dim"])

    def of_latents(self, n: Array, name: str, layout: Config) -> tuple[Array, Array, Array]:
        shape, own = (len(n), layout["heads"], -1), layout["head_dim"] - layout["latent"]["shared"]
        c = self.norm(self.linear(n, name + "kv_down"), name + "kv_down_norm")
        m, q = n, "q"
        if layout["latent"]["queries"] > 0:
            m, q = self.norm(self.linear(n, name + "q_down"), name + "q_down_norm"), "q_up"
        k = self.linear(c, name + "k_up").reshape(*shape[:2], own)
        if layout["latent"]["shared"] > 0:
            s = self.linear(n, name + "k_shared")
            k = np.concatenate([k, np.repeat(s[:, None, :], layout["heads"], 1)], -1)
        return self.linear(m, name + q).reshape(shape), k, self.linear(c, name + "v_up").reshape(shape)

    def mixed_values(self, v: Array, name: str, layer: int) -> Array:
        residual = self.model["residual"]
        if residual["values"] == "first":
            if layer == 0:
                self.first_values = v
            else:
                share = self.scalar(name + "value_mix")
                v = (1 - share) * v + share * self.first_values.reshape(v.shape)
        tables, last = residual["value_embeddings"], self.model["layers"] - residual["value_embeddings"]
        if layer < tables or layer >= last:
            table = self.weights[f"value_embeddings.{layer if layer < tables else layer - last}.weight"]
            own, share = (self.scalar(name + s) for s in ("own_value_mix", "value_embedding_mix"))
            v = own * v + share * table[self.tokens].reshape(v.shape)
        return v

    def treated(self, a: Array, name: str, which: str, layout: Config) -> Array:
        kind, eps, norm = layout["qk"]["kind"], layout["qk"]["eps"], name + which + "_norm"
        if kind == "qk_rms":
            return rms(a, eps)
        if kind == "qk_rms_full":
            return (self.weights[norm + ".gain"] * rms(a.reshape(len(a), -1), eps)).reshape(a.shape)
        if kind in ("qk_rms_w", "qkv_rms_w"):
            return self.weights[norm + ".gain"] * rms(a, eps)
        if kind in ("qk_ln", "qkv_ln"):
            return self.weights[norm + ".gain"] * rms(centred(a), eps) + self.weights[norm + ".bias"]
        if kind == "qk_rms_eps":
            return rms(a, np.exp(self.weights[norm + ".log_eps"])[:, None])
        if kind in ("qk_l2", "cosa") or (kind, which) in (("qna", "q"), ("kna", "k")):
            return unit(a)
        if (kind, which) == ("kna_w", "k"):
            return self.weights[norm + ".gain"] * unit(a)
        return a

    def visible(self, layout: Config) -> Array:
        i, j = np.arange(len(self.doc_start))[:, None], np.arange(len(self.doc_start))[None, :]
        seen = (j <= i) & (j >= self.doc_start[:, None])
        window, chunk = layout["window"], layout["chunk"]
        if window > 0:
            seen &= i - j < (min(window, self.stage_window) if self.stage_window > 0 else window)
        if chunk > 0:
            seen &= i // chunk == j // chunk
        return seen

    def counted(self, layout: Config, visible: Array) -> Array:
        i, count = np.arange(len(visible)), layout["score_count"]
        if count == "visible":
            return visible.sum(-1)
        if count == "sequence" or not self.mask:
            return i + 1
        return i - self.doc_start + 1

    def changed(self, layer: int, length: int) -> bool:
        """Whether eval.rope.layers takes in this layer at this length."""
        if length <= self.model["train_context"]:
            return False
        layout, chosen = self.layout(layer), self.rope.get("layers", "all")
        if chosen == "full":
            window = min(layout["window"], self.stage_window or layout["window"])
            return all(limit == 0 or limit >= length for limit in (window, layout["chunk"]))
        names = chosen.split(",") if isinstance(chosen, str) else chosen
        return chosen == "all" or (self.layout_name(layer) or "attention") in names

    def products(self, q: Array, k: Array, layout: Config, layer: int):
        """A function of query and key head: <q, k> [T, T], times what yarn multiplies scores by."""
        length, trained = len(q), self.model["train_context"]
        shared = shared_channels(layout)
        d = layout["head_dim"] if shared is None else shared
        i, rope = np.arange(length), self.rope
        angle = laws.Angle(layout, self.numbers(layer, d))
        changed = self.changed(layer, length) and angle.pairs > 0
        reached = length if changed else trained
        scaled = layout.get("angle_scaling", laws.UNSCALED)["kind"] != "none"
        stretched = angle.pairs > 0 and (scaled or (changed and rope["kind"] != "none"))
        theta = np.zeros(angle.half)
        if stretched:
            theta[: angle.pairs] = laws.turned(angle, rope, trained, reached)
        factor = laws.temperature(layout, rope, trained, reached) if angle.pairs > 0 else 1.0

        def rotated(a: Array, at: Array, sign: int) -> Array:
            if d == 0:
                return a
            phi = at[:, None] * theta if stretched else angle.of(angle.near, at)
            growth = sign * angle.of(angle.growth, at) * (np.arange(angle.half) < angle.pairs) if angle.growth else 0.0
            return np.concatenate([a[..., :-d], laws.rotate(a[..., -d:], phi, growth)], -1)

        near_q, near_k = rotated(q, i, 1), rotated(k, i, -1)
        if not changed or rope["kind"] not in ("rerope", "leaky_rerope"):
            return lambda h, g: factor * (near_q[:, h] @ near_k[:, g].T)
        w, offset, rate = laws.far_positions(rope, trained, length)
        far_q, far_k = rotated(q, offset + rate * i, 1), rotated(k, rate * i, -1)
        far = i[:, None] - i[None, :] >= w
        return lambda h, g: factor * np.where(far, far_q[:, h] @ far_k[:, g].T, near_q[:, h] @ near_k[:, g].T)

    def numbers(self, layer: int, d: int) -> Config:
        """Of the model, as formulas name them."""
        layers, trained = self.model["layers"], self.model["train_context"]
        return {"d": float(d), "l": float(layer), "layers": float(layers), "L": float(trained)}

    def law(self, layout: Config, layer: int) -> laws.Score:
        layout_name = self.layout_name(layer)
        where = {"model": "", "layout": f"layouts.{layout_name}." if layout_name else "attention."}

        def learned(by: str, name: str) -> Array:
            return self.weights[where.get(by, f"layers.{layer}.attention.") + "score." + name]

        numbers = self.numbers(layer, layout["head_dim"]) | {"H": float(layout["heads"])}
        return laws.Score(layout, numbers, learned)

    def score_changes(self, layer: int, n: Array) -> tuple[Array | float, Any]:
        """The factor of eval.rope.scale clip_logn, and eval.score."""
        if not self.changed(layer, len(n)):
            return 1.0, None
        clipped = self.rope["scale"] == "clip_logn"
        longer = np.maximum(1, np.log(n) / math.log(self.model["train_context"])) if clipped else 1.0
        return longer, self.score

    def output_norm(self, o: Array, name: str, layout: Config) -> Array:
        """o [T, heads, d] to [T, heads * d]"""
        kind, flat = layout["output_norm"]["kind"], (len(o), -1)
        if kind == "none":
            return o.reshape(flat)
        if kind == "all":
            o = o.reshape(flat)
        o = rms(o, self.model["norm"]["eps"])
        if layout["output_norm"]["gain"]:
            o = self.weights[name + "output_norm.gain"] * o
        return o.reshape(flat)

    def gated(self, o: Array, n: Array, name: str, layout: Config) -> Array:
        gate = layout["gate"]
        if gate["kind"] == "none":
            return o
        w = self.weights[name + "gate.weight"]
        g = (2 if gate["doubled"] else 1) * sigmoid(n[:, : w.shape[1]] @ w.T)
        return o * np.repeat(g, o.shape[1] // g.shape[1], axis=1)

    # --- the rest

    def mlp(self, n: Array, name: str) -> Array:
        kind, a = self.model["mlp"]["kind"], self.linear(n, name + "up")

        def gelu_tanh(x: Array) -> Array:
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

        if kind == "relu2":
            h = np.maximum(a, 0) ** 2
        elif kind == "gelu":
            h = a * (1 + np.vectorize(math.erf)(a / math.sqrt(2)).astype(self.dtype)) / 2
        elif kind == "gelu_tanh":
            h = gelu_tanh(a)
        else:
            gate = self.linear(n, name + "gate")
            h = (gelu_tanh(gate) if kind == "geglu_tanh" else gate * sigmoid(gate)) * a
        return self.linear(h, name + "down")

    def loss(self, y: Array, targets: Array) -> Array:
        head = self.model["head"]
        cap = head["softcap"]
        if cap["kind"] == "tanh":
            y = cap["cap"] * np.tanh(y / cap["cap"])
        elif cap["kind"] == "sigmoid":
            y = cap["cap"] * sigmoid((y + cap["shift"]) / cap["temperature"])
        top = y.max(-1, keepdims=True)
        s = (top + np.log(np.exp(y - top).sum(-1, keepdims=True)))[:, 0]
        return s - y[np.arange(len(y)), targets] + head["z_loss"] * s * s
