"""Runs longreach and the PyTorch peer in turns on one model and prints their training throughput.

Called by `tools/peers/compare`; `tools/contention` imports it, from a Python that may have no PyTorch. All programs stay
alive, compiled and warmed up, and take short turns in an order that changes (A B C, then B C A, ...): the speed of a
shared machine changes within seconds, and short turns share it. A ratio is the median of the rounds' ratios. Its interval
holds the median of the ratios that such rounds have, with a probability of 95%, whatever their distribution is: it ends
at two of the sorted ratios.
"""

import argparse
import json
import math
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

HERE = Path(__file__).resolve().parent
LONGREACH = "longreach"
FORMS = {"eager": [], "compile": ["--compile"]}  # of the PyTorch peer
PAUSE = 0.5  # seconds between turns: threads of the last program stop spinning


class Program:
    """A process that answers each line with tokens per second, perhaps followed by what it noticed."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.noticed: list[str] = []
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
        rate, _, noticed = self.answer().partition(" ")
        self.noticed += [noticed] if noticed else []
        return float(rate)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


@dataclass
class Case:
    config: Path
    context: int
    precision: str
    args: argparse.Namespace
    python: str = sys.executable  # one that has PyTorch

    def longreach(self, *options: str) -> list[str]:
        settings = {
            "batch.tokens": self.args.tokens,
            "system.precision": self.precision,
            "system.threads": self.args.threads,
            "system.device": "cpu",
        }
        command = [self.args.longreach, "bench", str(self.config), "--contexts", str(self.context), *options]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def torch(self, *options: str) -> list[str]:
        command = [self.python, str(HERE / "torch_train.py"), str(self.config), "--random-tokens"]
        command += ["--on-request", "--context", str(self.context), "--precision", self.precision]
        command += ["--threads", str(self.args.threads), "--step-tokens", str(self.args.tokens)]
        return [*command, "--steps", str(self.args.steps), *options]


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


def start_longreach(case: Case, name: str = LONGREACH) -> Program:
    return Program(name, case.longreach("--steps", str(case.args.steps), "--on-request"), {})


def start_torch(case: Case, form: str, shim: dict[str, str]) -> Program:
    name = f"torch {form}, MKL with AVX-512" if shim else f"torch {form}"
    return Program(name, case.torch(*FORMS[form]), shim)


def start(case: Case, shim: dict[str, str]) -> list[Program]:
    print(f"{case.config.stem}, context {case.context}, {case.precision}: starting", file=sys.stderr)
    programs = [start_longreach(case)]
    for form in FORMS:
        programs += [start_torch(case, form, environment) for environment in ([{}, shim] if shim else [{}])]
    return programs


def interval_of_median(ordered: list[float]) -> tuple[float, float]:
    """Two of the sorted values, between which the median of their distribution lies with a probability of 95% or more."""
    n, first, below = len(ordered), 0, 0.5 ** len(ordered)
    while below + math.comb(n, first + 1) * 0.5**n <= 0.025:  # no more than first + 1 lie below the median
        first += 1
        below += math.comb(n, first) * 0.5**n
    return ordered[first], ordered[n - 1 - first]


@dataclass
class Result:
    case: Case
    rates: dict[str, list[float]] = field(default_factory=dict)  # by program, one per round
    contention: list[str] = field(default_factory=list)  # as longreach says it, one per round
    bench: str = ""  # what `longreach bench` printed afterwards

    def rows(self) -> list[str]:
        ours, out = self.rates[LONGREACH], []
        where = f"{self.case.config.stem} | {self.case.context} | {self.case.precision}"
        for name, rates in self.rates.items():
            ratios = sorted(mine / theirs for mine, theirs in zip(ours, rates))
            low, high = interval_of_median(ratios)
            quartiles = statistics.quantiles(ratios, n=4)
            ratio = f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f}) | {quartiles[0]:.2f}-{quartiles[2]:.2f}"
            out.append(f"| {where} | {name} | {statistics.median(rates):.0f} | {ratio} |")
        return out


def measure(case: Case, shim: dict[str, str]) -> Result:
    programs = start(case, shim)
    result = Result(case, {program.name: [] for program in programs})
    for turn in range(case.args.rounds):
        first = turn % len(programs)
        for program in programs[first:] + programs[:first]:
            time.sleep(PAUSE)
            result.rates[program.name].append(program.tokens_per_second())
        latest = ", ".join(f"{name} {rates[-1]:.0f}" for name, rates in result.rates.items())
        print(f"  round {turn + 1}: {latest}", file=sys.stderr)
    for program in programs:
        program.close()
    result.contention = programs[0].noticed
    # If this fails, its lines are missing from the output, but the rounds are not lost.
    result.bench = subprocess.run(case.longreach(), capture_output=True, text=True).stdout
    return result


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def torch_version(python: str = sys.executable) -> str:
    command = [python, "-c", "import torch; print(torch.__version__)"]
    return subprocess.check_output(command, text=True).strip()


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
    parser.add_argument("--rounds", type=int, default=40, help="6 or more")
    parser.add_argument("--steps", type=int, default=1, help="timed steps per turn; their median counts")
    parser.add_argument("--longreach", default="build/longreach", help="the program")
    parser.add_argument("--no-shim", action="store_true", help="PyTorch only as installed, also on AMD")
    parser.add_argument("--json", type=Path, help="also write every round's rate here")
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.rounds < 6:
        raise SystemExit("--rounds: fewer than 6 give no interval of 95%")
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
    print(f"{cpu_name()}, {args.threads} threads; {args.tokens} tokens per step; PyTorch {torch_version()}")
    print(f"{args.rounds} rounds, {args.steps} timed steps per turn; load {load_before} before")
    for r in results:
        of = f"{r.case.config.stem}, {r.case.context}, {r.case.precision}"
        if peak := re.search(r"of the measured (\d+ GFLOP/s)", r.bench):
            print(f"{of}: longreach's best matrix product after the rounds: {peak[1]}")
        if share := re.search(r"^of the products timed around each step: .*", r.bench, re.MULTILINE):
            print(f"{of}: longreach's steps, {share[0]}")
    # The turn with most of it: what its ratios may have suffered from.
    worst = max((line for r in results for line in r.contention), key=percents, default="")
    if worst:
        print(f"longreach's worst turn: {worst}")
    print()
    print("| model | context | precision | program | tokens/s | longreach / it (95%) | quartiles |")
    print("|---|---:|---|---|---:|---:|---:|")
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
