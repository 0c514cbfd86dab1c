"""Runs longreach and the PyTorch peer in turns on one model and prints their training throughput.

Called by `tools/peers/compare`. Programs take turns (A B C A B C ...), so that a machine that slows down
slows all of them; a ratio is the median of the rounds' ratios. PyTorch's processes stay alive between their
turns, compiled and warmed up; longreach's start anew and warm up each time.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

HERE = Path(__file__).resolve().parent
PAUSE = 0.5  # seconds between turns: threads of the last program stop spinning


class Program(Protocol):
    name: str

    def tokens_per_second(self) -> float: ...

    def close(self) -> None: ...


@dataclass
class Case:
    config: Path
    context: int
    precision: str
    args: argparse.Namespace


class Longreach:
    name = "longreach"

    def __init__(self, case: Case) -> None:
        settings = {
            "batch.tokens": case.args.tokens,
            "system.precision": case.precision,
            "system.threads": case.args.threads,
            "system.device": "cpu",
        }
        self.command = [case.args.longreach, "bench", str(case.config), "--contexts", str(case.context)]
        self.command += ["--steps", str(case.args.steps)]
        for key, value in settings.items():
            self.command += ["--set", f"{key}={value}"]
        self.peaks: list[float] = []
        self.shares: list[list[int]] = []  # percent of the products around a step, without and with recomputation
        self.contention: list[str] = []  # as `bench` says it, a turn each

    def tokens_per_second(self) -> float:
        done = subprocess.run(self.command, capture_output=True, text=True)
        found = re.search(r"context \d+: (\d+) tokens/step, median ([\d.]+) ms", done.stdout)
        if done.returncode != 0 or not found:
            raise SystemExit(f"{' '.join(self.command)} failed:\n{done.stdout}{done.stderr}")
        if peak := re.search(r"of the measured ([\d.]+) GFLOP/s", done.stdout):
            self.peaks.append(float(peak[1]))
        if share := re.search(r"^of the products timed around each step: (\d+)%, and (\d+)%", done.stdout, re.MULTILINE):
            self.shares.append([int(share[1]), int(share[2])])
        if seen := re.search(r"^contention: (.*)", done.stdout, re.MULTILINE):
            self.contention.append(seen[1])
        return int(found[1]) / float(found[2]) * 1e3

    def close(self) -> None:
        pass


class Torch:
    """torch_train.py, which times some steps after each line it is sent."""

    def __init__(self, case: Case, name: str, flags: list[str], environment: dict[str, str]) -> None:
        self.name = name
        command = [sys.executable, str(HERE / "torch_train.py"), str(case.config), "--random-tokens"]
        command += ["--on-request", "--context", str(case.context), "--precision", case.precision]
        command += ["--threads", str(case.args.threads), "--step-tokens", str(case.args.tokens)]
        command += ["--steps", str(case.args.steps), *flags]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **environment},
        )
        print(f"  {name}: {self.answer().removeprefix('ready: ')}", file=sys.stderr)

    def answer(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self.errors.read()[-4000:]}")
        return line.strip()

    def tokens_per_second(self) -> float:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


def mkl_shim(folder: str) -> dict[str, str]:
    """Environment in which MKL uses AVX-512 on AMD processors, where it otherwise takes its AVX2 kernels."""
    about_cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    compiler = shutil.which("cc")
    if "AuthenticAMD" not in about_cpu or "avx512f" not in about_cpu or not compiler:
        return {}
    source, library = Path(folder, "shim.c"), Path(folder, "shim.so")
    source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()}


def start(case: Case, shim: dict[str, str]) -> list[Program]:
    print(f"{case.config.stem}, context {case.context}, {case.precision}: starting", file=sys.stderr)
    programs: list[Program] = [Longreach(case)]
    for kind, flags in (("eager", []), ("compile", ["--compile"])):
        programs.append(Torch(case, f"torch {kind}", flags, {}))
        if shim:
            programs.append(Torch(case, f"torch {kind}, MKL with AVX-512", flags, shim))
    return programs


@dataclass
class Result:
    case: Case
    rates: dict[str, list[float]] = field(default_factory=dict)  # by program, one per round
    peak: float = 0
    shares: list[list[int]] = field(default_factory=list)
    contention: list[str] = field(default_factory=list)

    def rows(self) -> list[str]:
        ours, out = self.rates[Longreach.name], []
        where = f"{self.case.config.stem} | {self.case.context} | {self.case.precision}"
        for name, rates in self.rates.items():
            ratios = sorted(mine / theirs for mine, theirs in zip(ours, rates))
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            out.append(f"| {where} | {name} | {statistics.median(rates):.0f} | {ratio} |")
        return out


def measure(case: Case, shim: dict[str, str]) -> Result:
    programs = start(case, shim)
    result = Result(case, {program.name: [] for program in programs})
    for turn in range(case.args.rounds):
        for program in programs:
            time.sleep(PAUSE)
            result.rates[program.name].append(program.tokens_per_second())
        latest = ", ".join(f"{name} {rates[-1]:.0f}" for name, rates in result.rates.items())
        print(f"  round {turn + 1}: {latest}", file=sys.stderr)
    for program in programs:
        program.close()
    if isinstance(programs[0], Longreach):
        result.peak = max(programs[0].peaks, default=0)
        result.shares = programs[0].shares
        result.contention = programs[0].contention
    return result


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def percents(line: str) -> int:
    return sum(int(number) for number in re.findall(r"(\d+)%", line))


def load_average() -> str:
    return f"{os.getloadavg()[0]:.2f}"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configs", default="configs/quickstart/rope.json", help="comma-separated")
    parser.add_argument("--contexts", type=numbers, default=[512, 4096], help="comma-separated")
    parser.add_argument("--precisions", default="fp32", help="fp32, bf16 or fp32,bf16")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens per step, of every program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="timed steps per turn; their median counts")
    parser.add_argument("--longreach", default="build/longreach", help="the program")
    parser.add_argument("--no-shim", action="store_true", help="PyTorch only as installed, also on AMD")
    parser.add_argument("--json", type=Path, help="also write every round's rate here")
    return parser.parse_args()


def main() -> int:
    args = parse()
    if not shutil.which(args.longreach):
        raise SystemExit(
            f"{args.longreach} is missing: cmake --preset release && cmake --build --preset release"
        )
    load_before, results = load_average(), []
    with tempfile.TemporaryDirectory() as folder:
        shim = {} if args.no_shim else mkl_shim(folder)
        for config in args.configs.split(","):
            for precision in args.precisions.split(","):
                for context in args.contexts:
                    results.append(measure(Case(Path(config), context, precision, args), shim))
    print(f"{cpu_name()}, {args.threads} threads; {args.tokens} tokens per step; PyTorch {torch.__version__}")
    print(f"{args.rounds} rounds of {args.steps} steps, programs in turn; load {load_before} before")
    for precision in args.precisions.split(","):
        peak = max(r.peak for r in results if r.case.precision == precision)
        print(f"longreach's best matrix product meanwhile: {peak:.0f} GFLOP/s in {precision}")
    for r in results:
        if not r.shares:  # a program from before these lines
            continue
        step, computed = (statistics.median(column) for column in zip(*r.shares))
        print(
            f"longreach's steps at {r.case.context} in {r.case.precision}: {step:.0f}% of the products timed "
            f"around them, {computed:.0f}% with what operations compute again"
        )
    # The turn with most of it: what its ratios may have suffered from.
    worst = max((line for r in results for line in r.contention), key=percents, default="")
    if worst:
        print(f"longreach's worst turn: {worst}")
    print()
    print("| model | context | precision | program | tokens/s | longreach / it (range) |")
    print("|---|---:|---|---|---:|---:|")
    print("\n".join(row for result in results for row in result.rows()))
    if args.json:
        raw = [
            {"config": str(r.case.config), "context": r.case.context, "precision": r.case.precision}
            | {"tokens_per_second": r.rates}
            for r in results
        ]
        args.json.write_text(json.dumps(raw, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
