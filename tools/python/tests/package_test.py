"""Tests of the Python package, on run directories that the program writes here.

    package_test.py PROGRAM [LOGITS_FILE] [unittest options]

LOGITS_FILE is the program of tests/exchange/logits_file.cpp, which computes logits without Python. Exit code 77, a
skipped test, without numpy and pandas; single tests are skipped without torch and transformers, matplotlib, setuptools.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile
from pathlib import Path

try:
    import numpy as np
    import pandas as pd
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE / "src"))
sys.dont_write_bytecode = True
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import longreach  # noqa: E402

PROGRAM = LOGITS_FILE = ""
CONFIG = {
    "run": {"name": "a", "log_every": 1},
    "model": {"layers": 2, "width": 32, "vocab_size": 257, "attention": {"heads": 2, "head_dim": 16}},
    "data": {"train": ["data/train_*.bin"], "val": ["data/val_*.bin"],
             "val_sets": {"books": {"paths": ["data/val_*.bin"]}}},
    "stages": [{"steps": 4, "context": 64}],
    "batch": {"tokens": 512},
    "probe": {"every": 4},
    "eval": {"every": 2, "tokens": 1024, "lengths": [64, 128], "final_tokens": 1024},
}
SWEEP = {
    "name": "s", "seeds": [1, 2, 3], "baseline": "v",
    "variants": [{"name": "v", "config": "config.json"},
                 {"name": "alibi", "config": "config.json",
                  "set": {"model.attention.score": "alibi", "model.attention.angle": "nope"}}],
    "evaluations": [{"name": "plain"}, {"name": "yarn", "variants": ["v"], "set": {"eval.rope.kind": "yarn"}}],
}


def have(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


def call(*arguments, program=None):
    done = subprocess.run([program or PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: {done.stdout}{done.stderr}")
    return done.stdout


class Case(unittest.TestCase):
    """Each case works in a copy of the same run directories."""

    @classmethod
    def setUpClass(cls):
        if not hasattr(Case, "made"):
            Case.made = tempfile.TemporaryDirectory()
            os.chdir(Case.made.name)
            Path("config.json").write_text(json.dumps(CONFIG))
            Path("sweep.json").write_text(json.dumps(SWEEP))
            call("data", "synth", "--out", "data", "--train-bytes", 200000, "--val-bytes", 60000)
            call("train", "config.json")
            call("eval", "runs/a", "--lengths", "64,128", "--tokens", "1K", "--repeat", "--label", "again",
                 "--key-tokens", "self", "--token-losses", "losses.safetensors")
            call("eval", "runs/a", "--tasks", "needle", "--lengths", 256, "--samples", 2, "--label", "tasks")
            call("sweep", "sweep.json")

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.home = Path(self.temporary.name)
        shutil.copytree(Path(Case.made.name) / "runs", self.home / "runs")
        os.chdir(self.home)
        self.addCleanup(os.chdir, Case.made.name)

    def refused(self, *parts, of=longreach.RunError):
        """A context in which an error with these parts in its message, on one line, is raised."""

        @contextlib.contextmanager
        def checked():
            with self.assertRaises(of) as caught:
                yield
            for part in parts:
                self.assertIn(part, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))

        return checked()


def run_example(name, *arguments, **environment):
    """A script of examples/, with the package's sources before what the caller's PYTHONPATH holds."""
    path = f"{PACKAGE / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run([sys.executable, PACKAGE / "examples" / name, *arguments], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path, **environment})


class Frames(Case):
    def test_one_row_per_run_with_the_fields_of_its_config(self):
        study = longreach.runs("runs/*")
        table = study.table.set_index("run")
        self.assertEqual(list(table.index)[0], "a")
        self.assertEqual(set(table.index), {"a", *(f"{v}.seed{s}" for v in ("v", "alibi") for s in (1, 2, 3))})
        row = table.loc["alibi.seed2"]
        self.assertEqual((row["variant"], row["seed"], row["sweep"], row["step"], row["steps"]), ("alibi", 2, "s", 4, 4))
        self.assertTrue(row["finished"])
        self.assertEqual(row["model.width"], 32)
        self.assertEqual(row["stages.0.context"], 64)
        self.assertEqual(row["eval.lengths"], [64, 128])
        self.assertEqual(row["model.attention.score"], "alibi")
        # Every plain value of config.json is a field.
        def count(value):
            if isinstance(value, dict):
                return sum(map(count, value.values()))
            if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
                return sum(map(count, value))
            return 1
        config = json.loads(Path("runs/a/config.json").read_text())
        fields = [c for c in longreach.runs("runs/a").table.columns][8:]
        self.assertEqual(len(fields), count(config))

    def test_numbers_are_those_of_the_files(self):
        study = longreach.runs("runs/a")
        train = study.train()
        lines = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
        self.assertEqual(train["loss"].tolist(), [line["loss"] for line in lines])
        self.assertEqual(train["layer_grad_norms"].tolist(), [line["layer_grad_norms"] for line in lines])
        self.assertEqual(train["step"].dtype, np.int64)
        self.assertEqual(train["run"].unique().tolist(), ["a"])
        val = study.val()
        self.assertEqual(val["set"].value_counts().to_dict(), {"": 4, "books": 4})
        cells = [line.split(",") for line in Path("runs/a/val.csv").read_text().splitlines()[1:]]
        own = val[val["set"] == ""]
        self.assertEqual([repr(v) for v in own["loss"]], [row[3] for row in cells])
        self.assertEqual(own["fingerprint"].tolist(), [row[10] for row in cells])
        self.assertEqual(set(study.val(None)["evaluation"]), {"", "again"})
        self.assertEqual(set(study.tasks()["task"]), {"repeat", "non_repeat", "needle"})
        self.assertEqual(set(study.positions()["by"]), {"sequence", "document"})
        self.assertEqual(study.key_tokens()["part"].tolist(), ["key", "other"] * 2)
        self.assertIn("entropy", set(study.probe()["statistic"]))
        self.assertGreater(study.timing()["tokens_per_second"].min(), 0)

    def test_columns_are_those_that_the_program_writes(self):
        study = longreach.runs("runs/*")
        from longreach._files import COLUMNS, ORDER
        for name in COLUMNS:
            self.assertEqual(sorted(COLUMNS[name]), sorted(ORDER[name].split()))
        for name, frame in (("val.csv", study.val()), ("positions.csv", study.positions()),
                            ("tasks.csv", study.tasks()), ("key_tokens.csv", study.key_tokens()),
                            ("probe.csv", study.probe())):
            front = [c for c in frame.columns if c in ("run", "evaluation", "set")]
            self.assertEqual(list(frame.columns)[len(front):], ORDER[name].split(), name)
        for name, frame in (("metrics.jsonl", study.train()), ("timing.jsonl", study.timing())):
            self.assertLessEqual(set(frame.columns) - {"run"}, set(COLUMNS[name]), name)

    def test_losses_by_length_are_those_of_the_sweep(self):
        for chosen, file in (("", "results.csv"), ("books", "results_sets.csv")):
            own = longreach.runs("runs/s").lengths()
            theirs = pd.read_csv(f"runs/s/{file}", dtype={"fingerprint": str}, float_precision="round_trip")
            both = own[own["set"] == chosen].merge(theirs, on=["variant", "seed", "evaluation", "length"],
                                                   suffixes=("", "_there"))
            self.assertEqual((len(both), len(theirs)), (18, 18))
            self.assertTrue((both["loss"] == both["loss_there"]).all())
            for column in ("top1", "top1_error", "standard_error"):
                self.assertTrue(np.array_equal(both[column], both[f"{column}_there"], equal_nan=True), column)
            self.assertTrue((both["fingerprint"] == both["fingerprint_there"]).all())
            self.assertFalse(own["apart"].any() or own["behind"].any())

    def test_means_and_intervals_are_those_of_the_report(self):
        call("report", "runs/s")
        means = longreach.runs("runs/s").means("v").query("set == ''").set_index(["variant", "evaluation", "length"])
        text = Path("runs/s/tables.txt").read_text()
        losses = [line for line in text.splitlines() if line.startswith("alibi ")]
        m = means.loc[("alibi", "plain", 128)]
        self.assertTrue(losses[0].endswith(f"{m['loss']:.4f} ±{m['standard_error']:.4f}"), losses[0])
        gap = f"{m['difference']:+.4f} [{m['difference_low']:+.4f}, {m['difference_high']:+.4f}]"
        self.assertIn(gap, losses[1].replace("\N{MINUS SIGN}", "-"))
        self.assertEqual(m["seeds"], 3)

    def test_student_quantiles_are_those_of_tables(self):
        for degrees, quantile in ((1, 12.7062047), (2, 4.3026527), (4, 2.7764451), (9, 2.2621572), (100, 1.9839715)):
            self.assertAlmostEqual(longreach.student_quantile(0.95, degrees), quantile, 6)
        self.assertTrue(math.isnan(longreach.mean_interval([1.0, math.nan]).mean))
        self.assertEqual(longreach.mean_interval([2.0])[:2], (1, 2.0))

    def test_select(self):
        study = longreach.runs("runs/*")
        self.assertEqual(len(study.select(study.table["seed"] == 2)), 2)
        self.assertEqual([run.name for run in study.select(["a"])], ["a"])
        self.assertEqual(len(study.select(lambda row: row["variant"] == "v")), 3)
        with self.refused("no run is named b", of=KeyError):
            study.select(["b"])


class Directories(Case):
    def test_what_is_no_run(self):
        Path("runs/notes").mkdir()
        Path("runs/readme.txt").write_text("x")
        self.assertEqual(len(longreach.runs("runs/*")), 7)
        for named, parts in (("runs", ("runs is neither", "runs/*")), ("runs/notes", ("runs/notes is neither",)),
                             ("nowhere", ("nowhere does not exist",)), ("nowhere/*", ("nothing matches nowhere/*",)),
                             ("runs/n*", ("no run and no sweep matches runs/n*",)), ("runs/readme.txt", ("readme.txt",))):
            with self.refused(*parts):
                longreach.runs(named)
        with self.refused("needs a directory", of=ValueError):
            longreach.runs()

    def test_moved_runs_and_sweeps(self):
        before = longreach.runs("runs/*").lengths()
        shutil.move("runs", "elsewhere")
        after = longreach.runs("elsewhere/*").lengths()
        pd.testing.assert_frame_equal(before, after)
        shutil.move("elsewhere/s", "renamed")
        self.assertEqual(len(longreach.runs("renamed")), 6)
        file = Path("renamed/sweep.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
        with self.assertRaisesRegex(longreach.RunError, "reads format 1 of this file, not 2"):
            longreach.runs("renamed")

    def test_runs_of_one_name(self):
        shutil.copytree("runs/a", "other/a")
        shutil.copytree("runs/s", "other/s")
        study = longreach.runs("runs/a", Path("other/a"), ["runs/s", "other/s"])
        names = study.table["run"].tolist()
        self.assertEqual(names[:2], ["runs/a", "other/a"])
        self.assertEqual(len(set(names)), 14)
        self.assertIn("other/s/v.seed1", names)
        self.assertEqual(study.table["variant"].tolist()[:2], ["runs/a", "other/a"])
        # The parents of both sweeps are named s: the second of a variant and seed is left out of means.
        with self.assertWarns(UserWarning):
            self.assertEqual(study.means()["seeds"].max(), 3)
        # A run named twice is one.
        self.assertEqual(len(longreach.runs("runs/a", "runs/*", "runs/../runs/a/")), 7)

    def test_unfinished_runs(self):
        os.remove("runs/a/val.csv")
        shutil.rmtree("runs/a/sets")
        shutil.rmtree("runs/a/checkpoints")
        Path("runs/a/metrics.jsonl").write_text("")
        study = longreach.runs("runs/a")
        self.assertEqual(study.table.loc[0, ["step", "finished"]].tolist(), [0, False])
        self.assertEqual(len(study.train()), 0)
        self.assertEqual(study.train().columns[:3].tolist(), ["run", "step", "tokens"])
        with self.refused("runs/a/val.csv", "does not exist", "eval.every"):
            study.val()
        self.assertEqual(set(longreach.runs("runs/*").val()["run"]), {f"{v}.seed{s}" for v in ("v", "alibi")
                                                                     for s in (1, 2, 3)})
        shutil.rmtree("runs/s/v.seed3")
        study = longreach.runs("runs/s")
        self.assertEqual((len(study), study.notes), (5, ["runs/s/v.seed3 has not begun"]))

    def test_a_seed_that_is_behind_is_marked(self):
        shutil.rmtree("runs/s/v.seed1/eval")  # so that no run's final losses come from eval/plain
        lines = Path("runs/s/v.seed2/val.csv").read_text().splitlines()
        Path("runs/s/v.seed2/val.csv").write_text("\n".join(lines[:3]) + "\n")
        lengths = longreach.runs("runs/s").lengths()
        behind = lengths[lengths["behind"] & (lengths["set"] == "")]
        self.assertEqual((set(behind["run"]), set(behind["step"])), ({"v.seed2"}, {2}))
        means = longreach.runs("runs/s").means().set_index(["variant", "evaluation", "set", "length"])
        self.assertEqual(means.loc[("v", "plain", "", 64), "seeds"], 2)

    def test_losses_of_other_tokens_are_marked(self):
        call("eval", Path(self.home) / "runs/a", "--lengths", 64, "--tokens", 128, "--label", "short",
             "--data", Path(Case.made.name) / "data/val_000000.bin")
        lengths = longreach.runs("runs/*").lengths()
        self.assertEqual(set(lengths.loc[lengths["apart"], "evaluation"]), {"short"})
        self.assertNotIn("short", set(longreach.runs("runs/*").means()["evaluation"]))

    def test_hostile_names(self):
        for name in ("with space", "a,b", "line\nfeed", "[a]*", "-x", "\N{SNOWMAN}", "x$y$_{"):
            shutil.copytree("runs/a", Path("odd") / name)
        study = longreach.runs("odd/*")
        self.assertEqual(len(study), 7)
        self.assertEqual(set(study.val()["run"]), set(os.listdir("odd")))
        self.assertEqual(len(longreach.runs("odd/[a]*")), 1)  # the directory itself, not the pattern
        self.assertNotIn("\n", repr(study))
        Path("odd/line\nfeed/val.csv").write_text("step\n1,2\n")
        with self.refused("line\\nfeed", ":2: 2 columns instead of 1"):
            longreach.runs("odd/line\nfeed").val()
        os.remove("odd/a,b/config.json")
        with self.refused("odd/a,b/config.json does not exist"):
            longreach.runs("odd/*")


class DamagedFiles(Case):
    def val(self, text):
        Path("runs/a/val.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        frame = longreach.runs("runs/a").val()
        return frame[frame["set"] == ""]

    def test_a_line_cut_anywhere_is_no_line(self):
        whole = Path("runs/a/val.csv").read_bytes()
        ends = [i for i, byte in enumerate(whole) if byte == 10]
        for cut in range(len(whole) + 1):
            self.assertEqual(len(self.val(whole[:cut])), max(0, sum(end < cut for end in ends) - 1), cut)
        metrics = Path("runs/a/metrics.jsonl").read_bytes()
        for cut in range(0, len(metrics) + 1, 7):
            Path("runs/a/metrics.jsonl").write_bytes(metrics[:cut])
            self.assertEqual(len(longreach.runs("runs/a").train()), metrics[:cut].count(b"\n"))

    def test_empty_files_have_the_known_columns(self):
        for text in ("", "step,tok", "step,tokens,length,loss\n"):
            frame = self.val(text)
            self.assertEqual((len(frame), "fingerprint" in frame), (0, True))

    def test_losses_that_are_not_finite(self):
        header = "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,top1_error,fingerprint\n"
        frame = self.val(header + "1,2,64,nan,,8,,,0.5,,00\n1,2,128,inf,,8,,,0.5,0.1,1e5\n")
        self.assertTrue(math.isnan(frame["loss"][0]) and math.isinf(frame["loss"][1]))
        self.assertEqual(frame["fingerprint"].tolist(), ["00", "1e5"])
        shutil.rmtree("runs/a/eval")
        self.assertTrue(longreach.runs("runs/a").means()["loss"][:1].isna().all())
        Path("runs/a/metrics.jsonl").write_text('{"step":1,"loss":null,"layer_grad_norms":[null,1]}\n'
                                                '{"step":2,"loss":3,"spikes":1}\n')
        train = longreach.runs("runs/a").train()
        self.assertEqual((train["loss"].isna().tolist(), train["spikes"].isna().tolist()), ([True, False], [True, False]))
        self.assertTrue(math.isnan(train["layer_grad_norms"][0][0]))

    def test_unknown_columns_are_kept_as_they_are(self):
        frame = self.val("step,tokens,length,loss,run,colour\n1,2,64,0.5,x,007\n")
        self.assertEqual(frame.loc[0, ["run", "run_", "colour"]].tolist(), ["a", "x", "007"])
        Path("runs/a/metrics.jsonl").write_text('{"step":1,"loss":1,"new":{"x":[1]}}\n')
        self.assertEqual(longreach.runs("runs/a").train()["new"][0], {"x": [1]})

    def test_malformed_files_are_named_with_their_line(self):
        header = "step,tokens,length,loss\n"
        for text, part in ((header + "1,2,64\n", ":2: 3 columns instead of 4"),
                           (header + "1,2,64,0.1\n1,2,x,0.1\n", ":3: 'x' is not an integer"),
                           (header + "1,2,64,1_0\n", ":2: '1_0' is not a number"),
                           (header + "1,2,99999999999999999999,1\n", "is not an integer"),
                           ("step,tokens\n1,2\n", "there is no column 'length'"),
                           ("step,step\n1,2\n", "a column occurs twice"),
                           (b"\0\0\0\n\0\0\n", "there is no column 'step'")):
            with self.refused("runs/a/val.csv", part):
                self.val(text)
                self.fail(text)
        for text in ("{\n", "[1]\n", '{"step":"' + "x" * 9 + '\n', "[" * 100000 + "\n", "\xff\xfe\n"):
            Path("runs/a/metrics.jsonl").write_text(text)
            with self.refused("runs/a/metrics.jsonl:1: "):
                longreach.runs("runs/a").train()
        Path("runs/a/metrics.jsonl").write_text('{"step":1e300}\n')
        with self.refused("runs/a/metrics.jsonl"):
            longreach.runs("runs/a").train()

    def test_damaged_runs_can_be_skipped(self):
        Path("runs/a/config.json").write_text("{")
        Path("runs/s/v.seed1/val.csv").write_text("step\n1,2\n")
        with self.refused("runs/a/config.json"):
            longreach.runs("runs/*")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            study = longreach.runs("runs/*", on_error="skip")
            self.assertEqual(len(study), 6)
            self.assertNotIn("v.seed1", set(study.val().query("set == ''")["run"]))
        self.assertTrue(any("runs/a/config.json" in str(w.message) for w in caught))
        self.assertTrue(any("v.seed1/val.csv:2" in str(w.message) for w in caught))
        for text in ("{}", '{"runs": [1]}', "[", '{"runs": [{"variant": "v", "directory": ".."}]}'):
            Path("runs/s/sweep.json").write_text(text)
            with self.refused("runs/s"):
                longreach.runs("runs/s")

    def test_a_pipe_in_place_of_a_file_is_refused(self):
        os.remove("runs/a/val.csv")
        os.mkfifo("runs/a/val.csv")
        with self.refused("runs/a/val.csv is not a regular file"):
            longreach.runs("runs/a").val()


class Models(Case):
    def test_what_is_missing_is_named(self):
        if have("torch", "transformers", "safetensors"):
            with self.refused("runs/a/checkpoints/step_00000003", "step_00000004"):
                longreach.load("runs/a", 3)
            with self.refused("nowhere is not a directory"):
                longreach.load("nowhere")
            os.makedirs("runs/empty")
            with self.refused("runs/empty"):
                longreach.load("runs/empty")
        else:
            with self.refused("load() needs torch"):
                longreach.load("runs/a")
        kept = os.environ["LONGREACH"]
        try:
            os.environ["LONGREACH"] = "/nonexistent/longreach"
            with self.refused("LONGREACH names /nonexistent/longreach"):
                longreach.find_program()
        finally:
            os.environ["LONGREACH"] = kept

    @unittest.skipUnless(have("torch", "transformers", "safetensors"), "needs torch, transformers and safetensors")
    def test_logits_are_those_of_the_program(self):
        """The bound is that of tests/exchange/peers.py: 1e-5 max(1, largest logit)."""
        import torch
        import torch.nn.functional as F
        from safetensors.numpy import load_file

        # Longer training at a large rate makes logits of size one; an untrained model's are small.
        for name, overrides in (("code", ()), ("llama", ("model.embedding_norm=false", "model.norm.gain=true",
                                                        "model.mlp.kind=swiglu", "model.attention.qk.kind=none"))):
            os.chdir(Case.made.name)
            arguments = [a for o in ("run.name=" + name, "stages.0.steps=40", "probe.every=0", *overrides)
                         for a in ("--set", o)]
            call("train", "config.json", *arguments)
            call("eval", f"runs/{name}", "--lengths", "128", "--tokens", "1K", "--token-losses", f"{name}.safetensors")
            model = longreach.load(f"runs/{name}")
            self.assertEqual(type(model).__name__,
                             "LongreachForCausalLM" if name == "code" else "LlamaForCausalLM")
            self.assertEqual(next(model.parameters()).dtype, torch.float32)
            self.assertFalse(model.training)
            # The first window that eval scores, its losses token by token.
            losses = load_file(f"{name}.safetensors")["loss.128"][:128]
            shard = Path("data/val_000000.bin").read_bytes()
            tokens = np.frombuffer(shard, "<u2", int(np.frombuffer(shard, "<u8", 1, 24)[0]), 128)
            windows, scored = (len(tokens) - 1) // 128, 8
            first = windows // (2 * scored) * 128
            text = torch.from_numpy(tokens[first : first + 129].astype(np.int64))
            with torch.no_grad():
                logits = model(text[None, :-1]).logits[0]
            bound = 1e-5 * max(1.0, float(logits.abs().max()))
            there = F.cross_entropy(logits, text[1:], reduction="none").numpy()
            print(f"{name}: largest logit {logits.abs().max():.2f}, losses differ by {np.abs(there - losses).max():.2e}",
                  end="")
            self.assertLess(np.abs(there - losses).max(), bound)
            if LOGITS_FILE:
                text[:-1].numpy().astype(np.int32).tofile("ids")
                call(f"runs/{name}", "ids", "out", program=LOGITS_FILE)
                ours = np.fromfile("out", np.float32).reshape(2, 128, -1)
                print(f", logits by {np.abs(ours - logits.numpy()).max():.2e}", end="")
                self.assertLess(np.abs(ours - logits.numpy()).max(), bound)
            print()
            shutil.rmtree(f"runs/{name}")


@unittest.skipUnless(have("matplotlib"), "needs matplotlib")
class Example(Case):
    def draw(self, *arguments):
        return run_example("loss_by_length.py", *arguments)

    def test_the_figure(self):
        done = self.draw("runs/s", "--out", "loss.svg")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("1,024 tokens", done.stdout)
        picture = Path("loss.svg").read_bytes()
        for name in (b"v + yarn", b"alibi", b"tokens of context"):
            self.assertIn(name, picture)
        self.draw("runs/s", "--out", "again.svg")
        self.assertEqual(Path("again.svg").read_bytes(), picture)
        for options in (["--interval"], ["--set", "books"]):
            self.assertEqual(self.draw("runs/s", "--out", "other.pdf", *options).returncode, 0)

    def test_wrong_requests_end_with_one_line(self):
        Path("odd").mkdir()
        shutil.copytree("runs/a", "odd/x$y$_{")
        done = self.draw("odd/*", "--out", "loss.svg")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("x$y$_{", Path("loss.svg").read_text())
        for arguments, part in ((["nowhere"], "nowhere does not exist"), (["runs/a", "--set", "x"], "no losses on x"),
                                (["runs/a", "--out", "loss.zip"], "zip")):
            done = self.draw(*arguments)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(part, done.stderr)


def track_module():
    spec = importlib.util.spec_from_file_location("track", PACKAGE / "examples" / "track.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Tracking(Case):
    class Recorder:
        def __init__(self, run, project):
            self.values, self.steps, self.finished = {}, [], False

        def log(self, step, values):
            self.steps.append(step)
            for name, value in values.items():
                assert (step, name) not in self.values, (step, name)
                self.values[step, name] = value

        def finish(self):
            self.finished = True

    def track(self, *arguments):
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        done = run_example("track.py", *arguments, WANDB_MODE="offline")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_every_value_of_the_records_is_logged_once(self):
        study = longreach.runs("runs/a")
        one, = track_module().track(study, self.Recorder, "p")
        logged = one.tracker.values
        for row in study.train().to_dict("records"):
            self.assertEqual(logged[row["step"], "train/loss"], row["loss"])
        for row in study.val(None).to_dict("records"):
            place = f"eval/{row['evaluation']}/" if row["evaluation"] else "val/"
            place += f"{row['set']}/" if row["set"] else ""
            self.assertEqual(logged[row["step"], f"{place}{row['length']}/loss"], row["loss"])
        self.assertTrue(any(name.startswith("time/") for _, name in logged))
        self.assertTrue(any(name.startswith("eval/again/") for _, name in logged))
        self.assertTrue(one.tracker.finished)

    def test_a_growing_run_is_followed_to_its_end(self):
        track = track_module()
        file, whole = Path("runs/a/metrics.jsonl"), Path("runs/a/metrics.jsonl").read_text().splitlines(True)
        file.write_text("".join(whole[:2]))
        run, = longreach.runs("runs/a")
        tracked = track.Tracked(run, self.Recorder(run, "p"))
        tracked.update()
        self.assertNotIn((3, "train/loss"), tracked.logged)
        file.write_text("".join(whole[:3]) + whole[3][:9])  # a line that is not finished
        tracked.update()
        self.assertIn((3, "train/loss"), tracked.logged)
        self.assertNotIn((4, "train/loss"), tracked.logged)
        file.write_text("".join(whole))
        self.assertTrue(tracked.update())
        self.assertEqual({step for step, name in tracked.logged if name == "train/loss"}, {1, 2, 3, 4})

    @unittest.skipUnless(have("mlflow"), "without mlflow")
    def test_mlflow_holds_what_was_logged(self):
        self.assertIn("1 runs, ", self.track("runs/a", "--to", "mlflow", "--project", "p"))
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        import mlflow

        client = mlflow.MlflowClient("file:" + os.path.abspath("mlruns"))
        run, = client.search_runs([client.get_experiment_by_name("p").experiment_id])
        self.assertEqual(run.data.tags["mlflow.runName"], "a")
        self.assertEqual(run.info.status, "FINISHED")
        self.assertEqual(run.data.params["model.width"], "32")
        self.assertIn("'steps': 4", run.data.params["stages"])
        history = client.get_metric_history(run.info.run_id, "train/loss")
        train = longreach.runs("runs/a").train()
        self.assertEqual([(m.step, m.value) for m in history], list(zip(train["step"], train["loss"])))
        self.assertIn("val/books/64/loss", run.data.metrics)

    @unittest.skipUnless(have("wandb"), "without wandb")
    def test_wandb_writes_files_without_a_network(self):
        self.assertIn("1 runs, ", self.track("runs/a", "--to", "wandb"))
        written, = Path("wandb").glob("offline-run-*/run-*.wandb")
        content = written.read_bytes()
        for text in (b"train/loss", b"val/books/64/loss", b"eval/again/128/loss", b"train_context"):
            self.assertIn(text, content)


def setuptools_builds():
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77 and have("pip")
    except importlib.metadata.PackageNotFoundError:
        return False


@unittest.skipUnless(setuptools_builds(), "needs pip and setuptools 77")
class Wheels(Case):
    def wheel(self, **environment):
        # A copy, so that nothing is built among the sources.
        if not Path("package").exists():
            shutil.copytree(PACKAGE, "package", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        shutil.rmtree("wheels", ignore_errors=True)
        kept = {k: v for k, v in os.environ.items() if k != "LONGREACH_PREFIX"}
        done = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
                               "--no-index", "-w", "wheels", "./package"], capture_output=True, text=True,
                              env={**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment})
        if done.returncode != 0:
            return None, done.stdout + done.stderr
        (path,) = Path("wheels").iterdir()
        return path, zipfile.ZipFile(path)

    def test_with_and_without_the_program(self):
        for name, content in {"bin/longreach": Path(PROGRAM).read_bytes(), "lib/longreach/a.so": b"a", "share/b/c": b"c"}.items():
            path = Path("prefix", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        path, wheel = self.wheel(LONGREACH_PREFIX=str(self.home / "prefix"))
        self.assertRegex(path.name, r"^longreach-[0-9.]+-py3-none-linux_")
        (name,) = [n for n in wheel.namelist() if n.endswith("scripts/longreach")]
        self.assertEqual(wheel.read(name), Path(PROGRAM).read_bytes())
        data = {n.split(".data/data/")[1] for n in wheel.namelist() if ".data/data/" in n}
        self.assertEqual(data, {"lib/longreach/a.so", "share/b/c"})
        # Nothing of it is left in the next one.
        path, wheel = self.wheel()
        self.assertRegex(path.name, r"^longreach-[0-9.]+-py3-none-any.whl$")
        self.assertFalse([n for n in wheel.namelist() if "scripts" in n])
        self.assertIn("longreach/_runs.py", wheel.namelist())
        Path("prefix/bin/longreach").write_text("#!/bin/sh\n")
        self.assertIn("not a program", self.wheel(LONGREACH_PREFIX=str(self.home / "prefix"))[1])
        self.assertIn("missing", self.wheel(LONGREACH_PREFIX=str(self.home / "missing"))[1])


class Sources(unittest.TestCase):
    def test_version_and_licence_are_those_of_the_program(self):
        root = PACKAGE.parents[1]
        self.assertEqual((PACKAGE / "LICENSE").read_text(), (root / "LICENSE").read_text())
        self.assertIn(f"project(longreach VERSION {longreach.__version__} ", (root / "CMakeLists.txt").read_text())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = os.path.realpath(sys.argv.pop(1))
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and os.path.isfile(sys.argv[1]):
        LOGITS_FILE = os.path.realpath(sys.argv.pop(1))
    os.environ["LONGREACH"] = PROGRAM
    unittest.main()
