"""Compares our tokenizers with the Python packages `tokenizers` and `tiktoken`, id by id.

    peers.py ENCODE_FILE [--megabytes M] [--vocabulary [PATTERN=]FILE ...]

ENCODE_FILE is the program that tests/tokenizer/encode_file.cpp makes. Vocabularies are trained here, on text generated
here: mixed scripts, code, emoji, spaces of all kinds, long words. With --vocabulary, these files are compared instead: a
tokenizer.json, or PATTERN (gpt2, cl100k, o200k) and a rank file of tiktoken. Exit code 77, a skipped test, without the
packages.
"""
import argparse, base64, json, os, random, subprocess, sys, tempfile, time, unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tiktoken, tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])
PATTERNS = {"gpt2": GPT2, "cl100k": CL100K, "o200k": O200K}
# Characters that the versions of Unicode behind the libraries agree on: assigned in Python's.
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A),
          (0x905, 0x939), (0xE01, 0xE30), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2150, 0x218B), (0x3041, 0x30FF),
          (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xFB00, 0xFB06), (0x1D400, 0x1D4FF), (0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF)]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "   ", " \n ", "\x0b", "\x1c", "\u180e", "\u200b"]


def words_of(rng):
    """A lexicon: words repeat, as they do in real text."""
    words = []
    for low, high in RANGES:
        letters = [chr(c) for c in range(low, high + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
        words += ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(60)]
    words += ["don't", "I'LL", "we'Ve", "it's", "they'Re", "'\u017f", "<|endoftext|>", "<|", "for (int i = 0; i < n; ++i) {",
              "std::vector<int>", "def f(x):\n    return x + 1", "1234567", "3.14159", "a" * 300, "e\u0301", "\ufb01",
              "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2581", "<0x41>", "==========", "\u212b", "\u1e9b\u0323"]
    words += ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 8))) for _ in range(3000)]
    return words


def text_of(rng, words, length):
    parts, size = [], 0
    while size < length:
        part = rng.choice(words) + (" " if rng.random() < 0.8 else rng.choice(SPACES))
        if rng.random() < 0.02:
            part = "".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randint(1, 30)))
            part = "".join(c for c in part if unicodedata.category(c) != "Cn")
        parts.append(part)
        size += len(part.encode())
    return "".join(parts)


class Peers:
    def __init__(self, program, directory):
        self.program, self.directory, self.failures = program, directory, 0

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as f:
            f.write(content)
        return self.path(name)

    def ours(self, arguments, texts):
        pairs = []
        for i, text in enumerate(texts):
            pairs += [self.write(f"text{i}", text), self.path(f"ids{i}")]
        result = subprocess.run([self.program, *arguments, "--", *pairs], capture_output=True, text=True)
        if result.returncode != 0:
            print(f"FAILED {arguments}: {result.stderr.strip()}")
            self.failures += 1
            return None, 0
        ids = []
        for i in range(len(texts)):
            with open(self.path(f"ids{i}"), "rb") as f:
                ids.append(list(memoryview(f.read()).cast("i")))
        return ids, sum(float(line.split()[2]) for line in result.stdout.splitlines())

    def compare(self, name, arguments, texts, theirs, broken=None):
        """`theirs` encodes a str; broken text is checked where it gives what malformed bytes become."""
        begin = time.perf_counter()
        expected = [theirs(text) for text in texts]
        their_seconds = time.perf_counter() - begin
        inputs = [text.encode() for text in texts]
        if broken:
            for before, bad, after in broken["cases"]:
                inputs.append(before.encode() + bad + after.encode())
                expected.append(theirs(before) + broken["bytes"](bad) + theirs(after))
        got, our_seconds = self.ours(arguments, inputs)
        if got is None:
            return
        for i, (a, b) in enumerate(zip(got, expected)):
            if a != b:
                at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                print(f"FAILED {name}: text {i} at token {at}: {a[at:at + 8]} for {b[at:at + 8]} in {inputs[i][:80]!r}")
                self.failures += 1
                return
        size = sum(map(len, inputs)) / 1e6
        print(f"{name}: {len(texts)} texts, {size:.1f} MB, {sum(map(len, expected))} tokens equal; "
              f"{size / their_seconds:.1f} MB/s theirs, {size / max(our_seconds, 1e-9):.1f} MB/s ours")


