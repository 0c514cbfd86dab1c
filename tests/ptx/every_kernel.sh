#!/usr/bin/env bash
# Every kernel of the emitted PTX was run: each test wrote the kernels that it ran to a file of its own, LONGREACH_PTX_RECORD.
#   every_kernel.sh PTX_DIRECTORY RECORD_DIRECTORY RECORD...
set -euo pipefail
sources=$(realpath "$(dirname "$0")/../../kernels/cuda")
ptx=$(realpath "$1") records=$(realpath "$2")
shift 2
# Kernels that no test runs: "SOURCE ENTRY", an extended regular expression, with the reason beside it.
excused=()

for source in "$sources"/*.cu; do
    name=$(basename "$source" .cu)
    grep -oE "^[^/]*\.entry [A-Za-z0-9_]+" "$ptx/$name.ptx" | sed "s/.*\.entry /$name /"
done | sort -u > "$records/emitted"
(cd "$records" && cat "$@") | sort -u > "$records/run"
missing=$(comm -23 "$records/emitted" "$records/run")
for entry in "${excused[@]}"; do
    if ! grep -qE "^$entry\$" <<< "$missing"; then
        echo "excused, but run: $entry"
        exit 1
    fi
    missing=$(grep -vE "^$entry\$" <<< "$missing" || true)
done
echo "$(wc -l < "$records/emitted") kernels of $(cut -d' ' -f1 "$records/emitted" | uniq | wc -l) sources"
[ -z "$missing" ] || { echo "run by no test:"; c++filt <<< "$missing"; exit 1; }
