#!/usr/bin/env python3
"""How fast `longreach data tokenize` is, compared with the packages `tokenizers` and `tiktoken`, on the same text and vocabulary.

    tokenizer_speed.py [--program build/longreach] [--text DIRECTORY] [--megabytes 8] [--rounds 5] [--threads 1,2]

Learns 8192 tokens from the text, encodes every document with all three and requires equal ids. Then they take turns: each
round runs every program once, and the ratios are of times in one round: CPU seconds with one thread, so that other programs
on the machine matter little, and the clock with more. Of longreach the time is that of the whole command: it starts, reads
the text as JSON lines, encodes and writes the shards; of "encoding", it is what that takes more than the same command
with bytes as tokens. Of the packages it is the encoding alone, after a warm-up: encode_batch_fast of `tokenizers` with that
many threads, encode_ordinary of `tiktoken` with one.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

# The words of `longreach data train-tokenizer`, as tiktoken wants them.
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def documents(directory, size):
    texts, total = [], 0
    for path in sorted(Path(directory).rglob("*")):
        if path.suffix in (".py", ".txt", ".md", ".rst", ".c", ".h") and path.is_file() and total < size:
            text = path.read_bytes().decode("utf-8", "ignore")
            texts += [text] if text else []  # an empty file is no document
            total += len(text.encode())
    return texts


def byte_of_letter():
    """The letters that stand for bytes in tokenizer.json."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(others)}}


def tiktoken_encoding(path):
    import tiktoken

    file, letters = json.loads(Path(path).read_text()), byte_of_letter()
    added = {token["id"] for token in file["added_tokens"]}
    ranks = {bytes(letters[c] for c in text): rank for text, rank in file["model"]["vocab"].items() if rank not in added}
    ranks = {token: rank - len(added) for token, rank in ranks.items()}
    return tiktoken.Encoding("same", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})


def peer(kind, tokenizer, texts):
    """A function that encodes all texts."""
    if kind == "tiktoken":
        encoding = tiktoken_encoding(tokenizer)
        return lambda: [encoding.encode_ordinary(text) for text in texts]
    import tokenizers

    loaded = tokenizers.Tokenizer.from_file(tokenizer)
    return lambda: [e.ids for e in loaded.encode_batch_fast(texts, add_special_tokens=False)]


def work(kind, tokenizer, source):
    """In a process of its own, which alone obeys RAYON_NUM_THREADS: one timing for each line of standard input."""
    texts = [json.loads(line)["text"] for line in open(source, encoding="utf-8")]
    encode = peer(kind, tokenizer, texts)
    encode()
    print("ready", flush=True)
    clock = time.process_time if os.environ["RAYON_NUM_THREADS"] == "1" else time.perf_counter
    for _ in sys.stdin:
        begin = clock()
        encode()
        print(clock() - begin, flush=True)


class Worker:
    def __init__(self, kind, tokenizer, source, threads):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        self.process = subprocess.Popen([sys.executable, __file__, "--work", kind, tokenizer, source], env=environment,
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == "ready\n"

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(program, tokenizer, source, out, threads):
    clock = children_seconds if threads == 1 else time.perf_counter
    begin = clock()
    how = ["--tokenizer", tokenizer, "--threads", str(threads)] if tokenizer else []
    subprocess.run([program, "data", "tokenize", source, "--jsonl", *how, "--out", out, "--replace"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return clock() - begin


def ids_of_shards(out):
    """The tokens of the shards; data/formats/shards.md has their layout."""
    ids = []
    for path in sorted(Path(out).glob("train_*.bin")):
        raw = path.read_bytes()
        width, count = int.from_bytes(raw[16:20], "little"), int.from_bytes(raw[24:32], "little")
        ids += memoryview(raw[128:128 + count * width]).cast("H" if width == 2 else "i").tolist()
    return ids


def check_equal(tokenizer, texts, shards):
    for kind in ("tokenizers", "tiktoken"):
        shift = 1 if kind == "tiktoken" else 0  # token 0 is the boundary, which tiktoken's ranks leave out
        expected = [i for ids in peer(kind, tokenizer, texts)() for i in [0, *(i + shift for i in ids)]]
        if expected != shards:
            sys.exit(f"{kind} has other ids")


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def compare(options, directory):
    texts = documents(options.text, options.megabytes * 1000000)
    size = sum(len(text.encode()) for text in texts) / 1e6
    source, tokenizer, out = (os.path.join(directory, name) for name in ("text.jsonl", "tokenizer.json", "shards"))
    with open(source, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    subprocess.run([options.program, "data", "train-tokenizer", source, "--jsonl", "--vocab", "8192", "--out", tokenizer],
                   check=True, stdout=subprocess.DEVNULL)
    ours(options.program, tokenizer, source, out, 1)
    check_equal(tokenizer, texts, ids_of_shards(out))
    print(f"{len(texts)} documents of {options.text}, {size:.1f} MB; equal ids; {options.rounds} rounds")
    print("                    MB/s of         ratio in a round: median (least to largest)\n"
          "threads  peer        peer  longreach  whole command           encoding")
    for threads in options.threads:
        for kind in ("tokenizers", "tiktoken") if threads == 1 else ("tokenizers",):
            worker = Worker(kind, tokenizer, source, threads)
            rounds = [(worker.seconds(), ours(options.program, tokenizer, source, out, threads),
                       ours(options.program, "", source, out, threads)) for _ in range(options.rounds)]
            worker.close()
            theirs, mine, _ = (statistics.median(column) for column in zip(*rounds))
            whole, alone = spread([a / b for a, b, _ in rounds]), spread([a / (b - c) for a, b, c in rounds])
            print(f"{threads:7}  {kind:10}  {size / theirs:5.1f}  {size / mine:9.1f}  {whole:22}  {alone}", flush=True)


def main():
    if sys.argv[1:2] == ["--work"]:
        return work(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/longreach")
    parser.add_argument("--text", default=sysconfig.get_path("stdlib"), help="directory of text (default: Python's library)")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        compare(options, directory)


if __name__ == "__main__":
    main()
