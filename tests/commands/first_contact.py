"""What somebody meets who reads README.md for the first time.

    first_contact.py PROGRAM SOURCE [COMMAND...]

Every command of README.md runs as it stands, in its order, in a fresh copy of what is in the repository. Stand-ins:

- for what a machine may not have: docker, srun (which runs its command once), the network (tools/wheel);
- for what other tests do: installing packages, compiling, packing, ctest, tools/gallery (cmake only installs, the others do
  nothing);
- for time: build/longreach passes every command on, with SHORT added to `train` and `sweep` (its number of steps in place
  of the command's), the numbers of `train-tokenizer` and `eval` as in SMALLER, and `bench --steps 1`.

Then names typed wrong, a run that is interrupted and goes on, output into a pipe and a file, and lines on a terminal of 80
columns. COMMAND: only these of commands, typed_wrong, interrupted, piped, narrow.
"""
import http.client
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM, SOURCE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
SHORT = ["stages.0.steps=4", "batch.tokens=512", "batch.micro_tokens=256", "eval.lengths=[256,512]", "eval.every=4",
         "eval.tokens=512", "eval.final_tokens=512"]
SMALLER = {"8192": "600", "65536": "2048"}
WIDTH = 80
problems = []


def problem(what, output=""):
    problems.append(what)
    print(f"{what}\n{output}".rstrip())


def run(command, code=0, seconds=120, **options):
    """A command for bash; its output. Another exit code is a problem."""
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                          text=True, errors="replace", timeout=seconds, **options)
    if done.returncode != code:
        problem(f"{command}: exit code {done.returncode}, not {code}", done.stdout)
    return done.stdout


