#!/usr/bin/env bash
# tools/h200-day on models of a second: it plans without data, trains what fits the hours, continues, stops in time and
# at a signal, and says which sweep failed.
#   tests/commands/h200_day_test.sh PROGRAM SOURCE
set -euo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "h200_day_test: $1" >&2; cat "$work/out" >&2; exit 1; }

mkdir "$work/tools"
cp "$2/tools/h200-day" "$work/tools"
cp -r "$2/configs" "$work"
cd "$work"
echo '{ "stages": [{ "steps": 2, "context": 64 }], "eval": { "lengths": [64, 128], "tokens": 256, "final_tokens": 256 } }' >tiny.json
day() { tools/h200-day --over configs/cpu.json --over configs/shrink.json --over tiny.json --only s0_c11_nope,s0_c08_decay \
    "$@" "$program" >out 2>&1; }

day --plan || fail "--plan asked for data"
[ "$(grep -c '^| `s0_c' out)" = 2 ] || fail "two studies were asked for"
mkdir text
for document in 1 2 3 4; do
    for line in $(seq 500); do echo "line $line of document $document: $((line * line % 97))"; done >text/$document.txt
done
"$program" data tokenize text --out data/quickstart --val-every 2 >out || fail "no corpus"

day --seeds 1 --hours 0 || fail "no hours"
grep -q 'left out.*s0_c08_decay' out || fail "studies began without hours"
day --seeds 1 || fail "seed 1"
for study in s0-c11-nope s0-c08-decay; do
    [ -e "runs/$study-cpu-shrink-tiny/report.html" ] || fail "$study has no report"
    [ -e "runs/$study-cpu-shrink-tiny/si.seed1/checkpoints/step_00000002" ] || fail "$study was not trained"
done
day --seeds 1,2 || fail "seed 2"
grep -q 'si.seed1  trained already' out || fail "what was trained was trained again"
grep -q 'si.seed2  trained 2 steps' out || fail "the second seed was left out"

# A signal to the script alone stops the sweep, which saves; nothing goes on behind it.
echo '{ "stages": [{ "steps": 100000, "context": 64 }] }' >long.json
tools/h200-day --over configs/cpu.json --over configs/shrink.json --over tiny.json --over long.json --only s0_c11_nope \
    --seeds 1 "$program" >out 2>&1 &
day=$!
for try in $(seq 300); do
    [ -s runs/s0-c11-nope-cpu-shrink-tiny-long/si.seed1/metrics.jsonl ] && break
    sleep 0.1
done
kill -TERM $day
wait $day || fail "a signal"
grep -q 'not finished: s0_c11_nope' out || fail "a stopped study was not named"
ls -d runs/s0-c11-nope-cpu-shrink-tiny-long/si.seed1/checkpoints/step_* >/dev/null || fail "nothing was saved"
! pgrep -f 'runs/s0-c11-nope-cpu-shrink-tiny-long/configs' >/dev/null || fail "a run goes on"

# A sweep that cannot start.
echo 'no shard' >data/quickstart/train_000000.bin
if day --seeds 1,2,3; then fail "a failed study passed"; fi
grep -q 'failed: ' out || fail "a failed study was not named"
