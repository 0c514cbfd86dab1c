#!/usr/bin/env python3
"""The drawing of src/README.md: the layers of check.sh and what each includes, from the sources.

    map.py ROOT             prints it
    map.py ROOT --check     fails if src/README.md holds another one
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"/]+)/', re.M)


def layers(root):
    """Folder -> number of its layer."""
    text = (root / "tests/architecture/check.sh").read_text()
    table = re.search(r"declare -A layer=\((.*?)\n?\)\n", text, re.S).group(1)
    return {name: int(number) for name, number in re.findall(r"\[([\w.]+)\]=(\d+)", table)}


def included(root, folder, known):
    place = root / folder if folder == "kernels" else root / "src" / folder
    files = [place] if place.is_file() else [f for f in place.rglob("*") if f.suffix in (".h", ".cpp")]
    if folder == "kernels":
        files = [f for f in files if f.parent == place]
    names = {name for f in files for name in INCLUDE.findall(f.read_text())}
    return sorted(names & set(known) - {folder, "base"}, key=lambda n: (-known[n], n))


def drawing(root):
    known = layers(root)
    order = sorted(known, key=lambda n: (-known[n], n))
    width = max(map(len, order))
    lines, last = [], None
    for name in order:
        number = "" if known[name] == last else known[name]
        last = known[name]
        lines.append(f"{number!s:>2}  {name:{width}}  {' '.join(included(root, name, known))}".rstrip())
    return "\n".join(lines) + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    wanted = drawing(root)
    if sys.argv[2:] != ["--check"]:
        print(wanted, end="")
        return
    page = (root / "src/README.md").read_text()
    if f"```\n{wanted}```\n" not in page:
        print("src/README.md: its drawing is not the one that tests/architecture/map.py prints:\n" + wanted)
        sys.exit(1)


main()
