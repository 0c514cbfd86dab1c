"""Run directories as data frames."""

import glob
import math
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ._files import READERS, RunError, empty, flat, read_json, shown
from ._statistics import mean_interval, paired_difference

# What writes a file that no run has.
WRITTEN_BY = {
    "metrics.jsonl": "training, every run.log_every steps",
    "timing.jsonl": "training, every run.log_every steps",
    "val.csv": "validations (eval.every) and `longreach eval RUN --label NAME`",
    "positions.csv": "validations (eval.every) and `longreach eval RUN --label NAME`",
    "tasks.csv": "training on data.task and `longreach eval RUN --label NAME --tasks ...`",
    "key_tokens.csv": "`longreach eval RUN --label NAME --key-tokens self`",
    "probe.csv": "training with probe.every and `longreach probe RUN`",
}


@dataclass
class Run:
    path: Path
    name: str = ""
    variant: str = ""
    seed: int = 0
    sweep: str = ""
    config: dict = field(default_factory=dict)
    labels: tuple = ()  # the evaluations that its sweep asks for

    def read(self, name, below=""):
        """A record file of the run, or of a directory below it; None if there is no such file."""
        return READERS[name](self.path / below / name, name)

    def evaluations(self):
        return _directories(self.path / "eval", r"[a-z0-9_-][a-z0-9_.-]*")

    def sets(self, below):
        return _directories(self.path / below / "sets", r"[A-Za-z0-9_-]+")


def _directories(path, names):
    """Names of the directories in `path` that are names by the program's rule; links are none."""
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if re.fullmatch(names, e.name) and e.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{shown(path)}: {error.strerror}") from error


def _is_run(path):
    return any((path / name).exists() for name in ("config.json", "metrics.jsonl", "val.csv", "checkpoints"))


def _is_sweep(path):
    return (path / "sweep.json").is_file()


def _seed_suffix(name):
    """("rope", 3) of "rope.seed3" and "rope-seed3", (name, None) of others."""
    found = re.fullmatch(r"(.+)[.-]seed([0-9]{1,18})", name, re.DOTALL)
    return (found[1], int(found[2])) if found else (name, None)


def _real(path):
    return Path(os.path.realpath(path))  # a run named "." has a name too


def _open_run(path, sweep="", variant=None, seed=None, labels=()):
    config = read_json(path / "config.json")
    if config is None:
        raise RunError(f"{shown(path / 'config.json')} does not exist; every run has one")
    stem, suffix = _seed_suffix(_real(path).name)
    if seed is None:
        section = config.get("run")
        seed = section.get("seed") if isinstance(section, dict) else None
    if not isinstance(seed, int) or isinstance(seed, bool):
        seed = suffix or 0
    return Run(path=path, variant=variant or stem, seed=seed, sweep=sweep, config=config, labels=labels)


