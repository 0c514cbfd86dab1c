"""Every result in a document can be made again: each number with a decimal point and each interval "[a, b]" in README.md,
in runs/studies/*.md and in the verdicts of runs/README.md stands

- in tables.txt of a study of runs/reference, which tools/redraw makes again from its archive (the test kept_studies): of
  one that the page links to, for README and the verdicts of any;
- or in a file of tools/results that the same paragraph or row links to;
- or in runs/studies/numbers.txt, below the command that prints it.

A number with k decimals stands there if one of theirs, rounded to k decimals, is equal; a mean and its interval
have to be in one cell. A written sign counts; a number without one may be that of the difference turned round. Of "every
pair" both orders are there. Text in `code`, indented blocks of README, the addresses of links and identifiers such as
arXiv:2410.23771 are not results.
EXCEPTIONS lists what nothing makes again, and why; an exception that is no longer needed fails too.

    study_numbers.py ROOT [EXCEPTIONS]
    study_numbers.py --self-test
"""
import pathlib
import re
import sys
import tempfile
from decimal import Decimal

NUMBER = r"[-+]?\d+(?:\.\d+)?"
INTERVAL = rf"\[({NUMBER}), ({NUMBER})\]"
# A mean and its interval, an interval alone, a number with a decimal point.
WRITTEN = re.compile(rf"(?:(?<![\w.])({NUMBER})(?:%| points| nats)? )?{INTERVAL}|(?<![\w.])([-+]?\d+\.\d+)(?![\d]|\.\d)")
PAIR = re.compile(r"^\S.*? - \S")


def decimals(text):
    return len(text.partition(".")[2])


def rounds_to(written, value):
    """Whether the number of which `value` is the rounded form may, rounded to the digits of `written`, be `written`."""
    if decimals(value) < decimals(written):
        return Decimal(value) == Decimal(written)
    slack = Decimal(1).scaleb(-decimals(written)) / 2
    if decimals(value) > decimals(written):
        slack += Decimal(1).scaleb(-decimals(value)) / 2
    return abs(Decimal(written) - Decimal(value)) <= slack


def negative(text):
    return text[1:] if text[0] == "-" else "-" + text.lstrip("+")


def turned(values):
    """The same for the difference turned round: (mean, low, high), (low, high) or (number,)."""
    mean, ends = values[: len(values) % 2], values[len(values) % 2 :]
    return tuple(map(negative, mean)) + tuple(map(negative, reversed(ends)))


class Pool:
    """Numbers by their whole part, with what they stand next to."""

    def __init__(self):
        self.by_whole = {}

    def add(self, values):
        kind = len(values)
        self.by_whole.setdefault((kind, round(Decimal(values[0]))), set()).add(values)

    def read(self, text, pairs=False):
        for line in text.splitlines():
            both = pairs and PAIR.match(line)
            for m in WRITTEN.finditer(line):
                mean, low, high, number = m.groups()
                found = [(number,)] if number else [(mean, low, high), (low, high), (mean,)] if mean else [(low, high)]
                for values in found:
                    self.add(values)
                    if both:
                        self.add(turned(values))
        return self

    def has_exactly(self, values):
        whole = round(Decimal(values[0]))
        near = (self.by_whole.get((len(values), w), ()) for w in (whole - 1, whole, whole + 1))
        return any(all(map(rounds_to, values, known)) for group in near for known in group)

    def has(self, values):
        signed = values[0][0] in "+-"
        return self.has_exactly(values) or (not signed and self.has_exactly(turned(values)))


def results(line):
    """What a line says, without code, addresses and identifiers."""
    line = re.sub(r"`[^`]*`", " ", line.replace("\u2212", "-"))
    line = re.sub(r"\]\([^)]*\)", "]", line)
    return re.sub(r"\b(?:arXiv:|https?://)\S+", " ", line)


def pages(root):
    """(path, first line number, lines) of each page that is checked."""
    for path in sorted((root / "runs/studies").glob("*.md")):
        yield path, 1, path.read_text().splitlines()
    path = root / "README.md"
    # The command that makes a block again stands above it.
    yield path, 1, ["" if line.startswith("    ") else line for line in path.read_text().splitlines()]
    path = root / "runs/README.md"
    lines = path.read_text().splitlines()
    if "## Verdicts" in lines:
        first = lines.index("## Verdicts")
        rows = [i for i in range(first, len(lines)) if lines[i].startswith("|")]
        last = next(i for i in rows if not lines[i + 1 : i + 2] or not lines[i + 1].startswith("|"))
        for i in range(rows[0] + 2, last + 1):
            # The claim is the source's, the command and the minutes are not results.
            yield path, i + 1, ["|".join(re.split(r"(?<!\\)\|", lines[i])[2:4])]


def paragraph(lines, at):
    """The lines around one, up to empty ones; a row of a table stands alone."""
    if lines[at].startswith("|"):
        return lines[at]
    first = last = at
    while first > 0 and lines[first - 1].strip():
        first -= 1
    while last + 1 < len(lines) and lines[last + 1].strip():
        last += 1
    return "\n".join(lines[first : last + 1])


def linked(root, path, text):
    pool = Pool()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        file = (path.parent / target).resolve()
        if file.is_file() and (root / "tools/results").resolve() in file.parents:
            pool.read(re.sub(r"(?<=\d)K\b", "", file.read_text()))
    return pool


