"""Compares models in Hugging Face's layout with the Python package `transformers`, logit by logit, in f32.

    peers.py LOGITS_FILE [--only NAME] [--keep DIRECTORY]

LOGITS_FILE is the program that tests/exchange/logits_file.cpp makes. Models are made here with random weights, small, and
of every form that `longreach import` reads. Exit code 77, a skipped test, without the packages.

The bound. With u = 2^-24, one rounding, a logit Y passes through L layers, in each of which about ten roundings meet that
do not cancel: an error near 10 L u Y, 5e-6 Y for 4 layers and both programs. Angles add to it: transformers rounds them in
f32, which moves the score z of position T by up to T u z, 3e-6 z at T = 48. Together at most 1e-5 max(1, Y), which is the
bound; what f32 does to transformers itself, compared with f64, is printed with every difference.
"""
import argparse, json, os, subprocess, sys, tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import numpy as np
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LENGTH = 48
SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)


def scaled(kind, **numbers):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


LLAMA3 = scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = scaled("yarn", factor=4.0, original_max_position_embeddings=64)
FULL, SLIDING = "full_attention", "sliding_attention"
# name: configuration class, its arguments
MODELS = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True, "head_dim": 16}),  # SmolLM
    "llama-llama3": ("LlamaConfig", LLAMA3),
    "llama-linear": ("LlamaConfig", scaled("linear", factor=4.0)),
    "llama-yarn": ("LlamaConfig", YARN),
    "mistral": ("MistralConfig", {"sliding_window": 16}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3-yarn": ("Qwen3Config", {"head_dim": 8, **YARN}),
    "qwen3-windows": ("Qwen3Config", {"head_dim": 8, "use_sliding_window": True, "sliding_window": 8,
                                      "max_window_layers": 2}),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-biases": ("Qwen3Config", {"head_dim": 8, "attention_bias": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2,
                                      "tie_word_embeddings": True}),
    "olmo2": ("Olmo2Config", {"rms_norm_eps": 1e-5}),
    "olmo2-llama3": ("Olmo2Config", LLAMA3),
    "gemma": ("GemmaConfig", {"head_dim": 16}),
    "gemma-untied": ("GemmaConfig", {"head_dim": 8, "tie_word_embeddings": False}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 12,
                                "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 12,
                                    "layer_types": [SLIDING, SLIDING, FULL, SLIDING]}),
    "gemma3-linear": ("Gemma3TextConfig", {
        "head_dim": 8, "sliding_window": 8, "layer_types": [SLIDING, FULL, SLIDING, FULL], "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            SLIDING: {"rope_type": "default", "rope_theta": 5000.0}}}),
    "gpt2": ("GPT2Config", dict(n_embd=32, n_layer=4, n_head=4, n_positions=64)),
    "gpt2-wide": ("GPT2Config", dict(n_embd=32, n_layer=2, n_head=2, n_positions=64, n_inner=40,
                                     tie_word_embeddings=False)),
    "qwen3-layers": ("Qwen3Config", {"head_dim": 8, "use_sliding_window": True, "sliding_window": 5,
                                     "layer_types": [SLIDING, FULL, SLIDING, FULL]}),
}

EXPORTED = {"llama", "llama-tied", "llama-biases", "llama-llama3", "llama-linear", "llama-yarn", "qwen3-biases", "qwen3",
            "qwen3-windows", "qwen3-layers", "qwen3-yarn"}


def own(attention, **others):
    """The section "model" of a config."""
    return {"layers": 4, "width": 32, "vocab_size": 97, "embedding_norm": False, "norm": {"gain": True},
            "mlp": {"kind": "swiglu", "hidden": 48}, "attention": {"heads": 4, "head_dim": 8, **attention}, **others}


def rough(attention, **others):
    """With the defaults of longreach: embedding norm, relu2, norms without gains."""
    return {"layers": 4, "width": 32, "vocab_size": 97, "attention": {"heads": 4, "head_dim": 8, **attention}, **others}


LAYOUTS = {"layouts": {"local": {"window": 8}, "global": {}}, "pattern": ["local", "local", "global"]}
OWN = {
    "own-llama": own({"kv_heads": 2, "qk": {"kind": "none"}}),
    "own-llama-plain": own({"qk": {"kind": "none"}, "params": {"base": {"init": 500000}}}, norm={"gain": False, "eps": 1e-5}),
    "own-llama-ntk": own({"qk": {"kind": "none"}, "angle_scaling": {"kind": "ntk", "factor": 4}}),
    "own-qwen3-yarn": own({"qk": {"kind": "qk_rms", "eps": 1e-6}, "params": {"base": {"init": 500}}, "angle_scaling": {
        "kind": "yarn", "factor": 4, "fast": 4, "truncate": False, "attention_factor": 1.3}}),
    "own-qwen3": own({"qk": {"kind": "qk_rms_w", "eps": 1e-6}}, head={"tied": True}),
    "own-qwen3-windows": own({"qk": {"kind": "qk_rms", "eps": 1e-6}}, **LAYOUTS),
    # Of modeling_longreach.py.
    "code-plain": rough({}),
    "code-invariant": rough({"kv_heads": 2, "angle": "p_rope", "score": "scale_invariant"}),
    "code-logn": rough({"score": ["5*tanh(z/5)", "logn"]}, head={"softcap": {"kind": "sigmoid"}, "tied": True}),
    "code-kerple": rough({"score": "kerple_log", "angle": "nope", "sink": "learned"}),
    "code-alibi": rough({"heads": 6, "score": "alibi", "angle": "nope", "chunk": 9}),
    "code-formula": rough({"score": ["z * r*log(n + 1)", "z*(1 + t/9)^(-q) - where(h < 2, 0.1, 0.2)*t"],
                           "params": {"r": {"init": 0.5, "learn": "layer"}, "q": {"init": 0.4, "learn": "head"}}}),
    "code-lookup": rough({"score": "z + lookup(w, log2(1 + t))",
                          "params": {"w": {"init": 0, "learn": "head", "size": 4}}}),
    "code-angle": rough({"angle": "p^0.8 * 100^(-2*m/d) * (m < 3)", "window": 7,
                         "score": "sqrt2lognp1", "score_count": "visible"}),
    "code-scaled": rough({"angle": "p_rope", "params": {"base": {"init": 300}},
                          "angle_scaling": {"kind": "yarn", "factor": 4}}),
    "code-outputs": rough({"output_norm": {"kind": "head", "gain": True}, "gate": {"kind": "elementwise"},
                           "sink": "zero", "qk": {"kind": "qk_ln"}}),
    "code-exclusive": rough({"output_norm": {"kind": "exclusive"}, "kv_heads": 2, "qk": {"kind": "qkv_rms_w"}}),
    "code-position": rough({"output_norm": {"kind": "position", "factor": "(1 + p/9)^0.3"},
                            "gate": {"kind": "sparse"}, "qk": {"kind": "qk_rms_eps", "eps_per_head": True}}),
    "code-peri": rough({"qk": {"kind": "qkv_rms_w"}, "gate": {"kind": "headwise", "doubled": False}},
                       norm={"placement": "peri", "kind": "layer", "gain": True}, init={"zero_projections": False}),
    "code-hybrid": rough({"qk": {"kind": "qkv_ln"}}, norm={"placement": "hybrid"}, mlp={"kind": "gelu"}),
    "code-after": rough({"qk": {"kind": "qk_rms_full"}, "bias": "all"}, positions=64, norm={"placement": "after"},
                         mlp={"kind": "geglu_tanh", "bias": True}, init={"zero_projections": False}),
    "code-residual": rough({"qk": {"kind": "qk_l2"}}, residual={"x0": True, "unet": True, "values": "first",
                                                              "value_embeddings": 1, "backout": 2}),
    "code-cosines": rough({"qk": {"kind": "cosa"}, "score": "gammalogn"}),
    "code-keys": rough({"qk": {"kind": "kna_w"}}, head={"softcap": {"kind": "tanh", "cap": 4}}, **LAYOUTS),
}


@torch.no_grad()
def make_model(configuration, arguments):
    """A model whose every tensor is random: gains near their start, biases and all else far enough from 0 to count."""
    torch.manual_seed(5)
    shape = {"vocab_size": 97} if configuration == "GPT2Config" else SMALL
    config = getattr(transformers, configuration)(**{**shape, **arguments})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, p in model.named_parameters():
        if p.dim() > 1:
            p.normal_(std=1.0 / p.shape[-1] ** 0.5)
        else:
            p.add_(0.3 * torch.randn_like(p))
    return model.float().eval()


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.from_numpy(ids)[None].long()).logits[0].double().numpy()