def train(texts, normalizer, pre_tokenizer, vocab, special=("<|endoftext|>",), alphabet=True, **model):
    tokenizer = tokenizers.Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    initial = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(special), initial_alphabet=initial,
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_level_forms(texts):
    split = lambda regex: pre_tokenizers.Split(Regex(regex), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    sequence = pre_tokenizers.Sequence
    yield "gpt2", train(texts, None, pre_tokenizers.ByteLevel(add_prefix_space=False), 3000), {}
    yield "gpt2 with a space before", train(texts, None, pre_tokenizers.ByteLevel(add_prefix_space=True), 2000), {}
    yield "llama3", train(texts, None, sequence([split(LLAMA3), plain]), 3000), {"ignore_merges": True}
    yield "qwen", train(texts, normalizers.NFC(), sequence([split(QWEN), plain]), 3000), {}
    digits = sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    yield "smollm", train(texts, None, digits, 3000), {}
    removed = sequence([pre_tokenizers.Split(Regex(O200K), "removed", invert=True), plain])
    yield "o200k", train(texts, None, removed, 3000), {}
    for behaviour in ("merged_with_previous", "merged_with_next", "contiguous", "removed"):
        for invert in (False, True):
            steps = sequence([pre_tokenizers.Split(Regex(r"[aeiou]|\s"), behaviour, invert), plain])
            yield f"{behaviour}, invert {invert}", train(texts[:8], None, steps, 600), {}


def character_forms(texts):
    metaspace = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    short = [piece for text in texts[:20] for piece in text.split("\n")]
    options = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    special = ["<unk>", "<s>", "</s>"]
    for name, normalizer, pre in [
            ("llama2", metaspace, None),
            ("mistral", None, pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False)),
            ("metaspace, split", None, pre_tokenizers.Metaspace("\u2581", prepend_scheme="always", split=True))]:
        learn = pre_tokenizers.Metaspace("\u2581", prepend_scheme="always", split=True)
        trained = train(short, None, learn, 1500, special + bytes_, alphabet=False, unk_token="<unk>")
        value = json.loads(trained.to_str())
        # Rare characters leave the vocabulary, so that bytes stand for them.
        value["added_tokens"] = value["added_tokens"][:3]
        value["model"].update(options)
        loaded = tokenizers.Tokenizer.from_str(json.dumps(value))
        if normalizer:
            loaded.normalizer = normalizer
        value = json.loads(loaded.to_str())
        if pre:
            loaded.pre_tokenizer = pre
            value = json.loads(loaded.to_str())
        else:
            value["pre_tokenizer"] = None
        kept = {t: i for t, i in value["model"]["vocab"].items() if len(t) != 1 or ord(t) < 0x250 or t == "\u2581"}
        value["model"]["vocab"] = kept
        value["model"]["merges"] = [m for m in value["model"]["merges"]
                                    if all(t in kept for t in (m[0], m[1], m[0] + m[1]))]
        yield name, tokenizers.Tokenizer.from_str(json.dumps(value)), value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--megabytes", type=float, default=0.3)
    parser.add_argument("--vocabulary", nargs="*", default=[], metavar="[PATTERN=]FILE")
    options = parser.parse_args()
    rng = random.Random(1)
    words = words_of(rng)
    texts = [text_of(rng, words, rng.choice([1, 10, 100, 20000])) for _ in range(int(options.megabytes * 200))]
    texts += ["", " ", "a", "\n", "   ", "a   b    ", "a\r\n\r\nb", "I'LL don't we'Ve", "x" * 3000]
    bad = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80\x80\xfe", b"\xed\xa0\x80"]
    cases = [(rng.choice(texts[-9:]), b, rng.choice(texts[-9:])) for b in bad for _ in range(4)]
    with tempfile.TemporaryDirectory() as directory:
        peers = Peers(options.program, directory)
        if options.vocabulary:
            for named in options.vocabulary:
                check_file(peers, named, texts, cases)
            sys.exit(1 if peers.failures else 0)
        for name, trained, model in byte_level_forms(texts):
            value = json.loads(trained.to_str())
            value["model"].update(model)
            for notation in ("pairs", "strings"):
                merges = value["model"]["merges"]
                if notation == "strings":
                    value["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in merges]
                content = json.dumps(value)
                file = peers.write("tokenizer.json", content.encode())
                theirs = tokenizers.Tokenizer.from_str(content)
                theirs.encode_special_tokens = True
                encode = lambda text: theirs.encode(text, add_special_tokens=False).ids
                broken = None
                if "space" not in name and "invert" not in name:
                    def raw(piece, theirs=theirs):
                        letters = "".join(LETTERS[b] for b in piece)
                        return [t.id for t in theirs.model.tokenize(letters)]
                    broken = {"cases": cases, "bytes": raw}
                peers.compare(f"{name}, {notation}", [file], texts, encode, broken)
                if name == "gpt2" and notation == "pairs":
                    vocab = peers.write("vocab.json", json.dumps(value["model"]["vocab"]).encode())
                    lines = ["#version: 0.2"] + [" ".join(m) for m in merges]
                    rules = peers.write("merges.txt", ("\n".join(lines) + "\n").encode())
                    peers.compare("vocab.json and merges.txt", [vocab, rules], texts, encode, broken)
        check_added(peers, texts)
        check_ranks(peers, texts, cases)
        check_learned(peers, texts)
        for name, loaded, value in character_forms(texts):
            file = peers.write("tokenizer.json", json.dumps(value).encode())
            loaded.encode_special_tokens = True
            peers.compare(name, [file], texts, lambda text: loaded.encode(text, add_special_tokens=False).ids)
        sys.exit(1 if peers.failures else 0)


def check_file(peers, named, texts, cases):
    pattern, _, file = named.rpartition("=")
    if not pattern:
        theirs = tokenizers.Tokenizer.from_file(file)
        theirs.encode_special_tokens = True
        encode = lambda text: theirs.encode(text, add_special_tokens=False).ids
        return peers.compare(os.path.basename(file), [file], texts, encode)
    with open(file, "rb") as lines:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line.strip())}
    encoding = tiktoken.Encoding("test", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    broken = {"cases": cases, "bytes": encoding._encode_single_piece}
    peers.compare(f"{os.path.basename(file)}, {pattern}", ["--pattern", pattern, file], texts,
                  encoding.encode_ordinary, broken)


def check_added(peers, texts):
    trained = train(texts[:10], normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False), 500)
    trained.add_special_tokens(["<|im_start|>", AddedToken("<mask>", lstrip=True), AddedToken("<pad>", rstrip=True)])
    trained.add_tokens(["etao", AddedToken("shr", single_word=True), AddedToken("e\u0301", normalized=True),
                        AddedToken("<mask", normalized=False), "  "])
    file = peers.write("tokenizer.json", trained.to_str().encode())
    pieces = ["<|im_start|>", "<mask>", "<pad>", "etao", "shr", "e\u0301", "\u00e9", "<mask", " ", "  ", "\u00a0", "a", "_", "\n",
              "<|endoftext|>", "\u00b2", "\u0301"]
    rng = random.Random(2)
    mixed = ["".join(rng.choices(pieces, k=rng.randint(0, 20))) for _ in range(500)]
    encode = lambda text: trained.encode(text, add_special_tokens=False).ids
    peers.compare("added tokens", ["--specials", file], mixed, encode)
    trained.encode_special_tokens = True
    peers.compare("added tokens, special ones as text", [file], mixed, encode)