def read_exceptions(path):
    """{(file, number as written): reason}, from lines "file | number | reason"."""
    out = {}
    for line in path.read_text().splitlines() if path and path.exists() else []:
        if line.strip() and not line.startswith("#"):
            file, number, reason = (part.strip() for part in line.split("|", 2))
            assert reason, f"no reason: {line}"
            out[file, number] = reason
    return out


class Studies:
    """The pools of the tables of kept studies; each file is read once."""

    def __init__(self, root):
        self.files = {path: None for path in sorted((root / "runs/reference").glob("*/tables.txt"))}

    def pools(self, page):
        wanted = self.files
        if page.name != "README.md":
            targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
            wanted = [path for path in self.files if path in {(page.parent / target).resolve() for target in targets}]
        for path in wanted:
            self.files[path] = self.files[path] or Pool().read(path.read_text(), pairs=True)
        return [self.files[path] for path in wanted]


def problems(root, exceptions):
    root = root.resolve()
    studies, known = Studies(root), Pool()
    numbers = root / "runs/studies/numbers.txt"
    if numbers.exists():
        printed = numbers.read_text().partition("\n$")[2].splitlines()[1:]
        known.read("\n".join(line for line in printed if not line.startswith("$")))
    out, left = [], dict(exceptions)
    for path, first, lines in pages(root):
        tables = studies.pools(path)
        for i, line in enumerate(lines):
            own = linked(root, path, paragraph(lines, i))
            text = re.sub(r"(?<=\d)K\b", "", results(line))
            for m in WRITTEN.finditer(text):
                mean, low, high, number = m.groups()
                values = (number,) if number else (mean, low, high) if mean else (low, high)
                file = str(path.relative_to(root))
                if any(pool.has(values) for pool in (known, own, *tables)):
                    continue
                if (file, m.group().strip()) in exceptions:
                    left.pop((file, m.group().strip()), None)
                    continue
                out.append(f"{file}:{first + i}: nothing makes {m.group().strip()} again")
    return out + [f"{file}: {number} is not an exception any more" for file, number in left]


def self_test():
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for name in ("runs/studies", "runs/reference/s", "runs/reference/other", "tools/results"):
            (root / name).mkdir(parents=True)
        (root / "runs/reference/s/tables.txt").write_text(
            "loss at context     256\na   1.4503 \u00b10.0024/0.0299\n\nloss minus that at 256    1024\n"
            "a      +0.4447 [+0.2697, +0.6196]*\n\nloss, every pair   256\nb - a  -0.1813 [-0.2611, -0.1016]*\n")
        (root / "runs/reference/other/tables.txt").write_text("a  6.125\n")
        (root / "tools/results/t.md").write_text("46.5K tokens/s at 512\n")
        (root / "runs/studies/numbers.txt").write_text("Of 3.75.\n\n$ longreach --grid 3.25\nhalf 1.0163\n")

        def found(text, exceptions={}, verdict="done", readme=""):
            (root / "README.md").write_text(f"    4.125 in a block\n\n{readme}\n")
            (root / "runs/README.md").write_text(
                f"## Verdicts\n\n| claim 8.25 | verdict | result | command | minutes |\n|---|---|---|---|---:|\n"
                f"| of 9.75 | {verdict} | all | `x` | 1.5 |\n\nelse 7.75\n")
            (root / "runs/studies/s.md").write_text("[S](../reference/s/tables.txt)\n\n" + text + "\n")
            return problems(root, exceptions)

        for good in ("1.450", "1.4503 and 1.45", "0.181 [0.102, 0.261]", "+0.181 [0.102, 0.261]", "-0.181", "[-0.26, -0.10]",
                     "0.44 [0.27, 0.62]", "rises by +0.445", "1.016", "`9.99` arXiv:2410.23771", "version 1.2.3",
                     "46.5K tokens/s ([t](../../tools/results/t.md))", "\u22120.181 [\u22120.261, \u22120.102]"):
            assert not found(good), (good, found(good))
        for bad in ("1.451", "-1.450", "0.182 [0.102, 0.261]", "0.181 [0.102, 0.262]", "[0.102, 0.262]", "-0.44 [-0.62, -0.27]",
                    "0.181 [0.27, 0.62]", "3.25", "3.75", "46.5K tokens/s", "7 [1, 9]", "6.125"):
            assert found(bad), bad
        assert found("One\n\n| x | 1.4521 |") == ["runs/studies/s.md:5: nothing makes 1.4521 again"]
        assert found("", verdict="at 5.5") == ["runs/README.md:5: nothing makes 5.5 again"]
        assert not found("", verdict="at 6.125 and 0.181 [0.102, 0.261]")
        assert found("", readme="by 5.5") == ["README.md:3: nothing makes 5.5 again"]
        assert not found("", readme="by 6.125, at 46.5K ([t](tools/results/t.md))")
        excused = {("runs/studies/s.md", "5.5"): "why"}
        assert not found("5.5", excused) and found("", excused) == ["runs/studies/s.md: 5.5 is not an exception any more"]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1])
    exceptions = read_exceptions(pathlib.Path(sys.argv[2])) if len(sys.argv) > 2 else {}
    out = problems(root, exceptions)
    print("\n".join(out) if out else "every result is made again")
    sys.exit(bool(out))


main()