class Work:
    """The program under test, and the directory of its files."""

    def __init__(self, program, directory):
        self.program, self.directory = program, directory

    def path(self, name):
        return os.path.join(self.directory, name)

    def call(self, *arguments):
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    def logits(self, run, ids):
        """[2, T, V]: of passes over whole texts, and of decoding."""
        ids.tofile(self.path("ids"))
        self.call(run, self.path("ids"), self.path("out"))
        return np.fromfile(self.path("out"), dtype=np.float32).reshape(2, LENGTH, -1).astype(np.float64)


@torch.no_grad()
def decoded_there(model, ids):
    """Logits of a prompt of 20 tokens, then of one token at a time with the cache."""
    # `cache` from transformers 5.24 on.
    key = "cache" if "cache" in transformers.modeling_outputs.CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
    cache, rows = None, []
    for part in [ids[:20], *ids[20:, None]]:
        result = model(torch.from_numpy(part)[None].long(), **{key: cache}, use_cache=True)
        cache = result[key]
        rows.append(result.logits[0].double().numpy())
    return np.concatenate(rows)


def generates_the_same(model, ids):
    """Whether generate() continues a text with the cache as it does without: who calls the model then is transformers."""
    prompt = torch.from_numpy(ids[:20])[None].long()
    texts = [model.generate(prompt, max_new_tokens=24, do_sample=False, use_cache=cached) for cached in (True, False)]
    return torch.equal(*texts)