def check_ranks(peers, texts, cases):
    trained = train(texts, None, pre_tokenizers.ByteLevel(add_prefix_space=False), 4000, special=())
    back = {letter: byte for byte, letter in LETTERS.items()}
    tokens = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    ranks = {bytes(back[c] for c in token): i for i, (token, _) in enumerate(tokens)}
    content = b"".join(base64.b64encode(t) + b" " + str(r).encode() + b"\n" for t, r in ranks.items())
    file = peers.write("some.tiktoken", content)
    for name, regex in PATTERNS.items():
        encoding = tiktoken.Encoding("test", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
        broken = {"cases": cases, "bytes": encoding._encode_single_piece}
        peers.compare(f"tiktoken, {name}", ["--pattern", name, file], texts, encoding.encode_ordinary, broken)


def check_learned(peers, texts):
    text = "".join(texts)
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=4000, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    begin = time.perf_counter()
    theirs.train_from_iterator([text], trainer)
    seconds = time.perf_counter() - begin
    file = peers.path("learned.json")
    ours = subprocess.run([peers.program, "--learn", "4000", peers.write("text", text.encode()), file],
                          capture_output=True, text=True, check=True)
    with open(file) as f:
        learned = json.load(f)["model"]
    expected = json.loads(theirs.to_str())["model"]
    if learned["vocab"] != expected["vocab"] or learned["merges"] != expected["merges"]:
        print("FAILED learning: the vocabulary or the merges differ")
        peers.failures += 1
        return
    print(f"learning 4000 tokens from {len(text.encode()) / 1e6:.1f} MB: equal; {seconds:.2f} s theirs, {ours.stdout.strip()} s ours")
    loaded = tokenizers.Tokenizer.from_file(file)
    loaded.encode_special_tokens = True
    peers.compare("learned", [file], texts, lambda text: loaded.encode(text, add_special_tokens=False).ids)


def letters():
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


LETTERS = letters()
main()
