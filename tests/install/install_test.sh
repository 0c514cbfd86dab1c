#!/usr/bin/env bash
# An installation: its files, the program in it, its manual and completions, and what `uninstall` leaves.
#
#   install_test.sh BUILD SOURCE [--packages]
#
# --packages: instead the Debian package and the wheel; exit code 77 without LONGREACH_LONG_TESTS.
set -euo pipefail
build=$(realpath "$1")
source=$(realpath "$2")
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export LONGREACH_INSTALL_LIST=$home/list # the user's own list stays
fail() {
    echo "$*"
    exit 1
}

# The program works where it lies, with nothing in its environment: trains, serves, trains on two ranks.
try_program() {
    local program=$1 work
    work=$(mktemp -d -p "$home")
    cd "$work"
    quietly() { env -i PATH="$PATH" "$program" "$@" >out 2>&1 || fail "$program $*: $? $(cat out)"; }
    quietly data synth --out data --train-bytes 100000 --val-bytes 30000
    cat >config.json <<'JSON'
{
  "run": { "name": "a" },
  "model": { "layers": 1, "width": 32, "vocab_size": 257, "attention": { "heads": 2, "head_dim": 16 } },
  "data": { "train": ["data/train_*.bin"], "val": ["data/val_*.bin"] },
  "stages": [{ "steps": 2, "context": 64 }],
  "batch": { "tokens": 256, "micro_tokens": 128 },
  "system": { "device": "cpu" },
  "eval": { "every": 2, "tokens": 256, "lengths": [64], "final_tokens": 256 }
}
JSON
    quietly train config.json
    grep -q . runs/a/val.csv || fail "no losses"
    if [ -e "$build/longreach_gloo.so" ]; then
        quietly train config.json --ranks 2 --set run.name=b
        cmp runs/a/val.csv runs/b/val.csv || fail "two ranks give another loss"
    fi
    env -i "$program" serve runs/a --port 0 >served 2>&1 &
    local server=$!
    until grep -q 'serving a at' served; do
        kill -0 "$server" 2>/dev/null || fail "serve: $(cat served)"
        sleep 0.05
    done
    kill "$server"
    wait "$server" || fail "serve ended with $?: $(cat served)"
    cd "$home"
}

if [ "${3:-}" = --packages ]; then
    [ -n "${LONGREACH_LONG_TESTS:-}" ] || exit 77
    if command -v dpkg-shlibdeps >/dev/null; then
        cpack --config "$build/CPackConfig.cmake" -G DEB -B "$home/packages" >"$home/out" 2>&1 || fail "$(cat "$home/out")"
        [ ! -e "$LONGREACH_INSTALL_LIST" ] || fail "cpack wrote the list of uninstall"
        deb=("$home"/packages/longreach_*.deb)
        dpkg-deb -f "${deb[0]}" Depends | grep -q 'libc6 (>=' || fail "the package does not depend on the C library"
        dpkg-deb -x "${deb[0]}" "$home/root"
        [ -x "$home/root/usr/bin/longreach" ] || fail "no program in ${deb[0]}"
        try_program "$home/root/usr/bin/longreach"
    fi
    if [ "$build" = "$source/build" ] && python3 -c "import pip, venv" 2>/dev/null; then
        "$source/tools/wheel" "$home"
        python3 -m venv "$home/venv"
        "$home/venv/bin/pip" install --quiet --no-index --no-deps "$home"/longreach-*.whl
        try_program "$home/venv/bin/longreach"
        "$home/venv/bin/python" -c "import importlib.metadata as m; m.version('longreach')"
    fi
    exit
fi

prefix="$home/a place"
cmake --install "$build" --prefix "$prefix" >"$home/out" || fail "$(cat "$home/out")"
installed() { (cd "$prefix" && find . -type f -printf '%P\n' | LC_ALL=C sort); }