def _sweep_entries(path, notes):
    """Arguments of _open_run for the runs of a sweep that have begun."""
    file = path / "sweep.json"
    sweep = read_json(file)
    if sweep.get("format", 1) != 1:
        raise RunError(f"{shown(file)}: this version reads format 1 of this file, not {sweep['format']}")
    if not isinstance(sweep.get("runs"), list):
        raise RunError(f"{shown(file)} has no list \"runs\"")
    for entry in sweep["runs"]:
        texts = [entry.get(key) if isinstance(entry, dict) else None for key in ("variant", "directory")]
        if not all(isinstance(text, str) and text for text in texts):
            raise RunError(f"{shown(file)}: a run without \"variant\" or \"directory\"")
        # Only the last component: the sweep may have been moved, and nothing outside it is opened.
        last = texts[1].rstrip("/").rsplit("/", 1)[-1]
        if last in ("", ".", "..") or not (path / last).is_dir() or not _is_run(path / last):
            notes.append(f"{shown(path / last)} has not begun")
            continue
        labels = entry.get("evaluations")
        labels = [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []
        name = sweep.get("name")
        yield {"path": path / last, "sweep": name if isinstance(name, str) and name else _real(path).name,
               "variant": texts[0], "seed": entry.get("seed"), "labels": ("plain", *labels)}


def _matches(pattern):
    """(path, whether it was named itself rather than found by a pattern)."""
    text = os.path.expanduser(os.fspath(pattern))
    if os.path.lexists(text):  # a name may have the characters of a pattern
        return [(Path(text), True)]
    if not glob.has_magic(text):
        raise RunError(f"{shown(text)} does not exist")
    found = [(Path(match), False) for match in sorted(glob.glob(text, recursive=True))]
    if not found:
        raise RunError(f"nothing matches {shown(text)}")
    return found


def _distinct_names(runs):
    """The directory's name, with as many of the directories above as tell runs of one name apart."""
    parts = {id(run): _real(run.path).parts for run in runs}
    depth = dict.fromkeys(parts, 1)
    while True:
        names = {key: "/".join(parts[key][-depth[key]:]) for key in parts}
        count = pd.Series(list(names.values())).value_counts()
        clashes = [key for key in parts if count[names[key]] > 1 and depth[key] < len(parts[key])]
        if not clashes:
            break
        for key in clashes:
            depth[key] += 1
    for run in runs:
        run.name = names[id(run)]


def runs(*patterns, on_error="raise"):
    """The runs in directories, as Runs.

    patterns: run directories, sweep directories (all their runs), or patterns of such ("runs/*"), as text, Path or
    lists of them. What a pattern finds and is neither a run nor a sweep is left out; what is named itself must be one.
    on_error: "raise" a RunError for a damaged run, or "skip" it with a warning."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error is 'raise' or 'skip', not {on_error!r}")
    given = []
    for pattern in patterns:
        given.extend([pattern] if isinstance(pattern, (str, os.PathLike)) else pattern)
    if not given:
        raise ValueError("runs() needs a directory or a pattern")
    notes, opened, seen = [], [], set()

    def guarded(make):
        try:
            return make()
        except RunError as error:
            if on_error == "raise":
                raise
            warnings.warn(f"left out: {error}", stacklevel=4)
            return None

    for pattern in given:
        found_any = False
        for path, named in _matches(pattern):
            if _is_sweep(path):
                entries = guarded(lambda: list(_sweep_entries(path, notes))) or []
            elif path.is_dir() and _is_run(path):
                entries = [{"path": path}]
            elif named:
                raise RunError(f"{shown(path)} is neither a run nor a sweep: it has no config.json and no sweep.json; "
                               f"for the runs in it give {shown(path / '*')}")
            else:
                continue
            found_any = True
            for entry in entries:
                real = os.path.realpath(entry["path"])
                if real not in seen:
                    seen.add(real)
                    opened.append(guarded(lambda: _open_run(**entry)))
        if not found_any:
            raise RunError(f"no run and no sweep matches {shown(pattern)}")
    opened = [run for run in opened if run is not None]
    if not opened:
        raise RunError("no run has begun: " + "; ".join(notes) if notes else "no run is whole")
    _distinct_names(opened)
    # Variants of one name in different directories are different experiments.
    parents = {}
    for run in opened:
        parents.setdefault(run.variant, set()).add(_real(run.path).parent)
    for run in opened:
        if len(parents[run.variant]) > 1:
            run.variant = f"{_real(run.path).parent.name}/{run.variant}"
    return Runs(opened, notes, on_error)


class Runs:
    """Runs as data frames. Every frame is long: one measurement per row, with the column `run`, the name of a row of
    `table`. A file is read when a frame asks for it, so a run may still be training."""

    def __init__(self, runs, notes=(), on_error="raise"):
        self._runs, self._on_error = list(runs), on_error
        self.notes = list(notes)  # runs of sweeps that have not begun
        self._table = None

    def __len__(self):
        return len(self._runs)

    def __iter__(self):
        """The runs one by one: path, name, variant, seed, sweep, and config as the nested dictionary it is."""
        return iter(self._runs)

    def __repr__(self):
        names = ", ".join(shown(run.name) for run in self._runs[:8])
        return f"<{len(self)} runs: {names}{', ...' if len(self) > 8 else ''}>"

    def _repr_html_(self):
        return self.table._repr_html_()

    @property
    def table(self):
        """One row per run: run, variant, seed, sweep, path; step, the last one logged, validated or saved, of `steps`,
        and finished; then every field of the resolved config by its dotted path (model.width, stages.0.steps)."""
        if self._table is None:
            self._table = pd.DataFrame([self._row(run) for run in self._runs])
        return self._table

    def _row(self, run):
        stages = run.config.get("stages")
        steps = [stage.get("steps") for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
        planned = sum(s for s in steps if isinstance(s, int))
        step = self._last_step(run)
        fields = flat(run.config)
        return {"run": run.name, "variant": run.variant, "seed": run.seed, "sweep": run.sweep, "path": str(run.path),
                "step": step, "steps": planned, "finished": 0 < planned <= step, **fields}

    def _last_step(self, run):
        step = 0
        for name in ("metrics.jsonl", "val.csv"):
            frame = self._guarded(run, name, "")
            if frame is not None and len(frame) and "step" in frame:
                step = max(step, int(frame["step"].iloc[-1]))
        for name in _directories(run.path / "checkpoints", r"step_[0-9]{8,18}"):
            if (run.path / "checkpoints" / name / "manifest.json").is_file():  # written last
                step = max(step, int(name[5:]))
        return step

    def select(self, which):
        """The runs of a boolean series over `table`, of a list of names, or for whose row a function is true:
        select(study.table["model.width"] == 64)."""
        if callable(which):
            chosen = [bool(which(row)) for _, row in self.table.iterrows()]
        else:
            which = list(which)
            if all(isinstance(w, str) for w in which):
                unknown = set(which) - {run.name for run in self._runs}
                if unknown:
                    raise KeyError(f"no run is named {', '.join(map(shown, sorted(unknown)))}")
                chosen = [run.name in which for run in self._runs]
            elif len(which) == len(self):
                chosen = [bool(w) for w in which]
            else:
                raise ValueError(f"{len(which)} values select from {len(self)} runs")
        return Runs([run for run, c in zip(self._runs, chosen) if c], self.notes, self._on_error)

    # --- the files

    def _guarded(self, run, name, below):
        try:
            return run.read(name, below)
        except RunError as error:
            if self._on_error == "raise":
                raise
            warnings.warn(f"left out: {error}", stacklevel=4)
            return None

    def _collect(self, name, evaluation="", with_sets=False):
        """The rows of a file of all runs with `run`, `evaluation` and, if there are sets, `set` in front."""
        has_places = name.endswith(".csv")  # JSON lines are of training alone
        frames, sought = [], []
        for run in self._runs:
            labels = [""] + run.evaluations() if evaluation is None else [evaluation]
            for label in labels:
                below = os.path.join("eval", label) if label else ""
                for chosen in [""] + (run.sets(below) if with_sets else []):
                    at = os.path.join(below, "sets", chosen) if chosen else below
                    sought.append(run.path / at / name)
                    frame = self._guarded(run, name, at)
                    if frame is None:
                        continue
                    front = {"run": run.name}
                    if has_places:
                        front["evaluation"] = label
                    if with_sets:
                        front["set"] = chosen
                    for place, (column, value) in enumerate(front.items()):
                        if column in frame:  # a later version's: kept, under another name
                            frame = frame.rename(columns={column: column + "_"})
                        frame.insert(place, column, pd.Series([value] * len(frame), dtype=object))
                    frames.append(frame)
        if not frames:
            if not self._runs:
                return empty(name)
            raise RunError(f"no run has {name}: {shown(sought[0])} does not exist; it is written by {WRITTEN_BY[name]}")
        # An empty frame would turn the integers of the others into objects.
        filled = [frame for frame in frames if len(frame)]
        return pd.concat(filled, ignore_index=True) if filled else frames[0]

    def train(self):
        """metrics.jsonl: run, step, tokens, context, loss, grad_norm, ... A loss that was not finite is NaN."""
        return self._collect("metrics.jsonl")

    def timing(self):
        """timing.jsonl: run, step, time, tokens_per_second, ..."""
        return self._collect("timing.jsonl")

    def val(self, evaluation=""):
        """val.csv: run, evaluation, set, step, length, loss, ... of the validations while training; of an evaluation
        (eval/<label>/) if its label is given; of all if it is None. set is "" for data.val, else of data.val_sets."""
        return self._collect("val.csv", evaluation, with_sets=True)

    def positions(self, evaluation=""):
        """positions.csv, as val(): loss by position in the sequence and in the document."""
        return self._collect("positions.csv", evaluation, with_sets=True)

    def tasks(self, evaluation=None):
        """tasks.csv: accuracy on tasks, of all evaluations unless one is given."""
        return self._collect("tasks.csv", evaluation)

    def key_tokens(self, evaluation=None):
        """key_tokens.csv: losses of the tokens that a long context helps to predict and of the others, of all
        evaluations unless one is given."""
        return self._collect("key_tokens.csv", evaluation)

    def probe(self, evaluation=None):
        """probe.csv: what attention does, of all evaluations and training unless one is given."""
        return self._collect("probe.csv", evaluation)

    # --- losses by length

    def lengths(self):
        """The newest loss of every run, evaluation, set and length: run, variant, seed, evaluation, set, length, loss,
        top1, top1_error and standard_error (over documents), scored, documents, fingerprint.

        By the rules of `longreach report`: `plain` is the model as trained, from eval/plain/ if every run with losses
        has it, else from the newest validation. `apart`: measured on other tokens than most variants, so not to be
        compared with them. `behind`: of a validation, another seed of the variant was validated at a later step."""
        wanted = ["run", "variant", "seed", "evaluation", "set", "step", "length", "loss", "top1", "top1_error",
                  "standard_error", "scored", "documents", "fingerprint", "apart", "behind"]
        rows = self.val(None).copy()
        for column in ("top1", "top1_error", "standard_error", "scored", "documents"):
            if column not in rows:  # files of earlier versions
                rows[column] = math.nan
        if "fingerprint" not in rows:
            rows["fingerprint"] = ""
        rows["fingerprint"] = rows["fingerprint"].where(rows["fingerprint"].notna(), "")
        rows.loc[rows["documents"] < 2, "standard_error"] = math.nan  # earlier versions wrote 0
        table = pd.DataFrame({"run": [run.name for run in self._runs], "variant": [run.variant for run in self._runs],
                              "seed": [run.seed for run in self._runs]})
        rows = rows.merge(table, on="run", how="left", sort=False)
        places = rows.groupby(["run", "evaluation", "set"])["step"]
        rows = rows[rows["step"] == places.transform("max")].copy()
        parts = [self._of_set(rows[rows["set"] == chosen].copy()) for chosen in dict.fromkeys(rows["set"])]
        rows = pd.concat(parts, ignore_index=True) if parts else rows.assign(apart=False, behind=False)
        rest = [column for column in rows.columns if column not in wanted]
        return rows[wanted + rest].drop_duplicates(["run", "evaluation", "set", "length"]).reset_index(drop=True)

    def _of_set(self, rows):
        trained, plain = rows["evaluation"] == "", rows["evaluation"] == "plain"
        evaluated = set(rows.loc[trained, "run"]) <= set(rows.loc[plain, "run"])
        rows["behind"] = False
        if evaluated:
            rows = rows[~trained].copy()
        else:
            rows = rows[~plain].copy()
            trained = rows["evaluation"] == ""
            newest = rows[trained].groupby("variant")["step"].transform("max")
            rows.loc[trained, "behind"] = rows.loc[trained, "step"] < newest
            rows.loc[trained, "evaluation"] = "plain"
        counts = rows["scored"].map(lambda n: f"{n} unidentified")
        key = rows["fingerprint"].where(rows["fingerprint"] != "", counts)
        rows["apart"] = key != self._most_common(rows.assign(key=key))
        return rows

    def _most_common(self, rows):
        """The measure that most variants have in the evaluations that their sweeps list; without sweeps, in all. On a tie
        that of the models as trained, then the one with the most tokens."""
        listed = {label for run in self._runs for label in run.labels}
        votes = rows[~rows["behind"]]
        if listed and votes["evaluation"].isin(listed).any():
            votes = votes[votes["evaluation"].isin(listed)]
        best = None
        for key, group in sorted(votes.groupby("key"), key=lambda entry: entry[0]):
            rank = (group["variant"].nunique(), (group["evaluation"] == "plain").any())
            scored = group["scored"].iloc[-1]
            if best is None or rank > best[1] or (rank == best[1] and not scored <= best[2]):
                best = (key, rank, scored)
        return best[0] if best else None

    def means(self, baseline=None):
        """lengths() over seeds: variant, evaluation, set, length, seeds, loss (the mean), standard_error (of the mean),
        low, high (its 95% interval); rows that are apart or behind are left out. With a baseline, a variant, also
        difference, difference_low, difference_high, paired by seed."""
        rows = self.lengths()
        rows = rows[~rows["apart"] & ~rows["behind"]]
        repeated = rows.duplicated(["variant", "seed", "evaluation", "set", "length"])
        if repeated.any():
            names = ", ".join(shown(name) for name in rows.loc[repeated, "run"].unique())
            warnings.warn(f"left out of means, since another run has their variant and seed: {names}", stacklevel=2)
            rows = rows[~repeated]
        if baseline is not None and baseline not in set(rows["variant"]):
            raise KeyError(f"there is no variant {shown(baseline)}; the variants are "
                           f"{', '.join(map(shown, rows['variant'].unique()))}")
        by_place = {place: dict(zip(group["seed"], group["loss"])) for place, group in
                    rows.groupby(["variant", "evaluation", "set", "length"], sort=False)}
        out = []
        for (variant, evaluation, chosen, length), values in by_place.items():
            m = mean_interval(values.values())
            row = {"variant": variant, "evaluation": evaluation, "set": chosen, "length": length, "seeds": m.count,
                   "loss": m.mean, "standard_error": m.standard_error, "low": m.low, "high": m.high}
            if baseline is not None:
                gap = paired_difference(values, by_place.get((baseline, "plain", chosen, length), {}))
                row.update(difference=gap.mean, difference_low=gap.low, difference_high=gap.high)
            out.append(row)
        columns = ["variant", "evaluation", "set", "length", "seeds", "loss", "standard_error", "low", "high"]
        return pd.DataFrame(out, columns=None if out else columns)
