#!/usr/bin/env bash
# Runs every command of the program once on small input. In a build without optimisation, where no inlining hides
# which definition of a name the linker chose, this finds what a test of one layer cannot.
#
#   every_command.sh PROGRAM
set -euo pipefail
program=$(realpath "$1")
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
cd "$home"
covered=()
# longreach COMMAND ARGUMENTS...: its output is shown only if it fails.
longreach() {
    covered+=("$1")
    "$program" "$@" >out 2>&1 && return
    echo "longreach $*: exit code $?"
    cat out
    exit 1
}

longreach data synth --out data --train-bytes 200000 --val-bytes 60000
cat >config.json <<'JSON'
{
  "run": { "name": "a" },
  "model": { "layers": 2, "width": 32, "vocab_size": 257, "attention": { "heads": 2, "head_dim": 16 } },
  "data": { "train": ["data/train_*.bin"], "val": ["data/val_*.bin"] },
  "stages": [{ "steps": 4, "context": 64 }],
  "batch": { "tokens": 512 },
  "eval": { "every": 2, "tokens": 1024, "lengths": [64, 128], "final_tokens": 1024 }
}
JSON
cat >sweep.json <<'JSON'
{ "name": "s", "variants": [{ "name": "v", "config": "config.json" }], "seeds": [1, 2] }
JSON
mkdir text && printf 'one\ntwo\n' >text/file.txt
longreach data tokenize text --out tokens
# A program without PCRE2 has no tokenizers and says so.
if "$program" data train-tokenizer text --vocab 260 --out tokenizer.json >out 2>&1; then
    for i in $(seq 40); do printf 'one two three %d\n' "$i" >"text/$i.txt"; done
    longreach data tokenize text --tokenizer tokenizer.json --val-every 4 --out learned_tokens
    learned=yes
else
    grep -q "without PCRE2" out || { cat out; exit 1; }
fi
longreach data inspect data
longreach data verify data
longreach config show config.json --origins
longreach config schema
longreach config schema --sweep
longreach config explain model.attention
longreach config diff config.json config.json
longreach config reference
longreach train config.json --dry-run
longreach train config.json
longreach train config.json --set run.name=b --ranks 1
longreach sweep sweep.json
longreach eval runs/a --lengths 64,128 --tokens 1K --buckets --repeat --label again
longreach eval runs/a --tasks needle --lengths 256 --samples 2 --label tasks
longreach probe runs/a --lengths 64 --tokens 128
longreach generate runs/a --prompt "the " --tokens 8
# A server runs until it is told to stop.
covered+=(serve)
"$program" serve runs/a --port 0 >served 2>&1 &
server=$!
until grep -q 'serving a at' served; do
    kill -0 "$server" 2>/dev/null || { cat served; exit 1; }
    sleep 0.1
done
kill "$server" && wait "$server" || { cat served; exit 1; }
longreach train config.json --set run.name=c --set model.embedding_norm=false --set model.norm.gain=true \
    --set model.mlp.kind=swiglu --set model.attention.qk.kind=none
longreach export runs/c --hf hf
longreach import hf -o runs/d
if [ -n "${learned:-}" ]; then
    longreach train config.json --set run.name=e --set model.vocab_size=260 --set 'data.train=["learned_tokens/train_*"]' \
        --set 'data.val=["learned_tokens/val_*"]'
    longreach generate runs/e --prompt "one two" --tokens 4
    longreach export runs/e --hf hf_code
    longreach import hf_code -o runs/f
    longreach generate runs/f --prompt "one two" --tokens 4
fi
longreach eval runs/d --data "data/val_*.bin" --lengths 64 --tokens 1K
longreach report runs/a runs/b --html page.html --svg chart.svg --figures paper
longreach report runs/s
longreach runs
longreach laws
longreach laws logn "z - slope*t" --param slope=0.1 --n 16,64 --samples 2 --out laws
longreach theory all --n 16,64 --d 16 --samples 4 --grid 4 --out theory
longreach bench config.json --steps 1 --contexts 64
longreach bench config.json --steps 1 --contexts 64 --on-request <<<"go"
grep -q '^[0-9.]* threads waited' out || { echo "bench did not answer a line"; exit 1; }
longreach bench-attention --lengths 64 --head-dims 16 --rounds 1 --width 32 --tokens 64
longreach doctor
longreach completion bash
longreach completion words -- train --set model.
longreach man
longreach man fields
longreach --help
# ranks needs the logs of several ranks, which not every build can train; it must refuse this run in its own words.
if "$program" ranks runs/a >out 2>&1; then echo "ranks found logs of one rank"; exit 1; fi
covered+=(ranks)

for name in $("$program" --help | sed -n '/^Subcommands:/,$s/^  \([a-z][a-z-]*\) .*/\1/p'); do
    [[ " ${covered[*]} " == *" $name "* ]] || { echo "not run: longreach $name"; exit 1; }
done
