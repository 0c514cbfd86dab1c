"""Compares models in Hugging Face's layout with the Python package `transformers`, logit by logit, in f32.

    peers.py LOGITS_FILE [--only NAME] [--keep DIRECTORY]

LOGITS_FILE is the program that tests/exchange/logits_file.cpp makes. Models are made here with random weights, small, and
of every form that `longreach import` reads. Exit code 77, a skipped test, without the packages.

The bound. With u = 2^-24, one rounding, a logit Y passes through L layers, in each of which about ten roundings meet that
do not cancel: an error near 10 L u Y, 5e-6 Y for 4 layers and both programs. Angles add to it: transformers rounds them in
f32, which moves the score z of position T by up to T u z, 3e-6 z at T = 48. Together at most 1e-5 max(1, Y), which is the
bound; what f32 does to transformers itself, compared with f64, is printed beside every difference.
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
    "qwen3-layers": ("Qwen3Config", {"head_dim": 8, "use_sliding_window": True, "sliding_window": 5,
                                     "layer_types": [SLIDING, FULL, SLIDING, FULL]}),
}

EXPORTED = {"llama", "llama-tied", "qwen3", "qwen3-windows", "qwen3-layers"}


def own(attention, **others):
    """The section "model" of a config."""
    return {"layers": 4, "width": 32, "vocab_size": 97, "embedding_norm": False, "norm": {"gain": True},
            "mlp": {"kind": "swiglu", "hidden": 48}, "attention": {"heads": 4, "head_dim": 8, **attention}, **others}


LAYOUTS = {"layouts": {"local": {"window": 8}, "global": {}}, "pattern": ["local", "local", "global"]}
OWN = {
    "own-llama": own({"kv_heads": 2, "qk": {"kind": "none"}}),
    "own-llama-plain": own({"qk": {"kind": "none"}, "position": {"base": 500000}}, norm={"gain": False, "eps": 1e-5}),
    "own-qwen3": own({"qk": {"kind": "qk_rms_w", "eps": 1e-6}}, head={"tied": True}),
    "own-qwen3-windows": own({"qk": {"kind": "qk_rms", "eps": 1e-6}}, **LAYOUTS),
}


@torch.no_grad()
def make_model(configuration, arguments):
    """A model whose every tensor is random: gains near their start, biases and all else far enough from 0 to count."""
    torch.manual_seed(5)
    config = getattr(transformers, configuration)(**{**SMALL, **arguments})
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
    return judge(name, work.logits(run, ids), model, ids)


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
