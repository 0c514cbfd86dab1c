#!/usr/bin/env bash
# Every study of runs/reference is drawn again from its archive with the numbers of its tables.txt, keeping what was
# unpacked makes the same archive, and a damaged one is refused.
#   tests/commands/kept_studies_test.sh PROGRAM SOURCE
set -euo pipefail
export LONGREACH=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "kept_studies_test: $1" >&2; exit 1; }
numbers() { grep -oE '[-+]?[0-9]+([.][0-9]+)?' "$1"; }

studies=0
for study in "$source"/runs/reference/*/; do
    name=$(basename "$study")
    "$source/tools/redraw" "$study" "$work/page"
    grep -q '</html>' "$work/page/report.html" || fail "$name: the page has no end"
    cmp <(numbers "$study/tables.txt") <(numbers "$work/page/tables.txt") || fail "$name: other numbers"
    rm -r "$work/page"

    mkdir "$work/$name"
    cp "$study/sweep.json" "$study/results.csv" "$work/$name"
    tar -xzf "$study/runs.tar.gz" -C "$work/$name"
    "$source/tools/keep_results" "$work/$name" "$work/kept" >/dev/null
    diff -r -x tables.txt -x loss.svg "$study" "$work/kept" || fail "$name: kept again, it differs"

    # A part of the study, kept with --add, replaces its own runs and leaves the others.
    python3 - "$work/$name" <<'END'
import csv, json, pathlib, shutil, sys
sweep = pathlib.Path(sys.argv[1])
listed = json.loads((sweep / "sweep.json").read_text())
one = listed["runs"][0]["variant"]
listed["runs"] = [run for run in listed["runs"] if run["variant"] == one]
(sweep / "sweep.json").write_text(json.dumps(listed))
for run in sweep.glob("*.seed*"):
    if run.name.rpartition(".seed")[0] != one:
        shutil.rmtree(run)
for table in sweep.glob("results*.csv"):
    rows = list(csv.reader(table.open(newline="")))
    csv.writer(table.open("w", newline="")).writerows(r for r in rows if r[0] in ("variant", one))
END
    "$source/tools/keep_results" --add "$work/$name" "$work/kept" >/dev/null
    cmp "$study/runs.tar.gz" "$work/kept/runs.tar.gz" || fail "$name: a part added to it changes the archive"
    cmp "$study/results.csv" "$work/kept/results.csv" || fail "$name: a part added to it changes the results"
    cmp <(numbers "$study/tables.txt") <(numbers "$work/kept/tables.txt") || fail "$name: a part added to it changes the tables"

    # So does one measured by a version with a further column, which stays empty for the other runs.
    if [ $studies = 0 ]; then
        python3 - "$work/$name/results.csv" <<'END'
import csv, sys
header, *rows = csv.reader(open(sys.argv[1], newline=""))
at = header.index("top1") + 1
rows = [header[:at] + ["newer"] + header[at:]] + [row[:at] + ["0.5"] + row[at:] for row in rows]
csv.writer(open(sys.argv[1], "w", newline="")).writerows(rows)
END
        cp -r "$work/kept" "$work/wider"
        "$source/tools/keep_results" --add "$work/$name" "$work/wider" >/dev/null
        python3 - "$study/results.csv" "$work/wider/results.csv" "$work/$name/results.csv" <<'END' || fail "$name: a new column"
import csv, sys
earlier, joined, part = (list(csv.DictReader(open(path, newline=""))) for path in sys.argv[1:])
assert len(joined) == len(earlier)
for row, before in zip(joined, earlier):
    assert row.pop("newer") == ("0.5" if row["variant"] == part[0]["variant"] else "") and row == before, row
END
    fi

    printf 'damaged!' | dd of="$work/kept/runs.tar.gz" bs=1 seek=1000 conv=notrunc status=none
    if "$source/tools/redraw" "$work/kept" "$work/page" 2>/dev/null; then fail "$name: a damaged archive was drawn"; fi
    [ ! -e "$work/page" ] || fail "$name: a damaged archive left files"
    mkdir "$work/other" && echo mine >"$work/other/notes"
    if "$source/tools/keep_results" "$work/$name" "$work/other" 2>/dev/null; then fail "$name: another directory was replaced"; fi
    [ "$(cat "$work/other/notes")" = mine ] || fail "$name: another directory was touched"
    rm -r "$work/other"
    studies=$((studies + 1))
done
[ $studies -ge 3 ] || fail "$studies studies"
