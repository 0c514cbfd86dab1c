#!/usr/bin/env bash
# tools/release in a small repository whose builder and packers are stand-ins: what it makes, and every reason to refuse.
#
#   release_test.sh SOURCE
set -euo pipefail
source=$(realpath "$1")
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
fail() {
    echo "$*"
    exit 1
}

mkdir "$home/bin"
PATH=$home/bin:$PATH
stand_in() { # PATH, its text on standard input
    { echo '#!/usr/bin/env bash' && cat; } >"$1"
    chmod +x "$1"
}
stand_in "$home/bin/cmake" <<'SH'
mkdir -p build
printf '#!/bin/sh\necho "longreach %s (commit %s)"\n' "${PROGRAM_VERSION:-1.2.3}" "$(git rev-parse --short=12 HEAD)" >build/longreach
chmod +x build/longreach
SH
stand_in "$home/bin/cpack" <<'SH'
[ "$3" = -B ] && echo >"$4/longreach-${PACKAGE_VERSION:-1.2.3}-Linux.tar.gz"
SH

tree=$home/tree
mkdir -p "$tree"/{tools/python/src/longreach,tests/architecture,tests/commands}
cd "$tree"
git init --quiet
cp "$source"/tools/{release,lanes} tools
for check in tests/architecture/{check,format}.sh; do echo true >"$check"; done
for check in tests/architecture/{map,links}.py tests/commands/study_numbers.py tools/roofline; do echo >"$check"; done
stand_in tools/wheel <<'SH'
python3 -c "import sys, zipfile
zipfile.ZipFile(sys.argv[1] + '/longreach-1.2.3-py3-none-any.whl', 'w').writestr('l.dist-info/METADATA', 'Version: $WHEEL_VERSION')" "$1"
SH
export WHEEL_VERSION=1.2.3
echo build >.gitignore
echo 'project(longreach VERSION 1.2.3 LANGUAGES CXX)' >CMakeLists.txt
printf 'version: 1.2.3\ndate-released: 2026-01-02\n' >CITATION.cff
echo 'version = "1.2.3"' >tools/python/src/longreach/_version.py
printf '# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-02\n\nIt trains.\n\n## 1.2.2 - 2026-01-01\n\nOlder.\n' >CHANGELOG.md
git add -A
git commit --quiet -m one

# expect TEXT [ARGUMENT...]: refused with a line that contains TEXT, without a tag.
expect() {
    local text=$1 output
    shift
    if output=$(tools/release "$@" 2>&1); then fail "accepted, expected: $text"; fi
    grep -qF -- "$text" <<<"$output" || fail "expected: $text, got: $output"
    [ "$(git tag)" = "${tagged:-}" ] || fail "a tag in spite of: $text"
}
# changed FILE SED-EXPRESSION TEXT: refused with TEXT after that change is committed.
changed() {
    sed -i "$2" "$1"
    git commit --quiet -am changed
    expect "$3" --dry-run
    git reset --quiet --hard HEAD~
}

tools/release --dry-run >"$home/out" || fail "dry run: $(cat "$home/out")"
grep -q '^due before the release: tools/test --lanes ".*core' "$home/out" || fail "names no tests: $(cat "$home/out")"
grep -qx "would run: git tag -a v1.2.3 -m 'longreach 1.2.3' HEAD" "$home/out" || fail "prints no tag: $(cat "$home/out")"
(cd build/release && sha256sum --quiet --check SHA256SUMS)
[ "$(cat build/release/notes.md)" = "It trains." ] || fail "notes: $(cat build/release/notes.md)"
[ "$(wc -l <build/release/SHA256SUMS)" = 3 ] || fail "$(cat build/release/SHA256SUMS)"
tar -xzOf build/release/longreach-1.2.3.tar.gz longreach-1.2.3/CITATION.cff | cmp - CITATION.cff
[ -z "$(git tag)" ] || fail "a dry run tags"

echo new >new
expect "not committed: new" --dry-run
rm new
changed CITATION.cff 's/1.2.3/1.2.4/' "CITATION.cff: 1.2.4, not 1.2.3"
changed CITATION.cff 's/-02/-03/' "CITATION.cff: 2026-01-03, not 2026-01-02"
changed CMakeLists.txt 's/1.2.3/1.3.0/' "CHANGELOG.md: the newest section with text is '1.2.3', not '1.3.0 - YYYY-MM-DD'"
changed CHANGELOG.md 's/Unreleased/&\n\nMore./' "the newest section with text is 'Unreleased'"
changed tools/python/src/longreach/_version.py 's/1.2.3/1.0.0/' "_version.py: 1.0.0, not 1.2.3"
changed tests/architecture/check.sh 's/true/echo wrong; exit 1/' "check.sh .: exit code 1"
changed tests/commands/study_numbers.py 's/^/exit("a number")/' "a number"
PROGRAM_VERSION=1.2.2 expect "longreach 1.2.2 (commit" --dry-run
PACKAGE_VERSION=1.2.2 expect "longreach-1.2.2-Linux.tar.gz: version 1.2.2, not 1.2.3" --dry-run
WHEEL_VERSION=1.2.2 expect "none-any.whl: version 1.2.2, not 1.2.3" --dry-run
expect "Makes a release" --dry

# A release: every lane has passed, and a version is released once.
expect "not tested on these files"
read -ra lanes <<<"$(tools/lanes --stale)"
tools/lanes --record "${lanes[@]}"
git add -A
git commit --quiet -m tested
tools/release >"$home/out" || fail "$(cat "$home/out")"
[ "$(git cat-file -t v1.2.3)" = tag ] || fail "no tag: $(cat "$home/out")"
[ "$(git rev-parse 'v1.2.3^{commit}')" = "$(git rev-parse HEAD)" ] || fail "tags another commit"
tagged=v1.2.3
expect "the tag v1.2.3 exists"
