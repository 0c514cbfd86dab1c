"""Every link of a document leads somewhere: links to files of the repository, links to headings, and the names of documents
in comments of sources.

    links.py ROOT
    links.py --self-test
"""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/site"))
from markdown import slug  # noqa: E402

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w./-])(?:configs|data|kernels|runs|src|tests|tools)/[\w./-]*\.md\b")
COMMENTED = (".cpp", ".h", ".cuh", ".cu", ".py", ".sh")


def files_of(root):
    try:
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, text=True,
                                capture_output=True, check=True).stdout.splitlines()
        return [root / f for f in listed if (root / f).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [f for f in root.rglob("*") if f.is_file() and not f.relative_to(root).parts[0].startswith("build")]


def prose(text):
    """The text without blocks and spans of code, whose brackets are no links; lines stay."""
    text = re.sub(r"^```.*?^```$", lambda m: "\n" * m.group().count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"^(?: {4}|\t)(?![ ]*[-|*]).*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors(text):
    """The names that GitHub gives to the headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    taken = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.M):
        slug(heading, taken)
    return taken


def problems(root):
    root = root.resolve()
    files = files_of(root)
    known = set(files) | {folder for f in files for folder in f.parents}
    texts = {f: f.read_text() for f in files if f.suffix == ".md"}
    headings = {f: anchors(text) for f, text in texts.items()}
    out = []
    for page, text in texts.items():
        for number, line in enumerate(prose(text).splitlines(), 1):
            for target in LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                if file not in known:
                    out.append(f"{page.relative_to(root)}:{number}: {target}: there is no such file")
                elif anchor and file in headings and anchor not in headings[file]:
                    out.append(f"{page.relative_to(root)}:{number}: {target}: there is no such heading")
    for source in files:
        if source.suffix not in COMMENTED or source == pathlib.Path(__file__).resolve():
            continue
        for name in set(NAMED.findall(source.read_text(errors="replace"))):
            if not (root / name).exists() and "tests" not in source.relative_to(root).parts:
                out.append(f"{source.relative_to(root)}: {name}: there is no such document")
    return out


def self_test():
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "data").mkdir()
        (root / "data/a.md").write_text("# One `two`, three\n\n## Again\n\n## Again\n\n    [code](no.md)\n")
        for good in ("[x](data/a.md)", "[x](data/a.md#one-two-three)", "[x](data/a.md#again-1)", "[x](data)", "[x](#top)",
                     "[`x`](data/a.md)", "`[x](no.md)`", "[x](https://no.md)", "```\n[x](no.md)\n```"):
            (root / "b.md").write_text("# Top\n\n" + good + "\n")
            assert not problems(root), (good, problems(root))
        for bad in ("[x](data/b.md)", "[x](data/a.md#two)", "[x](data/a.md#again-2)", "[x](#one-two-three)", "[`x`](a.md)"):
            (root / "b.md").write_text("# Top\n\n" + bad + "\n")
            assert len(problems(root)) == 1, bad
        (root / "b.md").unlink()
        (root / "c.h").write_text("// data/a.md and data/b.md\n")
        assert problems(root) == ["c.h: data/b.md: there is no such document"]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    out = problems(pathlib.Path(sys.argv[1]))
    print("\n".join(out) if out else "every link leads somewhere")
    sys.exit(bool(out))


main()
