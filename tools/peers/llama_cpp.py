#!/usr/bin/env python3
"""How fast longreach continues and reads texts, compared with llama.cpp, on the same model.

    tools/peers/llama_cpp.py RUN ... --llama DIRECTORY [--program build/longreach] [--precisions fp32,bf16]
                             [--depths 128,2048] [--prompts 512] [--tokens 64] [--threads 1,2] [--rounds 7]

Each RUN is a model of the form Llama. It is exported, and written as a GGUF file without a tokenizer, with weights in f32 (fp32)
or bf16. llama-bench keeps keys and values in f16, and has no choice of f32; longreach keeps them in the precision of the model.
DIRECTORY has llama-bench, as `cmake --build` of llama.cpp makes it; PyPI has its source in llama-cpp-python. Needs the package
gguf.

The programs take turns, for `--rounds` rounds. llama-bench continues a text of `--depths` tokens by `--tokens` tokens, and reads
a text of `--prompts` tokens; it chooses no token. A longreach server with the same number of threads does the same. Its time
for `--tokens` tokens is that of an answer with one token more, less that of an answer with one token, to a prompt that it has
read before; its time for a prompt is that of an answer with one token to a new prompt. A ratio is longreach's rate over
llama.cpp's in the same round: the median of the rounds, with an interval of 95% for it.
"""
from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from compare import interval_of_median

WEIGHTS = {"fp32": "f32", "bf16": "bf16"}


def interleaved(matrix, heads):
    """Rows of a head in GGUF's order, where the two channels of a rotation are neighbours."""
    return matrix.reshape(heads, 2, -1, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def write_gguf(export: Path, path: Path, dtype: str) -> dict:
    """The model of `longreach export --hf` as a GGUF file. Returns its config."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((export / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"]:
        sys.exit(f"{export} has the form {config['architectures'][0]}, not Llama's")
    tensors = {}
    for file in sorted(export.glob("*.safetensors")):
        tensors.update(load_file(file))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out = gguf.GGUFWriter(path, "llama")
    out.add_tokenizer_model("none")
    out.add_vocab_size(config["vocab_size"])
    out.add_context_length(1 << 20)
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    for name, tensor in tensors.items():
        tensor = tensor.astype("float32")
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if f".{part}." in name:
                tensor = interleaved(tensor, count)
        if tensor.ndim > 1:
            tensor = gguf.quants.quantize(tensor, kind)
        out.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor,
                       raw_dtype=kind if tensor.dtype != "float32" else None)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return config


class Llama:
    def __init__(self, bench: Path, model: Path, threads: int):
        self.command = [str(bench), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]

    def rate(self, *what: int | str) -> float:
        result = subprocess.run([*self.command, *map(str, what)], capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(result.stderr)
        return json.loads(result.stdout)[0]["avg_ts"]

    def continues(self, depth: int, tokens: int) -> float:
        return self.rate("-p", 0, "-n", tokens, "-d", depth)

    def reads(self, prompt: int) -> float:
        return self.rate("-n", 0, "-p", prompt)


class Server:
    """`longreach serve` of a run, for one request at a time."""

    def __init__(self, program: str, run: str, precision: str, threads: int, context: int, vocabulary: int):
        self.vocabulary, self.texts = vocabulary, random.Random(1)
        self.process = subprocess.Popen(
            [program, "serve", run, "--port", "0", "--context", str(context), "--set", f"system.precision={precision}",
             f"system.threads={threads}", "model.train_context=65536", "system.device=cpu"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if found := re.search(r"http://\S+:(\d+)", line):
                self.url = f"http://127.0.0.1:{found[1]}/v1/completions"
                return
        sys.exit("".join(lines))

    def prompt(self, tokens: int) -> list[int]:
        return [self.texts.randrange(32, min(127, self.vocabulary)) for _ in range(tokens)]

    def seconds(self, prompt: list[int], tokens: int) -> float:
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        begin = time.perf_counter()
        answer = json.load(urllib.request.urlopen(request))
        end = time.perf_counter()
        assert answer["usage"]["completion_tokens"] == tokens, "the model ended its text: try other prompts"
        return end - begin

    def continues(self, prompt: list[int], tokens: int) -> float:
        first = self.seconds(prompt, 1)
        return tokens / (self.seconds(prompt, 1 + tokens) - first)

    def reads(self, prompt: int) -> float:
        return prompt / self.seconds(self.prompt(prompt), 1)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def row(cells: list[str], rounds: list[tuple[float, float]]) -> str:
    theirs, ours = (statistics.median(column) for column in zip(*rounds))
    ratios = sorted(b / a for a, b in rounds)
    low, high = interval_of_median(ratios)
    return f"| {' | '.join(cells)} | {ours:.1f} | {theirs:.1f} | {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) |"


def measure(options, run: str, precision: str, directory: Path) -> None:
    export, model = directory / "export", directory / "model.gguf"
    subprocess.run([options.program, "export", run, "--hf", str(export), "--replace"], check=True, stdout=subprocess.DEVNULL)
    config = write_gguf(export, model, WEIGHTS[precision])
    name = f"{Path(run).name} | {precision}"
    for threads in options.threads:
        llama = Llama(options.llama / "llama-bench", model, threads)
        context = max(*options.depths, *options.prompts) + options.tokens + 2
        server = Server(options.program, run, precision, threads, context, config["vocab_size"])
        try:
            for depth in options.depths:
                prompt = server.prompt(depth)
                server.seconds(prompt, 1)
                rounds = [(llama.continues(depth, options.tokens), server.continues(prompt, options.tokens))
                          for _ in range(options.rounds)]
                print(row([name, f"{threads}", f"{options.tokens} after {depth}"], rounds), flush=True)
            for count in options.prompts:
                server.reads(count)
                rounds = [(llama.reads(count), server.reads(count)) for _ in range(options.rounds)]
                print(row([name, f"{threads}", f"a prompt of {count}"], rounds), flush=True)
        finally:
            server.close()


def main() -> None:
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--llama", type=Path, required=True, help="directory with llama-bench")
    parser.add_argument("--program", default="build/longreach")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["fp32", "bf16"])
    parser.add_argument("--depths", type=numbers, default=[128, 2048])
    parser.add_argument("--prompts", type=numbers, default=[512])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print("| model | precision | threads | tokens | longreach, tokens/s | llama.cpp | ratio |\n|---|---|---:|---|---:|---:|---:|")
    for run in options.runs:
        for precision in options.precisions:
            with tempfile.TemporaryDirectory() as directory:
                measure(options, run, precision, Path(directory))


if __name__ == "__main__":
    main()
