#!/usr/bin/env python3
"""Logs run directories to Weights & Biases or MLflow, finished ones or while they train.

    track.py RUN_OR_SWEEP... --to wandb [--project NAME]      files in ./wandb; `wandb sync wandb/offline-run-*` uploads them
    track.py RUN_OR_SWEEP... --to mlflow [--project NAME]     files in ./mlruns; `mlflow ui` shows them
    track.py RUN_OR_SWEEP... --to mlflow --follow             goes on until every run has done its last step

Nothing is sent anywhere: wandb is in offline mode unless WANDB_MODE says otherwise, and mlflow writes files unless
MLFLOW_TRACKING_URI does. Each run becomes one run there, under its own name, with its config, every logged step
(train/..., time/...), every validation (val/LENGTH/...) and the results of its evaluations (eval/LABEL/LENGTH/...).
"""

import argparse
import hashlib
import os
import sys
import time

import longreach

SCORES = ("loss", "top1", "top1_error", "standard_error")


def frame(read):
    """A frame of the package; None if no run has such a file."""
    try:
        return read()
    except longreach.RunError:
        return None


def numbers(row, names, prefix):
    return {f"{prefix}{name}": float(row[name]) for name in names if name in row and row[name] == row[name]}


def measured(study):
    """{(step, name): value} of the one run of `study`, at this moment."""
    out = {}
    for read, prefix in ((study.train, "train/"), (study.timing, "time/")):
        rows = frame(read)
        if rows is None:
            continue
        names = [name for name in rows.columns if name not in ("run", "step") and rows[name].dtype.kind in "if"]
        for row in rows.to_dict("records"):
            out.update({(int(row["step"]), name): value for name, value in numbers(row, names, prefix).items()})
    rows = frame(lambda: study.val(None))
    for row in [] if rows is None else rows.to_dict("records"):
        place = f"eval/{row['evaluation']}/" if row["evaluation"] else "val/"
        prefix = f"{place}{row['set'] + '/' if row['set'] else ''}{row['length']}/"
        out.update({(int(row["step"]), name): value for name, value in numbers(row, SCORES, prefix).items()})
    return out


def flat(value, path=""):
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{path}.{key}" if path else key).items()}
    return {path: value}


class Wandb:
    def __init__(self, run, project):
        import wandb

        os.environ.setdefault("WANDB_MODE", "offline")
        # The same run has the same id, so that logging it again replaces it.
        self.run = wandb.init(project=project, name=run.name, group=run.variant, config=run.config, reinit="create_new",
                              id=hashlib.sha256(os.path.realpath(run.path).encode()).hexdigest()[:16],
                              settings=wandb.Settings(console="off", quiet=True))
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")  # a validation may come after later steps

    def log(self, step, values):
        self.run.log({"step": step, **values})

    def finish(self):
        self.run.finish()


class Mlflow:
    def __init__(self, run, project):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which mlflow 3 asks for
        import mlflow
        from mlflow.entities import Metric, Param, RunTag

        self.metric = Metric
        self.client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", "file:" + os.path.abspath("mlruns")))
        found = self.client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self.client.create_experiment(project)
        tags = {"mlflow.runName": run.name, "variant": run.variant, "seed": run.seed, "path": os.path.realpath(run.path)}
        self.id = self.client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(name, str(value)[:6000]) for name, value in flat(run.config).items()]
        for at in range(0, len(params), 100):  # at most 100 in a call
            self.client.log_batch(self.id, params=params[at:at + 100])
        self.client.log_batch(self.id, tags=[RunTag(name, str(value)) for name, value in tags.items()])

    def log(self, step, values):
        now = int(1000 * time.time())
        self.client.log_batch(self.id, metrics=[self.metric(name, value, now, step) for name, value in values.items()])

    def finish(self):
        self.client.set_terminated(self.id)


class Tracked:
    """A run and what of it has been logged."""

    def __init__(self, run, tracker):
        self.path, self.tracker, self.logged = run.path, tracker, set()

    def update(self):
        """Logs what is new; whether the run has done its last step."""
        study = longreach.runs(self.path)
        finished = bool(study.table["finished"].iloc[0])  # asked first: what a run writes last is then logged
        values, steps = measured(study), {}
        for (step, name), value in values.items():
            if (step, name) not in self.logged:
                steps.setdefault(step, {})[name] = value
        for step in sorted(steps):
            self.tracker.log(step, steps[step])
        self.logged.update(values)
        return finished


def track(study, tracker, project, follow=False, every=10):
    """Logs every run of `study` with a tracker: Wandb or Mlflow."""
    tracked = [Tracked(run, tracker(run, project)) for run in study]
    while True:
        finished = [one.update() for one in tracked]
        if not follow or all(finished):
            break
        time.sleep(every)
    for one in tracked:
        one.tracker.finish()
    return tracked


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_SWEEP", help="directories, or patterns of them")
    parser.add_argument("--to", required=True, choices=("wandb", "mlflow"))
    parser.add_argument("--project", default="longreach", help="project of wandb, experiment of mlflow")
    parser.add_argument("--follow", action="store_true", help="until every run has done its last step")
    parser.add_argument("--every", type=float, default=10, help="seconds between two looks (default: 10)")
    options = parser.parse_args()
    try:
        done = track(longreach.runs(*options.runs), Wandb if options.to == "wandb" else Mlflow, options.project,
                     options.follow, options.every)
    except ImportError as missing:
        sys.exit(f"track.py needs {options.to}: {missing}; pip install {options.to}")
    except longreach.RunError as error:
        sys.exit(f"error: {error}")
    print(f"{len(done)} runs, {sum(len(one.logged) for one in done)} values logged to {options.to}")


if __name__ == "__main__":
    main()