def stand_in(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


def fresh_copy(root):
    """README's directory after the build, without what the program makes."""
    for name in ("cmake", "configs", "tools", "runs/reference", "runs/studies"):
        shutil.copytree(SOURCE / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    for name in ("CMakeLists.txt", "CMakePresets.json", "Dockerfile", "README.md", "LICENSE"):
        shutil.copy(SOURCE / name, root / name)
    (root / "build").mkdir()
    for file in PROGRAM.parent.iterdir():
        if file.suffix in (".so", ".cmake"):
            (root / "build" / file.name).symlink_to(file)
    short = shlex.join(word for setting in SHORT for word in ("--set", setting))
    smaller = "; ".join(f'set -- "${{@/{old}/{new}}}"' for old, new in SMALLER.items())
    stand_in(root / "build" / "longreach", f"""case "$1 ${{2:-}}" in
train\\ *) set -- "${{@/#stages.0.steps=*/system.threads=0}}"; more=({short}) ;;
sweep\\ *) more=({short} --set "seeds=[1]") ;;
"data train-tokenizer" | eval\\ *) {smaller} ;;
bench\\ *) more=(--steps 1) ;;
esac
exec {shlex.quote(str(PROGRAM))} "$@" "${{more[@]}}"
""")
    stand_in(root / "tools" / "setup", "")
    stand_in(root / "tools" / "wheel", 'echo "not run here: install_long does"\n')
    stand_in(root / "tools" / "gallery", 'echo "not run here: the test gallery does"\n')
    there = root / "stand-ins"
    stand_in(there / "docker", '[ "$1" = run ] || [ -f Dockerfile ]\n')
    stand_in(there / "srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    stand_in(there / "ctest", "")
    stand_in(there / "ninja", "")
    stand_in(there / "cmake", f'[ "$1" != --install ] || exec {shlex.quote(shutil.which("cmake"))} "$@"\n')
    stand_in(there / "cpack", "[ -e CPackConfig.cmake ]\n")
    # For longreach without a path, as after an installation.
    (there / "longreach").symlink_to(root / "build" / "longreach")
    os.environ["PATH"] = f"{there}:{os.environ['PATH']}"
    os.environ["HOME"] = str(root / "home")
    os.environ["LONGREACH_INSTALL_LIST"] = str(root / "installed")
    os.environ.pop("COLUMNS", None)
    os.chdir(root)


def blocks(text):
    """The indented blocks of a Markdown page, as lists of lines."""
    out, inside = [], False
    for line in text.splitlines():
        if line.startswith("    "):
            if not inside:
                out.append([])
            out[-1].append(line[4:])
        inside = line.startswith("    ") or (inside and not line)
    return out


STARTS = re.compile(r"^(\(cd |tools/|build/|cmake |docker |srun |ninja )")


def prepare(block):
    """Makes what a block of README shows, so that the commands after it have it."""
    text = "\n".join(block)
    if text.startswith("{"):
        pathlib.Path("my.json").write_text(text)
        run(f"{PROGRAM} train my.json --dry-run --plan-for 80GiB:cuda")  # its data may be missing then
        # The commands that follow train something of this machine's size.
        small = {"base": "configs/quickstart/rope.json", "run": {"name": "my"}}
        pathlib.Path("my.json").write_text(json.dumps(small))
    elif text.startswith('"'):
        for line in block:
            part = json.loads("{" + line.rstrip(",") + "}")
            pathlib.Path("part.json").write_text(
                json.dumps({"base": "configs/quickstart/rope.json", "model": {"attention": part}}))
            run("longreach config show part.json")
    elif text.startswith("$ longreach train wrong.json"):
        pathlib.Path("wrong.json").write_text(
            '{\n  "model": {\n    "layers": 1.5,\n    "atention": {},\n    "norm": {\n      "kind": "rmsnorm"\n    }\n  }\n}\n')
        shown = run(f"{PROGRAM} train wrong.json", 2)
        if shown.rstrip("\n") != "\n".join(block[1:]):
            problem("runs/README.md shows other messages about wrong.json", shown)
    elif not re.match(r"loss at context", text):
        problem(f"neither a command nor known: {text}")


def serve(command):
    """Runs a server until it has answered once, then interrupts it."""
    command = re.sub(r"(serve \S+)", r"\1 --port 0", command)
    server = subprocess.Popen(["bash", "-c", "exec " + command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kill = threading.Timer(60, server.kill)
    kill.start()
    said = ""
    for line in server.stdout:
        said += line
        if found := re.search(r"at (?:http://)?([\w.]+):(\d+)", line):
            client = http.client.HTTPConnection(found.group(1), int(found.group(2)), timeout=30)
            client.request("GET", "/v1/models")
            if client.getresponse().status != 200:
                problem(f"{command}: no answer to /v1/models")
            server.send_signal(signal.SIGINT)
            break
    said += server.stdout.read()
    code = server.wait()
    kill.cancel()
    if code != 0:
        problem(f"{command}: exit code {code}", said)


def commands():
    text = pathlib.Path("README.md").read_text()
    books = pathlib.Path("books")
    books.mkdir()
    for page in (SOURCE / "configs").glob("*.md"):
        for i, part in enumerate(page.read_text().split("\n\n")):  # a vocabulary needs text, a validation part documents
            (books / f"{page.stem}-{i}.txt").write_text(part * 2)
    count = 0
    for block in blocks(text):
        if not STARTS.match(block[0]):
            prepare(block)
            continue
        for line in block:
            command = re.sub(r"\s+#.*$", "", line)
            count += 1
            start = time.monotonic()
            serve(command) if " serve " in command else run(command)
            print(f"{time.monotonic() - start:5.1f} s  {command}", flush=True)
    # In the text only those that name no FILE of the reader's.
    for command in re.findall(r"`((?:build/longreach|cmake|ninja|tools/(?!test))[^`]* [^`]+)`", re.sub(r"\n(?!\n)", " ", text)):
        if re.search(r"\b[A-Z]{3,}\b(?!_)", re.sub(r"LONGREACH_\w+|-D\w+=\w+", "", command)):
            continue
        count += 1
        start = time.monotonic()
        run(command)
        print(f"{time.monotonic() - start:5.1f} s  {command}", flush=True)
    if count < 19:
        problem(f"only {count} commands were found in README.md")
    options_of_the_table((SOURCE / "runs/README.md").read_text())


def options_of_the_table(text):
    """Each command of the table of runs/README.md has the options that its row names."""
    rows = re.findall(r"^\| (`longreach .*) \|$", text, re.M)
    if len(rows) < 12:
        problem(f"only {len(rows)} rows of the table of commands were found")
    for row in rows:
        names = re.findall(r"`(?:longreach )?([a-z][a-z-]*)[ `]", row.split(" | ")[0])
        for name, words in re.findall(r"`longreach ([a-z]+) ((?:[a-z-]+\\\|)+[a-z-]+)`", row):
            names += [f"{name} {word}" for word in words.split("\\|")]
        helps = "".join(run(f"longreach {name} --help") for name in names)
        for option in re.findall(r"--[a-z][a-z-]+", row):
            if option not in helps:
                problem(f"README's row of {', '.join(names)} names {option}, which none of them has")


def typed_wrong():
    """A command, an option, a word, a config, a field, a run, a law: the exit code, and what was meant."""
    for command, code, said in (
            ("trian my.json", 2, "did you mean train?"),
            ("config shw", 2, "did you mean show?"),
            ("train --dryrun configs/cpu.json", 2, "did you mean --dry-run?"),
            ("train configs/quickstart/rop.json", 2, "did you mean configs/quickstart/rope.json?"),
            ("train configs/quickstart/rope.json --set model.layer=2", 2, "did you mean model.layers?"),
            ("train configs/quickstart/rope.json --set model.norm.kind=rsm", 2, "did you mean rms?"),
            ("config explain model.atention", 2, "did you mean model.attention?"),
            ("sweep configs/reproduce/rival_cpu.json", 2, "did you mean configs/reproduce/rivals_cpu.json?"),
            ("sweep configs/reproduce/rivals_cpu.json --only ropee", 2, "did you mean rope?"),
            ("laws logm", 2, "did you mean logn?"),
            ("theory al", 2, "did you mean all?"),
            ("man trian", 2, "did you mean train?"),
            ("export runs/smal --hf hf", 4, "did you mean runs/small?"),
            ("eval runs/smal", 4, "did you mean runs/small?"),
            ("probe runs/smal", 4, "did you mean runs/small?"),
            ("report runs/smal", 3, "did you mean runs/small?"),
            ("eval", 2, "hint: longreach eval --help"),
            ("export runs/small", 2, "--hf is required"),
            ("eval runs/small --lengths 64,x", 2, "--lengths"),
            ("eval runs/small --rope yam", 2, "did you mean yarn?")):
        output = run(f"{PROGRAM} {command}", code)
        if said not in output or not output.startswith("error: "):
            problem(f"longreach {command}: does not say {said}", output)
    shown = [block for block in blocks((SOURCE / "runs/README.md").read_text()) if "wrong.json" in block[0]]
    if len(shown) != 1:
        problem("runs/README.md does not show the messages about wrong.json once")
    for block in shown:
        prepare(block)


def small_config(name, steps):
    """A model that trains in a moment, and long enough to be interrupted."""
    pathlib.Path(f"{name}.json").write_text(json.dumps({
        "run": {"name": name}, "system": {"device": "cpu"},
        "model": {"layers": 1, "width": 32, "vocab_size": 257, "attention": {"heads": 2, "head_dim": 16}},
        "data": {"train": ["data/synth/train_*.bin"], "val": ["data/synth/val_*.bin"]},
        "stages": [{"steps": steps, "context": 64}], "batch": {"tokens": 512},
        "eval": {"every": 0, "lengths": [64, 128], "final_tokens": 1024}}))


def interrupted():
    small_config("small", 60)
    small_config("stopped", 1000)
    run(f"{PROGRAM} train small.json")
    train = subprocess.Popen([PROGRAM, "train", "stopped.json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    for line in train.stdout:
        said += line
        if re.match(r" *\d+/1000 ", line):
            train.send_signal(signal.SIGINT)
            break
    said += train.stdout.read()
    if train.wait() != 75 or "longreach train" not in said and "same command" not in said:
        problem(f"interrupted: exit code {train.returncode}, or not how to go on", said)
    step = re.findall(r"step_0*(\d+)", "\n".join(map(str, pathlib.Path("runs/stopped/checkpoints").iterdir())))
    said = run(f"{PROGRAM} train stopped.json --set stages.0.steps=1000")
    if not step or f"step {step[-1]}" not in said:
        problem(f"resumed: does not say that it goes on from step {step}", said)
    if "nothing" not in run(f"{PROGRAM} train stopped.json"):
        problem("a finished run that is trained again does not say that nothing is left to do")


def piped():
    for command in ("laws", "config reference", "config explain model.attention", "man train", "runs",
                    "report runs/small", "config show small.json"):
        output = run(f"set -o pipefail; {PROGRAM} {command} 2>&1 | head -1; [ ${{PIPESTATUS[0]}} -eq 0 -o ${{PIPESTATUS[0]}} -eq 141 ]")
        if len(output.splitlines()) != 1 or "error" in output:
            problem(f"longreach {command} | head -1", output)
    output = run(f"{PROGRAM} train small.json --fresh | head -1")
    if not pathlib.Path("runs/small/val.csv").exists() or "error" in output:
        problem("a run does not survive `| head -1`", output)
    run(f"COLUMNS=40 {PROGRAM} train small.json --fresh >to_file 2>&1")
    text = pathlib.Path("to_file").read_text()
    if "\x1b" in text or "\r" in text:
        problem("a file gets control characters", text)
    if not re.search(r"^ *60/60 .* eta ", text, re.M):
        problem("a file gets broken lines", text)


def on_terminal(command, width):
    """The rows that a terminal of that width shows, without colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS=str(width), TERM="xterm")
        os.execv(PROGRAM, [str(PROGRAM), *shlex.split(command)])
    output = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the end, under Linux
            break
        if not part:
            break
        output += part
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output.decode(errors="replace"))
    return code, re.split(r"[\r\n]+", text)


def narrow():
    for command, code in (
            ("--help", 0), ("train --help", 0), ("sweep --help", 0), ("eval --help", 0),
            ("train small.json --fresh", 0), ("train small.json --dry-run", 0),
            ("train configs/quickstart/scale_invariant.json --dry-run", 0),
            ("train configs/quickstart/rope.json --dry-run --set model.layer=2 --set model.attention.qk.kind=rmss", 2),
            ("eval runs/small --lengths 64,128 --tokens 512 --buckets --repeat", 0), ("eval runs/small --tasks needle --samples 2", 0),
            ("probe runs/small --lengths 64 --tokens 128", 0), ("generate runs/small --prompt a --tokens 4", 0),
            ("config explain", 0), ("config explain model.attention", 0), ("config explain eval.rope.kind", 0),
            ("config show configs/quickstart/scale_invariant.json", 0),
            ("config show configs/quickstart/rope.json --origins", 0),
            ("config diff configs/quickstart/rope.json configs/quickstart/alibi.json", 0),
            ("sweep configs/reproduce/rivals_cpu.json --dry-run", 0), ("sweep configs/reproduce/rivals.json --dry-run", 0),
            ("report runs/small", 0), ("report runs/small runs/stopped --html two.html", 0), ("runs", 0), ("laws", 0), ("laws logn", 0),
            ("laws --angle yarn", 0), ("trian", 2), ("data inspect data/synth", 0), ("data verify data/synth", 0)):
        ended, lines = on_terminal(command, WIDTH)
        wide = [line for line in lines if len(line) > WIDTH]
        if ended != code:
            problem(f"on a terminal: longreach {command}: exit code {ended}, not {code}", "\n".join(lines))
        if wide:
            problem(f"on a terminal of {WIDTH} columns: longreach {command}", "\n".join(wide[:5]))


def main():
    with tempfile.TemporaryDirectory() as directory:
        fresh_copy(pathlib.Path(directory))
        small = {"typed_wrong", "interrupted", "piped", "narrow"} & set(sys.argv[3:]) or not sys.argv[3:]
        if small:
            run(f"{PROGRAM} data synth --out data/synth --train-bytes 200000 --val-bytes 60000")
        chosen = sys.argv[3:] or ["interrupted", "typed_wrong", "piped", "narrow", "commands"]
        for part in chosen:
            start = time.monotonic()
            globals()[part]()
            print(f"{time.monotonic() - start:5.1f} s  {part}", flush=True)
        os.chdir("/")
    sys.exit(f"{len(problems)} problems" if problems else 0)


main()
