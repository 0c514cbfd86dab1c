"""lm-evaluation-harness against `longreach serve`, compared with `longreach eval`.

    lm_eval_peer.py PROGRAM [--run RUN] [--keep DIRECTORY]

Makes text, trains a small model on it for a few steps (or takes RUN, a model of bytes), serves it, and lets lm_eval run
two tasks that are written here: the log-likelihood of whole documents (loglikelihood_rolling) and questions with four
answers (multiple_choice). Every document and every question with its answer has 255 bytes, so that with the document's
token it is one sequence of 256 tokens, which `longreach eval --token-losses` scores too.

Both must agree to the bit: the server's log-probabilities are the evaluation's losses, JSON carries them exactly, and
both sides add them up in the same order in f64. Exit code 77, a skipped test, without the package.
"""
import argparse, json, os, random, re, struct, subprocess, sys, tempfile, time

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
try:
    import lm_eval  # noqa: F401
    import aiohttp, datasets, requests, tenacity  # noqa: F401, E401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LENGTH, QUESTIONS, ANSWERS = 256, 24, 4
ANSWER_BYTES = 24
BOUNDARY = "<|endoftext|>"  # which lm_eval leaves out in front of a question, unlike in front of a document


def words(rng, count):
    """Text of `count` bytes in which some words follow others more often."""
    stems = ["ka", "lo", "mi", "ra", "te", "su", "no", "vi"]
    text, last = "", 0
    while len(text) < count:
        last = (last * 3 + rng.choice([1, 1, 1, 2, 5])) % len(stems)
        text += stems[last] + stems[(last * 5 + 1) % len(stems)] + " "
    return text[:count]


def write_lines(path, rows):
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def make_tasks(directory):
    rng = random.Random(7)
    questions = []
    for _ in range(QUESTIONS):
        text = " "
        while text[-ANSWER_BYTES - 1:][0] == " ":  # lm_eval counts such a space as the answer's
            text = words(rng, LENGTH - 1)
        context, right = text[:-ANSWER_BYTES], text[-ANSWER_BYTES:]
        answers = [words(rng, ANSWER_BYTES) for _ in range(ANSWERS)]
        label = rng.randrange(ANSWERS)
        answers[label] = right
        questions.append({"context": context, "answers": answers, "label": label})
    documents = [{"text": q["context"] + answer} for q in questions for answer in q["answers"]]
    write_lines(f"{directory}/questions.jsonl", questions)
    write_lines(f"{directory}/documents.jsonl", documents)
    common = "dataset_path: json\ntest_split: test\nmetadata:\n  version: 1\n"
    with open(f"{directory}/answers.yaml", "w") as file:
        file.write(f"task: longreach_answers\n{common}dataset_kwargs:\n  data_files:\n    test: {directory}/questions.jsonl\n"
                   f"output_type: multiple_choice\ndoc_to_text: '{BOUNDARY}{{{{context}}}}'\ndoc_to_choice: '{{{{answers}}}}'\n"
                   "doc_to_target: label\ntarget_delimiter: ''\nmetric_list:\n  - metric: acc\n")
    with open(f"{directory}/documents.yaml", "w") as file:
        file.write(f"task: longreach_documents\n{common}dataset_kwargs:\n  data_files:\n    test: {directory}/documents.jsonl\n"
                   "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
                   "metric_list:\n  - metric: bits_per_byte\n")
    return questions, documents


def train(run, directory):
    rng = random.Random(1)
    write_lines(f"{directory}/train.jsonl", [{"text": words(rng, 2000)} for _ in range(200)])
    tokenize(f"{directory}/train.jsonl", f"{directory}/train", ["--val-every", "20"])
    config = {"run": {"name": "served", "dir": directory},
              "model": {"layers": 2, "width": 64, "vocab_size": 257, "attention": {"heads": 2, "head_dim": 32}},
              "data": {"train": [f"{directory}/train/train_*.bin"], "val": [f"{directory}/train/val_*.bin"]},
              "stages": [{"steps": 40, "context": LENGTH}],
              "batch": {"tokens": 2048, "micro_tokens": 2048},
              "eval": {"every": 0, "lengths": [LENGTH], "final_tokens": 2048}}
    with open(f"{directory}/config.json", "w") as file:
        json.dump(config, file)
    run("train", f"{directory}/config.json")
    return f"{directory}/served"


def tokenize(source, out, more=()):
    subprocess.run([program, "data", "tokenize", source, "--out", out, "--replace", "--text-field",
                    "text", *more], check=True,
                   stdout=subprocess.DEVNULL)


