#!/usr/bin/env bash
# Every study of runs/reference is drawn again from its archive with the numbers of its tables.txt, keeping what was
# unpacked makes the same archive, and a damaged one is refused. What a page is drawn from is kept, metrics thinned; a
# run built from a tree with changes is refused.
#   tests/commands/kept_studies_test.sh PROGRAM SOURCE
set -euo pipefail
export LONGREACH=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "kept_studies_test: $1" >&2; exit 1; }
numbers() { grep -oE '[-+]?[0-9]+([.][0-9]+)?' "$1"; }
refused() { # message, arguments of keep_results
    local code=0 message=$1
    shift
    "$source/tools/keep_results" "$@" >"$work/said" 2>&1 || code=$?
    [ $code = 2 ] && grep -qF -- "$message" "$work/said" || fail "exit code $code, not 2 with '$message': $(cat "$work/said")"
}

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
    # Kept before such runs were refused; drawn all the same.
    if dirty=$(grep -lE '^  "commit": ".*[+]"' "$work/$name"/*/build.json | head -1) && [ -n "$dirty" ]; then
        refused "$(basename "$(dirname "$dirty")") was built from a tree with changes" "$work/$name" "$work/refused"
        [ ! -e "$work/refused" ] || fail "$name: refused and kept"
        continue
    fi
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

# A sweep with every file that a page is drawn from, and some that none is.
sweep=$work/made
mkdir "$sweep"
cp "$source/runs/reference/s3-needle-cpu/sweep.json" "$source/runs/reference/s3-needle-cpu/results.csv" "$sweep"
tar -xzf "$source/runs/reference/s3-needle-cpu/runs.tar.gz" -C "$sweep"
for run in "$sweep"/*.seed*; do
    mkdir -p "$run/eval/probed" "$run/eval/plain" "$run/sets/other" "$run/events" "$run/checkpoints/step_00000600"
    printf 'step,length,layer,head,bin,statistic,value,count\n600,256,0,0,0,entropy,1.5,9\n' | tee "$run/probe.csv" >"$run/eval/probed/probe.csv"
    printf 'step,length,by,bucket,loss,scored,fingerprint\n600,256,sequence,1,2.5,9,00aa\n' | tee "$run/positions.csv" >"$run/eval/plain/positions.csv"
    printf 'step,length,part,loss,standard_error,scored,from,to,judge,fingerprint,judge_name,parts\n' >"$run/eval/plain/key_tokens.csv"
    cp "$run/val.csv" "$run/sets/other"
    echo '{}' >"$run/eval/probed/request.json"
    touch "$run/log.txt" "$run/timing.jsonl" "$run/events/e" "$run/checkpoints/step_00000600/val.csv"
    seq -f '{"step":%g,"tokens":9,"context":256,"loss":1.5}' 1003 >"$run/metrics.jsonl"
done
(cd "$sweep" && find . -mindepth 2 -type f -not -name log.txt -not -name timing.jsonl -not -path '*/events/*' \
    -not -path '*/checkpoints/*' -printf '%P\n' | sort) >"$work/expected"
"$source/tools/keep_results" "$sweep" "$work/kept-made" >"$work/said"
kept_files() { tar -tzf "$work/kept-made/runs.tar.gz" | sort | grep / ; }
diff "$work/expected" <(kept_files) || fail "other files are kept"
grep -qE '^  probe.csv +24 files' "$work/said" && grep -qE '^  metrics.jsonl +12 files +[0-9.]+ KiB' "$work/said" || fail "the sizes are not said: $(cat "$work/said")"
steps=$(tar -xOzf "$work/kept-made/runs.tar.gz" rope.seed1/metrics.jsonl | grep -o '"step":[0-9]*' | grep -o '[0-9]*$')
[ "$steps" = "$(seq 1 10 1003; echo 1003)" ] || fail "metrics.jsonl is thinned to the steps $steps"
# Nor does --add lose them, of the runs added and of those kept before.
cp -r "$sweep" "$work/part"
rm -r "$work"/part/logn_rope.seed*
"$source/tools/keep_results" --add "$work/part" "$work/kept-made" >/dev/null
diff "$work/expected" <(kept_files) || fail "--add loses files"
# The version of a build can say it too.
sed -i 's/"version": "[^"]*"/"version": "0.1.0-dirty"/' "$work/part/rope.seed2/build.json"
refused "rope.seed2 was built from a tree with changes" --add "$work/part" "$work/kept-made"
refused "usage" --dirty "$work/part"