def ids_for(vocab):
    return np.random.default_rng(3).integers(0, vocab, LENGTH).astype(np.int32)


def judge(name, ours, model, ids):
    theirs = logits_of(model, ids)
    exact = logits_of(model.double(), ids)
    largest = np.abs(theirs).max()
    bound = 1e-5 * max(1.0, largest)
    whole, decoded = (np.abs(ours[i] - theirs).max() for i in range(2))
    own = np.abs(theirs - exact).max()
    good = max(whole, decoded) <= bound
    print(f"{name:24} {whole:9.2e} {decoded:9.2e} {own:9.2e} {largest:8.2f} {bound:9.2e}  {'ok' if good else 'WRONG'}")
    return good


def compare_import(name, work):
    """A model made there; imported; if it is one of the classes that export writes, exported and loaded there again."""
    configuration, arguments = MODELS[name]
    model = make_model(configuration, arguments)
    there, run, back = work.path(name), work.path(name + "-run"), work.path(name + "-back")
    model.save_pretrained(there, max_shard_size="20KB" if name == "qwen3" else "1GB")
    ids = ids_for(model.config.vocab_size)
    for line in work.call("--import", there, run).splitlines()[1:]:
        print("   ", line)
    ours = work.logits(run, ids)
    good = judge(name, ours, model, ids)
    if name in EXPORTED:
        work.call("--export", run, back)
        again = transformers.AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager").float().eval()
        if type(again) is not type(model):
            print(f"{name}: came back as {type(again).__name__}")
            return False
        good = judge(name + ", exported", ours, again, ids) and good
    return good


def compare_export(name, work):
    """A model made here, exported, loaded there."""
    run, there = work.path(name + "-run"), work.path(name)
    with open(work.path("model.json"), "w") as file:
        json.dump(OWN[name], file)
    work.call("--make", work.path("model.json"), run)
    print("   ", work.call("--export", run, there).splitlines()[0].split(": ")[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        there, attn_implementation="eager", trust_remote_code=True).float().eval()
    ids = ids_for(OWN[name]["vocab_size"])
    ours = work.logits(run, ids)
    stepped = decoded_there(model, ids)
    largest = max(1.0, np.abs(stepped).max())
    good = np.abs(ours[1] - stepped).max() <= 1e-5 * largest
    if not good:
        print(f"{name}: decoding there differs by {np.abs(ours[1] - stepped).max():.2e}")
    if not generates_the_same(model, ids):
        print(f"{name}: generate() with the cache gives another text than without")
        good = False
    return judge(name, ours, model, ids) and good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print("largest difference of a logit: whole texts, decoding; f32 against f64 there; largest logit; bound")
    with tempfile.TemporaryDirectory() as made:
        work = Work(options.program, options.keep or made)
        good = []
        for name in [*MODELS, *OWN]:
            if options.only not in name:
                continue
            try:
                good.append((compare_import if name in MODELS else compare_export)(name, work))
            except RuntimeError as error:
                print(f"{name}: {error}")
                good.append(False)
    sys.exit(0 if all(good) and good else 1)


main()