# --- the files ----------------------------------------------------------------------------------------------------
program=$prefix/bin/longreach
{
    echo bin/longreach
    (cd "$build" && find . -maxdepth 1 -name 'longreach_*.so' -printf 'lib/longreach/%P\n')
    (cd "$source" && find configs -name '*.json' -printf 'share/longreach/%p\n' -o -name '*.bib' -printf 'share/longreach/%p\n')
    (cd "$source" && find configs data/formats runs/studies src -name '*.md' -printf 'share/doc/longreach/%p\n')
    printf 'share/doc/longreach/%s\n' README.md CHANGELOG.md SECURITY.md CITATION.cff LICENSE \
        data/{README,MODELS,FINEWEB}.md runs/README.md runs/reference/noise-floor/loss.svg
    echo share/bash-completion/completions/longreach
    echo share/zsh/site-functions/_longreach
    echo share/fish/vendor_completions.d/longreach.fish
    "$program" man --list | sed 's|\(.*\)\(.\)$|share/man/man\2/\1\2|'
} | LC_ALL=C sort >"$home/expected"
installed | diff "$home/expected" - || fail "other files than expected (above)"
if grep -rlaF -e "$source/src/" -e "$source/kernels/" -e "$build/" "$prefix"; then fail "names the directory of the sources"; fi

# --- moved, the program finds its modules -------------------------------------------------------------------------
cp -a "$prefix" "$home/moved"
try_program "$home/moved/bin/longreach"

# --- completions: the scripts are well formed, and bash offers what the program says ---------------------------------
PATH="$prefix/bin:$PATH"
# shellcheck source=/dev/null
. "$prefix/share/bash-completion/completions/longreach"
offered() { # words of a command line, the last one unfinished
    COMP_WORDS=(longreach "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    "$(complete -p longreach | sed 's/.*-F \([^ ]*\).*/\1/')" longreach "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
    echo "${COMPREPLY[*]}"
}
same() { [ "$1" = "$2" ] || fail "offered '$1' instead of '$2'"; }
COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
commands=$("$program" --help | sed -n '/^Subcommands:/,$s/^  \([a-z][a-z-]*\) .*/\1/p' | tr '\n' ' ')
same "$(offered '') " "$commands"
same "$(offered train --dry)" "--dry-run"
same "$(offered train --set model.norm.k)" "model.norm.kind="
same "$(offered train --set model.norm.kind =)" "rms layer"
same "$(offered train --set model.norm.kind = l)" "layer"
same "$(offered serve run --prompt-cache = p)" "prefix"
same "$(offered serve run --prompt-cache p)" "prefix"
same "$(offered train '')" "" # files, by bash itself
if command -v zsh >/dev/null; then zsh -n "$prefix/share/zsh/site-functions/_longreach"; fi
if command -v fish >/dev/null; then fish -n "$prefix/share/fish/vendor_completions.d/longreach.fish"; fi

# --- manual ---------------------------------------------------------------------------------------------------------
if command -v groff >/dev/null; then
    for page in "$prefix"/share/man/man*/*; do
        warnings=$(groff -man -ww -z -K utf8 "$page" 2>&1) || fail "$page: $warnings"
        [ -z "$warnings" ] || fail "$warnings"
    done
fi

# --- uninstall: foreign and changed files stay ------------------------------------------------------------------------
echo '{}' >"$prefix/share/longreach/configs/mine.json"
mkdir "$prefix/share/longreach/mine"
echo mine >>"$prefix/share/longreach/configs/cpu.json"
cp "$prefix/share/doc/longreach/README.md" "$home/copy"
ln -sf "$home/copy" "$prefix/share/doc/longreach/README.md"
rm "$prefix/share/doc/longreach/LICENSE" "$prefix/lib/longreach/"*
mkdir "$prefix/share/doc/longreach/LICENSE"
echo "$home/moved/bin/longreach" >"$prefix/bin/other"
sh "$source/cmake/uninstall.sh" "$LONGREACH_INSTALL_LIST" >"$home/out"
grep -q '3 kept' "$home/out" || fail "$(cat "$home/out")"
same "$(installed | tr '\n' ' ')" "bin/other share/longreach/configs/cpu.json share/longreach/configs/mine.json "
for kept in share/doc/longreach/README.md share/doc/longreach/LICENSE share/longreach/mine share/man/man1 lib; do
    [ -e "$prefix/$kept" ] || fail "uninstall removed $kept"
done
[ ! -e "$prefix/share/longreach/configs/si162" ] || fail "uninstall left an empty directory of its own"
cmake --install "$build" --prefix "$home/again" >"$home/out"
sh "$source/cmake/uninstall.sh" "$LONGREACH_INSTALL_LIST" >"$home/out"
[ -z "$(find "$home/again" -type f)" ] || fail "uninstall left files"
if sh "$source/cmake/uninstall.sh" "$LONGREACH_INSTALL_LIST" 2>"$home/out"; then fail "uninstalled twice"; fi