def floats(path, name):
    """An f32 tensor of a safetensors file."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        begin, end = header[name]["data_offsets"]
        file.seek(8 + size + begin)
        return struct.unpack(f"<{(end - begin) // 4}f", file.read(end - begin))


def evaluated(model, documents, directory):
    """The losses of every document's bytes, from `longreach eval`."""
    # One more document, whose first token is the last target.
    write_lines(f"{directory}/eval.jsonl", documents + [{"text": "."}])
    tokenize(f"{directory}/eval.jsonl", f"{directory}/eval", ["--val-every", "0"])
    losses = f"{directory}/losses.safetensors"
    subprocess.run([program, "eval", model, "--data", f"{directory}/eval/train_*.bin", "--lengths", str(LENGTH),
                    "--tokens", str(LENGTH * len(documents)), "--token-losses", losses,
                    "--set", "eval.pick=\"head\""], check=True)
    values = floats(losses, f"loss.{LENGTH}")
    assert len(values) == LENGTH * len(documents), f"{len(values)} losses of {LENGTH * len(documents)}"
    return [values[i * LENGTH:(i + 1) * LENGTH - 1] for i in range(len(documents))]


class Server:
    def __enter__(self):
        return self

    def __init__(self, model):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--name", "served",
                                         "--context", str(LENGTH + 1)], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if found := re.search(r"serving served at (http://\S+),", line):
                self.url = found[1]
                return
        sys.exit("the server did not start")

    def __exit__(self, *_):
        self.process.terminate()
        code = self.process.wait(30)
        assert code == 0, f"the server ended with {code}"


def harness(url, directory, tokenized):
    """The log-likelihoods of documents and of answers, as lm_eval got them."""
    arguments = (f"model=served,base_url={url}/v1/completions,tokenizer_backend=remote,max_length={LENGTH + 1},"
                 f"num_concurrent=4,tokenized_requests={tokenized}")
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks",
               "longreach_documents,longreach_answers", "--include_path", directory, "--output_path",
               f"{directory}/out", "--log_samples"]
    subprocess.run(command, check=True)
    newest = lambda task: max((os.path.join(folder, name) for folder, _, names in os.walk(f"{directory}/out")
                               for name in names if name.startswith(f"samples_{task}")), key=os.path.getmtime)
    def samples(task):
        with open(newest(task)) as file:
            return sorted((json.loads(line) for line in file), key=lambda row: row["doc_id"])
    rolling = [float(flat(row["resps"])[0]) for row in samples("longreach_documents")]
    answers = [(float(flat(r)[0]), str(flat(r)[1]) == "True") for row in samples("longreach_answers") for r in row["resps"]]
    accuracy = [row["acc"] for row in samples("longreach_answers")]
    return rolling, answers, accuracy


def flat(value):
    while isinstance(value, list) and isinstance(value[0], list):
        value = value[0]
    return value


def compare(name, got, expected):
    worst = max(abs(a - b) for a, b in zip(got, expected))
    print(f"{name}: {len(got)} log-likelihoods, mean {sum(got) / len(got):.6f}; largest difference {worst:g}")
    return worst == 0 and len(got) == len(expected)


parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--run")
parser.add_argument("--keep")
options = parser.parse_args()
program = os.path.abspath(options.program)
with tempfile.TemporaryDirectory() as temporary:
    where = os.path.abspath(options.keep or temporary)
    os.makedirs(where, exist_ok=True)
    questions, documents = make_tasks(where)
    model = options.run or train(lambda *a: subprocess.run([program, *a], check=True, stdout=subprocess.DEVNULL), where)
    losses = evaluated(model, documents, where)
    begin = time.monotonic()
    with Server(model) as server:
        rolling, answers, accuracy = harness(server.url, where, True)
    print(f"lm_eval: {time.monotonic() - begin:.0f} s")
    good = compare("documents", rolling, [sum(-loss for loss in row) for row in losses])
    tails = [sum(-loss for loss in row[-ANSWER_BYTES:]) for row in losses]
    good &= compare("answers", [value for value, _ in answers], tails)
    chosen = [max(range(ANSWERS), key=lambda a: tails[q * ANSWERS + a]) for q in range(QUESTIONS)]
    expected = [float(c == q["label"]) for c, q in zip(chosen, questions)]
    print(f"accuracy: lm_eval {sum(accuracy) / QUESTIONS:.4f}, longreach eval {sum(expected) / QUESTIONS:.4f}")
    good &= accuracy == expected
    sys.exit(0 if good else "lm_eval and longreach eval differ")
